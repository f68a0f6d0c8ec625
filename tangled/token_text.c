#include "token_text.h"
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static void add_up(struct token_text *made)
{
    made->fingerprint = 14695981039346656037u;
    made->most = -1;
    for (size_t i = 0; i < made->length; i++) {
        const int32_t id = made->ids[i];
        made->most = id > made->most ? id : made->most;
        made->fingerprint = (made->fingerprint ^ (uint64_t)id) * 1099511628211u;
    }
}

static enum status join(struct token_text *made, int32_t *const parts[2],
                        const int counts[2], struct error *error)
{
    made->training = (size_t)counts[0];
    made->length = made->training + (size_t)counts[1];
    made->ids = malloc((made->length + 1) * sizeof *made->ids);
    if (made->ids == NULL)
        return error_set(error, STATUS_NO_MEMORY, "text: no memory for %zu"
                         " ids", made->length);
    if (counts[0] > 0)
        memcpy(made->ids, parts[0], made->training * sizeof *made->ids);
    if (counts[1] > 0)
        memcpy(made->ids + made->training, parts[1],
               (made->length - made->training) * sizeof *made->ids);
    add_up(made);
    return STATUS_OK;
}

enum status token_text_new(struct token_text *text,
                           const struct corpus *corpus,
                           const struct tokenizer *tokenizer,
                           struct error *error)
{
    int32_t *parts[2] = { NULL, NULL };
    int counts[2] = { 0, 0 };
    struct token_text made = { 0 };
    const char *bytes = (const char *)corpus->bytes;
    const size_t ends[] = { 0, corpus->training, corpus->length };
    enum status status = STATUS_OK;
    for (int k = 0; k < 2 && status == STATUS_OK; k++)
        status = tokenizer_encode(tokenizer, bytes + ends[k],
                                  ends[k + 1] - ends[k], 0, &parts[k],
                                  &counts[k], error);
    if (status == STATUS_OK)
        status = join(&made, parts, counts, error);
    free(parts[0]);
    free(parts[1]);
    if (status != STATUS_OK)
        return status;
    *text = made;
    return STATUS_OK;
}

void token_text_free(struct token_text *text)
{
    if (text == NULL)
        return;
    free(text->ids);
    *text = (struct token_text){ 0 };
}

enum status token_text_check(const struct token_text *text, int tokens,
                             int vocab_size, struct error *error)
{
    const size_t held_out = text->length - text->training;
    if (text->training < (size_t)tokens || held_out < 2)
        return error_set(error, STATUS_INVALID, "text: expected %d tokens to"
                         " train on and 2 held out, got %zu and %zu", tokens,
                         text->training, held_out);
    if (text->most >= vocab_size)
        return error_set(error, STATUS_INVALID, "text: expected ids below"
                         " vocab_size %d, got %ld", vocab_size,
                         (long)text->most);
    return STATUS_OK;
}

void token_text_batch(const struct token_text *text,
                      struct generator *generator, int batch, int tokens,
                      int32_t *ids)
{
    const double places = (double)(text->training - (size_t)tokens) + 1;
    for (int b = 0; b < batch; b++, ids += tokens) {
        const size_t at = (size_t)(generator_uniform(generator) * places);
        memcpy(ids, text->ids + at, (size_t)tokens * sizeof *ids);
    }
}
