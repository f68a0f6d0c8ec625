/* Chapter 15: routing, dispatch and combination by hand and by plain
   arithmetic; the family with experts against the oracle's numbers and a
   second computation; and the runtime of the second part around it. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "expert_load.h"
#include "expert_study.h"
#include "held.h"
#include "llama_experts.h"
#include "swiglu.h"
#define LLAMA small_moe_config
#include "support/llama_matrix.h"
#include "support/program.h"

/* ----------------------------------------------------------- one routing */

enum { R = 12, E = 9, K = 9 };    /* at most, in the arrays of a routing */

struct arrays {
    float probs[R * E], gates[R * K];
    int32_t experts[R * K], places[R * K], offsets[E + 1];
};

/* Arrays of junk, so that what is not written shows. */
static struct moe_routing routing_in(struct arrays *arrays, int rows,
                                     int n_experts, int chosen)
{
    memset(arrays, 0x7f, sizeof *arrays);
    return (struct moe_routing){
        .rows = rows, .n_experts = n_experts, .chosen = chosen,
        .probs = arrays->probs, .experts = arrays->experts,
        .gates = arrays->gates, .places = arrays->places,
        .offsets = arrays->offsets
    };
}

static struct moe_routing routed(struct arrays *arrays, const float *logits,
                                 int rows, int n_experts, int chosen)
{
    struct moe_routing routing = routing_in(arrays, rows, n_experts, chosen);
    memcpy(arrays->probs, logits,
           (size_t)(rows * n_experts) * sizeof *logits);
    moe_route(&routing);
    return routing;
}

static void expect_ids(const char *what, const int32_t *got,
                       const int32_t *want, int count)
{
    for (int k = 0; k < count; k++)
        ck_assert_msg(got[k] == want[k], "%s[%d] is %d, expected %d", what, k,
                      (int)got[k], (int)want[k]);
}

/* 1, 2, 5 and 8 parts of 16. */
START_TEST(probabilities_are_a_softmax_of_all_logits)
{
    const float logits[] = {logf(2), logf(8), 0, logf(5),
                            50 + logf(5), 50 + logf(1), 50 + logf(2),
                            50 + logf(8)};
    const float want[] = {0.125f, 0.5f, 0.0625f, 0.3125f,
                          0.3125f, 0.0625f, 0.125f, 0.5f};
    struct arrays a;
    routed(&a, logits, 2, 4, 2);
    expect_close("probs", a.probs, want, 8, 0, NULL, 1e-6);
}
END_TEST

/* Far from 0, where an exponential overflows, and far below. */
START_TEST(a_softmax_is_finite_for_any_finite_logits)
{
    const float logits[] = {1000, 1001, -1000, -3e38f, 3e38f, -3e38f,
                            -1e4f, -1e4f, -1e4f};
    const float want[] = {0.268941421f, 0.731058579f, 0, 0, 1, 0,
                          1.0f / 3, 1.0f / 3, 1.0f / 3};
    struct arrays a;
    routed(&a, logits, 3, 3, 1);
    expect_close("probs", a.probs, want, 9, 0, NULL, 1e-6);
}
END_TEST

/* Every infinite logit has an equal part; minus infinity alone is a row of
   equals. */
START_TEST(infinite_logits_share_what_there_is)
{
    const float inf = INFINITY;
    const float logits[] = {1, inf, 1000, inf, -inf, inf, 3e38f, 0,
                            -inf, -inf, -inf, -inf, -inf, 2, -inf, 2};
    const float want[] = {0, 0.5f, 0, 0.5f, 0, 1, 0, 0,
                          0.25f, 0.25f, 0.25f, 0.25f, 0, 0.5f, 0, 0.5f};
    struct arrays a;
    routed(&a, logits, 4, 4, 1);
    expect_close("probs", a.probs, want, 16, 0, NULL, 1e-7);
}
END_TEST

START_TEST(the_choices_among_infinite_logits_are_the_first_equals)
{
    const float inf = INFINITY;
    const float logits[] = {1, inf, 1000, inf, -inf, inf, 3e38f, 0,
                            -inf, -inf, -inf, -inf, -inf, 2, -inf, 2};
    const int32_t chosen[] = {1, 3, 1, 0, 0, 1, 1, 3};
    struct arrays a;
    routed(&a, logits, 4, 4, 2);
    expect_ids("experts", a.experts, chosen, 8);
}
END_TEST

/* A NaN makes its own row NaN, whatever else is in it; the choices are still
   experts, and the neighbours' are theirs. */
START_TEST(a_nan_stays_in_its_row_and_chooses_the_first_experts)
{
    const float inf = INFINITY;
    for (int where = 0; where < 4; where++)
        for (int k = 1; k <= 4; k++) {
            float logits[] = {1, 4, 2, 3, 5, inf, -inf, 2, 4, 3, 2, 1};
            const int32_t around[] = {1, 3, 2, 0, 0, 1, 2, 3};
            struct arrays a;
            logits[4 + where] = NAN;
            routed(&a, logits, 3, 4, k);
            for (int j = 0; j < k; j++) {
                ck_assert_int_eq(a.experts[k + j], j);
                ck_assert(isnan(a.gates[k + j]));
            }
            expect_ids("row 0", a.experts, around, k);
            expect_ids("row 2", a.experts + 2 * k, around + 4, k);
            for (int j = 0; j < k; j++)
                ck_assert(a.gates[j] > 0 && a.gates[2 * k + j] > 0);
        }
}
END_TEST

START_TEST(of_equals_the_lowest_number_is_chosen)
{
    const float logits[] = {0, 0, 0, 0, 0, 2, 1, 2, 1, 2, 1, 3, 1, 3, 0};
    const int32_t want[] = {0, 1, 2, 0, 2, 4, 1, 3, 0};
    struct arrays a;
    routed(&a, logits, 3, 5, 3);
    expect_ids("experts", a.experts, want, 9);
    /* probabilities that round to 0 are equals, too */
    const float far[] = {0, 300, -50, -10, 290};
    const int32_t first[] = {1, 4, 0, 2, 3};
    routed(&a, far, 1, 5, 5);
    expect_ids("experts", a.experts, first, 5);
}
END_TEST

/* Logits of few different values, so that most rows have equals. */
START_TEST(every_number_of_choices_takes_the_largest_and_none_twice)
{
    uint64_t state = noise_start(300);
    for (int round = 0; round < 200; round++) {
        const int n = 1 + noise_below(&state, E);
        const int k = 1 + noise_below(&state, n);
        float logits[R * E];
        struct arrays a;
        for (int i = 0; i < R * n; i++)
            logits[i] = round % 2 ? 0.5f * (float)noise_below(&state, 4)
                                  : 4 * noise(&state);
        routed(&a, logits, R, n, k);
        for (int row = 0; row < R; row++) {
            const float *logit = logits + row * n;
            for (int j = 0; j < k; j++) {
                const int e = a.experts[row * k + j];
                int before = 0;     /* those that have to come first */
                ck_assert(e >= 0 && e < n);
                for (int other = 0; other < n; other++)
                    before += logit[other] > logit[e]
                              || (logit[other] == logit[e] && other < e);
                ck_assert_msg(before == j, "expert %d of %d is choice %d,"
                              " expected %d", e, n, j, before);
            }
        }
    }
}
END_TEST

/* 5 and 2 parts of 16, and 8 parts of 13: shares of the chosen. */
START_TEST(the_gates_are_the_shares_of_the_chosen_among_themselves)
{
    const float logits[] = {logf(2), logf(1), logf(8), logf(5)};
    const float want[][4] = {
        {1}, {8 / 13.0f, 5 / 13.0f}, {8 / 15.0f, 5 / 15.0f, 2 / 15.0f},
        {0.5f, 0.3125f, 0.125f, 0.0625f}
    };
    for (int k = 1; k <= 4; k++) {
        struct arrays a;
        routed(&a, logits, 1, 4, k);
        expect_close("gates", a.gates, want[k - 1], (size_t)k, 0, NULL, 1e-6);
    }
}
END_TEST

START_TEST(the_gates_of_every_row_add_up_to_one)
{
    uint64_t state = noise_start(301);
    for (int k = 1; k <= 7; k++) {
        float logits[R * 7];
        struct arrays a;
        for (int i = 0; i < R * 7; i++)
            logits[i] = 20 * noise(&state);
        routed(&a, logits, R, 7, k);
        for (int row = 0; row < R; row++) {
            double sum = 0;
            for (int j = 0; j < k; j++)
                sum += a.gates[row * k + j];
            ck_assert_double_eq_tol(sum, 1, 3e-7);
            if (k == 1)
                ck_assert_float_eq(a.gates[row], 1);
            for (int j = 1; j < k; j++)
                ck_assert_float_le(a.gates[row * k + j],
                                   a.gates[row * k + j - 1]);
        }
    }
}
END_TEST

