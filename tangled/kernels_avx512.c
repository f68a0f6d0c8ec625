#include "kernels.h"
#include <math.h>
#include <string.h>

/* 32 registers of 16 lanes: 24 hold sums */
enum { LANES = 16, MR = 12 };

typedef float vec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));
/* a vector anywhere in an array of floats */
typedef float vec_at
    __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif
#define INLINE static inline __attribute__((always_inline))

INLINE vec load(const float *p) { return *(const vec_at *)p; }
INLINE void store(float *p, vec v) { *(vec_at *)p = v; }
INLINE vec splat(float x) { return x - (vec){0}; }

INLINE vec choose(ivec mask, vec yes, vec no)
{
    return (vec)((mask & (ivec)yes) | (~mask & (ivec)no));
}

/* a where it is larger, else b: a NaN in b stays, one in a goes */
INLINE vec larger(vec a, vec b) { return choose(a > b, a, b); }

INLINE vec load_part(const float *p, int count)
{
    vec v = splat(0);
    memcpy(&v, p, (size_t)count * sizeof *p);
    return v;
}

INLINE void store_part(float *p, vec v, int count)
{
    memcpy(p, &v, (size_t)count * sizeof *p);
}

INLINE vec vexp(vec x)
{
    const ivec under = x < splat(-86.9f);
    x = choose(x > splat(89.0f), splat(89.0f), x);
    const vec magic = splat(12582912.0f);
    vec n = x * 1.44269504088896341f + magic;
    const uvec power = ((uvec)n << 23) + 0x3f000000u;    /* 2^(n-1) */
    n -= magic;
    vec r = x - n * 0.693359375f;
    r -= n * -2.12194440e-4f;
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    p = (p + p) * (vec)power;
    return (vec)(~under & (ivec)p);
}

static void exponential(const float *in, size_t count, float *out)
{
    size_t k = 0;
    for (; k + LANES <= count; k += LANES)
        store(out + k, vexp(load(in + k)));
    if (k < count)
        store_part(out + k, vexp(load_part(in + k, (int)(count - k))),
                   (int)(count - k));
}

INLINE vec vsigmoid(vec x) { return 1.0f / (1.0f + vexp(-x)); }
INLINE vec vsilu(vec x) { return x / (1.0f + vexp(-x)); }
INLINE vec vgelu_tanh(vec x)
{
    return x / (1.0f + vexp(-x * (1.5957691216057308f
                                  + 0.07135481282553f * (x * x))));
}
INLINE vec vgelu(vec x)
{
    vec y;
    for (int i = 0; i < LANES; i++)
        y[i] = 0.5f * x[i] * erfcf(-x[i] * 0.70710678118654752f);
    return y;
}
INLINE vec vslope_gelu(vec x)
{
    vec y;
    for (int i = 0; i < LANES; i++)
        y[i] = 0.5f * erfcf(-x[i] * 0.70710678118654752f)
            + x[i] * 0.39894228040143268f * expf(-0.5f * x[i] * x[i]);
    return y;
}
INLINE vec vslope_gelu_tanh(vec x)
{
    const vec u = x * (1.5957691216057308f + 0.07135481282553f * (x * x));
    const vec s = vsigmoid(u);
    return s + x * s * (1.0f - s)
               * (1.5957691216057308f + 0.21406443847659f * (x * x));
}
INLINE vec vslope_silu(vec x)
{
    const vec s = vsigmoid(x);
    return s * (1.0f + x * (1.0f - s));
}

INLINE vec vactivate(enum activation f, vec x)
{
    return f == ACTIVATION_GELU ? vgelu(x)
           : f == ACTIVATION_GELU_TANH ? vgelu_tanh(x) : vsilu(x);
}

INLINE vec vslope(enum activation f, vec x)
{
    return f == ACTIVATION_GELU ? vslope_gelu(x)
           : f == ACTIVATION_GELU_TANH ? vslope_gelu_tanh(x)
           : vslope_silu(x);
}

static void activate(enum activation f, const float *in, size_t count,
                     float *out)
{
    size_t k = 0;
    for (; k + LANES <= count; k += LANES)
        store(out + k, vactivate(f, load(in + k)));
    const int rest = (int)(count - k);
    if (rest > 0)
        store_part(out + k, vactivate(f, load_part(in + k, rest)), rest);
}

