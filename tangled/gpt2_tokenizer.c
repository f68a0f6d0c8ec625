#include <cjson/cJSON.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include "byte_alphabet.h"
#include "json.h"
#include "pieces.h"
#include "tokenizer.h"
#include "tokenizer_parts.h"
#include "utf8.h"

enum { BYTES = 256, SHOWN_MAX = 40 };   /* bytes of a token in a message */

struct pair { int32_t left, right, joined; uint32_t order; };

struct tables {
    struct pieces *pieces;
    int32_t byte_ids[BYTES];
    struct pair *pairs;          /* [pair_places] */
    size_t pair_places;          /* a power of two */
    int32_t *named;              /* [named_count] special ids */
    int named_count;
};

static void free_tables(void *tables)
{
    struct tables *t = tables;
    pieces_free(&t->pieces);
    free(t->pairs);
    free(t->named);
    free(t);
}

static struct pair *pair_place(const struct tables *tables, int32_t left,
                               int32_t right)
{
    const size_t mask = tables->pair_places - 1;
    uint64_t hash = ((uint64_t)left << 32 | (uint32_t)right)
        * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (size_t)(hash ^ hash >> 32) & mask;
    while (tables->pairs[at].left >= 0
           && (tables->pairs[at].left != left
               || tables->pairs[at].right != right))
        at = (at + 1) & mask;
    return &tables->pairs[at];
}

static bool find_pair(const void *context, int32_t left, int32_t right,
                      uint32_t *order, int32_t *joined)
{
    const struct tokenizer *tokenizer = context;
    const struct pair *pair = pair_place(tokenizer->tables, left, right);
    if (pair->left < 0)
        return false;
    *joined = pair->joined;
    *order = pair->order;
    return true;
}

static enum status encode_piece(const struct tokenizer *tokenizer,
                                struct span piece, size_t offset,
                                const struct merge_watch *watch,
                                struct merge_room *room,
                                struct id_list *list, struct error *error)
{
    const struct tables *tables = tokenizer->tables;
    const struct merge_rules rules = {tokenizer, find_pair, true};
    enum status status = id_list_reserve(list, piece.length, error);
    if (status != STATUS_OK)
        return status;
    int32_t *ids = list->ids + list->count;
    int count = (int)piece.length;
    for (int k = 0; k < count; k++)
        ids[k] = tables->byte_ids[piece.at[k]];
    status = merge_ids(&rules, room, ids, &count, watch, offset, error);
    if (status == STATUS_OK)
        list->count += count;
    return status;
}

static enum status encode_plain(const struct tokenizer *tokenizer,
                                const struct passage *passage, size_t from,
                                size_t to, struct merge_room *room,
                                struct id_list *list, struct error *error)
{
    const struct tables *tables = tokenizer->tables;
    struct piece_cutter *cutter = NULL;
    enum status status = piece_cutter_new(&cutter, tables->pieces,
                                          passage->bytes + from, to - from,
                                          error);
    while (status == STATUS_OK && from < to) {
        struct span piece = {passage->bytes + from, 0};
        status = piece_cutter_next(cutter, &piece.length, error);
        if (status == STATUS_OK)
            status = encode_piece(tokenizer, piece, from, passage->watch,
                                  room, list, error);
        from += piece.length;
    }
    piece_cutter_free(&cutter);
    return status;
}

static int32_t find_named(const struct tokenizer *tokenizer,
                          const struct passage *passage, size_t from,
                          size_t *to, size_t *behind)
{
    const struct tables *tables = tokenizer->tables;
    int32_t found = NO_TOKEN;
    size_t longest = 0;
    for (; from < passage->length && found == NO_TOKEN; from++) {
        const unsigned char *at = passage->bytes + from;
        if (*at != '<' && *at != '[')
            continue;
        for (int k = 0; k < tables->named_count; k++) {
            const struct span name = vocabulary_bytes(tokenizer->vocabulary,
                                                      tables->named[k]);
            if (name.length > longest && name.length <= passage->length - from
                && memcmp(at, name.at, name.length) == 0) {
                found = tables->named[k];
                longest = name.length;
                *to = from;
                *behind = from + longest;
            }
        }
    }
    return found;
}

