#include "speaker.h"
#include <string.h>

void speaker_close(struct speaker *speaker)
{
    tokenizer_close(&speaker->tokenizer);
    checkpoint_close(&speaker->checkpoint);
    engine_free(&speaker->engine);
}

enum status speaker_open(struct speaker *speaker, const char *model_path,
                         const char *tokenizer_path, bool text_needed,
                         struct error *error)
{
    enum status status = STATUS_OK;
    const struct kernels *kernels;
    enum matrix_type type = MATRIX_F32;
    status = engine_choose(&speaker->choice, &kernels, &type, error);
    if (status == STATUS_OK)
        status = engine_load(&speaker->engine, model_path,
                             speaker->choice.weights != NULL ? &type : NULL,
                             kernels, error);
    if (status == STATUS_OK)
        speaker->lm = engine_causal_lm(speaker->engine);
    if (status != STATUS_OK) {
        speaker_close(speaker);
        return status;
    }
    status = tokenizer_open(&speaker->tokenizer, model_path, tokenizer_path,
                            speaker->lm.vocab_size, error);
    if (status == STATUS_INVALID && tokenizer_path == NULL && !text_needed)
        status = STATUS_OK;
    if (status == STATUS_OK)
        status = text_ends_read(&speaker->ends, model_path,
                                speaker->tokenizer, speaker->lm.vocab_size,
                                error);
    if (status != STATUS_OK)
        speaker_close(speaker);
    return status;
}

enum status speaker_check_same(const struct speaker *one,
                               const struct speaker *other, const char *name,
                               struct error *error)
{
    if (one->lm.vocab_size != other->lm.vocab_size)
        return error_set(error, STATUS_INVALID, "%s: vocab_size: expected"
                         " the model's %d, got %d", name, one->lm.vocab_size,
                         other->lm.vocab_size);
    if (one->tokenizer == NULL || other->tokenizer == NULL)
        return STATUS_OK;
    const int id = tokenizer_difference(one->tokenizer, other->tokenizer);
    if (id >= 0)
        return error_set(error, STATUS_INVALID, "%s: id %d is another token"
                         " there", name, id);
    return STATUS_OK;
}