START_TEST(sizes_of_a_routing_are_refused_by_name)
{
    const struct { struct moe_routing r; const char *says; } wrong[] = {
        {{.rows = -1, .n_experts = 4, .chosen = 2}, "rows: "},
        {{.rows = 3, .n_experts = 0, .chosen = 0}, "n_experts: "},
        {{.rows = 3, .n_experts = -4, .chosen = 2}, "n_experts: "},
        {{.rows = 3, .n_experts = 4, .chosen = 0}, "chosen: "},
        {{.rows = 3, .n_experts = 4, .chosen = -1}, "chosen: "},
        {{.rows = 3, .n_experts = 4, .chosen = 5}, "chosen: "},
        {{.rows = INT_MAX / 2 + 1, .n_experts = 4, .chosen = 2}, "rows, "},
        {{.rows = 3, .n_experts = 4, .chosen = 2, .capacity = -1},
         "capacity: "},
    };
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        error = (struct error){0};
        ck_assert_int_eq(moe_routing_check(&wrong[k].r, &error),
                         STATUS_INVALID);
        expect_named(&error, wrong[k].says);
        ck_assert_int_eq(moe_routing_check(&wrong[k].r, NULL),
                         STATUS_INVALID);
    }
    const struct moe_routing fine[] = {
        {.rows = 0, .n_experts = 1, .chosen = 1},
        {.rows = INT_MAX / 2, .n_experts = 4, .chosen = 2, .capacity = 1},
        {.rows = 3, .n_experts = 4, .chosen = 4, .capacity = INT_MAX},
    };
    for (size_t k = 0; k < sizeof fine / sizeof *fine; k++)
        expect_ok(moe_routing_check(&fine[k], &error), &error);
}
END_TEST

/* -------------------------------------------------------------- dispatch */

/* Choices by hand: 4 rows of 2 among 3 experts. */
static const int32_t by_hand[] = {2, 0, 0, 1, 2, 1, 0, 2};

static struct moe_routing dispatched(struct arrays *arrays,
                                     const int32_t *experts, int rows,
                                     int n_experts, int chosen, int capacity)
{
    struct moe_routing routing = routing_in(arrays, rows, n_experts, chosen);
    memcpy(arrays->experts, experts,
           (size_t)(rows * chosen) * sizeof *experts);
    routing.capacity = capacity;
    moe_dispatch(&routing);
    return routing;
}

START_TEST(an_expert_begins_where_the_one_before_it_ends)
{
    struct arrays a;
    const int32_t offsets[] = {0, 3, 5, 8};
    dispatched(&a, by_hand, 4, 3, 2, 0);
    expect_ids("offsets", a.offsets, offsets, 4);
    const int32_t one[] = {3, 3, 3};
    const int32_t empty[] = {0, 0, 0, 0, 3};
    dispatched(&a, one, 3, 4, 1, 0);
    expect_ids("offsets", a.offsets, empty, 5);
    const int32_t none[] = {0, 0, 0};
    dispatched(&a, one, 0, 2, 1, 0);
    expect_ids("offsets", a.offsets, none, 3);
}
END_TEST

/* First choices of all rows, then second ones: expert 0 has rows 1 and 3 and
   then row 0; 1 has 1, 2; 2 has 0, 2 and then 3. */
START_TEST(first_choices_come_before_second_ones)
{
    struct arrays a;
    const int32_t places[] = {5, 2, 0, 3, 6, 4, 1, 7};
    dispatched(&a, by_hand, 4, 3, 2, 0);
    expect_ids("places", a.places, places, 8);
}
END_TEST

/* The same at 2 each: the second choices of rows 0 and 3 find their experts
   full. At 1 each only rows 0 and 1 find anybody. */
START_TEST(no_first_choice_is_lost_to_a_second_one)
{
    struct arrays a;
    const int32_t two[] = {4, MOE_DROPPED, 0, 2, 5, 3, 1, MOE_DROPPED};
    const int32_t one[] = {2, MOE_DROPPED, 0, 1, MOE_DROPPED, MOE_DROPPED,
                           MOE_DROPPED, MOE_DROPPED};
    dispatched(&a, by_hand, 4, 3, 2, 2);
    expect_ids("places", a.places, two, 8);
    dispatched(&a, by_hand, 4, 3, 2, 1);
    expect_ids("places", a.places, one, 8);
}
END_TEST

/* Rows of one choice, so that there is no order to be wrong about. */
static const int32_t single[] = {1, 0, 1, 1, 0, 3, 1, 0};

START_TEST(what_finds_its_expert_full_is_dropped_and_not_counted)
{
    static const int offsets[][5] = {
        {0, 3, 7, 7, 8}, {0, 1, 2, 2, 3}, {0, 2, 4, 4, 5}, {0, 3, 6, 6, 7},
        {0, 3, 7, 7, 8}
    };
    for (int capacity = 0; capacity < 5; capacity++) {
        struct arrays a;
        int seen[4] = {0};
        dispatched(&a, single, 8, 4, 1, capacity);
        for (int n = 0; n < 8; n++) {
            const bool full = capacity > 0 && seen[single[n]] == capacity;
            ck_assert_int_eq(a.places[n] == MOE_DROPPED, full);
            seen[single[n]] += !full;
        }
        for (int e = 0; e < 5; e++)
            ck_assert_int_eq(a.offsets[e], offsets[capacity][e]);
    }
}
END_TEST

START_TEST(a_place_is_the_experts_offset_and_the_number_within_it)
{
    const int32_t all[] = {3, 0, 4, 5, 1, 7, 6, 2};
    const int32_t two[] = {2, 0, 3, MOE_DROPPED, 1, 4, MOE_DROPPED,
                           MOE_DROPPED};
    struct arrays a;
    dispatched(&a, single, 8, 4, 1, 0);
    expect_ids("places", a.places, all, 8);
    dispatched(&a, single, 8, 4, 1, 2);
    expect_ids("places", a.places, two, 8);
}
END_TEST

/* All rows name expert 0 first, each with more of its gate than the one
   before: the last one of the rule goes, not the smallest. */
START_TEST(who_is_dropped_does_not_depend_on_gates)
{
    const float logits[] = {1, 0, -9, 2, -9, 0, 3, 0, -9};
    const int32_t places[] = {0, 2, 1, 4, MOE_DROPPED, 3};
    struct arrays a;
    struct moe_routing routing = routed(&a, logits, 3, 3, 2);
    routing.capacity = 2;
    moe_dispatch(&routing);
    expect_ids("places", a.places, places, 6);
}
END_TEST

static void random_choices(uint64_t *state, int rows, int n_experts,
                           int chosen, int32_t *experts)
{
    for (int row = 0; row < rows; row++) {
        int32_t order[E];
        noise_order(state, n_experts, order);
        memcpy(experts + row * chosen, order,
               (size_t)chosen * sizeof *experts);
    }
}

/* The rule in words, by lists: every expert has a queue. */
START_TEST(places_are_those_of_queues_for_any_sizes)
{
    uint64_t state = noise_start(302);
    for (int round = 0; round < 300; round++) {
        const int rows = noise_below(&state, R + 1);
        const int n = 1 + noise_below(&state, E);
        const int k = 1 + noise_below(&state, n);
        const int capacity = noise_below(&state, 6);
        int32_t experts[R * K], want[R * K];
        struct arrays a;
        int first = 0;
        random_choices(&state, rows, n, k, experts);
        dispatched(&a, experts, rows, n, k, capacity);
        for (int e = 0; e < n; e++) {
            int length = 0;
            for (int j = 0; j < k; j++)
                for (int row = 0; row < rows; row++)
                    if (experts[row * k + j] == e)
                        want[row * k + j] =
                            capacity > 0 && length == capacity
                            ? MOE_DROPPED : first + length++;
            ck_assert_int_eq(a.offsets[e], first);
            first += length;
        }
        ck_assert_int_eq(a.offsets[n], first);
        expect_ids("places", a.places, want, rows * k);
    }
}
END_TEST