static enum status encode_text(const struct tokenizer *tokenizer,
                               const struct passage *passage,
                               struct id_list *list, struct error *error)
{
    struct merge_room room = {0};
    enum status status = STATUS_OK;
    for (size_t from = 0; status == STATUS_OK && from < passage->length; ) {
        size_t to = passage->length, behind = to;
        int32_t id = NO_TOKEN;
        if ((passage->options & TOKENIZER_SPECIAL) != 0)
            id = find_named(tokenizer, passage, from, &to, &behind);
        status = encode_plain(tokenizer, passage, from, to, &room, list,
                              error);
        if (status == STATUS_OK && id != NO_TOKEN)
            status = id_list_reserve(list, 1, error);
        if (status == STATUS_OK && id != NO_TOKEN)
            list->ids[list->count++] = id;
        from = behind;
    }
    merge_room_free(&room);
    return status;
}

static enum status count_tokens(const cJSON *object, int *count,
                                size_t *bytes, struct error *error)
{
    for (const cJSON *child = object->child; child != NULL;
         child = child->next) {
        if (*count == INT_MAX / 2)
            return error_set(error, STATUS_FORMAT,
                             "vocab.json: more than %d tokens", *count);
        ++*count;
        *bytes += strlen(child->string);
    }
    return STATUS_OK;
}

static enum status take_token(struct tokenizer *tokenizer,
                              const cJSON *child, unsigned char *bytes,
                              struct error *error)
{
    struct vocabulary *vocabulary = tokenizer->vocabulary;
    const int count = vocabulary_count(vocabulary);
    const unsigned char *text = (const unsigned char *)child->string;
    const double number = cJSON_GetNumberValue(child);
    size_t length = strlen(child->string);
    const int shown = utf8_cut(text, length, SHOWN_MAX);
    if (length == 0)
        return error_set(error, STATUS_FORMAT, "vocab.json: an empty token");
    if (!cJSON_IsNumber(child) || !(number >= 0 && number < count)
        || number != (double)(int32_t)number)
        return error_set(error, STATUS_FORMAT, "vocab.json: \"%.*s\": expected"
                         " an id from 0 to %d, as there are %d tokens", shown,
                         child->string, count - 1, count);
    if (vocabulary_bytes(vocabulary, (int32_t)number).length > 0)
        return error_set(error, STATUS_FORMAT, "vocab.json: \"%.*s\": a second"
                         " token with id %d", shown, child->string, (int)number);
    const int32_t id = (int32_t)number;
    if (!byte_alphabet_read(text, length, bytes, &length))
        memcpy(bytes, text, length);
    vocabulary_set(vocabulary, id, (struct span){bytes, length});
    const int32_t other = vocabulary_enter(vocabulary, id);
    if (other != NO_TOKEN)
        return error_set(error, STATUS_FORMAT, "vocab.json: ids %d and %d"
                         " are both \"%.*s\"", (int)other, (int)id, shown,
                         child->string);
    return STATUS_OK;
}

static enum status take_tokens(struct tokenizer *tokenizer,
                               const cJSON *object, struct error *error)
{
    size_t longest = 0;
    for (const cJSON *child = object->child; child != NULL;
         child = child->next)
        if (strlen(child->string) > longest)
            longest = strlen(child->string);
    unsigned char *bytes = malloc(longest + 1);
    enum status status = bytes != NULL ? STATUS_OK
        : error_set(error, STATUS_NO_MEMORY, "no memory for a token");
    for (const cJSON *child = object->child;
         child != NULL && status == STATUS_OK; child = child->next)
        status = take_token(tokenizer, child, bytes, error);
    free(bytes);
    return status;
}

