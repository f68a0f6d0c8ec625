/* Chapter 12: guesses that cost nothing but time.

   Scripts (tests/support/scripted.h) give drafts that are right, wrong, or
   right where a test wants them to be, and find every token that is in a cache
   and should not be. Models of noise give drafts that are right now and then.
   What the target alone would say comes from chapter 8's greedy decoding,
   which shares no cache and no loop with the run. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "cache_aware.h"
#include "model_file.h"
#include "rejection.h"
#include "sampler.h"
#include "speculative.h"
#include "support/allocator.h"
#include "support/compare.h"
#include "support/harness.h"
#include "support/models.h"
#include "support/scripted.h"

static struct error error;

#define expect_refusal(status, word) do { \
    ck_assert_int_eq(status, STATUS_INVALID); \
    expect_named(&error, word); \
} while (0)

/* A generator in a state that no test has been given before. */
static struct generator seeded(unsigned stream)
{
    struct generator generator;
    uint64_t state = noise_start(stream);
    generator_seed(&generator, noise_next(&state), 12);
    return generator;
}

/* ------------------------------------------------- frequencies and bounds */

/* Pearson's statistic of what was seen in n draws against p. */
static double pearson(const double *p, int count, const int *seen, int n)
{
    double statistic = 0;
    for (int i = 0; i < count; i++) {
        const double expected = n * p[i];
        if (p[i] > 0)
            statistic += (seen[i] - expected) * (seen[i] - expected)
                         / expected;
        else
            ck_assert_int_eq(seen[i], 0);
    }
    return statistic;
}

/* What pearson exceeds with a probability below 10^-11, whatever n. Bernstein:
   a count X of n draws with variance v = n p (1 - p) has
       P(|X - n p| >= d) <= 2 exp(-d^2 / (2 (v + d/3))).
   Each of `count` such events gets 10^-11 / count; the d at which that is
   reached solves d^2 = 2 l (v + d/3) with l = ln(2 count 10^11). If no count
   is off by its d, the statistic is at most the sum of d^2 / (n p). The suite
   asks fewer than 50 times. */
static double pearson_bound(const double *p, int count, int n)
{
    const double l = log(2e11 * count);
    double bound = 0;
    for (int i = 0; i < count; i++)
        if (p[i] > 0) {
            const double v = n * p[i] * (1 - p[i]);
            const double d = l / 3 + sqrt(l * l / 9 + 2 * l * v);
            bound += d * d / (n * p[i]);
        }
    return bound;
}

static void expect_frequencies(const char *what, const double *p, int count,
                               const int *seen, int n)
{
    const double statistic = pearson(p, count, seen, n);
    const double bound = pearson_bound(p, count, n);
    ck_assert_msg(statistic <= bound, "%s: chi-square %g over %d draws, "
                  "expected at most %g", what, statistic, n, bound);
}

/* The example of the chapter, and what can be done to two distributions. */
static const double target_shares[4] = {0.5, 0.25, 0.15, 0.1};
static const double draft_shares[4] = {0.1, 0.2, 0.3, 0.4};

/* Four ids in an order that differs from seed to seed. */
static void reorder(unsigned stream, const double *from, double *to)
{
    uint64_t state = noise_start(stream);
    int32_t order[4];
    noise_order(&state, 4, order);
    for (int i = 0; i < 4; i++)
        to[order[i]] = from[i];
}

/* Random probabilities, some of them zero. */
static void noise_shares(uint64_t *state, int count, double *p)
{
    double sum = 0;
    while (sum == 0)
        for (int i = 0; i < count; i++)
            sum += p[i] = noise_below(state, 4) == 0
                ? 0 : noise_below(state, 1000);
    for (int i = 0; i < count; i++)
        p[i] /= sum;
}

/* ---------------------------------------------------------- probabilities */

START_TEST(probabilities_are_the_softmax_at_the_temperature)
{
    uint64_t state = noise_start(1);
    const double temperatures[] = {0.2, 0.7, 1, 1.9, 30};
    for (int k = 0; k < 5; k++) {
        float logits[9];
        double p[9];
        long double sum = 0, total = 0;
        noise_floats(&state, 9, logits);
        for (int i = 0; i < 9; i++)
            logits[i] *= 5;
        logits[k] = -INFINITY;
        token_probabilities(logits, 9, temperatures[k], p);
        for (int i = 0; i < 9; i++)
            total += expl(logits[i] / (long double)temperatures[k]);
        for (int i = 0; i < 9; i++) {
            const long double want =
                expl(logits[i] / (long double)temperatures[k]) / total;
            ck_assert_double_le(fabs(p[i] - (double)want), 1e-14);
            sum += p[i];
        }
        ck_assert(p[k] == 0);
        ck_assert_double_le(fabs((double)sum - 1), 1e-14);
    }
}
END_TEST

START_TEST(extreme_temperatures_give_one_id_or_all)
{
    const float logits[] = {-2, 3e38f, 1, 3e38f, -3e38f};
    double p[5];
    const double tiny[] = {4.9e-324, 1e-30};
    for (int k = 0; k < 2; k++) {
        token_probabilities(logits, 5, tiny[k], p);
        for (int i = 0; i < 5; i++)
            ck_assert(p[i] == (i == 1 || i == 3 ? 0.5 : 0));
    }
    const float near[] = {-2, 3, 1, 2, -3};
    token_probabilities(near, 5, 1e30, p);
    for (int i = 0; i < 5; i++)
        ck_assert_double_le(fabs(p[i] - 0.2), 1e-15);
}
END_TEST

START_TEST(a_draw_gives_each_id_its_share_of_any_sum)
{
    const double sums[] = {1, 0.45, 1e-9, 7};
    double p[4];
    reorder(2, target_shares, p);
    for (int k = 0; k < 4; k++) {
        struct generator generator = seeded(3 + (unsigned)k);
        double weights[4];
        int seen[4] = {0};
        for (int i = 0; i < 4; i++)
            weights[i] = p[i] * sums[k];
        for (int n = 0; n < 20000; n++)
            seen[weighted_draw(weights, 4, &generator)]++;
        expect_frequencies("draws", p, 4, seen, 20000);
    }
}
END_TEST

START_TEST(an_id_of_no_weight_is_never_drawn)
{
    const double weights[] = {0, 0.3, 0, 0.1, 0};
    struct generator generator = seeded(8);
    for (int n = 0; n < 2000; n++) {
        const int32_t id = weighted_draw(weights, 5, &generator);
        ck_assert(id == 1 || id == 3);
    }
    /* from this state PCG32 puts out zeros */
    struct generator zeros = {.state = 0, .increment = 1};
    ck_assert_int_eq(weighted_draw(weights, 5, &zeros), 1);
}
END_TEST

/* -------------------------------------------------------------- rejection */

START_TEST(a_proposal_is_kept_whenever_p_over_q_says_so)
{
    uint64_t state = noise_start(9);
    struct generator generator = seeded(10);
    int kept = 0;
    for (int n = 0; n < 20000; n++) {
        double p[5], q[5];
        noise_shares(&state, 5, p);
        noise_shares(&state, 5, q);
        const int32_t proposal = weighted_draw(q, 5, &generator);
        struct generator copy = generator, before = generator;
        const bool keep = generator_uniform(&copy) < p[proposal] / q[proposal];
        const int32_t answer = rejection_answer(p, q, 5, proposal,
                                                &generator);
        if (keep) {
            ck_assert_int_eq(answer, proposal);
            ck_assert_uint_eq(generator.state, copy.state);
            kept++;
        } else {
            (void)generator_uniform(&copy);
            ck_assert_uint_eq(generator.state, copy.state);
        }
        ck_assert_uint_ne(generator.state, before.state);
    }
    ck_assert_int_gt(kept, 2000);
    ck_assert_int_lt(kept, 18000);
}
END_TEST

