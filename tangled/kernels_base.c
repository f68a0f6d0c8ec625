#include "kernels.h"
#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_max_threads(void) { return 1; }
#endif

/* 16 registers of 4 lanes, or more */
enum { LANES = 4, MR = 6 };
#define EVERY_OTHER(i) i, i + 2, i + 4, i + 6

typedef float vec __attribute__((vector_size(4 * LANES)));
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

typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef uint32_t uvec __attribute__((vector_size(4 * LANES)));

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

typedef float quad __attribute__((vector_size(16)));
typedef int32_t iquad __attribute__((vector_size(16)));

enum { PARTS = 16, VECS = PARTS / LANES };

INLINE quad larger_quad(quad a, quad b)
{
    const iquad mask = a > b;
    return (quad)((mask & (iquad)a) | (~mask & (iquad)b));
}

INLINE float sum_parts(const vec parts[VECS])
{
    quad q[4];
    memcpy(q, parts, sizeof q);
    q[0] = (q[0] + q[2]) + (q[1] + q[3]);
    return (q[0][0] + q[0][2]) + (q[0][1] + q[0][3]);
}

/* NaN may be lost */
INLINE float largest_part(const vec parts[VECS])
{
    quad q[4];
    memcpy(q, parts, sizeof q);
    const quad a = larger_quad(q[0], q[1]), b = larger_quad(q[2], q[3]);
    const quad c = larger_quad(a, b);
    const float left = c[0] > c[1] ? c[0] : c[1];
    const float right = c[2] > c[3] ? c[2] : c[3];
    return left > right ? left : right;
}

/* x = n·ln 2 + r; the whole number is whole - MAGIC */
struct split {
    vec whole, r;
};

static const float MAGIC = 12582912.0f;    /* 1.5·2^23 */

INLINE struct split split_of(vec x)
{
    const vec whole = x * 1.44269504088896341f + MAGIC, n = whole - MAGIC;
    const vec r = x - n * 0.693359375f;
    return (struct split){whole, r - n * -2.12194440e-4f};
}

/* e^r, |r| at most a little over ln 2 / 2 */
INLINE vec exp_near_0(vec r)
{
    vec p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p;
}

INLINE vec zero_if(ivec mask, vec x) { return (vec)(~mask & (ivec)x); }

/* x <= 0, or NaN */
INLINE vec vexp_low(vec x)
{
    const struct split s = split_of(x);
    const uvec power = ((uvec)s.whole << 23) + 0x3f800000u;
    return zero_if(x < splat(-86.9f), exp_near_0(s.r) * (vec)power);
}

/* e^(x + small), |small| < 0.1. Infinity above the largest float. */
INLINE vec vexp_sum(vec x, vec small)
{
    const struct split s
        = split_of(choose(x > splat(89.0f), splat(89.0f), x));
    const uvec power = ((uvec)s.whole << 23) + 0x3f000000u;
    const vec e = exp_near_0(s.r + small);
    return zero_if(x < splat(-86.9f), (e + e) * (vec)power);
}

INLINE vec vexp(vec x) { return vexp_sum(x, splat(-0.0f)); }

static void exponential(const float *in, size_t count, float *out)
{
    size_t k = 0;
    for (; k + LANES <= count; k += LANES)
        store(out + k, vexp(load(in + k)));
    if (k < count)
        store_part(out + k, vexp(load_part(in + k, (int)(count - k))),
                   (int)(count - k));
}

struct normal {
    vec z;          /* |x|, at most 15 */
    vec density;    /* e^(-z²/2) / √(2π) */
    vec below;      /* Φ(-z) */
};

INLINE struct normal normal_of(vec x)
{
    struct normal normal;
    vec z = (vec)((ivec)x & 0x7fffffff);
    z = choose(z > splat(15.0f), splat(15.0f), z);
    const vec h = (vec)((ivec)z & ~0xfff);
    const vec e = vexp_sum(-0.5f * (h * h), -0.5f * ((z - h) * (z + h)));
    vec p = splat(4.0776086e-3f), q = splat(1.0220917e-2f);
    p = p * z + 4.0372546e-2f;
    p = p * z + 1.8246180e-1f;
    p = p * z + 4.3725086e-1f;
    p = p * z + 0.5f;
    q = q * z + 1.0120578e-1f;
    q = q * z + 4.6742903e-1f;
    q = q * z + 1.1992906f;
    q = q * z + 1.6723867f;
    q = q * z + 1.0f;
    normal.z = z;
    normal.density = e * 0.39894228040143268f;
    normal.below = e * p / q;
    return normal;
}

INLINE vec vgelu(vec x)
{
    const struct normal normal = normal_of(x);
    return larger(x, splat(0)) - normal.z * normal.below;
}

INLINE vec vsilu(vec x) { return x / (1.0f + vexp(-x)); }

INLINE vec vgelu_tanh(vec x)
{
    return x / (1.0f + vexp(-x * (1.5957691216057308f
                                  + 0.07135481282553f * (x * x))));
}

INLINE vec vslope_gelu(vec x)
{
    const struct normal normal = normal_of(x);
    const vec left = normal.below - normal.z * normal.density;
    return choose(x < splat(0), left, 1.0f - left);
}

