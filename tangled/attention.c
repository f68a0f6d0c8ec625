#include "attention.h"
#include <math.h>
#include <stddef.h>
#include <string.h>

void heads_split(const float *in, int stride, int batch, int tokens,
                 int n_heads, int head_dim, float *out)
{
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < n_heads; h++)
            for (int t = 0; t < tokens; t++, out += head_dim) {
                const float *token = in + ((ptrdiff_t)b * tokens + t) * stride;
                memcpy(out, token + h * head_dim, (size_t)head_dim * sizeof *out);
            }
}

void heads_merge(const float *in, int batch, int n_heads, int tokens,
                 int head_dim, float *out)
{
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < tokens; t++)
            for (int h = 0; h < n_heads; h++, out += head_dim) {
                const ptrdiff_t place = ((ptrdiff_t)b * n_heads + h) * tokens + t;
                memcpy(out, in + place * head_dim, (size_t)head_dim * sizeof *out);
            }
}

void masked_softmax(const float *scores, const bool *keep, int count,
                    float *probs)
{
    float max = -INFINITY;
    for (int j = 0; j < count; j++)
        if (keep[j] && scores[j] > max)
            max = scores[j];
    double sum = 0;
    for (int j = 0; j < count; j++) {
        probs[j] = keep[j] ? expf(scores[j] - max) : 0;
        sum += probs[j];
    }
    if (sum == 0)
        return;
    for (int j = 0; j < count; j++)
        probs[j] = (float)(probs[j] / sum);
}

void attention_scores(const float *query, const float *key, const bool *keep,
                      int heads, int queries, int keys, int head_dim,
                      float *scores)
{
    const float scale = 1 / sqrtf((float)head_dim);
    for (int h = 0; h < heads; h++, key += (ptrdiff_t)keys * head_dim) {
        const bool *row = keep;
        for (int i = 0; i < queries; i++, row += keys) {
            for (int j = 0; j < keys; j++) {
                scores[j] = 0;
                if (!row[j])
                    continue;
                const float *a = query, *b = key + (ptrdiff_t)j * head_dim;
                const int count = head_dim;
                float sum = 0;
                #pragma omp simd reduction(+ : sum)
                for (int k = 0; k < count; k++)
                    sum += a[k] * b[k];
                scores[j] = sum * scale;
            }
            query += head_dim;
            scores += keys;
        }
    }
}

void attention_probs(const float *scores, const bool *keep,
                     int heads, int queries, int keys, float *probs)
{
    for (int h = 0; h < heads; h++) {
        const bool *row = keep;
        for (int i = 0; i < queries; i++, row += keys) {
            masked_softmax(scores, row, keys, probs);
            scores += keys;
            probs += keys;
        }
    }
}

void attention_context(const float *probs, const float *value,
                       const bool *keep,
                       int heads, int queries, int keys, int head_dim,
                       float *context)
{
    for (int h = 0; h < heads; h++, value += (ptrdiff_t)keys * head_dim) {
        const bool *row = keep;
        for (int i = 0; i < queries; i++, row += keys) {
            memset(context, 0, (size_t)head_dim * sizeof *context);
            for (int j = 0; j < keys; j++) {
                if (!row[j])
                    continue;
                const float *v = value + (ptrdiff_t)j * head_dim;
                for (int d = 0; d < head_dim; d++)
                    context[d] += probs[j] * v[d];
            }
            probs += keys;
            context += head_dim;
        }
    }
}

#include "kernels.h"

struct slices {
    const float *query, *key, *value, *probs;
    const bool *keep;
    int heads, queries, keys, head_dim;
    float *context;
};

static bool causal(const struct slices *s, int row)
{
    const bool *keep = s->keep + (ptrdiff_t)row * s->keys;
    const int own = s->keys - s->queries + row;
    for (int j = 0; j < s->keys; j++)
        if (keep[j] != (j <= own))
            return false;
    return own >= 0;
}

static void mix_by_kernel(const struct slices *s, int from, int to)
{
    enum { CALLS = 16 };
    struct attention_call calls[CALLS];
    const size_t dim = (size_t)s->head_dim, kv = (size_t)s->keys * dim;
    for (int h = 0; h < s->heads; h += CALLS) {
        const int left = s->heads - h, count = left < CALLS ? left : CALLS;
        for (int c = 0; c < count; c++) {
            const size_t slice = (size_t)(h + c);
            const size_t rows = (slice * (size_t)s->queries + (size_t)from)
                                * dim;
            calls[c] = (struct attention_call){
                .heads = 1, .kv_heads = 1, .head_dim = s->head_dim,
                .tokens = to - from, .length = s->keys - s->queries + from,
                .query = s->query + rows, .query_token = dim,
                .key = s->key + slice * kv, .value = s->value + slice * kv,
                .slot_stride = dim, .context = s->context + rows,
                .context_token = dim
            };
        }
        kernels_best()->attention(calls, count);
    }
}

static void mix_by_loops(const struct slices *s, int from, int to)
{
    const ptrdiff_t keys = s->keys, dim = s->head_dim;
    for (int h = 0; h < s->heads; h++) {
        const ptrdiff_t row = (ptrdiff_t)h * s->queries + from;
        attention_context(s->probs + row * keys, s->value + h * keys * dim,
                          s->keep + from * keys, 1, to - from, s->keys,
                          s->head_dim, s->context + row * dim);
    }
}

void attention_mix(const float *query, const float *key, const float *value,
                   const float *probs, bool dropped, const bool *keep,
                   int heads, int queries, int keys, int head_dim,
                   float *context)
{
    const struct slices slices = {query, key, value, probs, keep, heads,
                                  queries, keys, head_dim, context};
    for (int from = 0, to; from < queries; from = to) {
        const bool fast = !dropped && causal(&slices, from);
        for (to = from + 1; to < queries
             && (!dropped && causal(&slices, to)) == fast; to++)
            ;
        if (fast)
            mix_by_kernel(&slices, from, to);
        else
            mix_by_loops(&slices, from, to);
    }
}

void attention_forward(const float *query, const float *key,
                       const float *value, const bool *keep,
                       int heads, int queries, int keys, int head_dim,
                       float *scores, float *probs, float *context)
{
    attention_scores(query, key, keep, heads, queries, keys, head_dim,
                     scores);
    attention_probs(scores, keep, heads, queries, keys, probs);
    attention_mix(query, key, value, probs, false, keep, heads, queries, keys,
                  head_dim, context);
}
