/* Any text, through three tokenizers that are made once: of bytes, of merges,
   of scores. A byte of options, then the text. */
#include <stdio.h>
#include "round_trip.h"

static size_t add(char *out, size_t at, const char *text, int id)
{
    return at + (size_t)sprintf(out + at, "%s\"%s\": %d", id == 0 ? "{" : ",",
                                text, id);
}

/* 256 bytes, then words that the lines make one from the other. */
static struct tokenizer *of_merges(void)
{
    static const char *const lines[][3] = {
        {"a", "b", "ab"}, {"ab", "c", "abc"}, {"a", "a", "aa"},
        {"aa", "aa", "aaaa"}, {"\xC4\xA0", "t", "\xC4\xA0t"},
        {"\xC4\xA0t", "h", "\xC4\xA0th"}, {"\xC4\xA0", "\xC4\xA0",
        "\xC4\xA0\xC4\xA0"}, {"\xC3\xA2", "\xC4\xA4", "\xC3\xA2\xC4\xA4"},
        {"\xC3\x83", "\xC2\xA9", "\xC3\x83\xC2\xA9"}, {"'", "s", "'s"},
    };
    static char vocab[256 * 16], merges[512];
    struct error error;
    struct tokenizer *tokenizer = NULL;
    size_t at = 0, end = 0;
    int next = 256;
    for (int k = 0; k < 256; k++) {
        const bool seen = (k > 32 && k < 127) || (k > 160 && k != 173);
        const int code = seen ? k : next++;
        char text[3] = {(char)code};
        if (code >= 128) {
            text[0] = (char)(0xC0 | code >> 6);
            text[1] = (char)(0x80 | (code & 0x3F));
        }
        at = add(vocab, at, code == '"' ? "\\\"" : code == '\\' ? "\\\\"
                 : text, k);
    }
    for (int k = 0; k < 10; k++) {
        at = add(vocab, at, lines[k][2], 256 + k);
        end += (size_t)sprintf(merges + end, "%s %s\n", lines[k][0],
                               lines[k][1]);
    }
    at = add(vocab, at, "<|endoftext|>", 266);
    vocab[at++] = '}';
    MUST(tokenizer_of_merges(&tokenizer, vocab, at, merges, end, &error)
         == STATUS_OK);
    return tokenizer;
}

static size_t put(uint8_t *out, size_t at, const char *text, float score)
{
    const size_t length = strlen(text);
    memset(out + at, 0, 8);
    memcpy(out + at, &score, sizeof score);
    out[at + 4] = (uint8_t)length;
    memcpy(out + at + 8, text, length);
    return at + 8 + length;
}

static struct tokenizer *of_scores(void)
{
    static const char *const words[] = {
        " ", "a", "b", "c", "t", "h", "\xC3\xA9", "ab", "abc", "aa", "aaaa",
        " t", " th", "  ", "bc"
    };
    static uint8_t file[8192] = {8};
    struct error error;
    struct tokenizer *tokenizer = NULL;
    char name[8];
    size_t at = put(file, 4, "<unk>", 0);
    at = put(file, put(file, at, "\n<s>\n", 0), "\n</s>\n", 0);
    for (unsigned k = 0; k < 256; k++) {
        snprintf(name, sizeof name, "<0x%02X>", k & 0xFF);
        at = put(file, at, name, 0);
    }
    for (int k = 0; k < 15; k++)
        at = put(file, at, words[k], (float)(k % 4) - 2);
    MUST(tokenizer_of_scores(&tokenizer, file, at, 0, &error) == STATUS_OK);
    return tokenizer;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct tokenizer *made[3];
    struct error error;
    if (made[0] == NULL) {
        MUST(tokenizer_of_bytes(&made[0], &error) == STATUS_OK);
        made[1] = of_merges();
        made[2] = of_scores();
    }
    for (int k = 0; k < 3 && size > 0; k++)
        round_trip(made[k], data + 1, size - 1,
                   data[0] & (TOKENIZER_BEGIN | TOKENIZER_SPECIAL));
    return 0;
}