static void activate_backward(enum activation f, const float *in,
                              const float *d_out, size_t count, float *d_in)
{
    size_t k = 0;
    for (; k + LANES <= count; k += LANES)
        store(d_in + k, load(d_in + k)
                        + load(d_out + k) * vslope(f, load(in + k)));
    const int rest = (int)(count - k);
    if (rest > 0)
        store_part(d_in + k, load_part(d_in + k, rest)
                             + load_part(d_out + k, rest)
                               * vslope(f, load_part(in + k, rest)), rest);
}

enum { WIDE = 2, NR = WIDE * LANES };    /* outputs of a tile */

/* C [rows,NR] = A [rows,depth] · B [depth,NR], or C += */
struct tile {
    const float *a, *b;
    float *c;
    size_t a_row, b_row, c_row;    /* from one row to the next */
    int depth;
    bool first;                    /* the chains begin here, with 0 */
};

enum { AHEAD = 1024 };    /* floats */

INLINE void tile_of(const int rows, const struct tile *tile)
{
    const float *a = tile->a, *b = tile->b;
    float *c = tile->c;
    const size_t a_row = tile->a_row, b_row = tile->b_row;
    const size_t c_row = tile->c_row;
    vec sum[MR][WIDE];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < WIDE; v++)
            sum[r][v] = tile->first
                ? splat(0) : load(c + (size_t)r * c_row + v * LANES);
    for (int k = tile->depth; k > 0; k--, a++, b += b_row) {
        vec w[WIDE];
        UNROLL for (int v = 0; v < WIDE; v++) {
            w[v] = load(b + v * LANES);
            __builtin_prefetch(b + v * LANES + AHEAD);
        }
        UNROLL for (int r = 0; r < rows; r++) {
            const float x = a[(size_t)r * a_row];
            UNROLL for (int v = 0; v < WIDE; v++)
                sum[r][v] += w[v] * x;
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int v = 0; v < WIDE; v++)
            store(c + (size_t)r * c_row + v * LANES, sum[r][v]);
}

static void tile_rows(int rows, const struct tile *tile)
{
    if (rows > MR)
        __builtin_unreachable();
    switch (rows) {
    case 1: tile_of(1, tile); break;
    case 2: tile_of(2, tile); break;
    case 3: tile_of(3, tile); break;
    case 4: tile_of(4, tile); break;
    case 5: tile_of(5, tile); break;
    case 6: tile_of(6, tile); break;
    case 7: tile_of(7 < MR ? 7 : MR, tile); break;
    case 8: tile_of(8 < MR ? 8 : MR, tile); break;
    case 9: tile_of(9 < MR ? 9 : MR, tile); break;
    case 10: tile_of(10 < MR ? 10 : MR, tile); break;
    case 11: tile_of(11 < MR ? 11 : MR, tile); break;
    case 12: tile_of(12 < MR ? 12 : MR, tile); break;
    default: break;
    }
}

static void tile_column(int rows, struct tile tile)
{
    while (rows > 0) {
        const int here = rows < MR ? rows : MR;
        tile_rows(here, &tile);
        tile.a += (size_t)here * tile.a_row;
        tile.c += (size_t)here * tile.c_row;
        rows -= here;
    }
}

/* width columns, in steps of NR; B and C have that many. */
static void tile_columns(int rows, int width, struct tile tile)
{
    for (int n = 0; n < width; n += NR) {
        tile_column(rows, tile);
        tile.b += NR;
        tile.c += NR;
    }
}

typedef float quad __attribute__((vector_size(16)));
typedef float quad_at __attribute__((vector_size(16), aligned(4), may_alias));

INLINE void turn_quad(const float *in, size_t in_row, float *out,
                      size_t out_row)
{
    const quad a = *(const quad_at *)in;
    const quad b = *(const quad_at *)(in + in_row);
    const quad c = *(const quad_at *)(in + 2 * in_row);
    const quad d = *(const quad_at *)(in + 3 * in_row);
    const quad p = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    const quad q = __builtin_shufflevector(c, d, 0, 4, 1, 5);
    const quad r = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    const quad s = __builtin_shufflevector(c, d, 2, 6, 3, 7);
    *(quad_at *)out = __builtin_shufflevector(p, q, 0, 1, 4, 5);
    *(quad_at *)(out + out_row) = __builtin_shufflevector(p, q, 2, 3, 6, 7);
    *(quad_at *)(out + 2 * out_row)
        = __builtin_shufflevector(r, s, 0, 1, 4, 5);
    *(quad_at *)(out + 3 * out_row)
        = __builtin_shufflevector(r, s, 2, 3, 6, 7);
}