START_TEST(an_id_that_the_target_rules_out_is_never_said)
{
    struct generator generator = seeded(11), zeros = {0, 1};
    uint64_t state = noise_start(12);
    for (int n = 0; n < 5000; n++) {
        double p[4], q[4];
        noise_shares(&state, 4, p);
        noise_shares(&state, 4, q);
        const int32_t proposal = weighted_draw(q, 4, &generator);
        const int32_t answer = rejection_answer(
            p, q, 4, proposal, n % 50 == 0 ? &zeros : &generator);
        ck_assert(p[answer] > 0);
    }
}
END_TEST

START_TEST(a_refused_proposal_gives_way_to_what_the_target_has_more)
{
    uint64_t state = noise_start(13);
    struct generator generator = seeded(14);
    int refused = 0;
    for (int n = 0; n < 20000; n++) {
        double p[6], q[6], left[6], uniform;
        long double sum = 0, below = 0;
        noise_shares(&state, 6, p);
        noise_shares(&state, 6, q);
        for (int i = 0; i < 6; i++)
            sum += left[i] = fmax(p[i] - q[i], 0);
        const int32_t proposal = weighted_draw(q, 6, &generator);
        struct generator copy = generator;
        if (generator_uniform(&copy) * q[proposal] < p[proposal])
            continue;
        uniform = generator_uniform(&copy);
        const int32_t answer = rejection_answer(p, q, 6, proposal,
                                                &generator);
        ck_assert_int_ne(answer, proposal);
        /* the interval of the answer holds uniform, but for rounding */
        for (int i = 0; i < answer; i++)
            below += left[i];
        ck_assert_double_ge(uniform, (double)(below / sum) - 1e-12);
        ck_assert_double_lt(uniform,
                            (double)((below + left[answer]) / sum) + 1e-12);
        refused++;
    }
    ck_assert_int_gt(refused, 2000);
}
END_TEST

START_TEST(equal_distributions_need_no_residual)
{
    struct generator generator = seeded(15);
    for (int at = 0; at < 4; at++) {
        for (int n = 0; n < 1000; n++) {
            double p[4] = {0}, q[4] = {0};
            p[at] = q[at] = 1;
            ck_assert_int_eq(rejection_answer(p, q, 4, at, &generator), at);
        }
        /* a refusal by a rounding, with nothing left: every x is refused by
           p = 0, and what p has is not more than q */
        double p[4] = {0}, q[4] = {0};
        p[at] = 1;
        q[at] = 1 + 0x1p-52;
        q[(at + 1) % 4] = 0x1p-60;
        ck_assert_int_eq(rejection_answer(p, q, 4, (at + 1) % 4, &generator),
                         at);
    }
    double p[4];
    reorder(16, target_shares, p);
    for (int n = 0; n < 5000; n++) {
        double q[4];
        memcpy(q, p, sizeof q);
        const int32_t proposal = weighted_draw(q, 4, &generator);
        ck_assert_int_eq(rejection_answer(p, q, 4, proposal, &generator),
                         proposal);
    }
}
END_TEST

START_TEST(answers_to_drawn_proposals_are_distributed_as_the_target)
{
    enum { DRAWS = 100000 };
    double p[4], q[4], agreement = 0;
    struct generator generator = seeded(17);
    int seen[4] = {0}, agreed[2] = {0};
    reorder(18, target_shares, p);
    reorder(18, draft_shares, q);
    for (int n = 0; n < DRAWS; n++) {
        double used[4];
        memcpy(used, q, sizeof used);
        const int32_t proposal = weighted_draw(q, 4, &generator);
        const int32_t answer = rejection_answer(p, used, 4, proposal,
                                                &generator);
        seen[answer]++;
        agreed[answer == proposal]++;
    }
    expect_frequencies("answers", p, 4, seen, DRAWS);
    for (int i = 0; i < 4; i++)
        agreement += fmin(p[i], q[i]);
    ck_assert_double_le(fabs(agreement - 0.55), 1e-12);
    const double agreements[2] = {1 - agreement, agreement};
    expect_frequencies("agreement", agreements, 2, agreed, DRAWS);
}
END_TEST

/* ----------------------------------------------------------------- scripts */

enum { V = 7, LONG = 64 };

static bool always(const struct script *script, int position)
{
    (void)script, (void)position;
    return true;
}

static bool in_turns(const struct script *script, int position)
{
    (void)script;
    return position % 2 == 0;
}

static bool by_chance(const struct script *script, int position)
{
    return noise_mix(script->salt * 3 + (uint64_t)position) % 3 == 0;
}

static bool between(const struct script *script, int position)
{
    return position >= script->from && position < script->until;
}

static struct script script_of(unsigned stream)
{
    return (struct script){.vocab_size = V, .context_length = LONG,
                           .salt = noise_start(stream)};
}

static struct generate_input request_of(const int32_t *ids, int tokens,
                                        int max_new_tokens)
{
    return (struct generate_input){
        .ids = ids, .batch = 1, .tokens = tokens,
        .max_new_tokens = max_new_tokens, .eos_token_id = NO_EOS
    };
}

/* A prompt, and behind it what the target says. */
static void text_of(const struct script *target, unsigned stream, int tokens,
                    int length, int32_t *ids)
{
    uint64_t state = noise_start(stream);
    for (int t = 0; t < tokens; t++)
        ids[t] = noise_below(&state, target->vocab_size);
    script_continue(target, ids, tokens, length);
}

static struct speculation *begin(struct script *target, struct script *draft,
                                 const struct generate_input *input, int most)
{
    const struct causal_lm large = script_lm(target);
    const struct causal_lm small = script_lm(draft);
    struct speculation *run = NULL;
    expect_ok(speculation_new(&run, &large, &small, input, most, &error),
              &error);
    return run;
}

static void expect_ids(const int32_t *actual, const int32_t *expected,
                       int count)
{
    for (int i = 0; i < count; i++)
        ck_assert_msg(actual[i] == expected[i],
                      "ids[%d] of %d: expected %d, got %d", i, count,
                      (int)expected[i], (int)actual[i]);
}

START_TEST(a_round_proposes_no_more_than_leaves_the_target_a_place)
{
    for (int most = 1; most <= 8; most++)
        for (int left = 1; left <= 10; left++) {
            struct script target = script_of(20), draft = target;
            const int32_t ids[3] = {1, 5, 2};
            const struct generate_input input = request_of(ids, 3, left);
            struct speculation *run = begin(&target, &draft, &input, most);
            expect_ok(speculation_round(run, &error), &error);
            const struct speculation_view view = speculation_view(run);
            const int k = most < left - 1 ? most : left - 1;
            ck_assert_int_eq(view.counts.proposed, k);
            ck_assert_int_eq(draft.calls, 1 + k);
            speculation_free(&run);
        }
}
END_TEST

START_TEST(any_number_of_proposals_may_be_allowed)
{
    struct generator generator = seeded(21);
    for (int temperature = 0; temperature < 2; temperature++)
        for (int budget = 0; budget < 4; budget++) {
            struct script target = script_of(22), draft = target;
            const int32_t ids[1] = {3};
            struct generate_input input = request_of(ids, 1, budget);
            input.temperature = temperature;
            input.generator = &generator;
            struct speculation *run = begin(&target, &draft, &input, INT_MAX);
            while (!speculation_view(run).done)
                expect_ok(speculation_round(run, &error), &error);
            ck_assert_int_eq(speculation_view(run).tokens, 1 + budget);
            ck_assert_int_eq(target.calls, budget > 0);
            speculation_free(&run);
        }
}
END_TEST

