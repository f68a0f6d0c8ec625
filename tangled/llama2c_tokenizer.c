#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tokenizer.h"
#include "tokenizer_parts.h"

enum {
    UNKNOWN = 0, BOS = 1, EOS = 2,   /* <unk>, <s>, </s> */
    FIRST_BYTE = 3,                  /* <0x00>, and 255 more */
    FIRST_TEXT = FIRST_BYTE + 256    /* what merges make, and characters */
};

struct tables {
    size_t longest;              /* bytes of a token */
    uint32_t order[];            /* [count] of a token's score */
};

static uint32_t order_of(float score)
{
    uint32_t bits;
    const float plain = score + 0.0f;
    memcpy(&bits, &plain, sizeof bits);
    return bits >> 31 ? bits : ~(bits | UINT32_C(1) << 31);
}

static bool find_both(const void *context, int32_t left, int32_t right,
                      uint32_t *order, int32_t *joined)
{
    const struct tokenizer *tokenizer = context;
    const struct tables *tables = tokenizer->tables;
    const struct span first = vocabulary_bytes(tokenizer->vocabulary, left);
    const struct span second = vocabulary_bytes(tokenizer->vocabulary, right);
    if (left < FIRST_TEXT || right < FIRST_TEXT)
        return false;
    if (first.length + second.length > tables->longest)
        return false;
    *joined = vocabulary_find(tokenizer->vocabulary, first, second);
    if (*joined != NO_TOKEN)
        *order = tables->order[*joined];
    return *joined != NO_TOKEN;
}

static size_t character_length(struct span text)
{
    size_t length = 1;
    while (length < text.length && length < 4
           && (text.at[length] & 0xC0) == 0x80)
        length++;
    return length;
}

static void add_character(const struct tokenizer *tokenizer,
                          struct span character, struct id_list *list)
{
    const int32_t id = vocabulary_find(tokenizer->vocabulary, character,
                                       (struct span){character.at, 0});
    if (id != NO_TOKEN)
        list->ids[list->count++] = id;
    for (size_t k = 0; k < character.length && id == NO_TOKEN; k++) {
        list->ids[list->count++] = FIRST_BYTE + character.at[k];
    }
}

static enum status encode_scores(const struct tokenizer *tokenizer,
                                 const struct passage *passage,
                                 struct id_list *list, struct error *error)
{
    const struct merge_rules rules = {tokenizer, find_both, false};
    const int first = list->count;
    struct span rest = {passage->bytes, passage->length};
    if (passage->length == SIZE_MAX)
        return error_set(error, STATUS_NO_MEMORY, "the text is too long");
    enum status status = id_list_reserve(list, passage->length + 1, error);
    if (status != STATUS_OK)
        return status;
    if ((passage->options & TOKENIZER_BEGIN) != 0)
        add_character(tokenizer,
                      (struct span){(const unsigned char *)" ", 1}, list);
    while (rest.length > 0) {
        const size_t length = character_length(rest);
        add_character(tokenizer, (struct span){rest.at, length}, list);
        rest = (struct span){rest.at + length, rest.length - length};
    }
    struct merge_room room = {0};
    int count = list->count - first;
    status = merge_ids(&rules, &room, list->ids + first, &count,
                       passage->watch, 0, error);
    list->count = first + count;
    merge_room_free(&room);
    return status;
}

struct file { const unsigned char *bytes; size_t length, at; };

static uint32_t take_number(struct file *file)
{
    const unsigned char *at = file->bytes + file->at;
    file->at += 4;
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16
        | (uint32_t)at[3] << 24;
}