/* x, at most that far from 0: what is behind has the same slope */
INLINE vec within(vec x, float most)
{
    x = choose(x > splat(most), splat(most), x);
    return choose(x < splat(-most), splat(-most), x);
}

INLINE vec slope_of_gated(vec x, vec u, vec slope_of_u)
{
    const vec minus = (vec)((ivec)u | INT32_MIN);
    const vec e = vexp_low(minus), high = 1.0f / (1.0f + e), low = e * high;
    return choose(u < splat(0), low, high) + x * (high * low) * slope_of_u;
}

INLINE vec vslope_silu(vec x)
{
    x = within(x, 100.0f);
    return slope_of_gated(x, x, splat(1));
}

INLINE vec vslope_gelu_tanh(vec x)
{
    x = within(x, 20.0f);
    return slope_of_gated(x,
        x * (1.5957691216057308f + 0.07135481282553f * (x * x)),
        1.5957691216057308f + 0.21406443847659f * (x * x));
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

/* C [rows,NR] = A [rows,depth] · B [depth,NR], or C +=. With scales, each 32
   of the depth have a row of them, PANEL apart, for B's columns. */
struct tile {
    const float *a, *b, *scales;
    float *c;
    size_t a_row, b_row, c_row;    /* from one row to the next */
    int depth;
    bool first;                    /* the chains begin here, with 0 */
    const float *next;             /* to be fetched meanwhile, step floats */
    size_t step;                   /* for each of the depth */
};

enum { LINE = 16 };    /* floats that are fetched together */

INLINE void tile_of(const int rows, const int wide, const struct tile *tile)
{
    const float *a = tile->a, *b = tile->b, *next = tile->next;
    const float *scales = tile->scales;
    float *c = tile->c;
    const size_t a_row = tile->a_row, b_row = tile->b_row;
    const size_t c_row = tile->c_row;
    const size_t step = tile->step * (size_t)(wide / WIDE);
    vec sum[MR][2 * WIDE];
    static const float nothing[2 * NR];
    const float *before = tile->first ? nothing : c;
    size_t before_row = tile->first ? 0 : c_row;
    int left = tile->depth;
    do {
        const int depth = scales != NULL && left > GROUP ? GROUP : left;
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < wide; v++)
                sum[r][v] = scales != NULL ? splat(0)
                    : load(before + (size_t)r * before_row + v * LANES);
        for (int k = depth; k > 0; k--, a++, b += b_row) {
            vec w[2 * WIDE];
            UNROLL for (int v = 0; v < wide; v++)
                w[v] = load(b + v * LANES);
            UNROLL for (int v = 0; v < wide * LANES; v += LINE) {
                __builtin_prefetch(next + v);
            }
            next += step;
            UNROLL for (int r = 0; r < rows; r++) {
                const float x = a[(size_t)r * a_row];
                UNROLL for (int v = 0; v < wide; v++)
                    sum[r][v] += w[v] * x;
            }
        }
        if (scales != NULL) {
            UNROLL for (int v = 0; v < wide; v++) {
                const vec scale = load(scales + v * LANES);
                UNROLL for (int r = 0; r < rows; r++)
                    sum[r][v] = scale * sum[r][v]
                                + load(before + (size_t)r * before_row + v * LANES);
            }
            scales += PANEL;
        }
        UNROLL for (int r = 0; r < rows; r++)
            UNROLL for (int v = 0; v < wide; v++)
                store(c + (size_t)r * c_row + v * LANES, sum[r][v]);
        left -= depth;
        before = c;
        before_row = c_row;
    } while (left > 0);
}

static void tile_rows(int rows, const struct tile *tile)
{
    if (rows > MR)
        __builtin_unreachable();
    switch (rows) {
    case 1: tile_of(1, WIDE, tile); break;
    case 2: tile_of(2, WIDE, tile); break;
    case 3: tile_of(3, WIDE, tile); break;
    case 4: tile_of(4, WIDE, tile); break;
    case 5: tile_of(5, WIDE, tile); break;
    case 6: tile_of(6, WIDE, tile); break;
    case 7: tile_of(7 < MR ? 7 : MR, WIDE, tile); break;
    case 8: tile_of(8 < MR ? 8 : MR, WIDE, tile); break;
    case 9: tile_of(9 < MR ? 9 : MR, WIDE, tile); break;
    case 10: tile_of(10 < MR ? 10 : MR, WIDE, tile); break;
    case 11: tile_of(11 < MR ? 11 : MR, WIDE, tile); break;
    case 12: tile_of(12 < MR ? 12 : MR, WIDE, tile); break;
    default: break;
    }
}

static void tile_column(int rows, struct tile tile)
{
    while (rows > 0) {
        const int here = rows < MR ? rows : MR;
        for (int r = here; r < rows && r < here + MR; r++)
            for (int v = 0; v < NR; v += LINE)
                __builtin_prefetch(tile.c + (size_t)r * tile.c_row + v);
        tile_rows(here, &tile);
        tile.a += (size_t)here * tile.a_row;
        tile.c += (size_t)here * tile.c_row;
        tile.next += (size_t)tile.depth * tile.step;
        rows -= here;
    }
}

