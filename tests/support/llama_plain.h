/* What the suites of a llama share from chapter 13 on: a second computation
   in double, one call over a whole text, and the same text in calls behind a
   past of its own. Header only, like llamas.h. */
#ifndef LLAMA_PLAIN_H
#define LLAMA_PLAIN_H

#include <math.h>
#include <stdio.h>
#include "cache_aware.h"
#include "support/compare.h"
#include "support/llamas.h"

static struct error error;

/* A whole text in double, token by token, every query head with keys of its
   own; pairs of neighbouring columns when interleaved. logits [T,V]. */
struct plain {
    const struct llama *model;
    const struct llama_config *config;
    const int32_t *ids, *positions;
    int tokens;
    bool interleaved;
};

enum { PLAIN_T = 24, PLAIN_W = 64, PLAIN_E = 16 };

static inline const float *weights(const struct plain *plain, int l,
                            const char *name)
{
    char full[96];
    if (l < 0)
        snprintf(full, sizeof full, "%s.weight", name);
    else
        snprintf(full, sizeof full, "model.layers.%d.%s.weight", l, name);
    return llama_tensor_find(plain->model, full)->tensor->data;
}

static inline void plain_norm(const struct plain *plain, const float *w,
                       const double *x, double *out)
{
    double square = plain->config->rms_norm_eps;
    for (int c = 0; c < plain->config->d_model; c++)
        square += x[c] * x[c] / plain->config->d_model;
    for (int c = 0; c < plain->config->d_model; c++)
        out[c] = w[c] * x[c] / sqrt(square);
}

static inline void plain_linear(const float *w, const double *x, int rows,
                         int columns, double *out)
{
    for (int r = 0; r < rows; r++) {
        out[r] = 0;
        for (int c = 0; c < columns; c++)
            out[r] += (double)w[r * columns + c] * x[c];
    }
}

static inline void plain_turn(const struct plain *plain, double *x, int position)
{
    const int dim = plain->config->head_dim;
    for (int i = 0; i < dim / 2; i++) {
        const double turn = position / pow(plain->config->rope_theta,
                                           2.0 * i / dim);
        double *a = plain->interleaved ? x + 2 * i : x + i;
        double *b = plain->interleaved ? a + 1 : a + dim / 2;
        const double radius = hypot(*a, *b), from = atan2(*b, *a);
        *a = radius * cos(from + turn);
        *b = radius * sin(from + turn);
    }
}

static inline void plain_attention(const struct plain *plain, int l,
                            double x[][PLAIN_W])
{
    static double q[PLAIN_T][PLAIN_W], k[PLAIN_T][PLAIN_W],
                  v[PLAIN_T][PLAIN_W];
    const struct llama_config *c = plain->config;
    const int dim = c->head_dim, group = c->n_heads / c->n_kv_heads;
    for (int t = 0; t < plain->tokens; t++) {
        double norm[PLAIN_W], context[PLAIN_W] = {0}, out[PLAIN_W];
        plain_norm(plain, weights(plain, l, "input_layernorm"), x[t], norm);
        plain_linear(weights(plain, l, "self_attn.q_proj"), norm,
                     c->n_heads * dim, c->d_model, q[t]);
        plain_linear(weights(plain, l, "self_attn.k_proj"), norm,
                     c->n_kv_heads * dim, c->d_model, k[t]);
        plain_linear(weights(plain, l, "self_attn.v_proj"), norm,
                     c->n_kv_heads * dim, c->d_model, v[t]);
        for (int h = 0; h < c->n_heads; h++)
            plain_turn(plain, q[t] + h * dim, plain->positions[t]);
        for (int h = 0; h < c->n_kv_heads; h++)
            plain_turn(plain, k[t] + h * dim, plain->positions[t]);
        for (int h = 0; h < c->n_heads; h++) {
            double weight[PLAIN_T], sum = 0;
            for (int j = 0; j <= t; j++) {
                double dot = 0;
                for (int d = 0; d < dim; d++)
                    dot += q[t][h * dim + d] * k[j][h / group * dim + d];
                sum += weight[j] = exp(dot / sqrt(dim));
            }
            for (int j = 0; j <= t; j++)
                for (int d = 0; d < dim; d++)
                    context[h * dim + d] += weight[j] / sum
                                            * v[j][h / group * dim + d];
        }
        plain_linear(weights(plain, l, "self_attn.o_proj"), context,
                     c->d_model, c->n_heads * dim, out);
        for (int d = 0; d < c->d_model; d++)
            x[t][d] += out[d];
    }
}

/* One gated layer of three matrices; out [C]. */
static inline void plain_layer(const struct plain *plain, const float *w_gate,
                               const float *w_up, const float *w_down,
                               const double *norm, double *out)
{
    const struct llama_config *c = plain->config;
    double gate[PLAIN_W], up[PLAIN_W];
    plain_linear(w_gate, norm, c->d_ff, c->d_model, gate);
    plain_linear(w_up, norm, c->d_ff, c->d_model, up);
    for (int f = 0; f < c->d_ff; f++)
        gate[f] *= up[f] / (1 + exp(-gate[f]));
    plain_linear(w_down, gate, c->d_model, c->d_ff, out);
}

/* The k largest of count logits, of equals the first: share [count] is what
   each adds, exp(logit) over the sum of the chosen ones' and 0 for others. */
static inline void plain_shares(const double *logits, int count, int chosen,
                                double *share)
{
    double sum = 0;
    for (int e = 0; e < count; e++) {
        int before = 0;
        for (int other = 0; other < count; other++)
            before += logits[other] > logits[e]
                      || (logits[other] == logits[e] && other < e);
        share[e] = before < chosen ? exp(logits[e]) : 0;
        sum += share[e];
    }
    for (int e = 0; e < count; e++)
        share[e] /= sum;
}

