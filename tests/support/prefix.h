/* What suites 10 and 10b share: texts whose keys and values say which text
   they are of, stored and looked up. Header only. */
#ifndef PREFIX_H
#define PREFIX_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "prefix_cache.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/harness.h"
#include "support/models.h"
#include "support/noise.h"

/* L 2, H 3, D 2 and blocks of 3 tokens, so that no two sizes are alike but
   those that must be. */
static const struct cache_shape prefix_shape = {2, 3, 5};
enum { BLOCK = 4, PREFIX_TEXT_MAX = 40 };
/* 8 L H D */
enum { TOKEN_BYTES = 8 * 2 * 3 * 5 };

static const struct prefix_cache_namespace ours = {"weights", "tenant"};

/* Every hash is the same. */
static inline uint64_t equal_hashes(uint64_t before, const void *bytes,
                                    size_t size)
{
    (void)before, (void)bytes, (void)size;
    return 7;
}

typedef enum status prefix_maker(struct prefix_cache **,
                                 const struct prefix_cache_options *,
                                 struct error *);

static inline struct prefix_cache *prefix_made(prefix_maker *make,
                                               int capacity,
                                               prefix_hash *hash)
{
    struct prefix_cache *cache = NULL;
    struct error error = {0};
    const struct prefix_cache_options options = {
        prefix_shape, BLOCK, capacity, hash
    };
    expect_ok(make(&cache, &options, &error), &error);
    return cache;
}

/* A text of the tests' own. */
static inline struct prefix_key text(const int32_t *ids, int tokens)
{
    return (struct prefix_key){ours, 0, ids, tokens};
}

/* `tokens` ids from this stream. Equal streams give equal texts. */
static inline void text_ids(unsigned stream, int tokens, int32_t *ids)
{
    uint64_t state = noise_start(stream);
    for (int t = 0; t < tokens; t++)
        ids[t] = noise_below(&state, 50000);
}

/* A number that depends on namespace, start and the ids 0 … t: as key and
   value t of a model would. */
static inline uint64_t text_row(const struct prefix_key *key, int t)
{
    uint64_t row = noise_mix((uint64_t)key->start + 1);
    for (const char *at = key->namespace.model; *at != '\0'; at++)
        row = noise_mix(row + (unsigned char)*at);
    row = noise_mix(row + 1000);
    for (const char *at = key->namespace.salt; *at != '\0'; at++)
        row = noise_mix(row + (unsigned char)*at);
    for (int k = 0; k <= t; k++)
        row = noise_mix(row + (uint64_t)(uint32_t)key->ids[k] + 1);
    return row;
}

static inline float text_float(uint64_t row, int layer, int part, int head,
                               int dim)
{
    uint64_t at = (uint64_t)(((layer * 2 + part) * 3 + head) * 5 + dim);
    return (float)(noise_mix(row + at) >> 40);
}

/* [1,H,slots,D]: the rows of the text, then NaN. */
static inline struct past_key_values text_past(const struct prefix_key *key,
                                               int slots)
{
    struct past_key_values past = {0};
    struct error error = {0};
    const struct gpt_config config = cache_shape_config(&prefix_shape);
    expect_ok(past_key_values_new(&past, &config, 1, slots, &error), &error);
    for (int t = 0; t < slots; t++) {
        uint64_t row = t < key->tokens ? text_row(key, t) : 0;
        for (int l = 0; l < prefix_shape.n_layers; l++)
            for (int part = 0; part < 2; part++)
                for (int h = 0; h < prefix_shape.n_kv_heads; h++)
                    for (int d = 0; d < prefix_shape.head_dim; d++) {
                        struct layer_kv *pair = &past.layers[l];
                        struct tensor *to = part ? &pair->value : &pair->key;
                        to->data[(h * slots + t) * 5 + d] = t < key->tokens
                            ? text_float(row, l, part, h, d) : NAN;
                    }
    }
    return past;
}

/* The rows are those of the text's first `tokens` tokens. */
static inline void expect_rows(const struct prefix_key *key, int tokens,
                               const struct past_key_values *past)
{
    struct prefix_key first = *key;
    first.tokens = tokens;
    struct past_key_values want = text_past(&first, tokens);
    ck_assert_int_eq(past->n_layers, want.n_layers);
    for (int l = 0; l < want.n_layers; l++)
        for (int part = 0; part < 2; part++) {
            const struct layer_kv *a = &past->layers[l];
            const struct layer_kv *b = &want.layers[l];
            const struct tensor *x = part ? &a->value : &a->key;
            const struct tensor *y = part ? &b->value : &b->key;
            ck_assert(tensor_same_shape(x, y));
            expect_same_bits(part ? "values" : "keys", x->data, y->data,
                             tensor_size(y) * sizeof *y->data);
        }
    past_key_values_free(&want);
}

/* Stores the text out of a cache with two slots to spare. */
static inline void store_text(struct prefix_cache *cache,
                              const struct prefix_key *key)
{
    struct error error = {0};
    struct past_key_values past = text_past(key, key->tokens + 2);
    expect_ok(prefix_cache_store(cache, key, &past, &error), &error);
    past_key_values_free(&past);
}

/* Looks up, and looks at what was found; returns how many tokens. */
static inline int found(struct prefix_cache *cache,
                        const struct prefix_key *key)
{
    struct error error = {0};
    struct prefix_match match = {0};
    expect_ok(prefix_cache_lookup(cache, key, &match, &error), &error);
    const int length = match.cache_length;
    ck_assert_int_eq(match.cache_start_position, key->start);
    ck_assert_int_le(length, key->tokens);
    ck_assert_int_eq(length % prefix_cache_options(cache)->block_size, 0);
    ck_assert((match.past.layers != NULL) == (length > 0));
    if (length > 0)
        expect_rows(key, length, &match.past);
    prefix_match_free(&match);
    return length;
}

#define expect_found(cache, key, length) \
    ck_assert_int_eq(found((cache), &(key)), (length))

#endif
