/* Tokenizers that a suite makes: a vocabulary trained on made-up words, in the
   files of GPT-2, and one with scores, in the file of llama2.c; and beside
   each a second encoder that works on strings, by the definition, as slowly
   as it likes. Any trouble fails the running test. */
#ifndef TOKENIZERS_H
#define TOKENIZERS_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "support/noise.h"

/* ---------------------------------------------------------------- strings */

enum { WORD_MAX = 600, TOKENS_MAX = 700, LINES_MAX = 400 };

struct word { int length; unsigned char bytes[48]; };

static inline bool word_is(const struct word *a, const struct word *b)
{
    return a->length == b->length
        && memcmp(a->bytes, b->bytes, (size_t)a->length) == 0;
}

/* false when the two together are longer than words are here */
static inline bool word_join(const struct word *a, const struct word *b,
                             struct word *both)
{
    struct word made = *a;
    if (a->length + b->length > (int)sizeof made.bytes)
        return false;
    memcpy(made.bytes + a->length, b->bytes, (size_t)b->length);
    made.length += b->length;
    *both = made;
    return true;
}

/* A text on its way to tokens: a list of strings. */
struct words { int count; struct word at[WORD_MAX]; };

static inline void words_remove(struct words *words, int k)
{
    memmove(&words->at[k], &words->at[k + 1],
            (size_t)(--words->count - k) * sizeof words->at[0]);
}

/* ------------------------------------------------------------ GPT-2's kind */

/* What a training leaves behind. Tokens: 256 bytes, then what the lines make,
   then <|endoftext|>. ids are a permutation, so that no id is an order. */
struct trained {
    int lines, tokens;
    struct word left[LINES_MAX], right[LINES_MAX];
    struct word token[TOKENS_MAX];
    int32_t id[TOKENS_MAX];
    char *vocab, *merges;        /* the files' text, malloc'd */
};

/* The characters of GPT-2's alphabet in UTF-8, byte by byte: 33-126, 161-172
   and 174-255 are themselves; the others follow from 256 on. */
static inline int alphabet_write(const struct word *word, char *out)
{
    int length = 0;
    for (int k = 0; k < word->length; k++) {
        const int byte = word->bytes[k];
        int code = byte;
        if (byte < 33)
            code = 256 + byte;
        else if (byte > 126 && byte < 161)
            code = 256 + 33 + byte - 127;
        else if (byte == 173)
            code = 256 + 33 + 34;
        if (code < 128) {
            out[length++] = (char)code;
        } else {
            out[length++] = (char)(0xC0 | code >> 6);
            out[length++] = (char)(0x80 | (code & 0x3F));
        }
    }
    out[length] = '\0';
    return length;
}

static inline void json_string(const char *text, FILE *file)
{
    fputc('"', file);
    for (; *text != '\0'; text++)
        fprintf(file, *text == '"' || *text == '\\' ? "\\%c" : "%c", *text);
    fputc('"', file);
}

/* The files' text; the order of vocab.json's members is that of the ids or
   another one. */
static inline void trained_write(struct trained *t, uint64_t *state)
{
    char text[128];
    size_t size;
    int32_t order[TOKENS_MAX];
    noise_order(state, t->tokens, order);
    FILE *file = open_memstream(&t->vocab, &size);
    for (int k = 0; k < t->tokens; k++) {
        alphabet_write(&t->token[order[k]], text);
        fputs(k == 0 ? "{" : ", ", file);
        json_string(text, file);
        fprintf(file, ": %d", (int)t->id[order[k]]);
    }
    fputs("}\n", file);
    fclose(file);
    file = open_memstream(&t->merges, &size);
    fputs("#version: 0.2\n", file);
    for (int k = 0; k < t->lines; k++) {
        alphabet_write(&t->left[k], text);
        fprintf(file, "%s ", text);
        alphabet_write(&t->right[k], text);
        fprintf(file, "%s\n", text);
    }
    fclose(file);
}

static inline void trained_free(struct trained *t)
{
    free(t->vocab);
    free(t->merges);
    free(t);
}

/* Whether some token is spelled so, and which. */
static inline int trained_find(const struct trained *t,
                               const struct word *word)
{
    for (int k = 0; k < t->tokens; k++)
        if (word_is(&t->token[k], word))
            return k;
    return -1;
}

/* Adds the line, and the token when it is new. */
static inline void trained_line(struct trained *t, struct word left,
                                struct word right)
{
    struct word both;
    ck_assert(word_join(&left, &right, &both));
    ck_assert_int_lt(t->lines, LINES_MAX);
    t->left[t->lines] = left;
    t->right[t->lines++] = right;
    if (trained_find(t, &both) < 0)
        t->token[t->tokens++] = both;
}

