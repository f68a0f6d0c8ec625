#include "byte_alphabet.h"
#include <stdint.h>
#include "utf8.h"

enum { BYTES = 256, ALPHABET_END = 324, NO_BYTE = -1 };

static void give_characters(int16_t *byte_of)
{
    int next = BYTES;
    for (int code = 0; code < ALPHABET_END; code++)
        byte_of[code] = NO_BYTE;
    for (int byte = 0; byte < BYTES; byte++) {
        const bool visible = (byte >= '!' && byte <= '~')
            || (byte >= 0xA1 && byte <= 0xFF && byte != 0xAD);
        byte_of[visible ? byte : next++] = (int16_t)byte;
    }
}

static int read_character(const int16_t *byte_of, const unsigned char *text,
                          size_t length, size_t *at)
{
    const unsigned char *from = text + *at;
    const int size = utf8_next(from, length - *at);
    if (size != 1 && size != 2)
        return NO_BYTE;
    const int code = size == 1 ? from[0]
        : (from[0] & 0x1F) << 6 | (from[1] & 0x3F);
    *at += (size_t)size;
    return code < ALPHABET_END ? byte_of[code] : NO_BYTE;
}

bool byte_alphabet_read(const unsigned char *text, size_t length,
                        unsigned char *bytes, size_t *count)
{
    int16_t byte_of[ALPHABET_END];
    size_t at = 0, made = 0;
    give_characters(byte_of);
    while (at < length) {
        const int byte = read_character(byte_of, text, length, &at);
        if (byte == NO_BYTE)
            return false;
        bytes[made++] = (unsigned char)byte;
    }
    *count = made;
    return true;
}