static enum status read_vocab(struct tokenizer **tokenizer, const char *text,
                              size_t length, struct error *error)
{
    int count = 0;
    size_t bytes = 0;
    cJSON *object = NULL;
    struct error inner;
    enum status status = json_parse(&object, text, length, &inner);
    if (status != STATUS_OK)
        error_set(error, status, "vocab.json: %s", inner.message);
    if (status == STATUS_OK)
        status = count_tokens(object, &count, &bytes, error);
    if (status == STATUS_OK)
        status = tokenizer_make(tokenizer, count, bytes, error);
    if (status == STATUS_OK)
        status = take_tokens(*tokenizer, object, error);
    cJSON_Delete(object);
    return status;
}

struct lines { const unsigned char *at; size_t left, number; };

static bool next_line(struct lines *lines, struct span *line)
{
    if (lines->left == 0)
        return false;
    const unsigned char *end = memchr(lines->at, '\n', lines->left);
    const size_t length = end != NULL ? (size_t)(end - lines->at)
                                      : lines->left;
    *line = (struct span){lines->at, length};
    if (length > 0 && line->at[length - 1] == '\r')
        line->length--;
    lines->number++;
    lines->at += length;
    lines->left -= length;
    if (end != NULL) {
        lines->at++;
        lines->left--;
    }
    return true;
}

static bool begins_with(struct span line, const char *word)
{
    return line.length >= strlen(word)
        && memcmp(line.at, word, strlen(word)) == 0;
}

static int32_t find_text(const struct vocabulary *vocabulary,
                         struct span text)
{
    unsigned char bytes[4096];
    size_t length = 0;
    if (text.length == 0 || text.length > sizeof bytes
        || !byte_alphabet_read(text.at, text.length, bytes, &length))
        return NO_TOKEN;
    return vocabulary_find(vocabulary, (struct span){bytes, length},
                           (struct span){bytes, 0});
}

static enum status take_pair(struct tokenizer *tokenizer, struct span line,
                             size_t number, uint32_t order, bool *made,
                             struct error *error)
{
    const struct vocabulary *vocabulary = tokenizer->vocabulary;
    const unsigned char *blank = line.length == 0 ? NULL
        : memchr(line.at, ' ', line.length);
    int32_t left = NO_TOKEN, right = NO_TOKEN, joined = NO_TOKEN;
    if (blank != NULL) {
        const size_t first = (size_t)(blank - line.at);
        left = find_text(vocabulary, (struct span){line.at, first});
        right = find_text(vocabulary,
                          (struct span){blank + 1, line.length - first - 1});
    }
    if (left != NO_TOKEN && right != NO_TOKEN)
        joined = vocabulary_find(vocabulary, vocabulary_bytes(vocabulary, left),
                                 vocabulary_bytes(vocabulary, right));
    if (joined == NO_TOKEN)
        return error_set(error, STATUS_FORMAT, "merges.txt: line %zu: "
                         "expected two tokens of vocab.json that are one "
                         "together, got \"%.*s\"", number,
                         utf8_cut(line.at, line.length, SHOWN_MAX),
                         (const char *)line.at);
    struct pair *pair = pair_place(tokenizer->tables, left, right);
    if (pair->left >= 0)
        return error_set(error, STATUS_FORMAT, "merges.txt: line %zu: the"
                         " pair has a line before", number);
    *pair = (struct pair){left, right, joined, order};
    made[joined] = true;
    return STATUS_OK;
}