/* out [columns,width] = in [rows,columns] turned, with out_row floats from
   one row to the next; what is behind rows is 0. width is a multiple of 4 */
static void turn(const float *in, size_t in_row, int rows, int columns,
                 float *out, size_t out_row, int width)
{
    for (int n = 0; n < width; n += 4) {
        int i = 0;
        for (; n + 4 <= rows && i + 4 <= columns; i += 4)
            turn_quad(in + (size_t)n * in_row + i, in_row,
                      out + (size_t)i * out_row + n, out_row);
        for (; i < columns; i++)
            for (int j = n; j < n + 4; j++)
                out[(size_t)i * out_row + (size_t)j]
                    = j < rows ? in[(size_t)j * in_row + (size_t)i] : 0.0f;
    }
}

enum { DEPTH = 384, ROWS_MAX = 240 };    /* inputs, rows of a block */
#define ALIGNED __attribute__((aligned(64)))

struct linear_call {
    const struct matrix *weight;
    const float *in;
    float *out;
    size_t in_stride, out_stride;
    int rows;
    enum finish finish;
};

INLINE vec vfinish(enum finish finish, vec y, vec out)
{
    switch (finish) {
    case FINISH_STORE: break;
    case FINISH_ADD: return out + y;
    case FINISH_GELU: return vgelu(y);
    case FINISH_GELU_TANH: return vgelu_tanh(y);
    case FINISH_SILU_MULTIPLY: return vsilu(out) * y;
    }
    return y;
}

/* sums [PANEL] of outputs n … n + 31 in one row */
static void finish_row(const struct linear_call *call, const float *sums,
                       int n, float *out)
{
    const float *bias = call->weight->bias;
    const int width = call->weight->out - n;
    for (int v = 0; v < PANEL && v < width; v += LANES) {
        const int count = width - v < LANES ? width - v : LANES;
        vec y = load(sums + v);
        if (count == LANES) {
            if (bias != NULL)
                y += load(bias + n + v);
            store(out + n + v, vfinish(call->finish, y, load(out + n + v)));
            continue;
        }
        if (bias != NULL)
            y += load_part(bias + n + v, count);
        store_part(out + n + v, vfinish(call->finish, y,
                                        load_part(out + n + v, count)),
                   count);
    }
}

typedef uint16_t half_at
    __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef int8_t byte_at
    __attribute__((vector_size(LANES), aligned(1), may_alias));

INLINE vec weights_at(const enum matrix_type type, const void *data,
                      size_t at, vec scale)
{
    if (type == MATRIX_F32)
        return load((const float *)data + at);
    if (type == MATRIX_BF16) {
        const half_at *high
            = (const half_at *)((const uint16_t *)data + at);
        return (vec)(__builtin_convertvector(*high, uvec) << 16);
    }
    const byte_at *codes = (const byte_at *)((const int8_t *)data + at);
    return __builtin_convertvector(__builtin_convertvector(*codes, ivec),
                                   vec) * scale;
}

INLINE void widen(const enum matrix_type type, const struct matrix *weight,
                  int n, int k, int depth, float *wide)
{
    const size_t groups = ((size_t)weight->in + GROUP - 1)
                          / GROUP;
    const size_t panel = (size_t)n / PANEL;
    for (int i = 0; i < depth; i++)
        UNROLL for (int v = 0; v < PANEL; v += LANES) {
            const size_t row = panel * (size_t)weight->in + (size_t)(k + i);
            const size_t group = panel * groups
                                 + (size_t)(k + i) / GROUP;
            const vec scale = type == MATRIX_INT8
                ? load(weight->scales + group * PANEL + v) : splat(0);
            store(wide + i * PANEL + v,
                  weights_at(type, weight->data,
                             row * PANEL + (size_t)v, scale));
        }
}

/* Outputs n … n + 31 of inputs k … k + depth - 1, [depth][32]; wide is room
   for them, used unless they are there as they have to be. */