/* One row of twice as many outputs: two sums are no work for a processor that
   waits four cycles for each. */
static void tile_row(const struct tile *tile) { tile_of(1, 2 * WIDE, tile); }

static void move_right(struct tile *tile, int columns)
{
    tile->b += columns;
    tile->c += columns;
    if (tile->scales != NULL)
        tile->scales += columns;
}

/* width columns, in steps of NR; B and C have that many. */
static void tile_columns(int rows, int width, struct tile tile)
{
    int n = 0;
    for (; rows == 1 && n + 2 * NR <= width; n += 2 * NR) {
        tile_row(&tile);
        move_right(&tile, 2 * NR);
        tile.next += 2 * (size_t)tile.depth * tile.step;
    }
    for (; n < width; n += NR) {
        tile_column(rows, tile);
        move_right(&tile, NR);
        tile.next += (size_t)((rows + MR - 1) / MR * tile.depth) * tile.step;
    }
}

/* out [LANES,LANES] = in [rows,columns] turned, and 0 where there is none */
INLINE void turn_square(const float *in, size_t in_row, int rows, int columns,
                        float *out, size_t out_row)
{
    vec a[LANES], b[LANES];
    if (columns == LANES)
        UNROLL for (int i = 0; i < LANES; i++) {
            const float *row = in + (size_t)i * in_row;
            a[i] = i < rows ? load(row) : splat(0);
            __builtin_prefetch(row + 2 * LANES * in_row);
        }
    else
        for (int i = 0; i < LANES; i++)
            a[i] = i < rows ? load_part(in + (size_t)i * in_row, columns)
                            : splat(0);
    UNROLL for (int round = 1; round < LANES; round *= 2) {
        UNROLL for (int i = 0; i < LANES / 2; i++) {
            b[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1],
                                           EVERY_OTHER(0));
            b[i + LANES / 2] = __builtin_shufflevector(
                a[2 * i], a[2 * i + 1], EVERY_OTHER(1));
        }
        UNROLL for (int i = 0; i < LANES; i++)
            a[i] = b[i];
    }
    for (int i = 0; i < columns; i++)
        store(out + (size_t)i * out_row, a[i]);
}

/* out [columns,width] = in [rows,columns] turned, with out_row floats from
   one row to the next; what is behind rows is 0. width is a multiple of
   LANES */
static void turn(const float *in, size_t in_row, int rows, int columns,
                 float *out, size_t out_row, int width)
{
    for (int n = 0; n < width; n += LANES)
        for (int i = 0; i < columns; i += LANES)
            turn_square(n < rows ? in + (size_t)n * in_row + i : in, in_row,
                        rows - n, columns - i < LANES ? columns - i : LANES,
                        out + (size_t)i * out_row + n, out_row);
}

enum {
    DEPTH = 768,                /* inputs of a block, at most */
    INPUTS = 96 * 768,          /* floats: rows times inputs of a block */
    SUMS = 12 * 264 * PANEL     /* panels that share them, times rows */
};

/* Weights that have to be turned pay for it once for all rows of a block. */
struct shape {
    int depth, rows, panels;
};
static const struct shape packed = {768, 96, 24}, turned = {256, 264, 12};
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

/* sums of outputs n … n + 31, as far as there are so many, to out */
INLINE void finish_as(const enum finish finish, const struct matrix *weight,
                      const float *sums, int n, float *out)
{
    const float *bias = weight->bias;
    const int width = weight->out - n;
    UNROLL for (int v = 0; v < PANEL; v += LANES)
        if (v + LANES <= width) {
            const vec y = load(sums + v)
                + (bias == NULL ? splat(0) : load(bias + n + v));
            store(out + v, vfinish(finish, y, load(out + v)));
        } else if (v < width) {
            const int count = width - v;
            const vec y = load(sums + v)
                + (bias == NULL ? splat(0) : load_part(bias + n + v, count));
            store_part(out + v, vfinish(finish, y, load_part(out + v, count)),
                       count);
        }
}

static void finish_outputs(const struct linear_call *call, const float *sums,
                           int n, float *out)
{
    const struct matrix *weight = call->weight;
    switch (call->finish) {
    case FINISH_STORE: finish_as(FINISH_STORE, weight, sums, n, out); break;
    case FINISH_ADD: finish_as(FINISH_ADD, weight, sums, n, out); break;
    case FINISH_GELU: finish_as(FINISH_GELU, weight, sums, n, out); break;
    case FINISH_GELU_TANH:
        finish_as(FINISH_GELU_TANH, weight, sums, n, out);
        break;
    case FINISH_SILU_MULTIPLY:
        finish_as(FINISH_SILU_MULTIPLY, weight, sums, n, out);
        break;
    }
}

/* sums [panels][rows][PANEL] of the panels from output n on -> rows row … of
   out */
static void finish_panels(const struct linear_call *call, const float *sums,
                          int n, int panels, int row, int rows)
{
    float *out = call->out + (size_t)row * call->out_stride + n;
    for (int r = 0; r < rows; r++, sums += PANEL, out += call->out_stride)
        for (int p = 0; p < panels; p++)
            finish_outputs(call, sums + (size_t)(p * rows) * PANEL,
                           n + p * PANEL, out + p * PANEL);
}

