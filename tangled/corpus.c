#include "corpus.h"
#include "file.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static enum status append_file(struct corpus *corpus, const char *path,
                               struct error *error)
{
    unsigned char *bytes, *longer;
    size_t length;
    enum status status = file_read(path, &bytes, &length, error);
    if (status != STATUS_OK)
        return status;
    if (length == 0)
        status = error_set(error, STATUS_INVALID, "%s: is empty", path);
    if (status == STATUS_OK) {
        bool fits = length <= SIZE_MAX - corpus->length;
        longer = fits ? realloc(corpus->bytes, corpus->length + length) : NULL;
        if (longer == NULL)
            status = error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu"
                               " more bytes", path, length);
        else {
            memcpy(longer + corpus->length, bytes, length);
            corpus->bytes = longer;
            corpus->length += length;
        }
    }
    free(bytes);
    return status;
}

enum status corpus_read(struct corpus *corpus, const char *const *paths,
                        int count, struct error *error)
{
    struct corpus made = { .fingerprint = 14695981039346656037u };
    enum status status = STATUS_OK;
    for (int i = 0; i < count && status == STATUS_OK; i++)
        status = append_file(&made, paths[i], error);
    if (status != STATUS_OK) {
        corpus_free(&made);
        return status;
    }
    for (size_t i = 0; i < made.length; i++)
        made.fingerprint = (made.fingerprint ^ made.bytes[i])
                           * 1099511628211u;
    made.training = made.length - made.length / 20;
    *corpus = made;
    return STATUS_OK;
}

void corpus_free(struct corpus *corpus)
{
    if (corpus == NULL)
        return;
    free(corpus->bytes);
    *corpus = (struct corpus){ 0 };
}

enum status corpus_check(const struct corpus *corpus, int tokens,
                         struct error *error)
{
    size_t held_out = corpus->length - corpus->training;
    if (corpus->training < (size_t)tokens || held_out < 2)
        return error_set(error, STATUS_INVALID, "text: expected %d bytes of"
                         " training text and 2 held out, got %zu and %zu",
                         tokens, corpus->training, held_out);
    return STATUS_OK;
}

void corpus_window(const struct corpus *corpus, size_t at, int tokens,
                   int32_t *ids)
{
    for (int t = 0; t < tokens; t++)
        ids[t] = corpus->bytes[at + (size_t)t];
}

void corpus_batch(const struct corpus *corpus, struct generator *generator,
                  int batch, int tokens, int32_t *ids)
{
    double places = (double)(corpus->training - (size_t)tokens) + 1;
    for (int b = 0; b < batch; b++, ids += tokens) {
        size_t at = (size_t)(generator_uniform(generator) * places);
        corpus_window(corpus, at, tokens, ids);
    }
}