START_TEST(a_capacity_is_the_even_share_times_the_factor_rounded_up)
{
    const struct { double factor; int rows, n, k, want; } table[] = {
        {0, 100, 8, 2, 0}, {1, 100, 8, 2, 25}, {1.25, 100, 8, 2, 32},
        {1, 4, 3, 1, 2}, {1, 4, 3, 2, 3}, {0.01, 100, 8, 2, 1},
        {1, 0, 8, 2, 1}, {100, 100, 8, 2, 100}, {1e300, 100, 8, 2, 100},
        {1, INT_MAX, 2, 2, INT_MAX}, {4, 5, 8, 2, 5}
    };
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        int capacity = -7;
        expect_ok(moe_capacity(table[t].factor, table[t].rows, table[t].n,
                               table[t].k, &capacity, &error), &error);
        ck_assert_msg(capacity == table[t].want, "case %zu: %d, expected %d",
                      t, capacity, table[t].want);
    }
    const double wrong[] = {-1, -1e-9, NAN, INFINITY, -INFINITY};
    for (int t = 0; t < 5; t++) {
        int capacity = -7;
        error = (struct error){0};
        ck_assert_int_eq(moe_capacity(wrong[t], 4, 3, 1, &capacity, &error),
                         STATUS_INVALID);
        expect_named(&error, "capacity factor: ");
        ck_assert_int_eq(capacity, -7);
    }
}
END_TEST

/* -------------------------------------------------- gather and combination */

START_TEST(rows_are_copied_to_their_places_as_they_are)
{
    uint64_t state = noise_start(303);
    for (int capacity = 0; capacity < 4; capacity++) {
        int32_t experts[R * K];
        float in[R * 5], gathered[R * 3 * 5 + 5];
        struct arrays a;
        random_choices(&state, R, 6, 3, experts);
        struct moe_routing routing = dispatched(&a, experts, R, 6, 3,
                                                capacity);
        for (int n = 0; n < R * 3; n++)
            a.gates[n] = noise(&state);
        noise_floats(&state, R * 5, in);
        for (int n = 0; n < R * 3 * 5 + 5; n++)
            gathered[n] = NAN;
        moe_gather(&routing, in, 5, gathered);
        for (int n = 0; n < R * 3; n++)
            if (a.places[n] != MOE_DROPPED)
                expect_same_bits("row", gathered + a.places[n] * 5,
                                 in + n / 3 * 5, 5 * sizeof *in);
        for (int c = a.offsets[6] * 5; c < R * 3 * 5 + 5; c++)
            ck_assert(isnan(gathered[c]));
    }
}
END_TEST

/* What is before the outputs is NaN. */
START_TEST(a_dropped_choice_adds_nothing)
{
    float made[] = {NAN, NAN, 3, 4};
    int32_t places[] = {MOE_DROPPED, 0, 0, MOE_DROPPED,
                        MOE_DROPPED, MOE_DROPPED};
    float gates[] = {1, 1, 1, 1, 1, 1}, out[6] = {9, 9, 9, 9, 9, 9};
    const float want[] = {3, 4, 3, 4, 0, 0};
    const struct moe_routing routing = {.rows = 3, .n_experts = 4,
                                        .chosen = 2, .gates = gates,
                                        .places = places};
    moe_combine(&routing, made + 2, 2, out);
    for (int n = 0; n < 6; n++)
        ck_assert_float_eq(out[n], want[n]);
}
END_TEST

/* Four rows, dropped ones among them; what is before the outputs is NaN. */
START_TEST(a_row_is_the_sum_of_its_experts_as_much_as_the_gates_say)
{
    const float nan = NAN;
    float made[] = {nan, nan, nan, 1, 10, 100, 2, 20, 200, 4, 40, 400,
                    8, 80, 800};
    int32_t places[] = {2, 0, 1, 3, MOE_DROPPED, 0, MOE_DROPPED, MOE_DROPPED};
    float gates[] = {0.75f, 0.25f, 0.5f, 0.5f, 0.625f, 0.375f, 0.9f, 0.1f};
    const float want[] = {3.25f, 32.5f, 325, 5, 50, 500,
                          0.375f, 3.75f, 37.5f, 0, 0, 0};
    float out[12];
    struct moe_routing routing = {.rows = 4, .n_experts = 4, .chosen = 2,
                                  .gates = gates, .places = places};
    for (int n = 0; n < 12; n++)
        out[n] = nan;
    moe_combine(&routing, made + 3, 3, out);
    for (int n = 0; n < 12; n++)
        ck_assert_float_eq(out[n], want[n]);
}
END_TEST

/* Sums that depend on their order: 1 + 1e8 - 1e8. */
START_TEST(a_sum_goes_from_the_first_choice_to_the_last)
{
    float made[] = {1, 1e8f, -1e8f}, gates[] = {1, 1, 1}, out[1];
    struct moe_routing routing = {.rows = 1, .n_experts = 3, .chosen = 3,
                                  .gates = gates};
    for (int first = 0; first < 3; first++) {
        int32_t places[] = {first, (first + 1) % 3, (first + 2) % 3};
        routing.places = places;
        moe_combine(&routing, made, 1, out);
        ck_assert_float_eq(out[0], first == 1 ? 1 : 0);
    }
}
END_TEST

/* ------------------------------------------------------- a whole mixture */

enum { MC = 6, MF = 7, MROWS = 10 };

/* A mixture of noise: E experts of [F,C]. */
struct mixture {
    struct moe moe;
    struct moe_expert experts[E];
    float router[E * MC], w[E][3][MF * MC];
};

static struct linear matrix(float *data, int rows, int columns)
{
    return (struct linear){.weight = {data, 2, {rows, columns}}};
}

static void mixture_fill(struct mixture *m, uint64_t *state, int n_experts)
{
    noise_floats(state, E * MC, m->router);
    noise_floats(state, sizeof m->w / sizeof (float), &m->w[0][0][0]);
    m->moe = (struct moe){matrix(m->router, n_experts, MC), m->experts};
    for (int e = 0; e < n_experts; e++)
        m->experts[e] = (struct moe_expert){matrix(m->w[e][0], MF, MC),
                                            matrix(m->w[e][2], MF, MC),
                                            matrix(m->w[e][1], MC, MF)};
}

/* out [rows,C]; scratch and arrays of junk, of which nothing may be read. */
static struct moe_routing mix(const struct mixture *m, struct arrays *arrays,
                              const float *in, int rows, int chosen,
                              int capacity, float *out)
{
    float gathered[R * K * MC], gate[R * MF], up[R * MF];
    const struct moe_room room = {gathered, gate, up};
    struct moe_routing routing = routing_in(arrays, rows,
                                            m->moe.gate.weight.shape[0],
                                            chosen);
    routing.capacity = capacity;
    for (int n = 0; n < R * K * MC; n++)
        gathered[n] = NAN;
    for (int n = 0; n < rows * MC; n++)
        out[n] = NAN;
    long calls = allocator_calls();
    moe_forward(&m->moe, in, &routing, &room, out);
    calls = allocator_calls() - calls;
    ck_assert_int_eq(calls, 0);
    return routing;
}

/* w [3] as w1, w2, w3: in double. */
static void plain_expert(const float w[3][MF * MC], const float *in,
                         double *out)
{
    double hidden[MF];
    for (int f = 0; f < MF; f++) {
        double gate = 0, up = 0;
        for (int c = 0; c < MC; c++) {
            gate += (double)w[0][f * MC + c] * in[c];
            up += (double)w[2][f * MC + c] * in[c];
        }
        hidden[f] = gate / (1 + exp(-gate)) * up;
    }
    for (int c = 0; c < MC; c++) {
        out[c] = 0;
        for (int f = 0; f < MF; f++)
            out[c] += (double)w[1][c * MF + f] * hidden[f];
    }
}

START_TEST(an_expert_gates_by_w1_goes_up_by_w3_and_comes_down_by_w2)
{
    uint64_t state = noise_start(304);
    struct mixture m;
    float in[MROWS * MC], out[MROWS * MC], gate[MROWS * MF], up[MROWS * MF];
    mixture_fill(&m, &state, E);
    noise_floats(&state, MROWS * MC, in);
    for (int e = 0; e < E; e++) {
        moe_expert_forward(&m.experts[e], in, MROWS, gate, up, out);
        for (int row = 0; row < MROWS; row++) {
            double want[MC];
            plain_expert((const float (*)[MF * MC])m.w[e], in + row * MC,
                         want);
            for (int c = 0; c < MC; c++)
                ck_assert_double_eq_tol(out[row * MC + c], want[c], 2e-6);
        }
    }
    float before[MROWS * MC];
    memcpy(before, out, sizeof out);
    moe_expert_forward(&m.experts[E - 1], in, MROWS, gate, up, in);
    expect_same_bits("over its input", in, before, sizeof in);
}
END_TEST

/* All experts are computed in double, with shares that are mostly 0; what is
   dropped, by the queues' rule, has a share of 0, too. */