typedef uint32_t uvec_at
    __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* inputs in a word */
INLINE int inputs_of(const enum matrix_type type)
{
    return type == MATRIX_F32 ? 1 : type == MATRIX_BF16 ? 2 : 4;
}

/* words of an output */
INLINE size_t words_of(const struct matrix *weight)
{
    const int each = inputs_of(weight->type);
    return ((size_t)weight->in + (size_t)each - 1) / (size_t)each;
}

INLINE uvec load_words(const void *data, size_t at)
{
    return *(const uvec_at *)((const uint32_t *)data + at);
}

/* Input j of the words as floats; of INT8 its code. */
INLINE vec weights_of(const enum matrix_type type, uvec words, int j)
{
    if (type == MATRIX_F32)
        return (vec)words;
    if (type == MATRIX_BF16)
        return (vec)(j == 0 ? words << 16 : words & 0xffff0000u);
    const ivec codes = (ivec)(words << (24 - 8 * j)) >> 24;
    return __builtin_convertvector(codes, vec);
}

INLINE void widen(const enum matrix_type type, const struct matrix *weight,
                  int n, int k, int depth, float *wide)
{
    const size_t panel = (size_t)n / PANEL;
    const int each = inputs_of(type);
    for (int i = 0; i < depth; i += each)
        UNROLL for (int v = 0; v < PANEL; v += LANES) {
            const size_t row = panel * words_of(weight)
                               + (size_t)((k + i) / each);
            const uvec words = load_words(weight->data,
                                          row * PANEL + (size_t)v);
            UNROLL for (int j = 0; j < each; j++)
                store(wide + (i + j) * PANEL + v,
                      weights_of(type, words, j));
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

enum { FAR = 512 };    /* floats */

/* to = the first depth floats of rows; rows begin stride and pitch apart */
static const float *copy_inputs(const float *from, size_t stride, int rows,
                                int depth, float *to, size_t pitch)
{
    for (int r = 0; r < rows; r++)
        memcpy(to + (size_t)r * pitch, from + (size_t)r * stride,
               (size_t)depth * sizeof *to);
    return to;
}

/* From input k of the panel on, as many as the tiles' depth, by all of them
   together. */
static void fetch_words(const struct matrix *weight, int panel, int k,
                        int tiles, struct tile *tile)
{
    const int each = inputs_of(weight->type);
    tile->next = weight->data;
    tile->step = 0;
    if (weight->layout == MATRIX_PANELS) {
        tile->next += ((size_t)panel * words_of(weight)
                       + (size_t)(k / each)) * PANEL;
        tile->step = (size_t)((PANEL / each + tiles - 1) / tiles);
    }
}

/* Those of input k, a multiple of 32; NULL without scales. */
static const float *scales_of(const struct matrix *weight, int panel, int k)
{
    const size_t groups = ((size_t)weight->in + GROUP - 1) / GROUP;
    if (weight->type != MATRIX_INT8)
        return NULL;
    return weight->scales
           + ((size_t)panel * groups + (size_t)k / GROUP) * PANEL;
}

enum { AHEAD = 64 };    /* inputs */

static void panel_few(const struct linear_call *call, int n)
{
    float sums[MR * PANEL] ALIGNED, wide[DEPTH * PANEL] ALIGNED;
    const struct matrix *weight = call->weight;
    const int in = weight->in;
    struct tile tile = {.a_row = call->in_stride, .b_row = PANEL,
                        .c = sums, .c_row = PANEL};
    for (int k = 0; k < in; k += DEPTH) {
        tile.depth = in - k < DEPTH ? in - k : DEPTH;
        tile.first = k == 0;
        tile.a = call->in + k;
        tile.b = block_of_panel(weight, n, k, tile.depth, wide);
        fetch_words(weight, n / PANEL, weight->type == MATRIX_F32
                    ? k + AHEAD : k + tile.depth, PANEL / NR, &tile);
        tile.scales = scales_of(weight, n / PANEL, k);
        tile_columns(call->rows, PANEL, tile);
    }
    finish_panels(call, sums, n, 1, 0, call->rows);
}

static void panels_rows(const struct linear_call *call,
                        const struct shape *shape, int row, int rows,
                        int first, int last)
{
    float inputs[INPUTS] ALIGNED, wide[DEPTH * PANEL] ALIGNED, sums[SUMS] ALIGNED;
    const int each = rows * PANEL;
    const int in = call->weight->in;
    const int tiles = (rows + MR - 1) / MR * (PANEL / NR);
    const bool copies = call->in_stride % FAR == 0;
    struct tile tile = {.a_row = copies ? (size_t)shape->depth
                                        : call->in_stride,
                        .b_row = PANEL, .c_row = PANEL};
    for (int k = 0; k < in; k += shape->depth) {
        tile.depth = in - k < shape->depth ? in - k : shape->depth;
        tile.first = k == 0;
        tile.a = call->in + (size_t)row * call->in_stride + k;
        if (copies)
            tile.a = copy_inputs(tile.a, call->in_stride, rows, tile.depth,
                                 inputs, (size_t)shape->depth);
        for (int p = first; p < last; p++) {
            tile.b = block_of_panel(call->weight, p * PANEL, k, tile.depth,
                                    wide);
            tile.c = sums + (p - first) * each;
            fetch_words(call->weight, p + 1 < last ? p + 1 : first,
                        p + 1 < last ? k : k + tile.depth, tiles, &tile);
            tile.scales = scales_of(call->weight, p, k);
            tile_columns(rows, PANEL, tile);
        }
    }
    finish_panels(call, sums, first * PANEL, last - first, row, rows);
}

enum { VECTORS = PANEL / LANES, STREAMS = LANES / 4 };

struct streams {
    const struct linear_call *call;
    size_t far, ahead;               /* words: of a panel; to those fetched */
    vec sum[STREAMS][VECTORS], group[STREAMS][VECTORS];
};

enum { SCALES_AHEAD = 4 * PANEL };

INLINE uvec words_at(const enum matrix_type type, const struct streams *s,
                     size_t at)
{
    const uint32_t *words = s->call->weight->data;
    if (type != MATRIX_F32)
        __builtin_prefetch(words + at + s->ahead);
    return load_words(words, at);
}

/* count inputs, from k on, of the words at that place of each stream */
INLINE void add_word(const enum matrix_type type, const int streams,
                     struct streams *s, size_t at, int k, const int count)
{
    uvec words[STREAMS][VECTORS];
    UNROLL for (int p = 0; p < streams; p++)
        UNROLL for (int v = 0; v < VECTORS; v++)
            words[p][v] = words_at(type, s, at + (size_t)p * s->far
                                            + (size_t)(v * LANES));
    UNROLL for (int j = 0; j < inputs_of(type); j++) {
        if (j >= count)     /* the last word is a short one */
            continue;
        const float x = s->call->in[k + j];
        UNROLL for (int p = 0; p < streams; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                s->group[p][v] += weights_of(type, words[p][v], j) * x;
    }
}

INLINE void panels_row(const enum matrix_type type, const int streams,
                       const struct linear_call *call, int n)
{
    const struct matrix *weight = call->weight;
    const int in = weight->in, each = inputs_of(type);
    struct streams s = {.call = call, .far = words_of(weight) * PANEL};
    size_t at = (size_t)n / PANEL * s.far;
    for (int first = 0; first < in; first += GROUP) {
        const int last = in - first < GROUP ? in : first + GROUP;
        enum { WORDS_AHEAD = 512 };
        const bool here = first + WORDS_AHEAD / PANEL * each < in;
        s.ahead = WORDS_AHEAD + (here ? 0 : (size_t)(streams - 1) * s.far);
        UNROLL for (int p = 0; p < streams; p++)
            UNROLL for (int v = 0; v < VECTORS; v++)
                s.group[p][v] = type == MATRIX_INT8 ? splat(0) : s.sum[p][v];
        int k = first;
        for (; k + each <= last; k += each, at += PANEL)
            add_word(type, streams, &s, at, k, each);
        if (k < last)
            add_word(type, streams, &s, at, k, last - k);
        UNROLL for (int p = 0; p < streams; p++)
            UNROLL for (int v = 0; v < VECTORS; v++) {
                if (type == MATRIX_INT8) {
                    const float *scales = scales_of(weight, n / PANEL + p, first) + v * LANES;
                    __builtin_prefetch(scales + SCALES_AHEAD);
                    s.sum[p][v] = load(scales) * s.group[p][v] + s.sum[p][v];
                } else
                    s.sum[p][v] = s.group[p][v];
            }
    }
    UNROLL for (int p = 0; p < streams; p++) {
        float sums[PANEL] ALIGNED;
        UNROLL for (int v = 0; v < VECTORS; v++)
            store(sums + v * LANES, s.sum[p][v]);
        finish_panels(call, sums, n + p * PANEL, 1, 0, 1);
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

/* count in equal parts of at most most, each a multiple of unit */
static int share(int count, int most, int unit)
{
    const int parts = count > 0 ? (count + most - 1) / most : 1;
    return ((count + parts - 1) / parts + unit - 1) / unit * unit;
}

/* panels a share, at most most, when blocks have each of the rows */
static int group_of(int panels, int most, int rows, int each)
{
    const int threads = omp_get_max_threads();
    int64_t least = INT64_MAX;
    int best = 1;
    for (int group = most < panels ? most : panels; group > 0; group--) {
        const int shares = (panels + group - 1) / group;
        const int whole = rows / each * shares;
        int64_t load = (int64_t)(whole + threads - 1) / threads * each;
        if (whole % threads == 0)
            load += (shares + threads - 1) / threads * (rows % each);
        if (load * group < least) {
            least = load * group;
            best = group;
        }
    }
    return best;
}

static void one_row(const struct linear_call *call, bool large)
{
    const int each = STREAMS * PANEL, out = call->weight->out;
    const int groups = out / each;
    const int single = (out - groups * each + PANEL - 1) / PANEL;
    #pragma omp parallel for if (large)
    for (int u = 0; u < groups + single; u++)
        if (u < groups)
            panels_streams(call, u * each);
        else {
            panels_one(call, groups * each + (u - groups) * PANEL);
        }
}

static void few_rows(const struct linear_call *call, bool large)
{
    #pragma omp parallel for if (large)
    for (int n = 0; n < call->weight->out; n += PANEL)
        panel_few(call, n);
}

static void many_rows(const struct linear_call *call, bool large)
{
    const struct shape *shape = call->weight->layout == MATRIX_ROWS
        ? &turned : &packed;
    const int rows = call->rows, each = share(rows, shape->rows, MR);
    const int panels = (call->weight->out + PANEL - 1) / PANEL;
    const int group = group_of(panels, shape->panels, rows, each);
    #pragma omp parallel for collapse(2) schedule(dynamic) if (large)
    for (int row = 0; row < rows; row += each)
        for (int p = 0; p < panels; p += group)
            panels_rows(call, shape, row,
                        rows - row < each ? rows - row : each, p,
                        panels - p < group ? panels : p + group);
}

static void linear(const struct matrix *weight, const float *in,
                   size_t in_stride, int rows, float *out, size_t out_stride,
                   enum finish finish)
{
    const struct linear_call call = {weight, in, out, in_stride, out_stride,
                                     rows, finish};
    const bool large = (int64_t)rows * weight->out * weight->in > SMALL;
    if (rows == 1 && weight->layout == MATRIX_PANELS)
        one_row(&call, large);
    else if (rows <= MR)
        few_rows(&call, large);
    else
        many_rows(&call, large);
}

enum { DEEP = 384, TALL = 264 };    /* inputs and rows of a block */

/* A: rows m …, inputs k …, [rows][DEEP] */
static void block_of_a(const struct product *p, int m, int rows, int k,
                       int depth, float *room)
{
    if (p->a_turned)
        turn(p->a + (size_t)k * p->a_stride + m, p->a_stride, depth, rows,
             room, DEEP, (depth + LANES - 1) / LANES * LANES);
    else
        copy_inputs(p->a + (size_t)m * p->a_stride + k, p->a_stride, rows,
                    depth, room, DEEP);
}

/* B: inputs k …, columns n … n + 31, [depth][32]; 0 behind the last */
static void block_of_b(const struct product *p, int n, int k, int depth,
                       float *room)
{
    const int left = p->n - n;
    const int width = left < PANEL ? left : PANEL;
    if (p->b_turned) {
        turn(p->b + (size_t)n * p->b_stride + k, p->b_stride, width, depth,
             room, PANEL, PANEL);
        return;
    }
    const float *from = p->b + (size_t)k * p->b_stride + n;
    for (int i = 0; i < depth; i++, from += p->b_stride, room += PANEL) {
        const float *later = from + 16 * p->b_stride;
        for (int v = 0; v < PANEL; v += LINE)
            __builtin_prefetch(later + v);
        for (int v = 0; v < PANEL; v += LANES)
            store(room + v, v + LANES <= width ? load(from + v)
                  : v < width ? load_part(from + v, width - v) : splat(0));
    }
}

static void narrow_panel(const struct product *p, int m, int n, int rows,
                         struct tile tile)
{
    float c[TALL * PANEL] ALIGNED;
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
    float a[TALL * DEEP] ALIGNED, b[DEEP * PANEL] ALIGNED;
    struct tile tile = {.a = a, .b = b, .a_row = DEEP, .b_row = PANEL,
                        .c_row = p->c_stride, .next = a};
    for (int k = 0; k < p->k; k += DEEP) {
        tile.depth = p->k - k < DEEP ? p->k - k : DEEP;
        block_of_a(p, m, rows, k, tile.depth, a);
        tile.first = k == 0 && !p->add;
        for (int n = n0; n < n1; n += PANEL) {
            block_of_b(p, n, k, tile.depth, b);
            tile.c = p->c + (size_t)m * p->c_stride + n;
            if (n + PANEL <= p->n)
                tile_columns(rows, PANEL, tile);
            else
                narrow_panel(p, m, n, rows, tile);
        }
    }
}

enum { WIDE_MAX = 24 };    /* panels that share turned rows */

static void product(const struct product *p)
{
    if (p->m < 1 || p->n < 1)
        return;
    if (p->k < 1 && !p->add)
        for (int m = 0; m < p->m; m++)
            memset(p->c + (size_t)m * p->c_stride, 0,
                   (size_t)p->n * sizeof *p->c);
    const int rows = share(p->m, TALL, MR);
    const int columns = PANEL * group_of((p->n + PANEL - 1) / PANEL, WIDE_MAX,
                                         p->m, rows);
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

enum { FEW = LANES / 2, FEWS = PARTS / FEW };

/* FEW floats, shifted */
INLINE dvec deviations(const float *p, double shift)
{
    return __builtin_convertvector(*(const few_at *)p, dvec) - shift;
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
            const dvec d = deviations(x + i + f * FEW, shift);
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

struct scaling {
    double shift, scale;
    const float *weight, *bias;
};

/* (in - shift) * scale * weight (+ bias), FEW floats from i on */
INLINE few scaled(const float *in, const struct scaling *by, int i,
                  const bool biased)
{
    const few y = __builtin_convertvector(
        deviations(in + i, by->shift) * by->scale, few)
        * *(const few_at *)(by->weight + i);
    return biased ? y + *(const few_at *)(by->bias + i) : y;
}

INLINE void scale_row(const float *in, int width, const struct scaling *by,
                      const bool biased, float *out)
{
    int i = 0;
    for (; i + FEW <= width; i += FEW)
        *(few_at *)(out + i) = scaled(in, by, i, biased);
    if (i < width) {
        float part[3][FEW] = {{0}};
        const size_t bytes = (size_t)(width - i) * sizeof *in;
        memcpy(part[0], in + i, bytes);
        memcpy(part[1], by->weight + i, bytes);
        if (biased)
            memcpy(part[2], by->bias + i, bytes);
        const struct scaling end = {by->shift, by->scale, part[1], part[2]};
        const few y = scaled(part[0], &end, 0, biased);
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
        const struct scaling by = {mean, 1 / sqrt(variance + eps), weight,
                                   bias};
        scale_row(x, width, &by, true, out + (size_t)r * (size_t)width);
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
        const struct scaling by = {0, 1 / sqrt(square + eps), weight, NULL};
        scale_row(x, width, &by, false, out + (size_t)r * (size_t)width);
    }
}

enum { QUERIES = 96, SLOTS = 64, HEAD_MAX = 256 };

struct attention_block {
    const struct attention_call *call;
    int kv_head, row, rows;
    int padded;                  /* D in whole tiles */
    int at, slots;               /* the slots at hand */
    int first;                   /* earlier rows see none of them */
    int limit[QUERIES];          /* slots that the row sees */
    float largest[QUERIES];
    double sum[QUERIES];
    float query[QUERIES * HEAD_MAX] ALIGNED;
    float scores[QUERIES * SLOTS] ALIGNED;
    float context[QUERIES * HEAD_MAX] ALIGNED;
    float room[HEAD_MAX * SLOTS] ALIGNED;
};

struct place {
    size_t token, head;
};

INLINE struct place place_of(const struct attention_block *b, int r)
{
    const int group = b->call->heads / b->call->kv_heads, row = b->row + r;
    struct place place = {(size_t)(row / group), 0};
    place.head = (size_t)(b->kv_head * group + row % group);
    return place;
}

static void gather_queries(struct attention_block *b)
{
    const struct attention_call *call = b->call;
    const int d = call->head_dim;
    const float scale = 1 / sqrtf((float)d);
    for (int r = 0; r < b->rows; r++) {
        const struct place place = place_of(b, r);
        const float *from = call->query + place.token * call->query_token
                            + place.head * call->query_head;
        for (int i = 0; i < d; i++)
            b->query[r * d + i] = from[i] * scale;
        b->limit[r] = call->length + (int)place.token + 1;
        b->largest[r] = -INFINITY;
        b->sum[r] = 0;
    }
}

INLINE int seen_of(const struct attention_block *b, int r)
{
    const int seen = b->limit[r] - b->at;
    return seen < b->slots ? seen : b->slots;
}

/* Where the slots at hand begin, in keys or in values. */
INLINE const float *slots_of(const struct attention_block *b,
                             const float *array)
{
    return array + (size_t)b->kv_head * b->call->head_stride
           + (size_t)b->at * b->call->slot_stride;
}

/* The slots from there on, if they lie side by side. */
static void fetch_slots(const struct attention_block *b, const float *from,
                        int rows, struct tile *tile)
{
    const bool together = b->call->slot_stride == (size_t)b->call->head_dim;
    tile->next = together ? from : tile->b;
    tile->step = together ? (size_t)(NR / ((rows + MR - 1) / MR)) : 0;
}

static void score_slots(struct attention_block *b)
{
    const int d = b->call->head_dim, rows = b->rows - b->first;
    const int seen = seen_of(b, b->rows - 1);
    const int width = (seen + NR - 1) / NR * NR;
    turn(slots_of(b, b->call->key), b->call->slot_stride, seen, d, b->room,
         SLOTS, width);
    struct tile tile = {.a = b->query + b->first * d, .a_row = (size_t)d,
                        .b = b->room, .b_row = SLOTS,
                        .c = b->scores + b->first * SLOTS, .c_row = SLOTS,
                        .depth = d, .first = true};
    fetch_slots(b, slots_of(b, b->call->value), rows, &tile);
    tile_columns(rows, width, tile);
}

INLINE float largest_of(const float *p, int count)
{
    vec most[VECS];
    UNROLL for (int v = 0; v < VECS; v++)
        most[v] = load(p + v * LANES);
    for (int j = PARTS; j < count; j += PARTS)
        UNROLL for (int v = 0; v < VECS; v++)
            most[v] = larger(load(p + j + v * LANES), most[v]);
    return largest_part(most);
}

INLINE float weigh(float *p, int count, float base)
{
    vec sum[VECS];
    UNROLL for (int v = 0; v < VECS; v++)
        sum[v] = splat(0);
    for (int j = 0; j < count; j += PARTS)
        UNROLL for (int v = 0; v < VECS; v++) {
            const vec e = vexp_low(load(p + j + v * LANES) - base);
            store(p + j + v * LANES, e);
            sum[v] += e;
        }
    return sum_parts(sum);
}

static void weigh_row(struct attention_block *b, int r)
{
    float *p = b->scores + r * SLOTS;
    const int seen = seen_of(b, r);
    const int whole = (seen + PARTS - 1) / PARTS * PARTS;
    for (int j = seen; j < whole; j++)
        p[j] = -INFINITY;
    const float here = largest_of(p, whole);
    const float before = b->largest[r];
    const float now = here > before ? here : before;
    const float base = now == -INFINITY ? 0 : now;
    const float sum = weigh(p, whole, base);
    if (b->at > 0 && now > before) {
        const vec factor = vexp_low(splat(before - now));
        float *context = b->context + r * b->padded;
        for (int i = 0; i < b->padded; i += LANES)
            store(context + i, load(context + i) * factor);
        b->sum[r] *= factor[0];
    }
    b->sum[r] += sum;
    b->largest[r] = now;
}

static void add_values(struct attention_block *b, int i, struct tile tile)
{
    tile.a_row = SLOTS;
    tile.c_row = (size_t)b->padded;
    tile.first = b->at == 0;
    for (int r = b->first; r < b->rows; r += MR) {
        const int rows = b->rows - r < MR ? b->rows - r : MR;
        const int seen = seen_of(b, r);
        tile.a = b->scores + r * SLOTS;
        tile.c = b->context + r * b->padded + i;
        tile.depth = seen;
        tile_rows(rows, &tile);
        for (int x = 1; x < rows; x++) {
            struct tile more = tile;
            more.depth = seen_of(b, r + x) - seen;
            more.a = tile.a + x * SLOTS + seen;
            more.b = tile.b + (size_t)seen * tile.b_row;
            more.c = tile.c + x * b->padded;
            more.first = false;
            if (more.depth > 0)
                tile_rows(1, &more);
        }
        tile.next += SLOTS * tile.step;
    }
}

static const float *pad_values(struct attention_block *b, const float *value,
                               int width)
{
    const int seen = seen_of(b, b->rows - 1);
    for (int j = 0; j < seen; j++)
        for (int x = 0; x < NR; x++)
            b->room[j * NR + x] = x < width
                ? value[(size_t)j * b->call->slot_stride + (size_t)x] : 0.0f;
    return b->room;
}

static const float *following_keys(const struct attention_block *b)
{
    const struct attention_call *call = b->call;
    const int at = b->at + b->slots;
    if (at < b->limit[b->rows - 1])
        return slots_of(b, call->key) + (size_t)b->slots * call->slot_stride;
    const int head = b->kv_head + 1 < call->kv_heads ? b->kv_head + 1 : 0;
    return call->key + (size_t)head * call->head_stride;
}

static void add_slots(struct attention_block *b)
{
    const int d = b->call->head_dim, rows = b->rows - b->first;
    struct tile tile = {.b = slots_of(b, b->call->value),
                        .b_row = b->call->slot_stride};
    fetch_slots(b, following_keys(b), rows, &tile);
    int i = 0;
    if (rows == 1) {
        tile.a = b->scores + b->first * SLOTS;
        tile.c = b->context + b->first * b->padded;
        tile.depth = seen_of(b, b->first);
        tile.first = b->at == 0;
        i = d / NR * NR;
        tile_columns(1, i, tile);
        tile.b += i;
    }
    for (; i + NR <= d; i += NR, tile.b += NR)
        add_values(b, i, tile);
    if (i < d) {
        tile.b = pad_values(b, tile.b, d - i);
        tile.b_row = NR;
        add_values(b, i, tile);
    }
}

static void write_contexts(const struct attention_block *b)
{
    const struct attention_call *call = b->call;
    for (int r = 0; r < b->rows; r++) {
        const struct place place = place_of(b, r);
        float *to = call->context + place.token * call->context_token
                    + place.head * call->context_head;
        const float *from = b->context + r * b->padded;
        const float inverse = (float)(1 / b->sum[r]);
        for (int i = 0; i < call->head_dim; i++)
            to[i] = from[i] * inverse;
    }
}

static void attend(const struct attention_call *call, int kv_head, int row,
                   int rows)
{
    struct attention_block b;
    b.call = call;
    b.kv_head = kv_head;
    b.row = row;
    b.rows = rows;
    b.padded = (call->head_dim + NR - 1) / NR * NR;
    b.first = 0;
    gather_queries(&b);
    const int end = call->length + (int)place_of(&b, rows - 1).token + 1;
    for (b.at = 0; b.at < end; b.at += b.slots) {
        b.slots = SLOTS;
        while (b.limit[b.first] <= b.at)
            b.first++;
        score_slots(&b);
        for (int r = b.first; r < rows; r++)
            weigh_row(&b, r);
        add_slots(&b);
    }
    write_contexts(&b);
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

const struct kernels kernels_base = {
    "base", linear, product, attention, layer_norm, rms_norm, activate,
    activate_backward, exponential};
