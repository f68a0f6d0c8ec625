#ifndef LAYER_KV_H
#define LAYER_KV_H

#include "config.h"
#include "tensor.h"

struct layer_kv {
    struct tensor key, value;   /* both [B,H,S,D] */
};

struct past_key_values {
    int n_layers;               /* L */
    struct layer_kv *layers;    /* [L]; all share B, H, S and D */
};

/* Zero-filled pairs for `length` tokens. The caller owns them:
   past_key_values_free. Refuses sizes below 1; unchanged on error. */
enum status past_key_values_new(struct past_key_values *past,
                                const struct gpt_config *config,
                                int batch, int length, struct error *error);

/* S; 0 for NULL and for a struct of zeros. */
int past_key_values_length(const struct past_key_values *past);

/* Frees every tensor and empties the struct; NULL and twice are fine. */
void past_key_values_free(struct past_key_values *past);

/* Accepts a cache that a model of this config can continue for this batch:
   L layers, each key and each value [batch,H,S,D], one S >= 1 for all.
   Refuses by name and dimension: no cache at all, layer count, null tensors,
   rank, batch, heads, length (value against key, layer against layer),
   head_dim, and an empty cache. */
enum status past_key_values_check(const struct past_key_values *past,
                                  const struct gpt_config *config, int batch,
                                  struct error *error);

/* out [slices,P+T,D]: in each slice the P rows of `past` and behind them the
   T rows of `recent`. slices = B·H. past is not read when P = 0, and may be
   NULL then. out overlaps neither input. */
void kv_append(const float *past, int past_length,
               const float *recent, int recent_length,
               int slices, int head_dim, float *out);

/* *prefix becomes a cache of its own that holds the first `length` tokens of
   `past`, 1 <= length <= S. The caller owns it. `past` is only read, and may
   be freed. Refuses another length and tensors that disagree in shape;
   unchanged on error. */
enum status past_key_values_prefix(const struct past_key_values *past,
                                   int length,
                                   struct past_key_values *prefix,
                                   struct error *error);

#endif