static const float *block_of_panel(const struct matrix *weight, int n, int k,
                                   int depth, float *wide)
{
    const size_t in = (size_t)weight->in;
    const float *floats = weight->data;
    if (weight->layout == MATRIX_ROWS) {
        const int left = weight->out - n;
        turn(floats + (size_t)n * in + k, in,
             left < PANEL ? left : PANEL, depth, wide,
             PANEL, PANEL);
    } else if (weight->type == MATRIX_F32)
        return floats + (size_t)n * in + (size_t)k * PANEL;
    else if (weight->type == MATRIX_BF16)
        widen(MATRIX_BF16, weight, n, k, depth, wide);
    else
        widen(MATRIX_INT8, weight, n, k, depth, wide);
    return wide;
}

static void panel_rows(const struct linear_call *call, int n, int row,
                       int rows)
{
    float sums[ROWS_MAX * PANEL] ALIGNED;
    float wide[DEPTH * PANEL] ALIGNED;
    const int in = call->weight->in;
    struct tile tile = {.a_row = call->in_stride, .b_row = PANEL,
                        .c_row = PANEL, .c = sums};
    for (int k = 0; k < in; k += DEPTH) {
        tile.depth = in - k < DEPTH ? in - k : DEPTH;
        tile.a = call->in + (size_t)row * call->in_stride + k;
        tile.b = block_of_panel(call->weight, n, k, tile.depth, wide);
        tile.first = k == 0;
        tile_columns(rows, PANEL, tile);
    }
    for (int r = 0; r < rows; r++)
        finish_row(call, sums + r * PANEL, n,
                   call->out + (size_t)(row + r) * call->out_stride);
}

enum { VECTORS = PANEL / LANES, STREAMS = LANES / 4 };

INLINE void panels_row(const enum matrix_type type, const int streams,
                       const struct linear_call *call, int n)
{
    const struct matrix *weight = call->weight;
    const size_t in = (size_t)weight->in, far = in * PANEL;
    const size_t groups = (in + GROUP - 1) / GROUP;
    size_t at = (size_t)n * in;
    vec sum[STREAMS][VECTORS], scale[STREAMS][VECTORS];
    UNROLL for (int s = 0; s < streams; s++)
        UNROLL for (int v = 0; v < VECTORS; v++)
            sum[s][v] = scale[s][v] = splat(0);
    for (size_t g = 0; g < groups; g++) {
        if (type == MATRIX_INT8)
            UNROLL for (int s = 0; s < streams; s++)
                UNROLL for (int v = 0; v < VECTORS; v++)
                    scale[s][v] = load(weight->scales
                        + (((size_t)n / PANEL + (size_t)s) * groups + g)
                          * PANEL + v * LANES);
        const size_t first = g * GROUP, left = in - first;
        const size_t last = first + (left < GROUP ? left
                                                         : GROUP);
        for (size_t k = first; k < last; k++, at += PANEL) {
            const float x = call->in[k];
            UNROLL for (int s = 0; s < streams; s++)
                UNROLL for (int v = 0; v < VECTORS; v++)
                    sum[s][v] += weights_at(type, weight->data,
                                            at + (size_t)s * far + (size_t)(v * LANES),
                                            scale[s][v]) * x;
        }
    }
    UNROLL for (int s = 0; s < streams; s++) {
        float sums[PANEL] ALIGNED;
        UNROLL for (int v = 0; v < VECTORS; v++)
            store(sums + v * LANES, sum[s][v]);
        finish_row(call, sums, n + s * PANEL, call->out);
    }
}

INLINE void panels_of(const int streams, const struct linear_call *call,
                      int n)
{
    switch (call->weight->type) {
    case MATRIX_F32: panels_row(MATRIX_F32, streams, call, n); break;
    case MATRIX_BF16: panels_row(MATRIX_BF16, streams, call, n); break;
    case MATRIX_INT8: panels_row(MATRIX_INT8, streams, call, n); break;
    }
}

static void panels_streams(const struct linear_call *call, int n)
{
    panels_of(STREAMS, call, n);
}

static void panels_one(const struct linear_call *call, int n)
{
    panels_of(1, call, n);
}

enum { SMALL = 1 << 17 };    /* products that are no work for two threads */

static void linear_row(const struct linear_call *call)
{
    const int group = STREAMS * PANEL, out = call->weight->out;
    const int groups = out / group;
    const int single = (out - groups * group + PANEL - 1)
                       / PANEL;
    const bool large = (int64_t)out * call->weight->in > SMALL;
    #pragma omp parallel for if (large)
    for (int u = 0; u < groups + single; u++)
        if (u < groups)
            panels_streams(call, u * group);
        else
            panels_one(call, groups * group + (u - groups) * PANEL);
}