/* Every expert is computed, and most of them are added 0 times. */
static inline void plain_experts(const struct plain *plain, int l,
                                 const double *norm, double *out)
{
    const struct llama_config *c = plain->config;
    double logits[PLAIN_E], share[PLAIN_E], made[PLAIN_W];
    plain_linear(weights(plain, l, "block_sparse_moe.gate"), norm,
                 c->n_experts, c->d_model, logits);
    plain_shares(logits, c->n_experts, c->experts_per_token, share);
    for (int d = 0; d < c->d_model; d++)
        out[d] = 0;
    for (int e = 0; e < c->n_experts; e++) {
        const float *w[3];
        for (int k = 0; k < 3; k++) {
            char name[64];
            snprintf(name, sizeof name, "block_sparse_moe.experts.%d.w%d", e,
                     k + 1);
            w[k] = weights(plain, l, name);
        }
        plain_layer(plain, w[0], w[2], w[1], norm, made);
        for (int d = 0; d < c->d_model; d++)
            out[d] += share[e] * made[d];
    }
}

static inline void plain_feed(const struct plain *plain, int l, double *x)
{
    double norm[PLAIN_W], out[PLAIN_W];
    plain_norm(plain, weights(plain, l, "post_attention_layernorm"), x, norm);
    if (plain->config->n_experts > 0)
        plain_experts(plain, l, norm, out);
    else
        plain_layer(plain, weights(plain, l, "mlp.gate_proj"),
                    weights(plain, l, "mlp.up_proj"),
                    weights(plain, l, "mlp.down_proj"), norm, out);
    for (int d = 0; d < plain->config->d_model; d++)
        x[d] += out[d];
}

static inline void plain_forward(const struct plain *plain, float *logits)
{
    static double x[PLAIN_T][PLAIN_W];
    const struct llama_config *c = plain->config;
    const float *table = weights(plain, -1, "model.embed_tokens");
    for (int t = 0; t < plain->tokens; t++)
        for (int d = 0; d < c->d_model; d++)
            x[t][d] = table[plain->ids[t] * c->d_model + d];
    for (int l = 0; l < c->n_layers; l++) {
        plain_attention(plain, l, x);
        for (int t = 0; t < plain->tokens; t++)
            plain_feed(plain, l, x[t]);
    }
    for (int t = 0; t < plain->tokens; t++) {
        double norm[PLAIN_W], row[PLAIN_W];
        plain_norm(plain, weights(plain, -1, "model.norm"), x[t], norm);
        plain_linear(weights(plain, -1, "lm_head"), norm, c->vocab_size,
                     c->d_model, row);
        for (int v = 0; v < c->vocab_size; v++)
            logits[t * c->vocab_size + v] = (float)row[v];
    }
}

/* One call without a past; the caller frees the output. */
static inline struct cache_aware_output whole(const struct causal_lm *lm,
                                       const int32_t *ids,
                                       const int32_t *positions, int batch,
                                       int tokens)
{
    const struct cache_aware_input input = {
        .ids = ids, .positions = positions, .batch = batch, .tokens = tokens,
        .use_cache = true
    };
    struct cache_aware_output output = {0};
    expect_ok(cache_aware_forward(lm, &input, &output, &error), &error);
    return output;
}

static inline void text_of(uint64_t *state, int rows, int tokens,
                    const int *starts, int32_t *ids, int32_t *positions)
{
    noise_ids(state, 13, rows, tokens, ids);
    for (int k = 0; k < rows * tokens; k++)
        positions[k] = starts[k / tokens] + k % tokens;
}

/* Some rows of a text: ids and positions [B,T], the logits of one call. */
struct text {
    const struct causal_lm *lm;
    const int32_t *ids, *positions;
    int batch, tokens;
    const float *logits;
};

/* Calls whose sizes are the runs of equal bits in `split`; stops at the first
   token whose logits differ, and names it. */
static inline void expect_split(const struct text *text, unsigned split, bool bits)
{
    struct cache_aware_output past = {0};
    const int width = text->lm->vocab_size;
    int done = 0;
    while (done < text->tokens) {
        int count = 1;
        while (done + count < text->tokens
               && (split >> (done + count) & 1)
                  == (split >> (done + count - 1) & 1))
            count++;
        int32_t ids[64], positions[64];
        for (int k = 0; k < text->batch * count; k++) {
            const int at = k / count * text->tokens + done + k % count;
            ids[k] = text->ids[at];
            positions[k] = text->positions[at];
        }
        const bool cached = done > 0;
        const struct cache_aware_input input = {
            .ids = ids, .positions = positions, .batch = text->batch,
            .tokens = count, .past = cached ? &past.past_key_values : NULL,
            .cache_lengths = cached ? past.cache_lengths : NULL,
            .cache_start_positions =
                cached ? past.cache_start_positions : NULL,
            .use_cache = true
        };
        struct cache_aware_output output = {0};
        expect_ok(cache_aware_forward(text->lm, &input, &output, &error),
                  &error);
        for (int k = 0; k < text->batch * count; k++) {
            const int at = k / count * text->tokens + done + k % count;
            char what[48];
            snprintf(what, sizeof what, "split %x, row %d, token %d", split,
                     k / count, done + k % count);
            const float *got = output.logits.data + k * width;
            const float *want = text->logits + at * width;
            if (bits)
                expect_same_bits(what, got, want,
                                 (size_t)width * sizeof *got);
            else
                expect_close(what, got, want, (size_t)width, 1, &width,
                             TOLERANCE);
        }
        cache_aware_output_free(&past);
        past = output;
        done += count;
    }
    cache_aware_output_free(&past);
}

/* Alternating bits: every token a call. */
enum { TOKENWISE = 0x5555 };

#endif
