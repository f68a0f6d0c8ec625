#include "kernel_steps.h"
#include <stdbool.h>
#include <stddef.h>
#include "matrix.h"

enum { LANES = 16, MR = 12 };

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

INLINE float inner(const float *a, const float *b, int count, const int sums)
{
    vec sum[8];
    UNROLL for (int s = 0; s < sums; s++)
        sum[s] = splat(0);
    int k = 0;
    for (; k + sums * LANES <= count; k += sums * LANES)
        UNROLL for (int s = 0; s < sums; s++)
            sum[s] += load(a + k + s * LANES) * load(b + k + s * LANES);
    float total = 0;
    UNROLL for (int s = 0; s < sums; s++)
        for (int lane = 0; lane < LANES; lane++)
            total += sum[s][lane];
    for (; k < count; k++)
        total += a[k] * b[k];
    return total;
}

INLINE void by_inner_products(const struct step_layer *layer, const int sums)
{
    const size_t in = (size_t)layer->in, out = (size_t)layer->out;
    for (int r = 0; r < layer->rows; r++)
        for (int o = 0; o < layer->out; o++)
            layer->output[(size_t)r * out + (size_t)o]
                = inner(layer->input + (size_t)r * in,
                        layer->weight + (size_t)o * in, layer->in, sums);
}

static void one_sum(const struct step_layer *layer)
{
    by_inner_products(layer, 1);
}

static void eight_sums(const struct step_layer *layer)
{
    by_inner_products(layer, 8);
}

static struct tile tile_of_layer(const struct step_layer *layer)
{
    return (struct tile){.a = layer->input, .c = layer->output,
                         .a_row = (size_t)layer->in, .b_row = PANEL,
                         .c_row = (size_t)layer->out, .depth = layer->in,
                         .first = true, .next = layer->input};
}

static void whole(const struct step_layer *layer)
{
    struct tile tile = tile_of_layer(layer);
    tile.b = layer->turned;
    tile.b_row = (size_t)layer->out;
    tile_columns(layer->rows, layer->out, tile);
}

static void panels(const struct step_layer *layer)
{
    struct tile tile = tile_of_layer(layer);
    for (int n = 0; n < layer->out; n += PANEL, tile.c += PANEL) {
        tile.b = layer->panels + (size_t)n * (size_t)layer->in;
        tile_columns(layer->rows, PANEL, tile);
    }
}

static void blocks(const struct step_layer *layer)
{
    enum { BLOCK = 384 };
    struct tile tile = tile_of_layer(layer);
    for (int k = 0; k < layer->in; k += BLOCK) {
        const int left = layer->in - k;
        tile.depth = left < BLOCK ? left : BLOCK;
        tile.a = layer->input + k;
        tile.first = k == 0;
        for (int n = 0; n < layer->out; n += PANEL) {
            tile.b = layer->panels + (size_t)n * (size_t)layer->in
                     + (size_t)k * PANEL;
            tile.c = layer->output + n;
            tile_columns(layer->rows, PANEL, tile);
        }
    }
}

const struct kernel_steps kernel_steps_avx512 = {
    "avx512", one_sum, eight_sums, whole, panels, blocks};