static void linear(const struct matrix *weight, const float *in,
                   size_t in_stride, int rows, float *out, size_t out_stride,
                   enum finish finish)
{
    const struct linear_call call = {weight, in, out, in_stride, out_stride,
                                     rows, finish};
    if (rows == 1 && weight->layout == MATRIX_PANELS) {
        linear_row(&call);
        return;
    }
    const int blocks = (rows + ROWS_MAX - 1) / ROWS_MAX;
    const int even = blocks > 0 ? (rows + blocks - 1) / blocks : 1;
    const int each = (even + MR - 1) / MR * MR;
    const bool large = (int64_t)rows * weight->out * weight->in > SMALL;
    #pragma omp parallel for collapse(2) if (large)
    for (int row = 0; row < rows; row += each)
        for (int n = 0; n < weight->out; n += PANEL)
            panel_rows(&call, n, row, rows - row < each ? rows - row : each);
}

/* A: rows m …, inputs k …, with *a_row floats from one to the next */
static const float *block_of_a(const struct product *p, int m, int rows,
                               int k, int depth, float *room, size_t *a_row)
{
    *a_row = p->a_stride;
    if (!p->a_turned)
        return p->a + (size_t)m * p->a_stride + k;
    *a_row = DEPTH;
    turn(p->a + (size_t)k * p->a_stride + m, p->a_stride, depth, rows, room,
         DEPTH, (depth + 3) / 4 * 4);
    return room;
}

/* B: inputs k …, columns n … n + 31, [depth][32]; 0 behind the last */
static const float *block_of_b(const struct product *p, int n, int k,
                               int depth, float *room)
{
    const int left = p->n - n;
    const int width = left < PANEL ? left : PANEL;
    if (p->b_turned)
        turn(p->b + (size_t)n * p->b_stride + k, p->b_stride, width, depth,
             room, PANEL, PANEL);
    else
        for (int i = 0; i < depth; i++) {
            float *to = room + i * PANEL;
            memcpy(to, p->b + (size_t)(k + i) * p->b_stride + n,
                   (size_t)width * sizeof *to);
            memset(to + width, 0,
                   (size_t)(PANEL - width) * sizeof *to);
        }
    return room;
}

static void narrow_panel(const struct product *p, int m, int n, int rows,
                         struct tile tile)
{
    float c[ROWS_MAX * PANEL] ALIGNED;
    const size_t bytes = (size_t)(p->n - n) * sizeof *c;
    float *to = p->c + (size_t)m * p->c_stride + n;
    if (!tile.first)
        for (int r = 0; r < rows; r++)
            memcpy(c + r * PANEL, to + (size_t)r * p->c_stride, bytes);
    tile.c = c;
    tile.c_row = PANEL;
    tile_columns(rows, (p->n - n + NR - 1) / NR * NR, tile);
    for (int r = 0; r < rows; r++)
        memcpy(to + (size_t)r * p->c_stride, c + r * PANEL, bytes);
}

static void product_rows(const struct product *p, int m, int rows, int n0,
                         int n1)
{
    float a[ROWS_MAX * DEPTH] ALIGNED, b[DEPTH * PANEL] ALIGNED;
    struct tile tile = {.b_row = PANEL, .c_row = p->c_stride};
    for (int k = 0; k < p->k; k += DEPTH) {
        tile.depth = p->k - k < DEPTH ? p->k - k : DEPTH;
        tile.a = block_of_a(p, m, rows, k, tile.depth, a, &tile.a_row);
        tile.first = k == 0 && !p->add;
        for (int n = n0; n < n1; n += PANEL) {
            tile.b = block_of_b(p, n, k, tile.depth, b);
            tile.c = p->c + (size_t)m * p->c_stride + n;
            if (n + PANEL <= p->n)
                tile_columns(rows, PANEL, tile);
            else
                narrow_panel(p, m, n, rows, tile);
        }
    }
}

enum { COLUMNS_MAX = 16 * PANEL };

/* count in equal parts of at most most, each a multiple of unit */
static int share(int count, int most, int unit)
{
    const int parts = (count + most - 1) / most;
    return ((count + parts - 1) / parts + unit - 1) / unit * unit;
}