START_TEST(a_mixture_agrees_with_plain_arithmetic_over_all_experts)
{
    uint64_t state = noise_start(305);
    for (int round = 0; round < 60; round++) {
        const int n = 1 + noise_below(&state, E);
        const int k = 1 + noise_below(&state, n);
        const int rows = 1 + noise_below(&state, MROWS);
        const int capacity = round % 2 * (1 + noise_below(&state, rows));
        struct mixture m;
        struct arrays a;
        float in[MROWS * MC], out[MROWS * MC];
        mixture_fill(&m, &state, n);
        noise_floats(&state, MROWS * MC, in);
        mix(&m, &a, in, rows, k, capacity, out);
        for (int row = 0; row < rows; row++) {
            double logits[E] = {0}, share[E], want[MC] = {0}, made[MC];
            for (int e = 0; e < n * MC; e++)
                logits[e / MC] += (double)m.router[e] * in[row * MC + e % MC];
            plain_shares(logits, n, k, share);
            for (int j = 0; j < k; j++)
                if (a.places[row * k + j] == MOE_DROPPED)
                    share[a.experts[row * k + j]] = 0;
            for (int e = 0; e < n; e++) {
                plain_expert((const float (*)[MF * MC])m.w[e], in + row * MC,
                             made);
                for (int c = 0; c < MC; c++)
                    want[c] += share[e] * made[c];
            }
            for (int c = 0; c < MC; c++)
                ck_assert_msg(fabs(out[row * MC + c] - want[c]) <= 5e-6,
                              "%d of %d experts, row %d, column %d: %.9g,"
                              " expected %.9g", k, n, row, c,
                              (double)out[row * MC + c], want[c]);
        }
    }
}
END_TEST

/* Alone, in any order, among any others: the same bits. */
START_TEST(a_tokens_output_has_the_same_bits_alone_and_in_any_batch)
{
    uint64_t state = noise_start(306);
    for (int round = 0; round < 40; round++) {
        const int n = 2 + noise_below(&state, E - 1);
        const int k = 1 + noise_below(&state, n);
        struct mixture m;
        struct arrays a;
        float in[MROWS * MC], all[MROWS * MC], part[MROWS * MC];
        float some[MROWS * MC];
        int32_t order[MROWS];
        mixture_fill(&m, &state, n);
        noise_floats(&state, MROWS * MC, in);
        mix(&m, &a, in, MROWS, k, 0, all);
        noise_order(&state, MROWS, order);
        for (int rows = 1; rows <= MROWS; rows++) {
            for (int row = 0; row < rows; row++)
                memcpy(part + row * MC, in + order[row] * MC,
                       MC * sizeof *in);
            mix(&m, &a, part, rows, k, 0, some);
            for (int row = 0; row < rows; row++)
                expect_same_bits("token", some + row * MC,
                                 all + order[row] * MC, MC * sizeof *in);
        }
    }
}
END_TEST

/* With a limit it does depend: the same token is dropped behind others. */
START_TEST(under_a_limit_a_token_depends_on_those_before_it)
{
    uint64_t state = noise_start(307);
    struct mixture m;
    struct arrays a;
    float in[3 * MC], out[3 * MC], alone[MC];
    mixture_fill(&m, &state, 3);
    noise_floats(&state, MC, in);
    memcpy(in + MC, in, MC * sizeof *in);
    memcpy(in + 2 * MC, in, MC * sizeof *in);
    mix(&m, &a, in, 1, 1, 2, alone);
    mix(&m, &a, in, 3, 1, 2, out);
    expect_same_bits("row 0", out, alone, sizeof alone);
    expect_same_bits("row 1", out + MC, alone, sizeof alone);
    for (int c = 0; c < MC; c++)
        ck_assert_float_eq(out[2 * MC + c], 0);
}
END_TEST

START_TEST(a_token_of_nan_touches_no_other)
{
    uint64_t state = noise_start(308);
    struct mixture m;
    struct arrays a;
    float in[5 * MC], want[5 * MC], out[5 * MC];
    mixture_fill(&m, &state, 4);
    noise_floats(&state, 5 * MC, in);
    mix(&m, &a, in, 5, 2, 0, want);
    in[2 * MC + 1] = NAN;
    mix(&m, &a, in, 5, 2, 0, out);
    for (int c = 0; c < 5 * MC; c++)
        if (c / MC == 2)
            ck_assert(isnan(out[c]));
        else
            ck_assert_float_eq(out[c], want[c]);
}
END_TEST

START_TEST(a_mixture_of_no_rows_does_nothing)
{
    uint64_t state = noise_start(309);
    struct mixture m;
    struct arrays a;
    float in[1] = {1}, out[1] = {5};
    mixture_fill(&m, &state, 4);
    mix(&m, &a, in, 0, 2, 0, out);
    ck_assert_float_eq(out[0], 5);
    ck_assert_int_eq(a.offsets[4], 0);
}
END_TEST

/* --------------------------------------------------------- config and names */

START_TEST(a_choice_that_the_experts_do_not_have_is_refused)
{
    static const struct { int n, k; const char *says; } wrong[] = {
        {-1, 0, "n_experts: "}, {-1, 1, "n_experts: "},
        {LLAMA_EXPERTS_MAX + 1, 2, "n_experts: "},
        {INT_MAX, 2, "n_experts: "}, {0, 1, "experts_per_token: "},
        {0, -1, "experts_per_token: "}, {5, 0, "experts_per_token: "},
        {5, -1, "experts_per_token: "}, {5, 6, "experts_per_token: "},
        {1, 2, "experts_per_token: "}
    };
    struct llama_config config = small_llama_config();
    for (size_t t = 0; t < sizeof wrong / sizeof *wrong; t++) {
        struct llama *model = NULL;
        config.n_experts = wrong[t].n;
        config.experts_per_token = wrong[t].k;
        error = (struct error){0};
        ck_assert_msg(llama_config_check(&config, &error) == STATUS_INVALID,
                      "%d of %d", wrong[t].k, wrong[t].n);
        expect_named(&error, wrong[t].says);
        long live = allocator_live();
        enum status status = llama_new(&model, &config, NULL);
        live = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_INVALID);
        ck_assert_ptr_null(model);
        ck_assert_int_eq(live, 0);
    }
    for (int n = 0; n < 5; n++)
        for (int k = n > 0; k <= n; k++) {
            config.n_experts = n;
            config.experts_per_token = k;
            expect_ok(llama_config_check(&config, &error), &error);
        }
}
END_TEST

START_TEST(experts_whose_bytes_do_not_fit_are_refused)
{
    struct llama_config config = small_moe_config();
    struct llama_size size = {7, 9};
    config.d_model = config.d_ff = INT_MAX;
    config.n_layers = 1;
    config.n_experts = LLAMA_EXPERTS_MAX;
    ck_assert_int_eq(llama_config_check(&config, &error), STATUS_INVALID);
    ck_assert(!llama_config_size(&config, &size));
    ck_assert(size.total == 7 && size.active == 9);
}
END_TEST

static const struct tensor *named(const struct llama *model,
                                  const char *name)
{
    const struct llama_tensor *entry = llama_tensor_find(model, name);
    ck_assert_msg(entry != NULL, "no tensor %s", name);
    ck_assert(!entry->alias);
    ck_assert_int_eq(strncmp(entry->owner, name, strlen(entry->owner)), 0);
    ck_assert_str_eq(name + strlen(entry->owner), ".weight");
    return entry->tensor;
}

/* C 10, F 7, E 5: a router, and three matrices for each expert. */
START_TEST(experts_have_the_names_and_shapes_of_checkpoints)
{
    const struct llama_config config = small_moe_config();
    struct llama *model = new_llama(&config);
    ck_assert_uint_eq(llama_tensor_count(model), 3 + 3 * (6 + 1 + 5 * 3));
    float *last = NULL;
    for (int l = 0; l < 3; l++) {
        char name[128];
        snprintf(name, sizeof name,
                 "model.layers.%d.block_sparse_moe.gate.weight", l);
        const struct tensor *router = named(model, name);
        ck_assert(router->shape[0] == 5 && router->shape[1] == 10);
        for (int e = 0; e < 5; e++)
            for (int w = 1; w <= 3; w++) {
                snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe"
                         ".experts.%d.w%d.weight", l, e, w);
                const struct tensor *tensor = named(model, name);
                ck_assert_msg(tensor->shape[0] == (w == 2 ? 10 : 7)
                              && tensor->shape[1] == (w == 2 ? 7 : 10),
                              "%s is %d by %d", name, tensor->shape[0],
                              tensor->shape[1]);
                ck_assert_ptr_ne(tensor->data, last);
                last = tensor->data;
                for (size_t n = 0; n < 70; n++)
                    ck_assert_float_eq(tensor->data[n], 0);
            }
    }
    ck_assert_ptr_null(llama_tensor_find(model,
        "model.layers.0.block_sparse_moe.experts.5.w1.weight"));
    ck_assert_ptr_null(llama_tensor_find(model,
        "model.layers.0.mlp.gate_proj.weight"));
    llama_free(&model);
}
END_TEST

