/* The linear layers of GPT-2's small model and nothing else: for each number
   of tokens all products of twelve layers, each with weights of its own, and
   the head for one row; then those of a training step of 256 tokens, forward,
   for the inputs and for the weights, the head's for all rows. One text, compiled for the kernels of the book and for
   each library that is there:

       -DOPENBLAS   cblas_sgemm, and sgemv for one token
       -DONEDNN     dnnl_sgemm
       neither      kernels_best(), weights in panels

   Prints a line for each number of tokens:
   name what threads slots tokens context seconds */
#define _DEFAULT_SOURCE
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { C = 768, F = 3072, L = 12, V = 50257, PARTS = 4 * L + 1 };

static const int shapes[4][2] = {{3 * C, C}, {C, C}, {F, C}, {C, F}};

/* C [M,N] = A [M,K] · B [K,N], or C += with add; a turned operand is stored as
   [K,M], or [N,K]. Each of them in one piece. */
static void product(int m, int n, int k, const float *a, bool a_turned,
                    const float *b, bool b_turned, bool add, float *c);

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
        product(rows, out, in, x, false, w, true, false, y);
}

static void product(int m, int n, int k, const float *a, bool a_turned,
                    const float *b, bool b_turned, bool add, float *c)
{
    cblas_sgemm(CblasRowMajor, a_turned ? CblasTrans : CblasNoTrans,
                b_turned ? CblasTrans : CblasNoTrans, m, n, k, 1, a,
                a_turned ? m : k, b, b_turned ? k : n, add ? 1 : 0, c, n);
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
    product(rows, out, in, x, false, w, true, false, y);
}

static void product(int m, int n, int k, const float *a, bool a_turned,
                    const float *b, bool b_turned, bool add, float *c)
{
    if (dnnl_sgemm(a_turned ? 'T' : 'N', b_turned ? 'T' : 'N', m, n, k, 1, a,
                   a_turned ? m : k, b, b_turned ? k : n, add ? 1 : 0, c, n)
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

static void product(int m, int n, int k, const float *a, bool a_turned,
                    const float *b, bool b_turned, bool add, float *c)
{
    kernels_best()->product(&(struct product){
        .m = m, .n = n, .k = k, .a = a, .b = b,
        .a_stride = (size_t)(a_turned ? m : k),
        .b_stride = (size_t)(b_turned ? k : n), .a_turned = a_turned,
        .b_turned = b_turned, .add = add, .c = c, .c_stride = (size_t)n
    });
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

static int outputs(int k) { return k < 4 * L ? shapes[k % 4][0] : V; }
static int inputs(int k) { return k < 4 * L ? shapes[k % 4][1] : C; }

/* Forward, and what the inputs and the weights of each layer should change. */
static double learn(const float *const *rows, float *const *gradients,
                    const float *x, float *y)
{
    enum { TOKENS = 256 };
    double took = 0;
    for (int turn = 0; turn < 2; turn++) {      /* the first is a warm-up */
        const double began = now();
        for (int k = 0; k < PARTS; k++) {
            const int out = outputs(k), in = inputs(k);
            float *slope = y + (size_t)TOKENS * (size_t)out;
            product(TOKENS, out, in, x, false, rows[k], true, false, y);
            product(TOKENS, in, out, y, false, rows[k], false, false, slope);
            product(out, in, TOKENS, y, true, x, false, true, gradients[k]);
        }
        took = now() - began;
    }
    return took;
}

int main(int argc, char **argv)
{
    static weight weights[PARTS];
    static const float *rows[PARTS];
    static float *gradients[PARTS];
    const int threads = argc > 1 ? atoi(argv[1]) : 1, most = 1024;
    const float *x = numbers((size_t)most * F);
    float *y = numbers((size_t)most * F + (size_t)256 * (V + F));
#if !defined OPENBLAS && !defined ONEDNN
    thread_count_use(threads);
#endif
    for (int k = 0; k < PARTS; k++) {
        const size_t count = (size_t)outputs(k) * (size_t)inputs(k);
        rows[k] = numbers(count);
        gradients[k] = numbers(count);
        weights[k] = weight_of(rows[k], outputs(k), inputs(k));
    }
    for (int a = 2; a < argc; a++) {
        const int tokens = atoi(argv[a]) < most ? atoi(argv[a]) : most;
        double took = 0;
        for (int turn = 0; turn < 2; turn++) {
            const double began = now();
            for (int k = 0; k < 4 * L; k++)
                multiply(weights[k], outputs(k), inputs(k), x, tokens, y);
            multiply(weights[4 * L], V, C, x, 1, y);
            took = now() - began;
        }
        printf(NAME " linear %d 1 %d 0 %.9g\n", threads, tokens, took);
    }
    printf(NAME " learn %d 4 64 0 %.9g\n", threads,
           learn(rows, gradients, x, y));
    return 0;
}
