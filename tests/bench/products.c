/* The linear layers of GPT-2's small model and nothing else: for each number
   of tokens all products of twelve layers, each with weights of its own, and
   the head for one row. One text, compiled for the kernels of the book and for
   each library that is there:

       -DOPENBLAS   cblas_sgemm, and sgemv for one token
       -DONEDNN     dnnl_sgemm
       neither      kernels_best(), weights in panels

   Prints a line for each number of tokens:
   name what threads slots tokens context seconds */
#define _DEFAULT_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { C = 768, F = 3072, L = 12, V = 50257, PARTS = 4 * L + 1 };

static const int shapes[4][2] = {{3 * C, C}, {C, C}, {F, C}, {C, F}};

#if defined OPENBLAS
#include <cblas.h>
#define NAME "openblas"
typedef const float *weight;
static weight weight_of(const float *rows, int out, int in)
{
    (void)out, (void)in;
    return rows;
}

static void multiply(weight w, int out, int in, const float *x, int rows,
                     float *y)
{
    if (rows == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, out, in, 1, w, in, x, 1, 0,
                    y, 1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, out, in, 1,
                    x, in, w, in, 0, y, out);
}
#elif defined ONEDNN
#include <dnnl.h>
#define NAME "onednn"
typedef const float *weight;
static weight weight_of(const float *rows, int out, int in)
{
    (void)out, (void)in;
    return rows;
}

static void multiply(weight w, int out, int in, const float *x, int rows,
                     float *y)
{
    if (dnnl_sgemm('N', 'T', rows, out, in, 1, x, in, w, in, 0, y, out)
        != dnnl_success)
        exit(1);
}
#else
#include "kernels.h"
#include "thread_count.h"
#define NAME "kernels"
typedef struct matrix weight;
static void *room_of(size_t bytes);

static weight weight_of(const float *rows, int out, int in)
{
    size_t data, scales;
    if (!matrix_packed_sizes(out, in, MATRIX_F32, &data, &scales))
        exit(1);
    return matrix_pack(rows, NULL, out, in, MATRIX_F32, room_of(data), NULL);
}

static void multiply(weight w, int out, int in, const float *x, int rows,
                     float *y)
{
    kernels_best()->linear(&w, x, (size_t)in, rows, y, (size_t)out,
                           FINISH_STORE);
}
#endif

/* Large pages where the system has them; kept until the program ends. */
static void *room_of(size_t bytes)
{
    const size_t large = (size_t)2 << 20, all = (bytes + large - 1) / large;
    void *room = aligned_alloc(large, all * large);
    if (room == NULL)
        exit(1);
#ifdef MADV_HUGEPAGE
    (void)madvise(room, all * large, MADV_HUGEPAGE);
#endif
    return room;
}

static float *numbers(size_t count)
{
    float *made = room_of(count * sizeof *made);
    for (size_t k = 0; k < count; k++)
        made[k] = (float)((k * 7919) % 1009) / 20000 - 0.025f;
    return made;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int argc, char **argv)
{
    static weight weights[PARTS];
    const int threads = argc > 1 ? atoi(argv[1]) : 1, most = 1024;
    const float *x = numbers((size_t)most * F);
    float *y = numbers((size_t)most * F + V);
#if !defined OPENBLAS && !defined ONEDNN
    thread_count_use(threads);
#endif
    for (int k = 0; k < PARTS; k++) {
        const int out = k < 4 * L ? shapes[k % 4][0] : V;
        const int in = k < 4 * L ? shapes[k % 4][1] : C;
        weights[k] = weight_of(numbers((size_t)out * (size_t)in), out, in);
    }
    for (int a = 2; a < argc; a++) {
        const int tokens = atoi(argv[a]) < most ? atoi(argv[a]) : most;
        double took = 0;
        for (int turn = 0; turn < 2; turn++) {      /* the first is a warm-up */
            const double began = now();
            for (int k = 0; k < 4 * L; k++)
                multiply(weights[k], shapes[k % 4][0], shapes[k % 4][1], x,
                         tokens, y);
            multiply(weights[4 * L], V, C, x, 1, y);
            took = now() - began;
        }
        printf(NAME " linear %d 1 %d 0 %.9g\n", threads, tokens, took);
    }
    return 0;
}