/* The pair that a training takes next: the most frequent one of all neighbours
   in the corpus that is no line yet; the first of equals. */
static inline bool trained_next(const struct words *corpus,
                                const bool *ends, struct word *left,
                                struct word *right)
{
    int most = 1;
    for (int a = 0; a + 1 < corpus->count; a++) {
        int count = 0;
        for (int b = 0; b + 1 < corpus->count; b++)
            count += !ends[b] && word_is(&corpus->at[a], &corpus->at[b])
                && word_is(&corpus->at[a + 1], &corpus->at[b + 1]);
        if (!ends[a] && count > most) {
            most = count;
            *left = corpus->at[a];
            *right = corpus->at[a + 1];
        }
    }
    return most > 1;
}

/* Merges a pair wherever it is, from left to right; ends[k]: a cut follows. */
static inline void pass(struct words *words, bool *ends,
                        const struct word *left, const struct word *right)
{
    for (int k = 0; k + 1 < words->count; k++)
        if ((ends == NULL || !ends[k]) && word_is(&words->at[k], left)
            && word_is(&words->at[k + 1], right)
            && word_join(left, right, &words->at[k])) {
            words_remove(words, k + 1);
            if (ends != NULL)
                memmove(&ends[k], &ends[k + 1],
                        (size_t)(words->count - k) * sizeof ends[0]);
        }
}

/* 256 bytes and the name, without a line. */
static inline struct trained *untrained(void)
{
    struct trained *t = calloc(1, sizeof *t);
    ck_assert_ptr_nonnull(t);
    for (int k = 0; k < 256; k++)
        t->token[k] = (struct word){1, {(unsigned char)k}};
    t->tokens = 256;
    return t;
}

static inline void trained_end(struct trained *t, uint64_t *state)
{
    struct word name = {13, "<|endoftext|>"};
    t->token[t->tokens++] = name;
    noise_order(state, t->tokens, t->id);
    trained_write(t, state);
}

/* Trained on words of a few letters, some of several bytes each, with spaces
   before them as GPT-2 has. */
static inline struct trained *trained_on_noise(uint64_t *state, int lines)
{
    static const char *const letters[] = {
        "a", "b", "c", "é", "ß", "中", "'", "!", " ", " ", "1", "٣"
    };
    static struct words corpus;
    static bool ends[WORD_MAX];
    struct trained *t = untrained();
    corpus.count = 0;
    while (corpus.count < WORD_MAX - 4) {
        const char *letter = letters[noise_below(state, 12)];
        if (letter[0] == ' ' && corpus.count > 0)
            ends[corpus.count - 1] = true;
        for (; *letter != '\0'; letter++) {
            ends[corpus.count] = false;
            corpus.at[corpus.count++] =
                (struct word){1, {(unsigned char)*letter}};
        }
    }
    struct word left, right;
    while (t->lines < lines && trained_next(&corpus, ends, &left, &right)) {
        trained_line(t, left, right);
        pass(&corpus, ends, &left, &right);
    }
    trained_end(t, state);
    return t;
}

/* GPT-2's own way: the lowest line that is there, everywhere, and again. */
static inline int slow_merges(const struct trained *t, const char *text,
                              int length, int32_t *ids)
{
    static struct words words;
    ck_assert_int_le(length, WORD_MAX);
    words.count = length;
    for (int k = 0; k < length; k++)
        words.at[k] = (struct word){1, {(unsigned char)text[k]}};
    for (bool merged = true; merged; ) {
        merged = false;
        for (int line = 0; line < t->lines && !merged; line++)
            for (int k = 0; k + 1 < words.count && !merged; k++)
                if (word_is(&words.at[k], &t->left[line])
                    && word_is(&words.at[k + 1], &t->right[line])) {
                    pass(&words, NULL, &t->left[line], &t->right[line]);
                    merged = true;
                }
    }
    for (int k = 0; k < words.count; k++)
        ids[k] = t->id[trained_find(t, &words.at[k])];
    return words.count;
}

/* -------------------------------------------------------------------- pieces

   The pattern, by hand, over characters whose class is known here. */

struct letter { const char *text; char kind; };   /* L, N, s or o */

