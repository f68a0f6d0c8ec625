#include "front_matter.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

static void *allocate(size_t size)
{
    void *block = calloc(1, size);
    if (block == NULL) {
        fputs("tangle: out of memory\n", stderr);
        exit(1);
    }
    return block;
}

static char *copy_text(const char *text, size_t length)
{
    return memcpy(allocate(length + 1), text, length);
}

/* The block's text, to be freed; NULL when the file has none. */
static char *block_of(FILE *file)
{
    char line[4096];
    char *text = NULL;
    size_t length = 0;
    if (fgets(line, sizeof line, file) == NULL
        || strcmp(line, "---\n") != 0)
        return NULL;
    while (fgets(line, sizeof line, file) != NULL
           && strcmp(line, "---\n") != 0) {
        char *longer = allocate(length + strlen(line) + 1);
        if (text != NULL)
            memcpy(longer, text, length);
        strcpy(longer + length, line);
        length += strlen(line);
        free(text);
        text = longer;
    }
    return text;
}

static yaml_node_t *member(yaml_document_t *document, yaml_node_t *mapping,
                           const char *key)
{
    if (mapping == NULL || mapping->type != YAML_MAPPING_NODE)
        return NULL;
    for (yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
         pair < mapping->data.mapping.pairs.top; pair++) {
        yaml_node_t *name = yaml_document_get_node(document, pair->key);
        if (name->type == YAML_SCALAR_NODE
            && strcmp((char *)name->data.scalar.value, key) == 0)
            return yaml_document_get_node(document, pair->value);
    }
    return NULL;
}

static char *text_member(yaml_document_t *document, yaml_node_t *mapping,
                         const char *key)
{
    yaml_node_t *node = member(document, mapping, key);
    if (node == NULL || node->type != YAML_SCALAR_NODE)
        return NULL;
    return copy_text((char *)node->data.scalar.value,
                     node->data.scalar.length);
}

static char *text_or(char *text, const char *otherwise)
{
    return text != NULL ? text : copy_text(otherwise, strlen(otherwise));
}

static char *key_of(const char *path)
{
    const char *name = strrchr(path, '/');
    name = name != NULL ? name + 1 : path;
    while (*name == '0' && isdigit((unsigned char)name[1]))
        name++;
    return copy_text(name, strcspn(name, "-."));
}

static char *slug_of(const char *key, const char *body)
{
    if (strncmp(body, "wrong, ", 7) == 0)
        body += 7;
    char *slug = allocate(strlen(key) + strlen(body) + 2);
    char *end = slug + sprintf(slug, "%s-", key);
    for (; *body != '\0'; body++)
        if (isalnum((unsigned char)*body))
            *end++ = (char)tolower((unsigned char)*body);
        else if (end[-1] != '-')
            *end++ = '-';
    if (end[-1] == '-')
        end[-1] = '\0';
    return slug;
}

static size_t length_of(const yaml_node_t *list)
{
    if (list == NULL || list->type != YAML_SEQUENCE_NODE)
        return 0;
    return (size_t)(list->data.sequence.items.top
                    - list->data.sequence.items.start);
}

static yaml_node_t *item_of(yaml_document_t *document, yaml_node_t *list,
                            size_t i)
{
    return yaml_document_get_node(document,
                                  list->data.sequence.items.start[i]);
}

static char *scalar(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return copy_text("", 0);
    return copy_text((char *)node->data.scalar.value,
                     node->data.scalar.length);
}

static void add_given(struct front_matter *front, yaml_document_t *document)
{
    yaml_node_t *list = member(document,
        yaml_document_get_root_node(document), "given");
    size_t count = length_of(list);
    front->given = allocate((count + 1) * sizeof *front->given);
    for (; front->given_count < count; front->given_count++)
        front->given[front->given_count] =
            scalar(item_of(document, list, front->given_count));
}

