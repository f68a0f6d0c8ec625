/* A causal_lm without weights, for suites about the runtime. What it says
   next depends on every token before, and on nothing that is not in its cache:
   slot j keeps a hash of tokens 0 … j. So a slot that is stale, missing or out
   of place changes every answer behind it. Header only. The rows of a batch
   are rows of its storage; calls are written down by their first row.

   Two scripts of one salt say the same, unless one is told to be wrong. */
#ifndef SCRIPTED_H
#define SCRIPTED_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "causal_lm.h"
#include "support/noise.h"

enum { SCRIPT_CALLS = 256 };

struct script {
    int vocab_size, context_length;
    uint64_t salt;
    /* Logits are noise, or the logarithms of these, turned around by the
       hash: NULL, or [V]. */
    const double *shares;
    /* Positions at which it says another id than its salt would. */
    bool (*wrong_at)(const struct script *script, int position);
    int from, until;             /* for wrong_at */
    int nan_at;                  /* a position without numbers; 0 for none */
    int free_until;              /* not 0: from this slot on, the tokens have
                                    to be its own, or there are no numbers */
    int calls;                   /* what it was asked so far */
    struct { int length, tokens; } call[SCRIPT_CALLS];
};

static inline uint32_t script_hash(uint32_t before, int32_t id, int position)
{
    return (uint32_t)(noise_mix(noise_mix(before) * 64 + (uint64_t)id
                                + ((uint64_t)position << 32)) >> 40);
}

/* The logits [V] behind the token at this position. */
static inline void script_logits(const struct script *script, uint32_t hash,
                                 int position, float *logits)
{
    const int count = script->vocab_size;
    uint64_t state = noise_mix(script->salt + hash);
    if (script->shares == NULL)
        noise_floats(&state, (size_t)count, logits);
    else {
        const int turn = noise_below(&state, count);
        for (int id = 0; id < count; id++)
            logits[id] = (float)log(script->shares[(id + turn) % count]);
    }
    if (script->wrong_at != NULL && script->wrong_at(script, position)) {
        const float first = logits[0];
        memmove(logits, logits + 1, (size_t)(count - 1) * sizeof *logits);
        logits[count - 1] = first;
    }
    if (script->nan_at > 0 && position == script->nan_at)
        logits[count / 2] = NAN;
}

/* The id that it says behind them. */
static inline int32_t script_says(const float *logits, int count)
{
    int32_t best = 0;
    for (int32_t id = 1; id < count; id++)
        if (logits[id] > logits[best])
            best = id;
    return best;
}

static inline size_t script_scratch(const void *model, int batch, int tokens,
                                    int slots)
{
    (void)model;
    return (size_t)(batch + tokens + slots);
}

static inline void script_row(const struct script *script,
                              const struct step *step, int b, float *logits)
{
    const size_t row = (size_t)step->storage->layers[0].key.shape[2];
    float *key = step->storage->layers[0].key.data + (size_t)b * row;
    float *value = step->storage->layers[0].value.data + (size_t)b * row;
    for (int t = 0; t < step->tokens; t++) {
        const int slot = step->lengths[b] + t;
        const int32_t id = step->ids[b * step->tokens + t];
        const int position = step->positions[b * step->tokens + t];
        const uint32_t before = slot == 0 ? 0 : (uint32_t)key[slot - 1];
        float expected[64];
        if (slot > 0)
            script_logits(script, before, position - 1, expected);
        key[slot] = (float)script_hash(before, id, position);
        value[slot] = (float)position;
        if (step->last_only && t + 1 < step->tokens)
            continue;
        script_logits(script, (uint32_t)key[slot], position, logits);
        if (script->free_until > 0 && slot >= script->free_until
            && id != script_says(expected, script->vocab_size))
            logits[0] = NAN;
        logits += script->vocab_size;
    }
}

static inline void script_run(const void *model, const struct step *step,
                              float *scratch)
{
    struct script *script = (struct script *)model;
    const int rows = step->last_only ? 1 : step->tokens;
    (void)scratch;
    if (script->vocab_size > 64)
        abort();                 /* an assertion would allocate */
    if (script->calls < SCRIPT_CALLS) {
        script->call[script->calls].length = step->lengths[0];
        script->call[script->calls].tokens = step->tokens;
    }
    script->calls++;
    for (int b = 0; b < step->batch; b++)
        script_row(script, step, b,
                   step->logits + b * rows * script->vocab_size);
}

static inline struct causal_lm script_lm(struct script *script)
{
    return (struct causal_lm){
        .model = script, .vocab_size = script->vocab_size,
        .context_length = script->context_length, .cache = {1, 1, 1},
        .scratch_size = script_scratch, .run = script_run
    };
}

/* Continues ids [tokens] to [length] greedily, without any cache. */
static inline void script_continue(const struct script *script, int32_t *ids,
                                   int tokens, int length)
{
    uint32_t hash = 0;
    float logits[64];
    for (int t = 0; t + 1 < length; t++) {
        hash = script_hash(hash, ids[t], t);
        script_logits(script, hash, t, logits);
        if (t + 1 >= tokens)
            ids[t + 1] = script_says(logits, script->vocab_size);
    }
}

#endif