static const struct letter alphabet[] = {
    {"a", 'L'}, {"Z", 'L'}, {"s", 'L'}, {"t", 'L'}, {"d", 'L'}, {"l", 'L'},
    {"r", 'L'}, {"e", 'L'}, {"v", 'L'}, {"m", 'L'}, {"S", 'L'},
    {"\xC3\xA9", 'L'},           /* é */
    {"\xC3\x9F", 'L'},           /* ß */
    {"\xE4\xB8\xAD", 'L'},       /* 中 */
    {"\xF0\x90\x90\xB7", 'L'},   /* U+10437 */
    {"\xCA\xB0", 'L'},           /* modifier letter h */
    {"0", 'N'}, {"7", 'N'},
    {"\xC2\xB2", 'N'},           /* ² */
    {"\xD9\xA3", 'N'},           /* arabic 3 */
    {"\xE2\x85\xA7", 'N'},       /* roman VIII */
    {"'", 'o'}, {"!", 'o'}, {"<", 'o'}, {"_", 'o'}, {"\x01", 'o'},
    {"\xE2\x82\xAC", 'o'},       /* € */
    {"\xF0\x9F\x98\x80", 'o'},   /* an emoji */
    {"\xCC\x81", 'o'},           /* combining acute */
    {"\xE1\xA0\x8E", 'o'},       /* U+180E, once a space */
    {"\xE2\x80\x8B", 'o'},       /* zero width space, which is none */
    {" ", 's'}, {" ", 's'}, {" ", 's'}, {"\n", 's'}, {"\t", 's'},
    {"\xC2\xA0", 's'},           /* no-break space */
    {"\xC2\x85", 's'},           /* next line */
    {"\xE3\x80\x80", 's'},       /* ideographic space */
    {"\xC0\x80", 'x'}, {"\xFF", 'x'}, {"\xC3", 'x'}, {"\xE2\x82", 'x'},
    {"\xED\xA0\x80", 'x'},       /* a surrogate */
};
enum { LETTERS = sizeof alphabet / sizeof alphabet[0] };

static inline int run_of(const int *letters, int count, int from, char kind)
{
    int k = from;
    while (k < count && alphabet[letters[k]].kind == kind)
        k++;
    return k - from;
}

static inline bool says(const int *letters, int count, int from,
                        const char *word)
{
    for (int k = 0; word[k] != '\0'; k++)
        if (from + k >= count || alphabet[letters[from + k]].text[0] != word[k]
            || alphabet[letters[from + k]].text[1] != '\0')
            return false;
    return true;
}

/* Letters of the piece that begins here. */
static inline int slow_piece(const int *letters, int count, int from)
{
    static const char *const short_words[] = {
        "'s", "'t", "'re", "'ve", "'m", "'ll", "'d"
    };
    if (alphabet[letters[from]].kind == 'x')
        return 0;                /* each of its bytes is one */
    for (int k = 0; k < 7; k++)
        if (says(letters, count, from, short_words[k]))
            return (int)strlen(short_words[k]);
    const int space = says(letters, count, from, " ");
    if (from + space < count) {
        const char kind = alphabet[letters[from + space]].kind;
        if (kind == 'L' || kind == 'N' || kind == 'o')
            return space + run_of(letters, count, from + space, kind);
    }
    const int spaces = run_of(letters, count, from, 's');
    const bool followed = from + spaces < count
        && alphabet[letters[from + spaces]].kind != 'x';
    return followed && spaces > 1 ? spaces - 1 : spaces;
}

/* A text of letters, and where the second cutter cuts it: the lengths of its
   pieces in bytes. */
struct cut_text { char text[600]; int length, pieces; int piece[600]; };

static inline struct cut_text slow_text(uint64_t *state, int count)
{
    struct cut_text made = {.length = 0};
    int letters[64];
    ck_assert_int_le(count, 64);
    for (int k = 0; k < count; k++) {
        letters[k] = noise_below(state, LETTERS);
        made.length += (int)strlen(strcpy(made.text + made.length,
                                          alphabet[letters[k]].text));
    }
    for (int k = 0; k < count; ) {
        int size = slow_piece(letters, count, k), bytes = 0;
        for (int j = 0; j < size; j++)
            bytes += (int)strlen(alphabet[letters[k + j]].text);
        if (size > 0)
            made.piece[made.pieces++] = bytes;
        for (size_t j = 0; size == 0
             && j < strlen(alphabet[letters[k]].text); j++)
            made.piece[made.pieces++] = 1;
        k += size > 0 ? size : 1;
    }
    return made;
}

/* ---------------------------------------------------------- llama2.c's kind */

struct scored {
    int tokens;
    struct word token[TOKENS_MAX];
    float score[TOKENS_MAX];
    unsigned char *file;         /* malloc'd */
    size_t length;
};

static inline void put_number(FILE *file, uint32_t number)
{
    for (int k = 0; k < 4; k++)
        fputc((int)(number >> 8 * k & 0xFF), file);
}