START_TEST(one_call_reads_the_waiting_token_and_the_proposals)
{
    for (int tokens = 1; tokens <= 4; tokens++)
        for (int most = 1; most <= 8; most++) {
            struct script target = script_of(23), draft = target;
            int32_t ids[4];
            text_of(&target, 24, tokens, tokens, ids);
            const struct generate_input input = request_of(ids, tokens, 20);
            struct speculation *run = begin(&target, &draft, &input, most);
            expect_ok(speculation_round(run, &error), &error);
            const int prompt = tokens > 1;
            ck_assert_int_eq(target.calls, prompt + 1);
            if (prompt)
                ck_assert_int_eq(target.call[0].tokens, tokens - 1);
            ck_assert_int_eq(target.call[prompt].length, tokens - 1);
            ck_assert_int_eq(target.call[prompt].tokens, most + 1);
            ck_assert_int_eq(speculation_view(run).counts.target_calls,
                             target.calls);
            speculation_free(&run);
        }
}
END_TEST

START_TEST(the_draft_reads_all_that_it_has_not_seen)
{
    for (int tokens = 1; tokens <= 4; tokens++)
        for (int most = 1; most <= 8; most++) {
            struct script target = script_of(25), draft = target;
            int32_t ids[4];
            text_of(&target, 26, tokens, tokens, ids);
            const struct generate_input input =
                request_of(ids, tokens, 3 * (most + 1));
            struct speculation *run = begin(&target, &draft, &input, most);
            int call = tokens > 1;
            ck_assert_int_eq(draft.calls, call);
            for (int round = 0; round < 3; round++) {
                expect_ok(speculation_round(run, &error), &error);
                for (int i = 0; i < most; i++, call++)
                    ck_assert_int_eq(draft.call[call].tokens,
                                     round > 0 && i == 0 ? 2 : 1);
                ck_assert_int_eq(draft.calls, call);
            }
            const struct speculation_view view = speculation_view(run);
            ck_assert(view.done);
            ck_assert_int_eq(view.counts.draft_calls, draft.calls);
            ck_assert_int_eq(view.counts.accepted, 3 * most);
            ck_assert_int_eq(view.counts.bonus, 3);
            speculation_free(&run);
        }
}
END_TEST

START_TEST(behind_an_end_nothing_is_proposed)
{
    struct script target = script_of(27), draft = target;
    int32_t ids[16];
    text_of(&target, 28, 2, 16, ids);
    for (int at = 2; at < 9; at++) {
        struct generate_input input = request_of(ids, 2, 14);
        input.eos_token_id = ids[at];
        int first = 2;
        while (ids[first] != ids[at])
            first++;
        struct speculation *run = begin(&target, &draft, &input, 8);
        expect_ok(speculation_round(run, &error), &error);
        ck_assert_int_eq(speculation_view(run).counts.proposed, first - 1);
        speculation_free(&run);
    }
}
END_TEST

/* Right but for one proposal: the m-th of the first round. */
START_TEST(a_round_keeps_what_is_before_the_first_mismatch)
{
    for (int k = 1; k <= 8; k++)
        for (int m = 0; m <= k; m++) {
            struct script target = script_of(29), draft = target;
            int32_t ids[16];
            text_of(&target, 30, 3, 16, ids);
            draft.wrong_at = between;
            draft.from = 2 + m;
            draft.until = 3 + m;
            const struct generate_input input = request_of(ids, 3, 12);
            struct speculation *run = begin(&target, &draft, &input, k);
            expect_ok(speculation_round(run, &error), &error);
            const struct speculation_view view = speculation_view(run);
            ck_assert_int_eq(view.counts.accepted, m);
            ck_assert_int_eq(view.counts.replaced, m < k);
            ck_assert_int_eq(view.counts.bonus, m == k);
            ck_assert_int_eq(view.tokens, 3 + m + 1);
            expect_ids(view.ids, ids, view.tokens);
            speculation_free(&run);
        }
}
END_TEST

START_TEST(rows_behind_a_mismatch_need_not_be_numbers)
{
    for (int m = 0; m < 5; m++) {
        struct script target = script_of(31), draft = target;
        int32_t ids[LONG];
        text_of(&target, 32, 3, 20, ids);
        target.free_until = 3;
        draft.wrong_at = between;
        draft.from = 2 + m;
        draft.until = 3 + m;
        const struct generate_input input = request_of(ids, 3, 17);
        struct speculation *run = begin(&target, &draft, &input, 5);
        while (!speculation_view(run).done)
            expect_ok(speculation_round(run, &error), &error);
        expect_ids(speculation_view(run).ids, ids, 20);
        speculation_free(&run);
    }
}
END_TEST

static void expect_cached(const char *who, int cached, int expected)
{
    ck_assert_msg(cached == expected, "the %s has cached %d tokens, expected"
                  " %d", who, cached, expected);
}

START_TEST(between_rounds_each_cache_is_the_text_but_its_last_token)
{
    bool (*const modes[])(const struct script *, int) = {
        NULL, always, in_turns, by_chance
    };
    for (int mode = 0; mode < 4; mode++)
        for (int most = 1; most <= 8; most++)
            for (int tokens = 1; tokens < 4; tokens++) {
                struct script target = script_of(33), draft = target;
                int32_t ids[LONG];
                text_of(&target, 34, tokens, 40, ids);
                draft.wrong_at = modes[mode];
                const struct generate_input input =
                    request_of(ids, tokens, 40 - tokens);
                struct speculation *run = begin(&target, &draft, &input,
                                                most);
                struct speculation_view view = speculation_view(run);
                expect_cached("target", view.target_cached, tokens - 1);
                for (int bonus = 0; !view.done; bonus = view.counts.bonus) {
                    const int seen = view.draft_cached;
                    const int proposed = view.counts.proposed;
                    expect_ok(speculation_round(run, &error), &error);
                    view = speculation_view(run);
                    const int n = view.tokens;
                    expect_cached("target", view.target_cached, n - 1);
                    const bool idle = view.counts.proposed == proposed;
                    expect_cached("draft", view.draft_cached, idle ? seen
                                : view.counts.bonus > bonus ? n - 2 : n - 1);
                    expect_ids(view.ids, ids, n);
                }
                ck_assert_int_eq(view.tokens, 40);
                speculation_free(&run);
            }
}
END_TEST

START_TEST(an_accepted_eos_ends_the_text_and_the_round)
{
    struct script target = script_of(35), draft = target;
    int32_t ids[24];
    text_of(&target, 36, 2, 24, ids);
    for (int mode = 0; mode < 3; mode++)
        for (int most = 1; most <= 8; most++)
            for (int at = 2; at < 24; at++) {
                struct generate_input input = request_of(ids, 2, 22);
                input.eos_token_id = ids[at];
                int first = 2;
                while (ids[first] != ids[at])
                    first++;
                draft.wrong_at = mode == 0 ? NULL : mode == 1 ? in_turns
                                                              : by_chance;
                struct speculation *run = begin(&target, &draft, &input,
                                                most);
                while (!speculation_view(run).done)
                    expect_ok(speculation_round(run, &error), &error);
                const struct speculation_view view = speculation_view(run);
                ck_assert_int_eq(view.tokens, first + 1);
                expect_ids(view.ids, ids, first + 1);
                ck_assert_int_eq(view.counts.accepted + view.counts.replaced
                                 + view.counts.bonus, first + 1 - 2);
                ck_assert_int_le(view.target_cached, first + 1);
                ck_assert_int_le(view.draft_cached, first + 1);
                /* nothing comes of another round */
                const int calls = target.calls;
                expect_ok(speculation_round(run, &error), &error);
                ck_assert_int_eq(target.calls, calls);
                speculation_free(&run);
            }
}
END_TEST

