#include "attention_backward.h"
#include "vector.h"
#include <math.h>
#include <stddef.h>

void softmax_backward(const float *probs, const float *d_probs, int count,
                      float *d_scores)
{
    float mean = vector_dot(probs, d_probs, (size_t)count);
    for (int k = 0; k < count; k++)
        d_scores[k] += probs[k] * (d_probs[k] - mean);
}

#include "kernels.h"

enum { TILE = 64 };

struct slice_backward {
    const float *query, *key, *value, *probs, *dropout, *d_context;
    int queries, keys, head_dim;
    float *d_probs, *d_scores, *d_query, *d_key, *d_value;
};

static void add_product(int m, int n, int k, const float *a, size_t a_stride,
                        bool a_turned, const float *b, size_t b_stride,
                        bool b_turned, float *c, size_t c_stride)
{
    kernels_best()->product(&(struct product){
        .m = m, .n = n, .k = k, .a = a, .b = b, .a_stride = a_stride,
        .b_stride = b_stride, .a_turned = a_turned, .b_turned = b_turned,
        .add = true, .c = c, .c_stride = c_stride
    });
}

static void move_probs(const struct slice_backward *s, int i, int j,
                       int rows, int columns)
{
    float room[TILE * TILE] = {0};
    const size_t dim = (size_t)s->head_dim, keys = (size_t)s->keys;
    const size_t at = (size_t)i * keys + (size_t)j;
    add_product(rows, columns, s->head_dim, s->d_context + (size_t)i * dim,
                dim, false, s->value + (size_t)j * dim, dim, true, room,
                TILE);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const size_t here = at + (size_t)r * keys + (size_t)c;
            s->d_probs[here] += s->dropout == NULL ? room[r * TILE + c]
                : s->dropout[here] * room[r * TILE + c];
        }
}

static bool weigh_tile(const struct slice_backward *s, int i, int j, int rows,
                       int columns, float *slopes, float *weights)
{
    const float scale = 1 / sqrtf((float)s->head_dim);
    bool any = false;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < columns; c++) {
            const size_t here = (size_t)(i + r) * (size_t)s->keys
                                + (size_t)(j + c);
            const float drop = s->dropout == NULL ? 1 : s->dropout[here];
            slopes[r * TILE + c] = scale * s->d_scores[here];
            weights[r * TILE + c] = drop * s->probs[here];
            any = any || slopes[r * TILE + c] != 0 || weights[r * TILE + c] != 0;
        }
    return any;
}

static void add_tile(const struct slice_backward *s, int i, int j, int rows,
                     int columns)
{
    float slopes[TILE * TILE], weights[TILE * TILE];
    const size_t dim = (size_t)s->head_dim;
    const size_t q = (size_t)i * dim, k = (size_t)j * dim;
    if (!weigh_tile(s, i, j, rows, columns, slopes, weights))
        return;
    add_product(rows, s->head_dim, columns, slopes, TILE, false, s->key + k,
                dim, false, s->d_query + q, dim);
    add_product(columns, s->head_dim, rows, slopes, TILE, true, s->query + q,
                dim, false, s->d_key + k, dim);
    add_product(columns, s->head_dim, rows, weights, TILE, true,
                s->d_context + q, dim, false, s->d_value + k, dim);
}

static void walk_tiles(const struct slice_backward *s,
                       void (*visit)(const struct slice_backward *, int, int,
                                     int, int))
{
    for (int i = 0; i < s->queries; i += TILE)
        for (int j = 0; j < s->keys; j += TILE) {
            const int down = s->queries - i, right = s->keys - j;
            visit(s, i, j, down < TILE ? down : TILE,
                  right < TILE ? right : TILE);
        }
}

static void slice_backward(const struct slice_backward *s)
{
    walk_tiles(s, move_probs);
    for (int i = 0; i < s->queries; i++) {
        const ptrdiff_t row = (ptrdiff_t)i * s->keys;
        softmax_backward(s->probs + row, s->d_probs + row, s->keys,
                         s->d_scores + row);
    }
    walk_tiles(s, add_tile);
}

void attention_backward(const float *query, const float *key,
                        const float *value, const float *probs,
                        const float *dropout, const float *d_context,
                        int heads, int queries, int keys, int head_dim,
                        float *d_probs, float *d_scores,
                        float *d_query, float *d_key, float *d_value)
{
    const ptrdiff_t q = (ptrdiff_t)queries * head_dim;
    const ptrdiff_t kv = (ptrdiff_t)keys * head_dim;
    const ptrdiff_t square = (ptrdiff_t)queries * keys;
    #pragma omp parallel for if (heads > 1 && square * head_dim > 1 << 14)
    for (int h = 0; h < heads; h++) {
        const struct slice_backward slice = {
            query + h * q, key + h * kv, value + h * kv, probs + h * square,
            dropout == NULL ? NULL : dropout + h * square,
            d_context + h * q, queries, keys, head_dim,
            d_probs + h * square, d_scores + h * square, d_query + h * q,
            d_key + h * kv, d_value + h * kv
        };
        slice_backward(&slice);
    }
}