START_TEST(the_formula_counts_experts_and_routers)
{
    for (int n = 0; n <= 6; n++) {
        struct llama_config config = small_llama_config();
        config.n_experts = n;
        config.experts_per_token = n > 0;
        config.tie_word_embeddings = n % 2;
        struct llama *model = new_llama(&config);
        size_t floats, sum = 0;
        for (size_t k = 0; k < llama_tensor_count(model); k++)
            if (!llama_tensor_at(model, k)->alias)
                sum += tensor_size(llama_tensor_at(model, k)->tensor);
        ck_assert(llama_config_floats(&config, &floats));
        ck_assert_uint_eq(floats, sum);
        ck_assert_uint_eq(sum, (size_t)((n % 2 ? 130 : 260) + 7 * 10
                                        + 3 * (2 * 240 + 2 * 120)
                                        + 3 * 3 * 70 * (n > 0 ? n : 1)
                                        + 3 * n * 10));
        llama_free(&model);
    }
}
END_TEST

START_TEST(making_experts_survives_each_failed_allocation)
{
    const struct llama_config config = small_moe_config();
    for (long n = 1; ; n++) {
        struct llama *model = NULL;
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = llama_new(&model, &config, &error);
        live = allocator_live() - live;
        if (!allocator_stop()) {
            expect_ok(status, &error);
            live = allocator_live();
            llama_free(&model);
            ck_assert_int_lt(allocator_live(), live);
            ck_assert_int_gt(n, 5);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_ptr_null(model);
        ck_assert_int_eq(live, 0);
    }
}
END_TEST

/* ------------------------------------------------------ steps of a model */

/* A step over a whole text in one call, with the scratch that it leaves. */
struct stepped {
    struct llama *model;
    struct causal_lm lm;
    struct past_key_values storage;
    int32_t positions[32], lengths[4];
    struct step step;
    float *logits, *scratch;
    size_t floats;
};

static void step_once(struct stepped *s, const int32_t *ids, int batch,
                      int tokens)
{
    const struct gpt_config shape = cache_shape_config(&s->lm.cache);
    expect_ok(past_key_values_new(&s->storage, &shape, batch, tokens, &error),
              &error);
    for (int k = 0; k < batch * tokens; k++)
        s->positions[k] = k % tokens;
    memset(s->lengths, 0, sizeof s->lengths);
    s->floats = s->lm.scratch_size(s->model, batch, tokens, tokens);
    s->scratch = malloc(s->floats * sizeof *s->scratch);
    for (size_t k = 0; k < s->floats; k++)
        s->scratch[k] = NAN;
    s->logits = malloc((size_t)(batch * tokens * s->lm.vocab_size)
                       * sizeof *s->logits);
    s->step = (struct step){ids, s->positions, batch, tokens, &s->storage,
                            s->lengths, false, s->logits};
    expect_ok(causal_lm_step(&s->lm, &s->step, s->scratch, s->floats, &error),
              &error);
}

static void step_done(struct stepped *s)
{
    past_key_values_free(&s->storage);
    free(s->scratch);
    free(s->logits);
}

/* The load of one routing is the counts. */
static void expect_load(struct expert_load *load,
                        const struct moe_routing *routing,
                        const int32_t *counts)
{
    expert_load_add(load, routing);
    for (int e = 0; e < load->n_experts; e++) {
        ck_assert_uint_eq(load->routed[e], (size_t)counts[e]);
        ck_assert_uint_eq(load->kept[e], (size_t)counts[e]);
    }
}

/* Router, choices, gates and counts of both layers: what a step of the model
   has left in its scratch. */
START_TEST(routers_choices_gates_and_counts_are_the_goldens)
{
    struct golden *golden = golden_open("llama_moe");
    struct stepped s = {.model = golden_moe(golden)};
    s.lm = llama_causal_lm(s.model);
    step_once(&s, golden_get(golden, "in.ids")->ids, 2, 9);
    for (int l = 0; l < 2; l++) {
        const struct moe_routing routing =
            llama_routing(s.model, &s.step, s.scratch, l);
        const struct golden_tensor *probs =
            golden_get(golden, "trace.layers.%d.router", l);
        const struct golden_tensor *gates =
            golden_get(golden, "trace.layers.%d.gates", l);
        const int32_t *experts =
            golden_get(golden, "trace.layers.%d.experts", l)->ids;
        const int32_t *counts = golden_get(golden, "out.counts.%d", l)->ids;
        size_t asked[4] = {0}, kept[4] = {0};
        struct expert_load load = {4, asked, kept};
        ck_assert(routing.rows == 18 && routing.n_experts == 4
                  && routing.chosen == 2 && routing.capacity == 0);
        expect_close("router", routing.probs, probs->f32, probs->count, 2,
                     probs->shape, TOLERANCE);
        expect_ids("experts", routing.experts, experts, 36);
        expect_close("gates", routing.gates, gates->f32, gates->count, 2,
                     gates->shape, TOLERANCE);
        expect_load(&load, &routing, counts);
    }
    step_done(&s);
    llama_free(&s.model);
    golden_close(golden);
}
END_TEST

/* Rows of x [T,C] through layer l's mixture against the golden's. */
static void expect_golden_mixture(const struct golden *golden,
                                  const struct plain *plain, int l, int b,
                                  double x[][PLAIN_W])
{
    struct moe_expert experts[4];
    float in[9 * 32], out[9 * 32], gathered[18 * 32], gate[9 * 48], up[9 * 48];
    const struct moe_room room = {gathered, gate, up};
    struct moe moe = {.experts = experts};
    struct arrays a;
    char name[96];
    snprintf(name, sizeof name,
             "model.layers.%d.block_sparse_moe.gate.weight", l);
    moe.gate.weight = *llama_tensor_find(plain->model, name)->tensor;
    for (int e = 0; e < 4; e++)
        for (int w = 1; w <= 3; w++) {
            struct linear *to = w == 1 ? &experts[e].w1
                                : w == 2 ? &experts[e].w2 : &experts[e].w3;
            snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe"
                     ".experts.%d.w%d.weight", l, e, w);
            *to = (struct linear){
                .weight = *llama_tensor_find(plain->model, name)->tensor};
        }
    for (int t = 0; t < 9; t++) {
        double norm[PLAIN_W];
        plain_norm(plain, weights(plain, l, "post_attention_layernorm"), x[t],
                   norm);
        for (int d = 0; d < 32; d++)
            in[t * 32 + d] = (float)norm[d];
    }
    struct moe_routing routing = routing_in(&a, 9, 4, 2);
    moe_forward(&moe, in, &routing, &room, out);
    const struct golden_tensor *want = golden_get(golden,
                                                  "trace.layers.%d.moe", l);
    expect_close("moe", out, want->f32 + b * 9 * 32, 9 * 32, 0, NULL,
                 TOLERANCE);
}

/* The layer by itself, fed with what plain arithmetic makes of the stream. */
START_TEST(the_mixture_of_each_layer_is_the_goldens)
{
    struct golden *golden = golden_open("llama_moe");
    struct llama *model = golden_moe(golden);
    const struct llama_config *c = llama_config(model);
    const int32_t *ids = golden_get(golden, "in.ids")->ids;
    static double x[PLAIN_T][PLAIN_W];
    int32_t positions[9];
    for (int k = 0; k < 9; k++)
        positions[k] = k;
    for (int b = 0; b < 2; b++) {
        const struct plain plain = {model, c, ids + b * 9, positions, 9,
                                    false};
        for (int t = 0; t < 9; t++)
            for (int d = 0; d < 32; d++)
                x[t][d] = weights(&plain, -1, "model.embed_tokens")
                              [plain.ids[t] * 32 + d];
        for (int l = 0; l < 2; l++) {
            plain_attention(&plain, l, x);
            expect_golden_mixture(golden, &plain, l, b, x);
            for (int t = 0; t < 9; t++)
                plain_feed(&plain, l, x[t]);
        }
    }
    llama_free(&model);
    golden_close(golden);
}
END_TEST

START_TEST(a_mixture_of_experts_has_the_golden_numbers)
{
    struct golden *golden = golden_open("llama_moe");
    struct llama *model = golden_moe(golden);
    const struct causal_lm lm = llama_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.logits");
    const int32_t *ids = golden_get(golden, "in.ids")->ids;
    int32_t positions[2 * 9];
    for (int k = 0; k < 18; k++)
        positions[k] = k % 9;
    struct cache_aware_output output = whole(&lm, ids, positions, 2, 9);
    expect_golden_cache(golden, "out.past", &output.past_key_values);
    expect_close("logits", output.logits.data, want->f32, want->count,
                 want->rank, want->shape, TOLERANCE);
    cache_aware_output_free(&output);
    const struct text text = {&lm, ids, positions, 2, 9, want->f32};
    expect_split(&text, TOKENWISE, false);
    expect_split(&text, 0x1c7, false);
    llama_free(&model);
    golden_close(golden);
}
END_TEST