START_TEST(a_round_that_fails_has_not_been)
{
    for (int temperature = 0; temperature < 2; temperature++)
        for (int who = 0; who < 2; who++) {
            struct script target = script_of(37), draft = target;
            struct generator generator = seeded(38), same = generator;
            int32_t ids[3];
            text_of(&target, 39, 3, 3, ids);
            draft.wrong_at = by_chance;
            struct generate_input input = request_of(ids, 3, 20);
            input.temperature = temperature;
            input.generator = &generator;
            struct speculation *other = begin(&target, &draft, &input, 4);
            while (!speculation_view(other).done)
                expect_ok(speculation_round(other, &error), &error);
            input.generator = &same;
            struct speculation *run = begin(&target, &draft, &input, 4);
            int failures = 0;
            while (!speculation_view(run).done) {
                const struct speculation_view before = speculation_view(run);
                struct script *broken = who == 0 ? &target : &draft;
                broken->nan_at = before.tokens - 1 + who;
                const enum status status = speculation_round(run, &error);
                broken->nan_at = 0;
                if (status == STATUS_OK)
                    continue;
                failures++;
                expect_refusal(status, "logits");
                const struct speculation_view after = speculation_view(run);
                ck_assert_int_eq(after.tokens, before.tokens);
                ck_assert_int_eq(after.target_cached, before.target_cached);
                ck_assert_int_eq(after.draft_cached, before.draft_cached);
                expect_same_bits("counts", &after.counts, &before.counts,
                                 sizeof after.counts);
                expect_ok(speculation_round(run, &error), &error);
            }
            ck_assert_int_gt(failures, 2);
            ck_assert_int_eq(speculation_view(run).tokens,
                             speculation_view(other).tokens);
            expect_ids(speculation_view(run).ids, speculation_view(other).ids,
                       speculation_view(run).tokens);
            speculation_free(&run);
            speculation_free(&other);
        }
}
END_TEST

/* ------------------------------------------------------------- whole runs */

/* The target alone, by chapter 8. */
static struct generate_output alone(const struct causal_lm *lm,
                                    const struct generate_input *input)
{
    struct generate_output output = {0};
    struct generate_input greedy = *input;
    greedy.on_step = NULL;
    expect_ok(cache_aware_generate(lm, &greedy, NULL, &output, &error),
              &error);
    return output;
}

/* The same with a draft: equal tokens, and counts that add up. */
static struct speculative_counts
expect_lossless(const struct causal_lm *target, const struct causal_lm *draft,
                const struct generate_input *input, int most)
{
    struct generate_output expected = alone(target, input);
    struct speculative_output output = {0};
    expect_ok(speculative_generate(target, draft, input, most, &output,
                                   &error), &error);
    ck_assert_int_eq(output.tokens, expected.tokens);
    expect_ids(output.ids, expected.ids, expected.tokens);
    const struct speculative_counts counts = output.counts;
    const int said = output.tokens - input->tokens;
    ck_assert_int_eq(counts.accepted + counts.replaced + counts.bonus, said);
    ck_assert_int_le(counts.accepted, counts.proposed);
    const int prompt = input->max_new_tokens == 0
        ? 0 : (input->tokens - 1 + PROMPT_CHUNK - 1) / PROMPT_CHUNK;
    ck_assert_int_eq(counts.draft_calls, prompt + counts.proposed);
    const int rounds = counts.target_calls - prompt;
    ck_assert_int_le(counts.replaced + counts.bonus, rounds);
    ck_assert_int_le(rounds, counts.replaced + counts.bonus + 1);
    ck_assert_int_le(counts.proposed, rounds * most);
    speculative_output_free(&output);
    ck_assert_ptr_null(output.ids);
    generate_output_free(&expected);
    return counts;
}

START_TEST(a_draft_that_is_the_target_has_every_proposal_accepted)
{
    for (int most = 1; most <= 8; most++)
        for (int budget = 0; budget <= 20; budget++) {
            struct script target = script_of(40), draft = target;
            const struct causal_lm large = script_lm(&target);
            const struct causal_lm small = script_lm(&draft);
            int32_t ids[3];
            text_of(&target, 41, 3, 3, ids);
            const struct generate_input input = request_of(ids, 3, budget);
            const struct speculative_counts counts =
                expect_lossless(&large, &small, &input, most);
            const int rounds = (budget + most) / (most + 1);
            ck_assert_int_eq(counts.accepted, counts.proposed);
            ck_assert_int_eq(counts.replaced, 0);
            ck_assert_int_eq(counts.bonus, rounds);
            ck_assert_int_eq(counts.accepted, budget - rounds);
            ck_assert_int_eq(counts.target_calls, rounds + (budget > 0));
        }
}
END_TEST

START_TEST(a_draft_that_is_never_right_costs_calls_and_no_token)
{
    for (int most = 1; most <= 8; most++)
        for (int budget = 0; budget <= 12; budget++) {
            struct script target = script_of(42), draft = target;
            const struct causal_lm large = script_lm(&target);
            const struct causal_lm small = script_lm(&draft);
            int32_t ids[3];
            text_of(&target, 43, 3, 3, ids);
            draft.wrong_at = always;
            const struct generate_input input = request_of(ids, 3, budget);
            const struct speculative_counts counts =
                expect_lossless(&large, &small, &input, most);
            ck_assert_int_eq(counts.accepted, 0);
            ck_assert_int_eq(counts.target_calls, budget + (budget > 0));
            ck_assert_int_eq(counts.bonus, budget > 0);
        }
}
END_TEST

START_TEST(a_long_prompt_is_read_in_chunks)
{
    const int prompts[] = {63, 64, 65, 66, 128, 129, 130, 200};
    for (int k = 0; k < 8; k++) {
        struct script target = script_of(46), draft = target;
        target.context_length = draft.context_length = 256;
        draft.wrong_at = in_turns;
        int32_t ids[256];
        text_of(&target, 47, prompts[k], prompts[k], ids);
        const struct causal_lm large = script_lm(&target);
        const struct causal_lm small = script_lm(&draft);
        const struct generate_input input = request_of(ids, prompts[k], 9);
        struct speculation *run = begin(&target, &draft, &input, 3);
        const int calls = target.calls;
        ck_assert_int_eq(calls, draft.calls);
        ck_assert_int_eq(calls, (prompts[k] + 62) / 64);
        for (int call = 0; call < calls; call++) {
            ck_assert_int_eq(target.call[call].length, 64 * call);
            ck_assert_int_eq(draft.call[call].length, 64 * call);
            ck_assert_int_le(target.call[call].tokens, 64);
            ck_assert_int_le(draft.call[call].tokens, 64);
        }
        ck_assert_int_eq(speculation_view(run).target_cached, prompts[k] - 1);
        ck_assert_int_eq(speculation_view(run).draft_cached, prompts[k] - 1);
        speculation_free(&run);
        expect_lossless(&large, &small, &input, 3);
    }
}
END_TEST