static enum status make_pairs(struct tables *tables, const char *text,
                              size_t length, struct error *error)
{
    size_t lines = 1, places = 4;
    for (size_t k = 0; k < length; k++)
        lines += text[k] == '\n';
    if (lines > INT_MAX / 4)
        return error_set(error, STATUS_FORMAT,
                         "merges.txt: more than %d lines", INT_MAX / 4);
    while (places < 2 * lines)
        places *= 2;
    tables->pairs = malloc(places * sizeof *tables->pairs);
    if (tables->pairs == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for %zu pairs", lines);
    tables->pair_places = places;
    for (size_t k = 0; k < places; k++)
        tables->pairs[k].left = NO_TOKEN;
    return STATUS_OK;
}

static enum status read_merges(struct tokenizer *tokenizer,
                               const char *text, size_t length, bool *made,
                               struct error *error)
{
    struct lines lines = {(const unsigned char *)text, length, 0};
    struct span line;
    uint32_t order = 0;
    enum status status = make_pairs(tokenizer->tables, text, length, error);
    while (status == STATUS_OK && next_line(&lines, &line)) {
        if (lines.number == 1 && begins_with(line, "#version"))
            continue;
        status = take_pair(tokenizer, line, lines.number, order++, made,
                           error);
    }
    return status;
}

static bool is_name(struct span token)
{
    const unsigned char first = token.at[0];
    const unsigned char last = token.at[token.length - 1];
    return (first == '<' && last == '>') || (first == '[' && last == ']');
}

static enum status check_tokens(struct tokenizer *tokenizer,
                                const bool *made, struct error *error)
{
    struct tables *tables = tokenizer->tables;
    const int count = vocabulary_count(tokenizer->vocabulary);
    for (int32_t id = 0; id < count; id++) {
        const struct span token = vocabulary_bytes(tokenizer->vocabulary, id);
        if (token.length == 1 || made[id])
            continue;
        if (!is_name(token))
            return error_set(error, STATUS_FORMAT, "vocab.json has id %d, "
                             "\"%.*s\", and no line of merges.txt makes it",
                             (int)id, utf8_cut(token.at, token.length,
                                               SHOWN_MAX),
                             (const char *)token.at);
        tokenizer->special[id] = true;
        tables->named[tables->named_count++] = id;
        if (token.length == strlen("<|endoftext|>") && begins_with(token,
                                                                   "<|endoftext|>"))
            tokenizer->eos = id;
    }
    return STATUS_OK;
}

static enum status find_bytes(struct tokenizer *tokenizer,
                              struct error *error)
{
    struct tables *tables = tokenizer->tables;
    for (int k = 0; k < BYTES; k++) {
        const unsigned char byte = (unsigned char)k;
        tables->byte_ids[k] = vocabulary_find(tokenizer->vocabulary,
                                              (struct span){&byte, 1},
                                              (struct span){&byte, 0});
        if (tables->byte_ids[k] == NO_TOKEN)
            return error_set(error, STATUS_FORMAT,
                             "vocab.json: no token for the byte %02X", k);
    }
    return STATUS_OK;
}

static enum status make_tables(struct tokenizer *tokenizer, bool **made,
                               struct error *error)
{
    const size_t count = (size_t)tokenizer_count(tokenizer) + 1;
    struct tables *tables = calloc(1, sizeof *tables);
    tokenizer->tables = tables;
    tokenizer->free_tables = free_tables;
    tokenizer->encode = encode_text;
    *made = calloc(count, sizeof **made);
    if (tables != NULL)
        tables->named = calloc(count, sizeof *tables->named);
    if (tables == NULL || *made == NULL || tables->named == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for the tables of %zu tokens", count);
    return pieces_new(&tables->pieces, error);
}

enum status tokenizer_of_merges(struct tokenizer **tokenizer,
                                const char *vocab, size_t vocab_length,
                                const char *merges, size_t merges_length,
                                struct error *error)
{
    struct tokenizer *made = NULL;
    bool *by_a_pair = NULL;
    enum status status = read_vocab(&made, vocab, vocab_length, error);
    if (status == STATUS_OK)
        status = make_tables(made, &by_a_pair, error);
    if (status == STATUS_OK)
        status = find_bytes(made, error);
    if (status == STATUS_OK)
        status = read_merges(made, merges, merges_length, by_a_pair, error);
    if (status == STATUS_OK)
        status = check_tokens(made, by_a_pair, error);
    free(by_a_pair);
    if (status == STATUS_OK)
        *tokenizer = made;
    else
        tokenizer_close(&made);
    return status;
}