static void product(const struct product *p)
{
    if (p->m < 1 || p->n < 1)
        return;
    if (p->k < 1 && !p->add)
        for (int m = 0; m < p->m; m++)
            memset(p->c + (size_t)m * p->c_stride, 0,
                   (size_t)p->n * sizeof *p->c);
    const int rows = share(p->m, ROWS_MAX, MR);
    const int columns = share(p->n, COLUMNS_MAX, PANEL);
    const bool large = (int64_t)p->m * p->n * p->k > SMALL;
    #pragma omp parallel for collapse(2) schedule(dynamic) if (large)
    for (int m = 0; m < p->m; m += rows)
        for (int n = 0; n < p->n; n += columns)
            product_rows(p, m, p->m - m < rows ? p->m - m : rows, n,
                         p->n - n < columns ? p->n : n + columns);
}

typedef float few __attribute__((vector_size(2 * LANES)));
typedef float few_at
    __attribute__((vector_size(2 * LANES), aligned(4), may_alias));
typedef double dvec __attribute__((vector_size(4 * LANES)));

enum { PARTS = 16, FEW = LANES / 2, FEWS = PARTS / FEW };

INLINE dvec doubles(const float *p)
{
    return __builtin_convertvector(*(const few_at *)p, dvec);
}

/* The sum of (x - shift), or of its square. */
INLINE double sum_row(const float *x, int width, double shift,
                      const bool squared)
{
    double part[PARTS];
    dvec sum[FEWS];
    UNROLL for (int f = 0; f < FEWS; f++)
        sum[f] = (dvec){0};
    int i = 0;
    for (; i + PARTS <= width; i += PARTS)
        UNROLL for (int f = 0; f < FEWS; f++) {
            const dvec d = doubles(x + i + f * FEW) - shift;
            sum[f] += squared ? d * d : d;
        }
    memcpy(part, sum, sizeof part);
    for (int j = 0; i + j < width; j++) {
        const double d = x[i + j] - shift;
        part[j] += squared ? d * d : d;
    }
    for (int w = PARTS / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            part[j] += part[j + w];
    return part[0];
}

INLINE few scaled(const float *x, double shift, double scale)
{
    return __builtin_convertvector((doubles(x) - shift) * scale, few);
}

/* out = (in - shift) * scale * weight + bias; bias may be NULL */
INLINE void scale_row(const float *in, int width, double shift, double scale,
                      const float *weight, const float *bias, float *out)
{
    for (int i = 0; i < width; i += FEW) {
        float part[3][FEW] = {{0}};
        const int left = width - i;
        const size_t bytes = (size_t)(left < FEW ? left : FEW)
                             * sizeof(float);
        memcpy(part[0], in + i, bytes);
        memcpy(part[1], weight + i, bytes);
        few y = scaled(part[0], shift, scale) * *(const few_at *)part[1];
        if (bias != NULL) {
            memcpy(part[2], bias + i, bytes);
            y += *(const few_at *)part[2];
        }
        memcpy(out + i, &y, bytes);
    }
}

static void layer_norm(const float *in, int rows, int width,
                       const float *weight, const float *bias, double eps,
                       float *out)
{
    const bool large = (int64_t)rows * width > SMALL / 8;
    #pragma omp parallel for if (large)
    for (int r = 0; r < rows; r++) {
        const float *x = in + (size_t)r * (size_t)width;
        const double mean = sum_row(x, width, 0, false) / width;
        const double variance = sum_row(x, width, mean, true) / width;
        scale_row(x, width, mean, 1 / sqrt(variance + eps), weight, bias,
                  out + (size_t)r * (size_t)width);
    }
}

static void rms_norm(const float *in, int rows, int width,
                     const float *weight, double eps, float *out)
{
    const bool large = (int64_t)rows * width > SMALL / 8;
    #pragma omp parallel for if (large)
    for (int r = 0; r < rows; r++) {
        const float *x = in + (size_t)r * (size_t)width;
        const double square = sum_row(x, width, 0, true) / width;
        scale_row(x, width, 0, 1 / sqrt(square + eps), weight, NULL,
                  out + (size_t)r * (size_t)width);
    }
}

enum { QUERIES = 96, SLOTS = 64, HEAD_MAX = 256 };

struct attention_block {
    const struct attention_call *call;
    int kv_head, row, rows;      /* row r: token r / group, head r % group */
    int padded;                  /* D in whole tiles */
    int first;                   /* earlier rows see none of these slots */
    int limit[QUERIES];          /* slots that the row sees */
    float largest[QUERIES];
    double sum[QUERIES];
    float query[QUERIES * HEAD_MAX] ALIGNED;
    float scores[QUERIES * SLOTS] ALIGNED;
    float context[QUERIES * HEAD_MAX] ALIGNED;
    float room[HEAD_MAX * SLOTS] ALIGNED;
};

INLINE size_t block_token(const struct attention_block *b, int r)
{
    return (size_t)((b->row + r) / (b->call->heads / b->call->kv_heads));
}

INLINE size_t block_head(const struct attention_block *b, int r)
{
    const int group = b->call->heads / b->call->kv_heads;
    return (size_t)(b->kv_head * group + (b->row + r) % group);
}

static void gather_queries(struct attention_block *b)
{
    const struct attention_call *call = b->call;
    const int d = call->head_dim;
    const float scale = 1 / sqrtf((float)d);
    for (int r = 0; r < b->rows; r++) {
        const float *from = call->query
            + block_token(b, r) * call->query_token
            + block_head(b, r) * call->query_head;
        for (int i = 0; i < d; i++)
            b->query[r * d + i] = from[i] * scale;
        b->limit[r] = call->length + (int)block_token(b, r) + 1;
        b->largest[r] = -INFINITY;
        b->sum[r] = 0;
    }
}

static void score_slots(struct attention_block *b, int at, int count)
{
    const struct attention_call *call = b->call;
    const int d = call->head_dim;
    const float *key = call->key + (size_t)b->kv_head * call->head_stride
                       + (size_t)at * call->slot_stride;
    turn(key, call->slot_stride, count, d, b->room, SLOTS,
         (count + NR - 1) / NR * NR);
    tile_columns(b->rows - b->first, (count + NR - 1) / NR * NR,
        (struct tile){.a = b->query + b->first * d, .a_row = (size_t)d,
                      .b = b->room, .b_row = SLOTS,
                      .c = b->scores + b->first * SLOTS, .c_row = SLOTS,
                      .depth = d, .first = true});
}

INLINE int seen_of(const struct attention_block *b, int r, int at)
{
    const int seen = b->limit[r] - at;
    return seen < SLOTS ? seen : SLOTS;
}

INLINE float largest_of(const float *p, int seen)
{
    float part[LANES];
    vec most = load(p);
    for (int j = LANES; j < seen; j += LANES)
        most = larger(load(p + j), most);
    memcpy(part, &most, sizeof part);
    float largest = part[0];
    for (int j = 1; j < LANES; j++)
        largest = part[j] > largest ? part[j] : largest;
    return largest;
}

INLINE double weigh(float *p, int seen, float base)
{
    enum { VECS = PARTS / LANES };
    vec sum[VECS];
    float part[PARTS];
    UNROLL for (int v = 0; v < VECS; v++)
        sum[v] = splat(0);
    for (int j = 0; j < seen; j += PARTS)
        UNROLL for (int v = 0; v < VECS; v++) {
            const vec e = vexp(load(p + j + v * LANES) - base);
            store(p + j + v * LANES, e);
            sum[v] += e;
        }
    memcpy(part, sum, sizeof part);
    for (int w = PARTS / 2; w > 0; w /= 2)
        for (int j = 0; j < w; j++)
            part[j] += part[j + w];
    return part[0];
}

static void weigh_row(struct attention_block *b, int r, int at)
{
    float *p = b->scores + r * SLOTS;
    const int seen = seen_of(b, r, at);
    for (int j = seen; j < (seen + PARTS - 1) / PARTS * PARTS; j++)
        p[j] = -INFINITY;
    const float before = b->largest[r], here = largest_of(p, seen);
    const float now = here > before ? here : before;
    const float base = now == -INFINITY ? 0 : now;
    const double sum = weigh(p, seen, base);
    if (at > 0 && now > before) {
        const vec factor = vexp(splat(before - now));
        float *context = b->context + r * b->padded;
        for (int i = 0; i < b->padded; i += LANES)
            store(context + i, load(context + i) * factor);
        b->sum[r] *= factor[0];
    }
    b->sum[r] += sum;
    b->largest[r] = now;
}

static void add_values(struct attention_block *b, int at, int i,
                       const float *value, size_t value_row)
{
    struct tile tile = {.a_row = SLOTS, .b_row = value_row,
                        .c_row = (size_t)b->padded};
    for (int r = b->first; r < b->rows; r += MR) {
        const int rows = b->rows - r < MR ? b->rows - r : MR;
        const int seen = seen_of(b, r, at);
        tile.a = b->scores + r * SLOTS;
        tile.b = value;
        tile.c = b->context + r * b->padded + i;
        tile.depth = seen;
        tile.first = at == 0;
        tile_rows(rows, &tile);
        tile.first = false;
        for (int x = 1; x < rows; x++) {
            tile.depth = seen_of(b, r + x, at) - seen;
            tile.a = b->scores + (r + x) * SLOTS + seen;
            tile.b = value + (size_t)seen * value_row;
            tile.c = b->context + (r + x) * b->padded + i;
            if (tile.depth > 0)
                tile_rows(1, &tile);
        }
    }
}

static void add_slots(struct attention_block *b, int at, int count)
{
    const struct attention_call *call = b->call;
    const int d = call->head_dim;
    const float *value = call->value + (size_t)b->kv_head * call->head_stride
                         + (size_t)at * call->slot_stride;
    for (int i = 0; i < d; i += NR) {
        if (i + NR <= d) {
            add_values(b, at, i, value + i, call->slot_stride);
            continue;
        }
        for (int j = 0; j < count; j++)
            for (int x = 0; x < NR; x++)
                b->room[j * NR + x] = i + x < d
                    ? value[(size_t)j * call->slot_stride + (size_t)(i + x)]
                    : 0.0f;
        add_values(b, at, i, b->room, NR);
    }
}

static void write_contexts(const struct attention_block *b)
{
    const struct attention_call *call = b->call;
    for (int r = 0; r < b->rows; r++) {
        float *to = call->context + block_token(b, r) * call->context_token
                    + block_head(b, r) * call->context_head;
        const float *from = b->context + r * b->padded;
        const float inverse = (float)(1 / b->sum[r]);
        for (int i = 0; i < call->head_dim; i++)
            to[i] = from[i] * inverse;
        if (call->log_sums != NULL)
            call->log_sums[block_token(b, r) * (size_t)call->heads
                           + block_head(b, r)]
                = (float)(b->largest[r] + log(b->sum[r]));
    }
}

static void attend(const struct attention_call *call, int kv_head, int row,
                   int rows)
{
    struct attention_block block;
    block.call = call;
    block.kv_head = kv_head;
    block.row = row;
    block.rows = rows;
    block.padded = (call->head_dim + NR - 1) / NR * NR;
    block.first = 0;
    gather_queries(&block);
    const int end = call->length + (int)block_token(&block, rows - 1) + 1;
    for (int at = 0; at < end; at += SLOTS) {
        while (block.limit[block.first] <= at)
            block.first++;
        const int count = seen_of(&block, rows - 1, at);
        score_slots(&block, at, count);
        for (int r = block.first; r < rows; r++)
            weigh_row(&block, r, at);
        add_slots(&block, at, count);
    }
    write_contexts(&block);
}

static void attention(const struct attention_call *calls, int count)
{
    if (count < 1 || calls[0].head_dim > HEAD_MAX) {
        kernels_plain.attention(calls, count);
        return;
    }
    const int kv_heads = calls[0].kv_heads;
    const int rows = calls[0].heads / kv_heads * calls[0].tokens;
    const int blocks = (rows + QUERIES - 1) / QUERIES;
    int64_t work = 0;
    for (int c = 0; c < count; c++)
        work += (int64_t)rows * kv_heads * calls[0].head_dim
                * (calls[c].length + calls[c].tokens);
    #pragma omp parallel for collapse(3) schedule(dynamic) if (work > SMALL)
    for (int c = 0; c < count; c++)
        for (int h = 0; h < kv_heads; h++)
            for (int b = blocks - 1; b >= 0; b--)
                attend(&calls[c], h, b * QUERIES,
                       rows - b * QUERIES < QUERIES ? rows - b * QUERIES
                                                    : QUERIES);
}

const struct kernels kernels_avx512 = {
    "avx512", linear, product, attention, layer_norm, rms_norm, activate,
    activate_backward, exponential};