START_TEST(no_script_of_a_draft_changes_a_token)
{
    uint64_t state = noise_start(44);
    bool (*const modes[])(const struct script *, int) = {
        NULL, always, in_turns, by_chance, between
    };
    for (int n = 0; n < 600; n++) {
        struct script target = script_of(1000 + (unsigned)n);
        target.vocab_size = 2 + noise_below(&state, 9);
        struct script draft = target;
        draft.wrong_at = modes[noise_below(&state, 5)];
        draft.from = noise_below(&state, 20);
        draft.until = draft.from + noise_below(&state, 20);
        if (noise_below(&state, 6) == 0)
            draft.salt++;        /* another opinion altogether */
        target.context_length = 2 + noise_below(&state, 30);
        draft.context_length = target.context_length
                               + noise_below(&state, 3);
        const int tokens = 1 + noise_below(&state, noise_below(&state, 2) == 0
                                           ? 1 : target.context_length - 1);
        const int room = target.context_length - tokens;
        int32_t ids[LONG];
        text_of(&target, 2000 + (unsigned)n, tokens, tokens, ids);
        struct generate_input input = request_of(
            ids, tokens, noise_below(&state, 2) == 0
                ? room : noise_below(&state, room + 1));
        if (noise_below(&state, 2) == 0)
            input.eos_token_id = noise_below(&state, target.vocab_size);
        const struct causal_lm large = script_lm(&target);
        const struct causal_lm small = script_lm(&draft);
        expect_lossless(&large, &small, &input, 1 + noise_below(&state, 8));
    }
}
END_TEST

/* ---------------------------------------------------------- tiny GPTs, too */

static struct tiny_gpt *gpt(int vocab_size, int context, int d_model,
                            int layers, int heads, unsigned stream)
{
    const struct gpt_config config = {
        .vocab_size = vocab_size, .context_length = context,
        .d_model = d_model, .n_layers = layers, .n_heads = heads,
        .d_ff = d_model + 3, .layer_norm_eps = 1e-5
    };
    return noisy_model(&config, stream);
}

/* Adds noise to every weight: a relative that agrees now and then. */
static void disturb(struct tiny_gpt *model, unsigned stream, float amount)
{
    struct parameters *p = tiny_gpt_parameters(model);
    uint64_t state = noise_start(stream);
    for (size_t k = 0; k < p->size; k++)
        p->storage[k] += amount * noise(&state);
}

START_TEST(no_model_as_a_draft_changes_a_token)
{
    uint64_t state = noise_start(45);
    int accepted = 0, replaced = 0;
    for (int n = 0; n < 30; n++) {
        const unsigned stream = 3000 + (unsigned)n;
        struct tiny_gpt *large = gpt(11, 26, 12, 2, 3, stream), *small;
        if (n % 3 == 0)
            small = gpt(11, 26 + n, 6, 1, 2, stream + 100);
        else {
            small = gpt(11, 26, 12, 2, 3, stream);
            if (n % 3 == 2)
                disturb(small, stream + 200, 0.2f);
        }
        const struct causal_lm target = tiny_gpt_causal_lm(large);
        const struct causal_lm draft = tiny_gpt_causal_lm(small);
        for (int k = 1; k <= 8; k++) {
            const int tokens = 1 + noise_below(&state, 6);
            int32_t ids[6];
            for (int t = 0; t < tokens; t++)
                ids[t] = noise_below(&state, 11);
            struct generate_input input = request_of(ids, tokens,
                                                     26 - tokens);
            if (noise_below(&state, 3) == 0)
                input.eos_token_id = noise_below(&state, 11);
            const struct speculative_counts counts =
                expect_lossless(&target, &draft, &input, k);
            if (n % 3 == 1)
                ck_assert_int_eq(counts.replaced, 0);
            if (n % 3 == 2) {
                accepted += counts.accepted;
                replaced += counts.replaced;
            }
        }
        tiny_gpt_free(&small);
        tiny_gpt_free(&large);
    }
    ck_assert_int_gt(accepted, 50);      /* relatives agree now and then */
    ck_assert_int_gt(replaced, 50);
}
END_TEST

/* --------------------------------------------------------- a temperature */

/* What the target alone says next, in words of p: one path through hashes. */
static void exact(const struct script *script, const int32_t *ids, int tokens,
                  double temperature, double *p)
{
    uint32_t hash = 0;
    float logits[64];
    double sum = 0;
    for (int t = 0; t < tokens; t++)
        hash = script_hash(hash, ids[t], t);
    script_logits(script, hash, tokens - 1, logits);
    for (int i = 0; i < script->vocab_size; i++)
        sum += p[i] = exp((double)logits[i] / temperature);
    for (int i = 0; i < script->vocab_size; i++)
        p[i] /= sum;
}

enum { PAIRS = 16, RUNS = 20000 };

/* Probabilities of the 16 pairs of tokens at places from, from + 1 of a text
   of `length` tokens behind a prompt. */
static void exact_pairs(const struct script *script, const int32_t *ids,
                        int tokens, int length, int from, double temperature,
                        double before, double *pairs)
{
    double p[4];
    int32_t text[16];
    if (tokens == length) {
        pairs[4 * ids[from] + ids[from + 1]] += before;
        return;
    }
    exact(script, ids, tokens, temperature, p);
    memcpy(text, ids, (size_t)tokens * sizeof *text);
    for (int32_t id = 0; id < 4; id++) {
        text[tokens] = id;
        exact_pairs(script, text, tokens + 1, length, from, temperature,
                    before * p[id], pairs);
    }
}

/* Texts of 2 + 4 tokens, sampled: pairs of neighbours against the product of
   the target's probabilities. With most 0 by the plain sampler. */
static void expect_pairs(double temperature, int most, unsigned stream)
{
    struct script target = script_of(50), draft = script_of(51);
    struct generator generator = seeded(stream);
    int32_t ids[6] = {2, 1};
    int seen[3][PAIRS] = {{0}};
    target.vocab_size = draft.vocab_size = 4;
    target.shares = target_shares;
    draft.shares = draft_shares;
    const struct causal_lm large = script_lm(&target);
    const struct causal_lm small = script_lm(&draft);
    struct generate_input input = request_of(ids, 2, 4);
    input.temperature = temperature;
    input.generator = &generator;
    for (int n = 0; n < RUNS; n++) {
        struct speculative_output output = {0};
        int32_t text[6] = {2, 1};
        if (most > 0) {
            expect_ok(speculative_generate(&large, &small, &input, most,
                                           &output, &error), &error);
            ck_assert_int_eq(output.tokens, 6);
            memcpy(text, output.ids, sizeof text);
            speculative_output_free(&output);
        } else
            for (int t = 2; t < 6; t++) {
                uint32_t hash = 0;
                float logits[4];
                for (int s = 0; s < t; s++)
                    hash = script_hash(hash, text[s], s);
                script_logits(&target, hash, t - 1, logits);
                expect_ok(sampler_sample(logits, 4, temperature, &generator,
                                         &text[t], &error), &error);
            }
        for (int k = 0; k < 3; k++)
            seen[k][4 * text[2 + k] + text[3 + k]]++;
    }
    for (int k = 0; k < 3; k++) {
        double pairs[PAIRS] = {0};
        char what[64];
        exact_pairs(&target, ids, 2, 6, 2 + k, temperature, 1, pairs);
        snprintf(what, sizeof what, "tokens %d and %d, K %d, temperature %g",
                 k, k + 1, most, temperature);
        expect_frequencies(what, pairs, PAIRS, seen[k], RUNS);
    }
}

START_TEST(the_plain_sampler_meets_the_bound_of_these_tests)
{
    expect_pairs(1, 0, 52);
}
END_TEST

START_TEST(sampled_texts_are_distributed_as_the_targets)
{
    for (int most = 1; most <= 4; most++)
        expect_pairs(1, most, 52 + (unsigned)most);
    expect_pairs(0.6, 2, 58);
    expect_pairs(3, 3, 59);
}
END_TEST

