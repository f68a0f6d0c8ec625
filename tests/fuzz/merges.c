/* vocab.json, merges.txt and a text, in one input: a byte of options, then
   three parts with 0xFF between them. Unless an option says otherwise, the
   256 bytes are put before the tokens of the first part. */
#include <stdio.h>
#include "round_trip.h"

enum { RAW = 4 };

/* The input up to a byte 0xFF, and behind it. */
static size_t part(const uint8_t *data, size_t size, size_t *behind)
{
    const uint8_t *mark = size == 0 ? NULL : memchr(data, 0xFF, size);
    const size_t length = mark == NULL ? size : (size_t)(mark - data);
    *behind = mark == NULL ? size : length + 1;
    return length;
}

/* {"!": 0, … with all bytes, and the number of them behind it */
static size_t all_bytes(char *out)
{
    size_t at = 0;
    int next = 256;
    out[at++] = '{';
    for (int k = 0; k < 256; k++) {
        const bool seen = (k > 32 && k < 127) || (k > 160 && k != 173);
        const int code = seen ? k : next++;
        if (code == '"' || code == '\\')
            at += (size_t)sprintf(out + at, "\"\\%c\": %d", code, k);
        else if (code < 128)
            at += (size_t)sprintf(out + at, "\"%c\": %d", code, k);
        else
            at += (size_t)sprintf(out + at, "\"%c%c\": %d", 0xC0 | code >> 6,
                                  0x80 | (code & 0x3F), k);
        out[at++] = ',';
    }
    return at;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char bytes[256 * 16];
    static size_t bytes_length;
    struct error error;
    struct tokenizer *tokenizer = NULL;
    size_t behind;
    if (size < 1)
        return 0;
    if (bytes_length == 0)
        bytes_length = all_bytes(bytes);
    const int options = data[0] & (TOKENIZER_BEGIN | TOKENIZER_SPECIAL);
    const size_t before = (data[0] & RAW) != 0 ? 0 : bytes_length;
    data++, size--;
    const size_t tokens = part(data, size, &behind);
    char *vocab = malloc(before + tokens + 1);
    MUST(vocab != NULL);
    memcpy(vocab, bytes, before);
    memcpy(vocab + before, data, tokens);
    size_t length = before + tokens;
    if (before > 0 && tokens == 0)
        vocab[length - 1] = '}';
    else if (before > 0)
        vocab[length++] = '}';
    data += behind, size -= behind;
    const size_t merges = part(data, size, &behind);
    if (tokenizer_of_merges(&tokenizer, vocab, length, (const char *)data,
                            merges, &error) == STATUS_OK)
        round_trip(tokenizer, data + behind, size - behind, options);
    tokenizer_close(&tokenizer);
    free(vocab);
    return 0;
}
