#ifndef SPEAKER_H
#define SPEAKER_H

#include "checkpoint.h"
#include "tokenizer.h"
#include "engine_choice.h"
#include "engine_load.h"

struct speaker {                 /* zero-initialise; speaker_close */
    struct checkpoint *checkpoint;
    struct causal_lm lm;
    struct tokenizer *tokenizer; /* NULL: it speaks in ids */
    struct text_ends ends;       /* behind these ids it has said all */
    struct engine *engine;
    struct engine_choice choice;     /* said before it is opened */
};

/* A model without a tokenizer is refused when text_needed, and speaks in ids
   otherwise. tokenizer_path may be NULL: tokenizer_open. */
enum status speaker_open(struct speaker *speaker, const char *model_path,
                         const char *tokenizer_path, bool text_needed,
                         struct error *error);
void speaker_close(struct speaker *speaker);

/* Refuses, by the name of its option, a second model of as many ids that are
   other tokens. One of them may have no tokenizer, and is trusted. */
enum status speaker_check_same(const struct speaker *one,
                               const struct speaker *other, const char *name,
                               struct error *error);

#endif