START_TEST(a_tiny_temperature_is_greedy)
{
    uint64_t state = noise_start(60);
    for (int n = 0; n < 100; n++) {
        struct script target = script_of(4000 + (unsigned)n), draft = target;
        struct generator generator = seeded(61 + (unsigned)n);
        int32_t ids[30];
        draft.wrong_at = n % 2 == 0 ? by_chance : in_turns;
        text_of(&target, 5000 + (unsigned)n, 2, 30, ids);
        const struct causal_lm large = script_lm(&target);
        const struct causal_lm small = script_lm(&draft);
        struct generate_input input = request_of(ids, 2, 28);
        input.temperature = n % 3 == 0 ? 4.9e-324 : 1e-30;
        input.generator = &generator;
        struct speculative_output output = {0};
        expect_ok(speculative_generate(&large, &small, &input,
                                       1 + noise_below(&state, 8), &output,
                                       &error), &error);
        ck_assert_int_eq(output.tokens, 30);
        expect_ids(output.ids, ids, 30);
        speculative_output_free(&output);
    }
}
END_TEST

START_TEST(a_run_makes_the_draws_that_it_says)
{
    for (int most = 1; most <= 8; most++) {
        struct script target = script_of(62), draft = script_of(63);
        struct generator generator = seeded(64), copy = generator;
        struct generator again = generator;
        target.vocab_size = draft.vocab_size = 4;
        target.shares = target_shares;
        draft.shares = draft_shares;
        const int32_t ids[2] = {1, 1};
        const struct causal_lm large = script_lm(&target);
        const struct causal_lm small = script_lm(&draft);
        struct generate_input input = request_of(ids, 2, 30);
        input.temperature = 0.9;
        input.generator = &generator;
        struct speculative_output output = {0}, second = {0};
        expect_ok(speculative_generate(&large, &small, &input, most, &output,
                                       &error), &error);
        const struct speculative_counts *c = &output.counts;
        for (int n = c->proposed + c->accepted + 2 * c->replaced + c->bonus;
             n > 0; n--)
            (void)generator_next(&copy);
        ck_assert_uint_eq(generator.state, copy.state);
        input.generator = &again;
        expect_ok(speculative_generate(&large, &small, &input, most, &second,
                                       &error), &error);
        ck_assert_int_eq(second.tokens, output.tokens);
        expect_ids(second.ids, output.ids, output.tokens);
        speculative_output_free(&output);
        speculative_output_free(&second);
    }
}
END_TEST

/* ------------------------------------------------------------ the contract */

struct watcher {
    int32_t ids[LONG];
    int count, patience;
};

static bool watch(void *context, const int32_t *ids, int batch)
{
    struct watcher *watcher = context;
    ck_assert_int_eq(batch, 1);
    watcher->ids[watcher->count++] = ids[0];
    return watcher->count < watcher->patience;
}

START_TEST(a_watcher_sees_each_token_and_may_stop_behind_any)
{
    for (int patience = 1; patience <= 20; patience++)
        for (int mode = 0; mode < 2; mode++) {
            struct script target = script_of(65), draft = target;
            struct watcher watcher = {.patience = patience};
            int32_t ids[24];
            draft.wrong_at = mode == 0 ? NULL : in_turns;
            text_of(&target, 66, 3, 24, ids);
            const struct causal_lm large = script_lm(&target);
            const struct causal_lm small = script_lm(&draft);
            struct generate_input input = request_of(ids, 3, 21);
            input.on_step = watch;
            input.context = &watcher;
            struct speculative_output output = {0};
            expect_ok(speculative_generate(&large, &small, &input, 4, &output,
                                           &error), &error);
            ck_assert_int_eq(watcher.count, patience);
            ck_assert_int_eq(output.tokens, 3 + patience);
            expect_ids(output.ids, ids, 3 + patience);
            expect_ids(watcher.ids, ids + 3, patience);
            const struct speculative_counts *c = &output.counts;
            ck_assert_int_eq(c->accepted + c->replaced + c->bonus, patience);
            speculative_output_free(&output);
        }
}
END_TEST

START_TEST(no_new_tokens_are_a_copy_and_no_call)
{
    for (int tokens = 1; tokens < 4; tokens++) {
        struct script target = script_of(67), draft = target;
        int32_t ids[3];
        text_of(&target, 68, tokens, tokens, ids);
        const struct causal_lm large = script_lm(&target);
        const struct causal_lm small = script_lm(&draft);
        const struct generate_input input = request_of(ids, tokens, 0);
        const struct speculative_counts counts =
            expect_lossless(&large, &small, &input, 3);
        const struct speculative_counts none = {0};
        expect_same_bits("counts", &counts, &none, sizeof none);
    }
}
END_TEST

START_TEST(the_context_can_be_filled_and_not_exceeded)
{
    for (int tokens = 1; tokens <= 9; tokens++)
        for (int most = 1; most <= 8; most++) {
            struct script target = script_of(69), draft = target;
            target.context_length = 9;
            draft.context_length = 9 + most % 2;
            int32_t ids[9];
            text_of(&target, 70, tokens, tokens, ids);
            const struct causal_lm large = script_lm(&target);
            const struct causal_lm small = script_lm(&draft);
            struct generate_input input = request_of(ids, tokens, 9 - tokens);
            expect_lossless(&large, &small, &input, most);
            struct speculative_output output = {0};
            const int calls = target.calls + draft.calls;
            input.max_new_tokens++;
            expect_refusal(speculative_generate(&large, &small, &input, most,
                                                &output, &error),
                           "max_new_tokens");
            expect_refusal(speculative_generate(&small, &large, &input, most,
                                                &output, &error),
                           "max_new_tokens");
            ck_assert_int_eq(target.calls + draft.calls, calls);
            ck_assert_ptr_null(output.ids);
        }
}
END_TEST

/* Every refusal leaves output, generator and models alone. */
static void refused(struct generate_input input, int most, const char *name)
{
    struct script target = script_of(71), draft = target;
    struct generator generator = seeded(72), before = generator;
    const struct causal_lm large = script_lm(&target);
    const struct causal_lm small = script_lm(&draft);
    struct speculative_output output = {0};
    struct speculation *run = NULL;
    if (input.generator != NULL)
        input.generator = &generator;
    const long calls = allocator_calls();
    const enum status status = speculative_generate(&large, &small, &input,
                                                    most, &output, &error);
    ck_assert_int_eq(allocator_calls() - calls, 0);
    expect_refusal(status, name);
    expect_refusal(speculation_new(&run, &large, &small, &input, most,
                                   &error), name);
    ck_assert_ptr_null(output.ids);
    ck_assert_ptr_null(run);
    ck_assert_int_eq(target.calls + draft.calls, 0);
    ck_assert_uint_eq(generator.state, before.state);
}

START_TEST(what_cannot_be_carried_out_is_refused_by_name)
{
    const int32_t ids[3] = {1, 6, 2};
    struct generator any = seeded(73);
    const struct generate_input good = request_of(ids, 3, 5);
    struct generate_input bad = good;
    bad.ids = NULL;
    refused(bad, 3, "ids");
    for (int batch = -1; batch < 4; batch++)
        if (batch != 1) {
            bad = good;
            bad.batch = batch;
            refused(bad, 3, "batch");
        }
    const int tokens[] = {0, -1, LONG + 1, INT_MAX};
    for (int k = 0; k < 4; k++) {
        bad = good;
        bad.tokens = tokens[k];
        refused(bad, 3, "tokens");
    }
    const int limits[] = {-1, LONG - 2, INT_MAX, INT_MIN};
    for (int k = 0; k < 4; k++) {
        bad = good;
        bad.max_new_tokens = limits[k];
        refused(bad, 3, "max_new_tokens");
    }
    const int proposals[] = {0, -1, INT_MIN};
    for (int k = 0; k < 3; k++)
        refused(good, proposals[k], "draft_tokens");
    const int32_t wrong[] = {-1, V, INT_MAX, INT_MIN};
    for (int k = 0; k < 4; k++)
        for (int budget = 0; budget < 2; budget++) {
            const int32_t other[3] = {1, wrong[k], 2};
            bad = request_of(other, 3, budget);
            refused(bad, 3, "ids[1]");
        }
    const int32_t ends[] = {-2, V, INT_MAX};
    for (int k = 0; k < 3; k++) {
        bad = good;
        bad.eos_token_id = ends[k];
        refused(bad, 3, "eos_token_id");
    }
    const double temperatures[] = {-1e-300, -1, NAN, INFINITY, -INFINITY};
    for (int k = 0; k < 5; k++) {
        bad = good;
        bad.temperature = temperatures[k];
        bad.generator = &any;
        refused(bad, 3, "temperature");
    }
    bad = good;
    bad.temperature = 1;
    refused(bad, 3, "generator");
}
END_TEST