static inline void scored_write(struct scored *s)
{
    FILE *file = open_memstream((char **)&s->file, &s->length);
    uint32_t longest = 0, bits;
    for (int k = 0; k < s->tokens; k++)
        if ((uint32_t)s->token[k].length > longest)
            longest = (uint32_t)s->token[k].length;
    put_number(file, longest);
    for (int k = 0; k < s->tokens; k++) {
        memcpy(&bits, &s->score[k], sizeof bits);
        put_number(file, bits);
        put_number(file, (uint32_t)s->token[k].length);
        fwrite(s->token[k].bytes, 1, (size_t)s->token[k].length, file);
    }
    fclose(file);
}

static inline int scored_find(const struct scored *s, const struct word *word)
{
    for (int k = 259; k < s->tokens; k++)
        if (word_is(&s->token[k], word))
            return k;
    return -1;
}

static inline void scored_add(struct scored *s, const char *text, float score)
{
    struct word word = {(int)strlen(text), {0}};
    memcpy(word.bytes, text, strlen(text));
    if (s->tokens >= 259 && scored_find(s, &word) >= 0)
        return;
    s->token[s->tokens] = word;
    s->score[s->tokens++] = score;
}

/* The first 259 tokens. */
static inline struct scored *scored_bytes(void)
{
    struct scored *s = calloc(1, sizeof *s);
    ck_assert_ptr_nonnull(s);
    scored_add(s, "<unk>", 0);
    scored_add(s, "\n<s>\n", 0);
    scored_add(s, "\n</s>\n", 0);
    for (int k = 0; k < 256; k++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)k);
        scored_add(s, name, 0);
    }
    return s;
}

/* Characters, and words that two tokens make; few scores, so that there are
   ties, and both zeros. */
static inline struct scored *scored_from_noise(uint64_t *state)
{
    static const char *const letters[] = {
        " ", "a", "b", "c", "\xC3\xA9", "\xE4\xB8\xAD", "<", "\n"
    };
    struct scored *s = scored_bytes();
    for (int k = 0; k < 8; k++)
        scored_add(s, letters[k], -9);
    while (s->tokens < 400) {
        struct word both;
        char text[64] = "";
        const int left = 259 + noise_below(state, s->tokens - 259);
        const int right = 259 + noise_below(state, s->tokens - 259);
        const float score = (float)(noise_below(state, 9) - 4);
        if (!word_join(&s->token[left], &s->token[right], &both)
            || both.length > 12)
            continue;
        memcpy(text, both.bytes, (size_t)both.length);
        scored_add(s, text, score == 0 && noise_below(state, 2)
                   ? -0.0f : score);
    }
    scored_write(s);
    return s;
}

static inline void scored_free(struct scored *s)
{
    free(s->file);
    free(s);
}

/* llama2.c's way: the best of all pairs, the first of equals, one at a time.
   A word of a byte that has no token has a length of -1. */
static inline int slow_scores(const struct scored *s, const char *text,
                              int length, bool begin, int32_t *ids)
{
    static struct words words;
    words.count = 0;
    for (int k = -1; k < length; ) {
        struct word letter = {1, " "};
        if (k >= 0) {
            letter.bytes[0] = (unsigned char)text[k];
            while (k + letter.length < length && letter.length < 4
                   && ((unsigned char)text[k + letter.length] & 0xC0) == 0x80) {
                letter.bytes[letter.length] =
                    (unsigned char)text[k + letter.length];
                letter.length++;
            }
        }
        const bool wanted = k >= 0 || (begin && length > 0);
        if (wanted && scored_find(s, &letter) >= 0)
            words.at[words.count++] = letter;
        else if (wanted)
            for (int j = 0; j < letter.length; j++)
                words.at[words.count++] =
                    (struct word){-1, {letter.bytes[j]}};
        k += k < 0 ? 1 : letter.length;
    }
    for (int best = 0; best >= 0; ) {
        struct word both;
        float score = 0;
        best = -1;
        for (int k = 0; k + 1 < words.count; k++) {
            if (words.at[k].length < 0 || words.at[k + 1].length < 0
                || !word_join(&words.at[k], &words.at[k + 1], &both))
                continue;
            const int found = scored_find(s, &both);
            if (found >= 0 && (best < 0 || s->score[found] > score)) {
                best = k;
                score = s->score[found];
            }
        }
        if (best >= 0) {
            word_join(&words.at[best], &words.at[best + 1], &words.at[best]);
            words_remove(&words, best + 1);
        }
    }
    for (int k = 0; k < words.count; k++)
        ids[k] = words.at[k].length < 0 ? 3 + words.at[k].bytes[0]
                                        : scored_find(s, &words.at[k]);
    return words.count;
}

#endif