/* Experts, and choices among them. */
static const int mixtures[][2] = {{5, 2}, {5, 1}, {5, 5}, {1, 1}, {8, 3}};
enum { MIXTURES = 5 };

static struct llama_config mixture_config(int k)
{
    struct llama_config config = small_llama_config();
    config.n_experts = mixtures[k][0];
    config.experts_per_token = mixtures[k][1];
    return config;
}

START_TEST(every_number_of_experts_agrees_with_plain_arithmetic)
{
    for (int k = 0; k < MIXTURES; k++) {
        uint64_t state = noise_start(310 + (unsigned)k);
        const struct llama_config config = mixture_config(k);
        struct llama *model = noisy_llama(&config, 320 + (unsigned)k);
        const struct causal_lm lm = llama_causal_lm(model);
        const int starts[] = {0, 13};
        int32_t ids[2 * 11], positions[2 * 11];
        float want[2 * 11 * 13];
        text_of(&state, 2, 11, starts, ids, positions);
        for (int b = 0; b < 2; b++) {
            const struct plain plain = {model, &config, ids + b * 11,
                                        positions + b * 11, 11, false};
            plain_forward(&plain, want + b * 11 * 13);
        }
        struct cache_aware_output output = whole(&lm, ids, positions, 2, 11);
        expect_close("logits", output.logits.data, want, 2 * 11 * 13, 3,
                     output.logits.shape, TOLERANCE);
        cache_aware_output_free(&output);
        llama_free(&model);
    }
}
END_TEST

START_TEST(every_split_of_a_text_routes_to_the_same_bits)
{
    for (int k = 0; k < MIXTURES; k++) {
        uint64_t state = noise_start(330 + (unsigned)k);
        const struct llama_config config = mixture_config(k);
        struct llama *model = noisy_llama(&config, 340 + (unsigned)k);
        const struct causal_lm lm = llama_causal_lm(model);
        const int starts[] = {0, 5};
        int32_t ids[2 * 8], positions[2 * 8];
        text_of(&state, 2, 8, starts, ids, positions);
        struct cache_aware_output output = whole(&lm, ids, positions, 2, 8);
        const struct text text = {&lm, ids, positions, 2, 8,
                                  output.logits.data};
        for (unsigned split = 0; split < 128; split += 3)
            expect_split(&text, split, true);
        cache_aware_output_free(&output);
        llama_free(&model);
    }
}
END_TEST

/* A text alone and as each row of a batch of others. */
START_TEST(a_text_has_the_same_bits_beside_any_other)
{
    uint64_t state = noise_start(350);
    const struct llama_config config = small_moe_config();
    struct llama *model = noisy_llama(&config, 351);
    const struct causal_lm lm = llama_causal_lm(model);
    int32_t ids[5 * 7], positions[5 * 7];
    text_of(&state, 5, 7, (const int[]){0, 3, 11, 2, 17}, ids, positions);
    struct cache_aware_output all = whole(&lm, ids, positions, 5, 7);
    for (int b = 0; b < 5; b++) {
        struct cache_aware_output one = whole(&lm, ids + b * 7,
                                              positions + b * 7, 1, 7);
        expect_same_bits("logits", all.logits.data + b * 7 * 13,
                         one.logits.data, 7 * 13 * sizeof (float));
        cache_aware_output_free(&one);
    }
    cache_aware_output_free(&all);
    llama_free(&model);
}
END_TEST

/* Copies the dense layer over the one expert. */
START_TEST(one_expert_is_a_dense_layer)
{
    static const char *const names[][2] = {
        {"mlp.gate_proj", "w1"}, {"mlp.up_proj", "w3"},
        {"mlp.down_proj", "w2"}
    };
    const struct llama_config dense = small_llama_config();
    const struct llama_config alone = mixture_config(3);
    struct llama *a = noisy_llama(&dense, 352), *b = noisy_llama(&alone, 353);
    for (size_t k = 0; k < llama_tensor_count(a); k++) {
        const struct llama_tensor *from = llama_tensor_at(a, k);
        char name[128];
        int l = -1;
        snprintf(name, sizeof name, "%s", from->name);
        sscanf(from->name, "model.layers.%d", &l);
        for (int w = 0; w < 3; w++)
            if (strstr(from->name, names[w][0]))
                snprintf(name, sizeof name, "model.layers.%d.block_sparse_moe"
                         ".experts.0.%s.weight", l, names[w][1]);
        memcpy(llama_tensor_find(b, name)->tensor->data, from->tensor->data,
               tensor_size(from->tensor) * sizeof (float));
    }
    uint64_t state = noise_start(354);
    int32_t ids[9], positions[9];
    text_of(&state, 1, 9, (const int[]){4}, ids, positions);
    const struct causal_lm x = llama_causal_lm(a), y = llama_causal_lm(b);
    struct cache_aware_output want = whole(&x, ids, positions, 1, 9);
    struct cache_aware_output got = whole(&y, ids, positions, 1, 9);
    expect_same_bits("logits", got.logits.data, want.logits.data,
                     9 * 13 * sizeof (float));
    cache_aware_output_free(&want);
    cache_aware_output_free(&got);
    llama_free(&a);
    llama_free(&b);
}
END_TEST

/* Routing, the offsets and the gathered rows; none of it in a dense model,
   and nothing that grows with the slots. */
START_TEST(experts_take_the_scratch_that_the_chapter_says)
{
    const struct llama_config dense = small_llama_config();
    struct llama *without = new_llama(&dense);
    const struct causal_lm plain = llama_causal_lm(without);
    for (int k = 0; k < MIXTURES; k++) {
        const struct llama_config config = mixture_config(k);
        const int n = config.n_experts, chosen = config.experts_per_token;
        struct llama *model = new_llama(&config);
        const struct causal_lm lm = llama_causal_lm(model);
        for (int slots = 5; slots < 100; slots += 47)
            ck_assert_uint_eq(lm.scratch_size(model, 3, 5, slots)
                              - plain.scratch_size(without, 3, 5, slots),
                              (size_t)(3 * 15 * (n + 3 * chosen)
                                       + 3 * 5 * (n + 1) + 15 * chosen * 10));
        ck_assert_uint_eq(lm.scratch_size(model, INT_MAX, INT_MAX, INT_MAX),
                          SIZE_MAX);
        if (chosen > 1)
            ck_assert_uint_eq(lm.scratch_size(model, INT_MAX / 2 + 1, 1, 1),
                              SIZE_MAX);
        llama_free(&model);
    }
    ck_assert_uint_eq(moe_assignments(3, 5, 2), 6);
    ck_assert_uint_eq(moe_assignments(3, 5, 0), 0);
    ck_assert_uint_eq(moe_assignments(1, INT_MAX, 1), 1);
    ck_assert_uint_eq(moe_assignments(2, INT_MAX, 1), SIZE_MAX);
    llama_free(&without);
}
END_TEST

/* -------------------------------------------------- parameters and load */

/* Seed 002, step 8: what one token's step multiplies with, by walking the
   registry with its choices in hand, against the formula. */