START_TEST(models_that_do_not_fit_each_other_are_refused)
{
    struct script target = script_of(74), draft = target;
    const int32_t ids[3] = {1, 2, 3};
    const struct generate_input input = request_of(ids, 3, 5);
    struct speculative_output output = {0};
    const struct causal_lm large = script_lm(&target);
    struct causal_lm small = script_lm(&draft);
    expect_refusal(speculative_generate(NULL, &small, &input, 3, &output,
                                        &error), "target");
    expect_refusal(speculative_generate(&large, NULL, &input, 3, &output,
                                        &error), "draft");
    expect_refusal(speculative_generate(&large, &small, NULL, 3, &output,
                                        &error), "input");
    expect_refusal(speculative_generate(&large, &small, &input, 3, NULL,
                                        &error), "output");
    for (int k = -1; k <= 1; k += 2) {
        small.vocab_size = V + k;
        expect_refusal(speculative_generate(&large, &small, &input, 3,
                                            &output, &error),
                       "draft: vocab_size");
    }
    small.vocab_size = V;
    small.context_length = 7;
    expect_refusal(speculative_generate(&large, &small, &input, 3, &output,
                                        &error), "max_new_tokens");
    small.context_length = 2;
    expect_refusal(speculative_generate(&large, &small, &input, 3, &output,
                                        &error), "tokens");
    int32_t used[1];
    output.ids = used;
    expect_refusal(speculative_generate(&large, &large, &input, 3, &output,
                                        &error), "output");
    ck_assert_ptr_eq(output.ids, used);
    ck_assert_int_eq(target.calls + draft.calls, 0);
}
END_TEST

START_TEST(a_run_that_fails_changes_nothing)
{
    for (int at = 2; at < 12; at++) {
        struct script target = script_of(75), draft = target;
        struct generator generator = seeded(76), before = generator;
        const int32_t ids[3] = {1, 2, 3};
        target.nan_at = at;
        const struct causal_lm large = script_lm(&target);
        const struct causal_lm small = script_lm(&draft);
        for (int temperature = 0; temperature < 2; temperature++) {
            struct generate_input input = request_of(ids, 3, 10);
            struct speculative_output output = {0};
            input.temperature = temperature;
            input.generator = &generator;
            const long live = allocator_live();
            const enum status status = speculative_generate(
                &large, &small, &input, 3, &output, &error);
            const long left = allocator_live() - live;
            expect_refusal(status, "logits");
            ck_assert_int_eq(left, 0);
            ck_assert_ptr_null(output.ids);
            ck_assert_uint_eq(generator.state, before.state);
        }
    }
}
END_TEST

START_TEST(rounds_allocate_nothing)
{
    struct tiny_gpt *large = gpt(11, 40, 12, 2, 3, 77);
    struct tiny_gpt *small = gpt(11, 40, 6, 1, 2, 78);
    const struct causal_lm target = tiny_gpt_causal_lm(large);
    const struct causal_lm draft = tiny_gpt_causal_lm(small);
    struct generator generator = seeded(79);
    const int32_t ids[4] = {3, 1, 4, 1};
    for (int temperature = 0; temperature < 2; temperature++)
        for (int most = 1; most <= 8; most++) {
            struct generate_input input = request_of(ids, 4, 36);
            struct speculation *run = NULL;
            input.temperature = temperature;
            input.generator = &generator;
            expect_ok(speculation_new(&run, &target, &draft, &input, most,
                                      &error), &error);
            int rounds = 0;
            const long calls = allocator_calls();
            for (; !speculation_view(run).done; rounds++)
                if (speculation_round(run, &error) != STATUS_OK)
                    break;
            const long made = allocator_calls() - calls;
            ck_assert_int_eq(made, 0);
            ck_assert_int_eq(speculation_view(run).tokens, 40);
            ck_assert_int_gt(rounds, 3);
            speculation_free(&run);
            ck_assert_ptr_null(run);
        }
    speculation_free(NULL);
    tiny_gpt_free(&small);
    tiny_gpt_free(&large);
}
END_TEST

START_TEST(every_failed_allocation_is_an_error_without_a_leak)
{
    struct tiny_gpt *large = gpt(11, 20, 12, 2, 3, 80);
    struct tiny_gpt *small = gpt(11, 20, 6, 1, 2, 81);
    const struct causal_lm target = tiny_gpt_causal_lm(large);
    const struct causal_lm draft = tiny_gpt_causal_lm(small);
    const int32_t ids[4] = {3, 1, 4, 1};
    for (int temperature = 0; temperature < 2; temperature++)
        for (int part = 0; part < 2; part++)
            for (long n = 1; ; n++) {
                struct generator generator = seeded(82), before = generator;
                struct generate_input input = request_of(ids, 4, 9);
                struct speculative_output output = {0};
                struct speculation *run = NULL;
                input.temperature = temperature;
                input.generator = &generator;
                const long live = allocator_live();
                allocator_fail_at(n);
                const enum status status = part == 0
                    ? speculative_generate(&target, &draft, &input, 3,
                                           &output, &error)
                    : speculation_new(&run, &target, &draft, &input, 3,
                                      &error);
                const long left = allocator_live() - live;
                const bool failed = allocator_stop();
                if (!failed) {
                    expect_ok(status, &error);
                    speculative_output_free(&output);
                    speculation_free(&run);
                    ck_assert_int_gt(n, 10);
                    break;
                }
                ck_assert_int_eq(status, STATUS_NO_MEMORY);
                ck_assert_int_eq(left, 0);
                ck_assert_ptr_null(output.ids);
                ck_assert_ptr_null(run);
                ck_assert_uint_eq(generator.state, before.state);
            }
    tiny_gpt_free(&small);
    tiny_gpt_free(&large);
}
END_TEST

/* ------------------------------------------------------------ the command */

static char said[65536];

static int shell(const char *line)
{
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    size_t length = fread(said, 1, sizeof said - 1, pipe);
    said[length] = '\0';
    int status = pclose(pipe);
    ck_assert_msg(WIFEXITED(status), "%s: killed", line);
    return WEXITSTATUS(status);
}

static void put_on_disk(const struct tiny_gpt *model, char *directory)
{
    sprintf(directory, "%s/12-XXXXXX", harness_scratch());
    ck_assert_ptr_nonnull(mkdtemp(directory));
    expect_ok(tiny_gpt_save(model, directory, &error), &error);
}

static void take_off_disk(const char *directory)
{
    char line[256];
    snprintf(line, sizeof line, "rm -r '%s'", directory);
    ck_assert_int_eq(shell(line), 0);
}

