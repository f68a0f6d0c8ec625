#ifndef SPECULATIVE_H
#define SPECULATIVE_H

#include <stdbool.h>
#include <stdint.h>
#include "causal_lm.h"
#include "generate.h"

enum { PROMPT_CHUNK = 64 };      /* tokens of a prompt in one call */

struct speculative_counts {
    int proposed;                /* by the draft */
    int accepted;                /* of those, said */
    int replaced;                /* tokens of the target at a mismatch */
    int bonus;                   /* its tokens behind a full match; those of
                                    rounds without a proposal too */
    int target_calls;            /* one a round, and those of the prompt */
    int draft_calls;             /* one a proposal, and those of the prompt */
};

/* Zero-initialise; owned by the caller: speculative_output_free. */
struct speculative_output {
    int32_t *ids;                /* [tokens], the prompt included */
    int tokens;
    struct speculative_counts counts;
};

/* Continues one row as the target alone would: at temperature 0 with the very
   tokens of cache_aware_generate, above it with tokens of the same
   distribution. Proposes at most draft_tokens >= 1 a round, none behind an
   EOS. input->batch is 1, T + max_new_tokens at most either model's N;
   on_step sees the tokens one by one. Draws, when sampling: one for each
   proposal, one for each that is judged, one for each replacement or bonus,
   also a bonus that an EOS leaves unsaid.
   On an error output and generator are what they were. Seed 000. */
enum status speculative_generate(const struct causal_lm *target,
                                 const struct causal_lm *draft,
                                 const struct generate_input *input,
                                 int draft_tokens,
                                 struct speculative_output *output,
                                 struct error *error);
void speculative_output_free(struct speculative_output *output);

struct speculation;              /* a run; owns both models' requests */

/* All that will be allocated, and the prompt read. The models live as long as
   the run, input's ids until this returns. Refuses what speculative_generate
   refuses; *run is unchanged on error. */
enum status speculation_new(struct speculation **run,
                            const struct causal_lm *target,
                            const struct causal_lm *draft,
                            const struct generate_input *input,
                            int draft_tokens, struct error *error);
/* At least one token more; none when done. Allocates nothing. A round that
   fails has not been: text, caches, draws and counts are as before. */
enum status speculation_round(struct speculation *run, struct error *error);
void speculation_free(struct speculation **run);

/* Borrowed, until the next round. */
struct speculation_view {
    const int32_t *ids;
    int tokens;                  /* n: the prompt and what was said */
    bool done;
    int target_cached, draft_cached;
    struct speculative_counts counts;
};
struct speculation_view speculation_view(const struct speculation *run);

#endif
