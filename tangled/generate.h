#ifndef GENERATE_H
#define GENERATE_H
#include <stdbool.h>
#include <stdint.h>
#include "generator.h"
#include "model.h"

enum { NO_EOS = -1 };

/* Zero-initialise, then set; no EOS must be said: eos_token_id = NO_EOS. */
struct generate_input {
    const int32_t *ids;          /* [B,T], each in [0,V) */
    int batch, tokens;           /* B >= 1, T >= 1 */
    int max_new_tokens;          /* >= 0, and T + max_new_tokens <= N */
    double temperature;          /* 0: greedy; finite and > 0: sampling */
    int32_t eos_token_id;        /* NO_EOS or in [0,V) */
    struct generator *generator; /* needed when temperature > 0 */
    /* Called after each step with the B new ids; false stops the run, and
       what there is by then is the result. NULL: not called. */
    bool (*on_step)(void *context, const int32_t *ids, int batch);
    void *context;
};

/* Zero-initialise; owned by the caller: generate_output_free. */
struct generate_output {
    int32_t *ids;                /* [B, T + steps], the prompt included */
    int batch, tokens;           /* B, T + steps */
};

/* Continues every row of the prompt through the functional cache, in
   evaluation mode. A row that emits EOS is filled with EOS from then on;
   the run stops when all rows have. Draws one number a row and step: draw
   s*B + b decides row b at step s. On an error output, generator and mode
   are what they were. Seed 000, stage 6. */
enum status tiny_gpt_generate(struct tiny_gpt *model,
                              const struct generate_input *input,
                              struct generate_output *output,
                              struct error *error);
void generate_output_free(struct generate_output *output);
#endif