START_TEST(the_command_speculates_and_counts)
{
    struct tiny_gpt *large = gpt(11, 40, 12, 2, 3, 83);
    struct tiny_gpt *small = gpt(11, 40, 12, 2, 3, 83);
    struct tiny_gpt *other = gpt(12, 40, 12, 2, 3, 83);
    char model[64], draft[64], stranger[64], line[1024], plain[4096];
    disturb(small, 84, 0.1f);
    put_on_disk(large, model);
    put_on_disk(small, draft);
    put_on_disk(other, stranger);
    const char *const forms[] = {"", "--json"};
    for (int form = 0; form < 2; form++) {
        snprintf(line, sizeof line, "'%s' generate --model %s --prompt-ids "
                 "5,3,8 --max-new-tokens 37 %s", harness_program(), model,
                 forms[form]);
        ck_assert_int_eq(shell(line), 0);
        strcpy(plain, said);
        snprintf(line, sizeof line, "'%s' generate --model %s --prompt-ids "
                 "5,3,8 --max-new-tokens 37 --speculative %s --draft-tokens 3"
                 " %s", harness_program(), model, draft, forms[form]);
        ck_assert_int_eq(shell(line), 0);
        ck_assert_str_eq(said, plain);
    }
    strcat(line, " --stats 2>&1 >/dev/null");
    ck_assert_int_eq(shell(line), 0);
    const struct causal_lm target = tiny_gpt_causal_lm(large);
    const struct causal_lm guesser = tiny_gpt_causal_lm(small);
    const int32_t ids[3] = {5, 3, 8};
    const struct generate_input input = request_of(ids, 3, 37);
    const struct speculative_counts c = expect_lossless(&target, &guesser,
                                                        &input, 3);
    snprintf(plain, sizeof plain, "speculation: %d of %d proposals accepted "
             "(%.1f %%)\ncalls: %d of the target, %d of the draft\n",
             c.accepted, c.proposed, 100.0 * c.accepted / c.proposed,
             c.target_calls, c.draft_calls);
    ck_assert_msg(strstr(said, plain) != NULL, "\"%s\" has no \"%s\"", said,
                  plain);
    const char *const bad[][3] = {
        {"--draft-tokens 3", "2", "--speculative"},
        {"--speculative DIR --draft-tokens 0", "2", "--draft-tokens"},
        {"--speculative", "2", "--speculative"},
        {"--speculative /nowhere", "1", "/nowhere"},
        {"--speculative DIR --prefill-chunk 2", "2", "--prefill-chunk"},
    };
    for (int k = 0; k < 5; k++) {
        snprintf(line, sizeof line, "'%s' generate --model %s --prompt-ids 1 "
                 "--max-new-tokens 2 %s 2>&1 >/dev/null", harness_program(),
                 model, bad[k][0]);
        ck_assert_int_eq(shell(line), bad[k][1][0] - '0');
        ck_assert_msg(strstr(said, bad[k][2]) != NULL, "%s", said);
    }
    snprintf(line, sizeof line, "'%s' generate --model %s --prompt-ids 1 "
             "--max-new-tokens 2 --speculative %s 2>&1", harness_program(),
             model, stranger);
    ck_assert_int_eq(shell(line), 1);
    ck_assert_msg(strstr(said, "vocab_size") != NULL, "%s", said);
    take_off_disk(model);
    take_off_disk(draft);
    take_off_disk(stranger);
    tiny_gpt_free(&large);
    tiny_gpt_free(&small);
    tiny_gpt_free(&other);
}
END_TEST

/* -------------------------------------------------------------- the table */

static const struct test tests[] = {
    TEST(probabilities_are_the_softmax_at_the_temperature, 3,
         "bring the logits to probabilities"),
    TEST(extreme_temperatures_give_one_id_or_all, 3,
         "bring the logits to probabilities"),
    TEST(a_draw_gives_each_id_its_share_of_any_sum, 3,
         "let target be a uniform point below the sum"),
    TEST(an_id_of_no_weight_is_never_drawn, 3,
         "let target be a uniform point below the sum"),
    TEST(a_proposal_is_kept_whenever_p_over_q_says_so, 3,
         "keep the proposal with probability p over q"),
    TEST(an_id_that_the_target_rules_out_is_never_said, 3,
         "leave in q what p has more"),
    TEST(equal_distributions_need_no_residual, 3,
         "draw from what is left, or from p"),
    TEST(a_refused_proposal_gives_way_to_what_the_target_has_more, 3,
         "draw from what is left, or from p"),
    TEST(answers_to_drawn_proposals_are_distributed_as_the_target, 3,
         "answer a proposal that was drawn"),

    TEST(a_round_proposes_no_more_than_leaves_the_target_a_place, 2,
         "let room be the proposals that leave the target a place"),
    TEST(one_call_reads_the_waiting_token_and_the_proposals, 2,
         "let the target read its last token and the proposals"),
    TEST(a_round_keeps_what_is_before_the_first_mismatch, 2,
         "count the proposals that the target says too"),
    TEST(any_number_of_proposals_may_be_allowed, 2,
         "let most be the proposals of the longest round"),
    TEST(the_draft_reads_all_that_it_has_not_seen, 2,
         "let the draft read what it has not seen"),
    TEST(behind_an_end_nothing_is_proposed, 2,
         "stop proposing behind an end"),
    TEST(between_rounds_each_cache_is_the_text_but_its_last_token, 2,
         "cut both caches back to the text"),
    TEST(rows_behind_a_mismatch_need_not_be_numbers, 2,
         "refuse the row if it is not made of numbers"),
    TEST(an_accepted_eos_ends_the_text_and_the_round, 3,
         "end the text where it says EOS"),
    TEST(a_round_that_fails_has_not_been, 2, "forget a round that failed"),

    TEST(a_draft_that_is_the_target_has_every_proposal_accepted, 3,
         "say the accepted, cut, say the target's own"),
    TEST(a_draft_that_is_never_right_costs_calls_and_no_token, 3,
         "say the accepted, cut, say the target's own"),
    TEST(no_script_of_a_draft_changes_a_token, 3,
         "say the accepted, cut, say the target's own"),
    TEST(no_model_as_a_draft_changes_a_token, 3,
         "say the accepted, cut, say the target's own"),

    TEST(the_plain_sampler_meets_the_bound_of_these_tests, 3,
         "draw the proposal from q"),
    TEST(sampled_texts_are_distributed_as_the_targets, 3,
         "draw the proposal from q"),
    TEST(a_tiny_temperature_is_greedy, 3, "answer one proposal"),
    TEST(a_run_makes_the_draws_that_it_says, 3, "answer one proposal"),

    TEST(a_watcher_sees_each_token_and_may_stop_behind_any, 3,
         "say one token"),
    TEST(a_long_prompt_is_read_in_chunks, 2,
         "read all of the prompt but its last token"),
    TEST(no_new_tokens_are_a_copy_and_no_call, 3,
         "read all of the prompt but its last token"),
    TEST(the_context_can_be_filled_and_not_exceeded, 2,
         "make room for the text and its rounds"),
    TEST(what_cannot_be_carried_out_is_refused_by_name, 3,
         "refuse ids and options out of range"),
    TEST(models_that_do_not_fit_each_other_are_refused, 3,
         "refuse models that do not fit each other"),
    TEST(a_run_that_fails_changes_nothing, 3,
         "rounds until the text is done"),
    TEST(rounds_allocate_nothing, 2, "allocate the text and the probabilities"),
    TEST(every_failed_allocation_is_an_error_without_a_leak, 3,
         "begin and end a run that speculates"),
    TEST(the_command_speculates_and_counts, 3,
         "generate runs of later chapters"),
};

SUITE("chapter 12, speculative decoding", tests);
