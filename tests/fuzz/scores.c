/* tokenizer.bin and a text, in one input: a byte of options, two of the length
   of the file's part, the file, the text. Unless an option says otherwise, the
   first 259 tokens are put before what the input has. */
#include <stdio.h>
#include "round_trip.h"

enum { RAW = 4, FIRST = 4096 };

static size_t put(uint8_t *out, size_t at, const char *text)
{
    const size_t length = strlen(text);
    memset(out + at, 0, 8);
    out[at + 4] = (uint8_t)length;
    memcpy(out + at + 8, text, length);
    return at + 8 + length;
}

static size_t first_tokens(uint8_t *out)
{
    char name[8];
    memcpy(out, "\x20\0\0\0", 4);
    size_t at = put(out, 4, "<unk>");
    at = put(out, put(out, at, "\n<s>\n"), "\n</s>\n");
    for (unsigned k = 0; k < 256; k++) {
        snprintf(name, sizeof name, "<0x%02X>", k & 0xFF);
        at = put(out, at, name);
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct error error;
    struct tokenizer *tokenizer = NULL;
    if (size < 3)
        return 0;
    const int options = data[0] & TOKENIZER_BEGIN;
    const bool raw = (data[0] & RAW) != 0;
    size_t length = (size_t)data[1] | (size_t)data[2] << 8;
    data += 3, size -= 3;
    length = length < size ? length : size;
    uint8_t *file = malloc(FIRST + length);
    MUST(file != NULL);
    const size_t before = raw ? 0 : first_tokens(file);
    memcpy(file + before, data, length);
    /* without a byte to spare, for the sanitizer to watch */
    uint8_t *exact = malloc(before + length + (before + length == 0));
    MUST(exact != NULL);
    memcpy(exact, file, before + length);
    if (tokenizer_of_scores(&tokenizer, exact, before + length, 0, &error)
        == STATUS_OK)
        round_trip(tokenizer, data + length, size - length, options);
    tokenizer_close(&tokenizer);
    free(exact);
    free(file);
    return 0;
}
