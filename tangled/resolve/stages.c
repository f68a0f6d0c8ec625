#include "stages.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

int chapter_number(const char *path)
{
    const char *name = strrchr(path, '/');
    return atoi(name != NULL ? name + 1 : path);
}

static struct stage *stage_of(struct stages *stages, const struct card *card,
                              const char *path)
{
    for (size_t i = 0; i < stages->count; i++)
        if (strcmp(stages->items[i].key, card->key) == 0)
            return &stages->items[i];
    struct stage *stage = &stages->items[stages->count++];
    const char *name = strrchr(path, '/') + 1;
    stage->key = text_format("%s", card->key);
    stage->name = text_format("%.*s", (int)strcspn(name, "."), name);
    stage->title = text_format("%s", card->title);
    stage->stop = text_format("%s", card->stop);
    stage->minutes = card->minutes;
    stage->chapter = chapter_number(path);
    return stage;
}

static void add_card(struct stages *stages, const struct card *card,
                     const struct front_matter *front, const char *path)
{
    struct stage *stage = stage_of(stages, card, path);
    for (size_t i = 0; i < card->count; i++)
        list_add(&stage->blanks, text_format("%s", card->blanks[i].chunk));
    for (size_t i = 0; i < front->given_count; i++)
        list_add(&stage->given, text_format("%s", front->given[i]));
}

static void find_chapters(struct stages *stages, const char *book)
{
    struct list names = files_in(book, ".nw");
    for (size_t i = 0; i < names.count; i++)
        if (isdigit((unsigned char)names.items[i][0]))
            list_add(&stages->chapters,
                     text_format("%s/%s", book, names.items[i]));
    list_free(&names);
}

bool stages_read(struct stages *stages, const struct workshop *workshop)
{
    size_t cards = 0;
    *stages = (struct stages){ 0 };
    find_chapters(stages, workshop->book);
    stages->fronts = allocate(stages->chapters.count
                              * sizeof *stages->fronts);
    for (size_t i = 0; i < stages->chapters.count; i++) {
        if (!front_matter_read(&stages->fronts[i],
                               stages->chapters.items[i]))
            return false;
        cards += stages->fronts[i].card_count;
    }
    stages->items = allocate(cards * sizeof *stages->items);
    for (size_t i = 0; i < stages->chapters.count; i++)
        for (size_t c = 0; c < stages->fronts[i].card_count; c++)
            add_card(stages, &stages->fronts[i].cards[c],
                     &stages->fronts[i], stages->chapters.items[i]);
    return stages->count > 0
        || complain("no stages in %s: is this the top of the book?",
                    workshop->book);
}

const struct stage *stages_find(const struct stages *stages, const char *key)
{
    for (size_t i = 0; i < stages->count; i++)
        if (strcmp(stages->items[i].key, key) == 0)
            return &stages->items[i];
    return NULL;
}

void stages_free(struct stages *stages)
{
    for (size_t i = 0; i < stages->count; i++) {
        struct stage *stage = &stages->items[i];
        free(stage->key);
        free(stage->name);
        free(stage->title);
        free(stage->stop);
        list_free(&stage->blanks);
        list_free(&stage->given);
    }
    for (size_t i = 0; i < stages->chapters.count; i++)
        front_matter_free(&stages->fronts[i]);
    free(stages->fronts);
    free(stages->items);
    list_free(&stages->chapters);
    *stages = (struct stages){ 0 };
}