START_TEST(active_parameters_of_a_token_are_not_the_stored_ones)
{
    const struct llama_config config = small_moe_config();
    struct stepped s = {.model = noisy_llama(&config, 360)};
    uint64_t state = noise_start(361);
    struct llama_size size;
    const int32_t id = noise_below(&state, 13);
    s.lm = llama_causal_lm(s.model);
    step_once(&s, &id, 1, 1);
    size_t total = 0, active = 0;
    for (size_t k = 0; k < llama_tensor_count(s.model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(s.model, k);
        const size_t count = tensor_size(entry->tensor);
        int l, e;
        bool used = true;
        if (sscanf(entry->name, "model.layers.%d.block_sparse_moe.experts.%d",
                   &l, &e) == 2) {
            const struct moe_routing routing =
                llama_routing(s.model, &s.step, s.scratch, l);
            used = routing.experts[0] == e || routing.experts[1] == e;
        }
        total += count;
        active += used ? count : 0;
    }
    ck_assert(llama_config_size(&config, &size));
    ck_assert_uint_eq(size.total, total);
    ck_assert_uint_eq(size.active, active);
    ck_assert_uint_eq(total - active, 3 * (5 - 2) * 3 * 70);
    step_done(&s);
    llama_free(&s.model);
}
END_TEST

/* Sizes of a public checkpoint with 8 experts of 14336: 46.7 and 12.9
   billion. A dense config uses all that it stores. */
START_TEST(total_and_active_are_those_of_a_known_model)
{
    struct llama_config config = {
        .vocab_size = 32000, .context_length = 32768, .d_model = 4096,
        .n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128,
        .d_ff = 14336, .rms_norm_eps = 1e-5, .rope_theta = 1e6,
        .n_experts = 8, .experts_per_token = 2
    };
    struct llama_size size;
    ck_assert(llama_config_size(&config, &size));
    ck_assert_uint_eq(size.total, 46702792704u);
    ck_assert_uint_eq(size.active, 12879925248u);
    config.experts_per_token = 8;
    ck_assert(llama_config_size(&config, &size));
    ck_assert_uint_eq(size.active, size.total);
    config.n_experts = config.experts_per_token = 0;
    ck_assert(llama_config_size(&config, &size));
    ck_assert_uint_eq(size.total, 7241732096u);
    ck_assert_uint_eq(size.active, size.total);
}
END_TEST

/* Chapter 14 predicted such models before there were any. */
START_TEST(the_audit_predicts_a_model_of_experts_tensor_by_tensor)
{
    for (int tied = 0; tied < 2; tied++) {
        struct llama_config config = small_moe_config();
        config.tie_word_embeddings = tied == 1;
        struct ownership own;
        struct llama_size size;
        expect_ok(ownership_of_llama(&own, &config, &error), &error);
        struct llama *model = new_llama(&config);
        const size_t count = llama_tensor_count(model);
        struct held_tensor *held = calloc(count, sizeof *held);
        ck_assert_ptr_nonnull(held);
        ck_assert_uint_eq(held_by_llama(model, held), count);
        expect_ok(ownership_check(&own, held, count, &error), &error);
        ck_assert(llama_config_size(&config, &size));
        ck_assert_uint_eq(own.total, size.total);
        ck_assert_uint_eq(own.active, size.active);
        free(held);
        llama_free(&model);
    }
}
END_TEST

START_TEST(a_peak_is_the_largest_count_over_the_mean_of_all)
{
    const struct { size_t counts[4]; double want; } table[] = {
        {{3, 3, 3, 3}, 1}, {{0, 0, 5, 0}, 4}, {{6, 2, 0, 0}, 3},
        {{1, 2, 3, 2}, 1.5}, {{0, 0, 0, 0}, 0}
    };
    for (int t = 0; t < 5; t++)
        ck_assert_double_eq_tol(expert_load_peak(table[t].counts, 4),
                                table[t].want, 1e-12);
    const size_t one[] = {17};
    ck_assert_double_eq(expert_load_peak(one, 1), 1);
    ck_assert_uint_eq(expert_load_sum(table[3].counts, 4), 8);
}
END_TEST

/* Under a limit, over several calls: what was asked for is not what was
   kept, and what was dropped is their difference. */
START_TEST(dropped_assignments_are_asked_for_and_not_kept)
{
    uint64_t state = noise_start(362);
    size_t asked[E] = {0}, kept[E] = {0}, want[E] = {0}, dropped = 0;
    struct expert_load load = {6, asked, kept};
    for (int call = 0; call < 20; call++) {
        int32_t experts[R * K];
        struct arrays a;
        random_choices(&state, R, 6, 2, experts);
        const struct moe_routing routing = dispatched(&a, experts, R, 6, 2,
                                                      call % 5);
        expert_load_add(&load, &routing);
        for (int n = 0; n < R * 2; n++) {
            want[experts[n]]++;
            dropped += a.places[n] == MOE_DROPPED;
        }
    }
    for (int e = 0; e < 6; e++) {
        ck_assert_uint_eq(asked[e], want[e]);
        ck_assert_uint_le(kept[e], asked[e]);
    }
    ck_assert_uint_eq(expert_load_sum(asked, 6), 20 * R * 2);
    ck_assert_uint_gt(dropped, 0);
    ck_assert_uint_eq(expert_load_sum(asked, 6) - expert_load_sum(kept, 6),
                      dropped);
}
END_TEST

/* Seed 002: if MoE is enabled, total and active parameters plus
   maximum-to-mean expert load are reported separately. */
START_TEST(total_active_and_largest_load_are_reported_apart)
{
    const char *text = run_program("experts --tokens 100 --json", 0);
    double total, active, peak, sum = 0, most = 0;
    ck_assert_int_eq(sscanf(text, "{\"total_parameters\": %lf,"
                            " \"active_parameters\": %lf,", &total, &active),
                     2);
    ck_assert_double_eq(total, 96928);
    ck_assert_double_eq(active, 96928 - 2 * 6 * 3 * 48 * 32);
    const char *counts = strstr(text, "{\"routed\": [");
    ck_assert_ptr_nonnull(counts);
    counts += strlen("{\"routed\": [");
    for (int e = 0; e < 8; e++) {
        char *end;
        const double count = strtod(counts, &end);
        sum += count;
        most = fmax(most, count);
        counts = end + 1;
    }
    ck_assert_double_eq(sum, 200);
    ck_assert_int_eq(sscanf(counts, ", \"routed_max_to_mean\": %lf", &peak),
                     1);
    ck_assert_double_eq_tol(peak, most / (sum / 8), 1e-6);
}
END_TEST

START_TEST(a_direction_that_all_tokens_share_loads_the_first_expert)
{
    double peak = 0;
    for (int skew = 0; skew <= 3; skew++) {
        const struct expert_options options = {8, 2, 600, skew, 1.25};
        struct expert_study study;
        expect_ok(expert_study_run(&options, &study, &error), &error);
        ck_assert_int_eq(study.n_layers, 2);
        ck_assert_int_eq(study.capacity, 188);
        for (int l = 0; l < 2; l++)
            ck_assert_uint_eq(expert_load_sum(study.routed + l * 8, 8), 1200);
        for (int e = 0; e < 16; e++)
            ck_assert_uint_eq(study.kept[e], study.routed[e] < 188
                                             ? study.routed[e] : 188);
        const double now = expert_load_peak(study.routed, 8);
        ck_assert_double_gt(now, peak);
        ck_assert_double_le(now, 4);       /* E / k: a token asks once */
        if (skew == 0)
            ck_assert_double_lt(now, 1.4);
        if (skew > 0)
            ck_assert_uint_gt(study.routed[0], 300);
        peak = now;
        expert_study_free(&study);
        ck_assert_ptr_null(study.routed);
    }
    ck_assert_double_gt(peak, 3);
}
END_TEST

START_TEST(a_load_study_that_fails_changes_nothing)
{
    const struct { struct expert_options o; const char *says; } wrong[] = {
        {{0, 0, 9, 0, 0}, "n_experts: "}, {{-1, 1, 9, 0, 0}, "n_experts: "},
        {{4, 5, 9, 0, 0}, "experts_per_token: "},
        {{4, 2, 0, 0, 0}, "tokens: "}, {{4, 2, 2049, 0, 0}, "tokens: "},
        {{4, 2, 9, 0, -1}, "capacity factor: "}
    };
    const struct expert_options good = {4, 2, 9, 1, 1};
    struct expert_study study = {.n_layers = 77};
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) {
        long live = allocator_live();
        error = (struct error){0};
        enum status status = expert_study_run(&wrong[k].o, &study, &error);
        live = allocator_live() - live;
        ck_assert_int_eq(status, STATUS_INVALID);
        expect_named(&error, wrong[k].says);
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(study.n_layers, 77);
    }
    for (long n = 1; ; n++) {
        long live = allocator_live();
        allocator_fail_at(n);
        enum status status = expert_study_run(&good, &study, &error);
        live = allocator_live() - live;
        if (!allocator_stop()) {
            expect_ok(status, &error);
            ck_assert_int_gt(n, 10);
            break;
        }
        ck_assert_int_eq(status, STATUS_NO_MEMORY);
        ck_assert_int_eq(live, 0);
        ck_assert_int_eq(study.n_layers, 77);
    }
    expert_study_free(&study);
}
END_TEST

START_TEST(the_command_prints_loads_by_expert)
{
    const char *text = run_program("experts --experts 4 --choose 1 --tokens"
                                   " 50 --skew 2 --capacity 1", 0);
    size_t routed, kept, dropped = 0;
    ck_assert_ptr_nonnull(strstr(text, "stored, "));
    ck_assert_ptr_nonnull(strstr(text, "capacity 13\n"));
    const char *row = strstr(text, "layer  expert");
    for (int e = 0; e < 4; e++) {
        int l, number;
        row = strchr(row, '\n') + 1;
        ck_assert_int_eq(sscanf(row, "%d %d %zu %zu", &l, &number, &routed,
                                &kept), 4);
        ck_assert(l == 0 && number == e);
        ck_assert_uint_eq(kept, routed < 13 ? routed : 13);
        dropped += routed - kept;
    }
    char line[64];
    snprintf(line, sizeof line, " kept; %zu of 50 dropped\n", dropped);
    ck_assert_ptr_nonnull(strstr(text, line));
    ck_assert_ptr_nonnull(strstr(run_program("experts --json --tokens 5", 0),
                                 "\"kept_max_to_mean\": "));
}
END_TEST