static enum status take_token(struct file *file, int32_t id, uint32_t longest,
                              float *score, struct span *token,
                              struct error *error)
{
    const size_t left = file->length - file->at;
    if (left < 8)
        return error_set(error, STATUS_FORMAT,
                         "token %d: the file ends before it", (int)id);
    const uint32_t bits = take_number(file), length = take_number(file);
    memcpy(score, &bits, sizeof bits);
    if (!isfinite(*score))
        return error_set(error, STATUS_FORMAT, "token %d: expected a finite"
                         " score, got %g", (int)id, (double)*score);
    if (length < 1 || length > longest || length > left - 8)
        return error_set(error, STATUS_FORMAT, "token %d: expected a length from"
                         " 1 to %zu, got %ld", (int)id,
                         longest < left - 8 ? (size_t)longest : left - 8,
                         (long)(int32_t)length);
    *token = (struct span){file->bytes + file->at, length};
    file->at += length;
    char name[8];
    snprintf(name, sizeof name, "<0x%02X>", (unsigned)(id - FIRST_BYTE) & 0xFF);
    if (id >= FIRST_BYTE && id < FIRST_TEXT
        && (length != strlen(name) || memcmp(token->at, name, length) != 0))
        return error_set(error, STATUS_FORMAT, "token %d: expected %s",
                         (int)id, name);
    return STATUS_OK;
}

static enum status count_tokens(struct file file, uint32_t longest,
                                int vocab_size, int *count,
                                struct error *error)
{
    float score;
    struct span token;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && *count < INT_MAX / 2
           && (file.at < file.length || *count < vocab_size)) {
        status = take_token(&file, *count, longest, &score, &token, error);
        ++*count;
    }
    if (status == STATUS_OK && vocab_size > 0 && *count != vocab_size)
        status = error_set(error, STATUS_FORMAT, "%d tokens, and the model has"
                           " %d ids", *count, vocab_size);
    if (status == STATUS_OK && *count < FIRST_TEXT)
        status = error_set(error, STATUS_FORMAT, "expected at least %d tokens,"
                           " got %d", FIRST_TEXT, *count);
    return status;
}

static void keep_tokens(struct tokenizer *tokenizer, struct file file,
                        uint32_t longest)
{
    struct tables *tables = tokenizer->tables;
    const int count = tokenizer_count(tokenizer);
    float score = 0;
    struct span token = {file.bytes, 0};
    for (int32_t id = 0; id < count; id++) {
        take_token(&file, id, longest, &score, &token, NULL);
        tables->order[id] = order_of(score);
        const unsigned char byte = (unsigned char)(id - FIRST_BYTE);
        if (id >= FIRST_BYTE && id < FIRST_TEXT)
            token = (struct span){&byte, 1};
        vocabulary_set(tokenizer->vocabulary, id, token);
        if (id >= FIRST_TEXT)
            vocabulary_enter(tokenizer->vocabulary, id);
    }
}

enum status tokenizer_of_scores(struct tokenizer **tokenizer,
                                const unsigned char *bytes, size_t length,
                                int vocab_size, struct error *error)
{
    struct tokenizer *made = NULL;
    struct file file = {bytes, length, 0};
    int count = 0;
    if (length < 4)
        return error_set(error, STATUS_FORMAT,
                         "%zu bytes: expected a tokenizer.bin", length);
    const uint32_t longest = take_number(&file);
    enum status status = count_tokens(file, longest, vocab_size, &count,
                                      error);
    if (status == STATUS_OK)
        status = tokenizer_make(&made, count, length, error);
    if (status != STATUS_OK)
        return status;
    struct tables *tables = malloc(sizeof *tables + (size_t)count
                                                    * sizeof *tables->order);
    if (tables == NULL) {
        tokenizer_close(&made);
        return error_set(error, STATUS_NO_MEMORY, "no memory for %d scores",
                         count);
    }
    tables->longest = longest;
    made->tables = tables;
    made->free_tables = free;
    keep_tokens(made, file, longest);
    made->special[UNKNOWN] = made->special[BOS] = made->special[EOS] = true;
    made->bos = made->eos = BOS;
    made->prefixes = true;
    made->encode = encode_scores;
    *tokenizer = made;
    return STATUS_OK;
}
