#include "rope.h"
#include <math.h>
#include <stddef.h>

enum status rope_check(int head_dim, double theta, struct error *error)
{
    if (head_dim < 2 || head_dim % 2 != 0)
        return error_set(error, STATUS_INVALID,
                         "head_dim: expected an even number of at least 2,"
                         " got %d", head_dim);
    if (!(theta > 0 && isfinite(theta)))
        return error_set(error, STATUS_INVALID,
                         "rope_theta: expected a positive finite number, got"
                         " %g", theta);
    return STATUS_OK;
}

static double angle(int32_t position, int i, int head_dim, double theta)
{
    return position * pow(theta, -2.0 * i / head_dim);
}

static void turn_pair(float *x, int half, int i, float cosine, float sine)
{
    float *const a = &x[i], *const b = &x[i + half];
    const float first = *a, second = *b;
    *a = first * cosine - second * sine;
    *b = second * cosine + first * sine;
}

void rope_turns(const int32_t *positions, int tokens, int head_dim,
                double theta, float *turns)
{
    const int half = head_dim / 2;
    for (int t = 0; t < tokens; t++, turns += head_dim)
        for (int i = 0; i < half; i++) {
            const double turn = angle(positions[t], i, head_dim, theta);
            turns[i] = (float)cos(turn);
            turns[half + i] = (float)sin(turn);
        }
}

void rope_turn(float *x, int heads, int tokens, int head_dim,
               const float *turns)
{
    const int half = head_dim / 2;
    for (int h = 0; h < heads; h++) {
        const float *turn = turns;
        for (int t = 0; t < tokens; t++, x += head_dim, turn += head_dim)
            for (int i = 0; i < half; i++)
                turn_pair(x, half, i, turn[i], turn[half + i]);
    }
}

void rope_rotate(float *x, int heads, int tokens, int head_dim,
                 const int32_t *positions, double theta)
{
    const int half = head_dim / 2;
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < half; i++) {
            const double turn = angle(positions[t], i, head_dim, theta);
            const float cosine = (float)cos(turn), sine = (float)sin(turn);
            for (int h = 0; h < heads; h++)
                turn_pair(x + ((ptrdiff_t)h * tokens + t) * head_dim, half,
                          i, cosine, sine);
        }
}