START_TEST(the_command_refuses_what_cannot_be_chosen)
{
    const char *const usage[] = {
        "experts --experts", "experts --experts 0", "experts --choose 0",
        "experts --tokens 0", "experts --tokens 2049", "experts --skew x",
        "experts --skew inf", "experts --capacity", "experts --loads"
    };
    for (size_t k = 0; k < sizeof usage / sizeof *usage; k++)
        ck_assert_ptr_nonnull(strstr(run_program(usage[k], 2),
                                     "tinygpt experts"));
    ck_assert_ptr_nonnull(strstr(run_program(
        "experts --experts 3 --choose 4", 1), "experts_per_token"));
    ck_assert_ptr_nonnull(strstr(run_program("experts --capacity -1", 1),
                                 "capacity factor"));
    ck_assert_ptr_nonnull(strstr(run_program("experts --help", 0), "--skew"));
}
END_TEST

/* -------------------------------------------------------------------- table */

#define SOFTMAX "turn logits into probabilities"
#define WEIGHT "let the row's weight be one at the maximum"
#define BETTER "take the expert when it is free, and better than the best"
#define GATES "let the gates of the row add up to one"
#define ORDER "let n be the assignment that comes after k others"
#define PLACE "give the assignment the next place of its expert, or none"
#define BEGIN "let each expert begin where the one before it ends"
#define MOVE "move each place behind those of the experts before"
#define SHARE "let share be the factor's part of the assignments, rounded up"
#define COPY "copy the assignment's row to its place"
#define LAYER "let w1 gate what w3 makes, and w2 bring it down"
#define PASS "pass over a choice that was dropped"
#define ADD "add the expert's output, as much as its gate says"
#define OWN "let own be the expert's rows of the gathered"
#define MIX "run a mixture of experts"
#define CONFIG "refuse experts"
#define NAMES "list the router and its experts"
#define BRANCH "let branch be what the feed-forward layer makes of norm"
#define IDLE "let idle be the parameters of the experts that a token leaves out"
#define PEAK "divide the largest count by the mean"
#define KEPT "count what was asked for and what was kept"

static const struct test tests[] = {
    TEST(probabilities_are_a_softmax_of_all_logits, 0, SOFTMAX),
    TEST(a_softmax_is_finite_for_any_finite_logits, 0, WEIGHT),
    TEST(infinite_logits_share_what_there_is, 0, WEIGHT),
    TEST(of_equals_the_lowest_number_is_chosen, 0, BETTER),
    TEST(the_choices_among_infinite_logits_are_the_first_equals, 0, BETTER),
    TEST(a_nan_stays_in_its_row_and_chooses_the_first_experts, 0, BETTER),
    TEST(every_number_of_choices_takes_the_largest_and_none_twice, 0,
         BETTER),
    TEST(the_gates_are_the_shares_of_the_chosen_among_themselves, 0, GATES),
    TEST(the_gates_of_every_row_add_up_to_one, 0, GATES),
    TEST(sizes_of_a_routing_are_refused_by_name, 0, "check a routing"),
    TEST(an_expert_begins_where_the_one_before_it_ends, 0, BEGIN),
    TEST(what_finds_its_expert_full_is_dropped_and_not_counted, 0, PLACE),
    TEST(a_place_is_the_experts_offset_and_the_number_within_it, 0, MOVE),
    TEST(first_choices_come_before_second_ones, 0, ORDER),
    TEST(no_first_choice_is_lost_to_a_second_one, 0, ORDER),
    TEST(who_is_dropped_does_not_depend_on_gates, 0, ORDER),
    TEST(places_are_those_of_queues_for_any_sizes, 0, MOVE),
    TEST(a_capacity_is_the_even_share_times_the_factor_rounded_up, 0, SHARE),
    TEST(rows_are_copied_to_their_places_as_they_are, 0, COPY),
    TEST(an_expert_gates_by_w1_goes_up_by_w3_and_comes_down_by_w2, 0, LAYER),
    TEST(a_dropped_choice_adds_nothing, 0, PASS),
    TEST(a_row_is_the_sum_of_its_experts_as_much_as_the_gates_say, 0, ADD),
    TEST(a_sum_goes_from_the_first_choice_to_the_last, 0, ADD),
    TEST(a_mixture_agrees_with_plain_arithmetic_over_all_experts, 1, OWN),
    TEST(a_tokens_output_has_the_same_bits_alone_and_in_any_batch, 1, MIX),
    TEST(under_a_limit_a_token_depends_on_those_before_it, 1, PASS),
    TEST(a_token_of_nan_touches_no_other, 1, MIX),
    TEST(a_mixture_of_no_rows_does_nothing, 1, MIX),
    TEST(a_choice_that_the_experts_do_not_have_is_refused, 1, CONFIG),
    TEST(experts_whose_bytes_do_not_fit_are_refused, 1,
         "count the feed-forward layers of a llama"),
    TEST(experts_have_the_names_and_shapes_of_checkpoints, 1, NAMES),
    TEST(the_formula_counts_experts_and_routers, 1,
         "count the feed-forward layers of a llama"),
    TEST(making_experts_survives_each_failed_allocation, 1,
         "make room inside of the layers"),
    TEST(routers_choices_gates_and_counts_are_the_goldens, 2, MIX),
    TEST(the_mixture_of_each_layer_is_the_goldens, 2, MIX),
    TEST(a_mixture_of_experts_has_the_golden_numbers, 2, BRANCH),
    TEST(every_number_of_experts_agrees_with_plain_arithmetic, 2, BRANCH),
    TEST(every_split_of_a_text_routes_to_the_same_bits, 2, MIX),
    TEST(a_text_has_the_same_bits_beside_any_other, 2, MIX),
    TEST(one_expert_is_a_dense_layer, 2, BRANCH),
    TEST(experts_take_the_scratch_that_the_chapter_says, 2,
         "sizes of the parts for later chapters"),
    TEST(a_step_reads_and_writes_its_own_slots_and_allocates_nothing, 2,
         BRANCH),
    TEST(the_last_rows_alone_are_the_last_of_all, 2, BRANCH),
    TEST(a_call_survives_each_failed_allocation, 2, BRANCH),
    TEST(active_parameters_of_a_token_are_not_the_stored_ones, 2, IDLE),
    TEST(total_and_active_are_those_of_a_known_model, 2, IDLE),
    TEST(the_audit_predicts_a_model_of_experts_tensor_by_tensor, 2, IDLE),
    TEST(a_peak_is_the_largest_count_over_the_mean_of_all, 2, PEAK),
    TEST(dropped_assignments_are_asked_for_and_not_kept, 2, KEPT),
    TEST(the_labs_check_of_single_tokens, 3, BRANCH),
    TEST(the_labs_check_of_chunks, 3, BRANCH),
    TEST(the_labs_check_of_poisoned_padding, 3, BRANCH),
    TEST(the_labs_check_of_ownership, 3, BRANCH),
    TEST(the_labs_check_without_a_cache, 3, BRANCH),
    TEST(the_labs_check_of_metadata, 3, BRANCH),
    TEST(the_labs_check_of_positions, 3, BRANCH),
    TEST(the_labs_check_of_greedy_tokens, 3, BRANCH),
    TEST(the_labs_check_of_ended_rows, 3, BRANCH),
    TEST(a_request_goes_on_behind_a_loaded_prefix_for_every_length, 3,
         BRANCH),
    TEST(rows_of_different_lengths_run_as_they_do_alone, 3, BRANCH),
    TEST(a_cut_request_goes_on_as_if_it_had_gone_no_further, 3, BRANCH),
    TEST(a_prompt_in_chunks_of_any_size_gives_the_same_bits, 3, BRANCH),
    TEST(a_stored_prefix_is_used_again_at_its_own_positions, 3, BRANCH),
    TEST(greedy_tokens_are_those_of_a_model_without_a_cache, 3, BRANCH),
    TEST(drafts_of_either_family_change_no_token, 3, BRANCH),
    TEST(total_active_and_largest_load_are_reported_apart, 3,
         "print the whole study"),
    TEST(a_direction_that_all_tokens_share_loads_the_first_expert, 3,
         "let a router see the direction as strongly as asked"),
    TEST(a_load_study_that_fails_changes_nothing, 3,
         "study the load of one call"),
    TEST(the_command_prints_loads_by_expert, 3, "print a layer's load"),
    TEST(the_command_refuses_what_cannot_be_chosen, 3,
         "the options of the experts command"),
};

SUITE("chapter 15, mixture of experts", tests);