static bool add_swaps(struct front_matter *front, const char *path,
                      yaml_document_t *document, const char *list)
{
    yaml_node_t *items = member(document,
        yaml_document_get_root_node(document), list);
    size_t count = length_of(items);
    struct swap *longer = allocate((front->count + count) * sizeof *longer);
    if (front->count > 0)
        memcpy(longer, front->swaps, front->count * sizeof *longer);
    free(front->swaps);
    front->swaps = longer;
    for (size_t i = 0; i < count; i++) {
        yaml_node_t *item = item_of(document, items, i);
        struct swap *swap = &front->swaps[front->count++];
        swap->chunk = text_member(document, item, "chunk");
        swap->by = text_member(document, item, "by");
        swap->owner = text_member(document, item, "owner");
        swap->mechanism = text_member(document, item, "mechanism");
        if (swap->chunk == NULL || swap->by == NULL) {
            fprintf(stderr, "%s: %s: entry %zu needs chunk and by\n", path, list,
                    i + 1);
            return false;
        }
        if (swap->owner == NULL)
            swap->owner = copy_text(swap->chunk, strlen(swap->chunk));
        if (strcmp(list, "wrong") == 0)
            swap->slug = slug_of(front->key, swap->by);
    }
    return true;
}

static void add_blanks(struct card *card, yaml_document_t *document,
                       yaml_node_t *list)
{
    size_t count = length_of(list);
    card->blanks = allocate((count + 1) * sizeof *card->blanks);
    for (; card->count < count; card->count++) {
        yaml_node_t *item = item_of(document, list, card->count);
        struct blank *blank = &card->blanks[card->count];
        blank->declares = text_member(document, item, "declares");
        blank->chunk = item->type == YAML_SCALAR_NODE ? scalar(item)
            : text_or(text_member(document, item, "chunk"), "");
    }
}

static void add_card(struct front_matter *front, yaml_document_t *document,
                     yaml_node_t *node, const char *key, const char *title)
{
    struct card *card = &front->cards[front->card_count++];
    char *minutes = text_or(text_member(document, node, "minutes"), "0");
    card->key = text_or(text_member(document, node, key), front->key);
    card->title = text_or(text_member(document, node, "title"), title);
    card->stop = text_or(text_member(document, node, "stop"), "");
    card->minutes = (int)strtol(minutes, NULL, 10);
    free(minutes);
    add_blanks(card, document, member(document, node, "blanks"));
}

static void add_cards(struct front_matter *front, yaml_document_t *document)
{
    yaml_node_t *root = yaml_document_get_root_node(document);
    yaml_node_t *parts = member(document, root, "parts");
    size_t count = length_of(parts);
    char *title = text_or(text_member(document, root, "title"), "");
    front->cards = allocate((count + 1) * sizeof *front->cards);
    if (count == 0 && member(document, root, "blanks") != NULL)
        add_card(front, document, root, "stage", title);
    for (size_t i = 0; i < count; i++)
        add_card(front, document, item_of(document, parts, i), "part",
                 title);
    free(title);
}

static bool read_block(struct front_matter *front, const char *path,
                       const char *text)
{
    yaml_parser_t parser;
    yaml_document_t document;
    yaml_parser_initialize(&parser);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text,
                                 strlen(text));
    bool read = yaml_parser_load(&parser, &document);
    if (!read)
        fprintf(stderr, "%s:%zu: front matter: %s\n", path,
                parser.problem_mark.line + 2, parser.problem);
    else {
        read = add_swaps(front, path, &document, "supersedes")
            && add_swaps(front, path, &document, "wrong");
        add_cards(front, &document);
        add_given(front, &document);
        yaml_document_delete(&document);
    }
    yaml_parser_delete(&parser);
    return read;
}

bool front_matter_read(struct front_matter *front, const char *path)
{
    memset(front, 0, sizeof *front);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        perror(path);
        return false;
    }
    char *text = block_of(file);
    fclose(file);
    front->key = key_of(path);
    bool read = text == NULL || read_block(front, path, text);
    free(text);
    return read;
}

static void free_card(struct card *card)
{
    for (size_t i = 0; i < card->count; i++) {
        free(card->blanks[i].chunk);
        free(card->blanks[i].declares);
    }
    free(card->blanks);
    free(card->key);
    free(card->title);
    free(card->stop);
}

void front_matter_free(struct front_matter *front)
{
    for (size_t i = 0; i < front->count; i++) {
        free(front->swaps[i].chunk);
        free(front->swaps[i].by);
        free(front->swaps[i].owner);
        free(front->swaps[i].slug);
        free(front->swaps[i].mechanism);
    }
    for (size_t i = 0; i < front->card_count; i++)
        free_card(&front->cards[i]);
    for (size_t i = 0; i < front->given_count; i++)
        free(front->given[i]);
    free(front->cards);
    free(front->given);
    free(front->swaps);
    free(front->key);
    memset(front, 0, sizeof *front);
}
