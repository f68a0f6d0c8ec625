/* Chapter 15: routing by hand and by plain arithmetic, the family with
   experts against the oracle's numbers, and the caches of the second part
   around it. */
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include "expert_load.h"
#include "llama_experts.h"
#define LLAMA small_moe_config
#include "support/llama_matrix.h"

/* ------------------------------------------------------------ the golden */

START_TEST(a_mixture_of_experts_has_the_golden_numbers)
{
    struct golden *golden = golden_open("llama_moe");
    struct llama *model = golden_moe(golden);
    const struct causal_lm lm = llama_causal_lm(model);
    const struct golden_tensor *want = golden_get(golden, "out.logits");
    int32_t positions[2 * 9];
    for (int k = 0; k < 18; k++)
        positions[k] = k % 9;
    struct cache_aware_output output =
        whole(&lm, golden_get(golden, "in.ids")->ids, positions,
              want->shape[0], want->shape[1]);
    expect_golden_cache(golden, "out.past", &output.past_key_values);
    expect_close("logits", output.logits.data, want->f32, want->count,
                 want->rank, want->shape, TOLERANCE);
    cache_aware_output_free(&output);
    llama_free(&model);
    golden_close(golden);
}
END_TEST

static const struct test tests[] = {
    TEST(a_mixture_of_experts_has_the_golden_numbers, 2,
         "run a mixture of experts"),
    TEST(a_step_reads_and_writes_its_own_slots_and_allocates_nothing, 2,
         "run a mixture of experts"),
    TEST(the_last_rows_alone_are_the_last_of_all, 2,
         "run a mixture of experts"),
    TEST(a_call_survives_each_failed_allocation, 2,
         "run a mixture of experts"),
    TEST(the_labs_check_of_single_tokens, 3, "run a mixture of experts"),
    TEST(the_labs_check_of_chunks, 3, "run a mixture of experts"),
    TEST(the_labs_check_of_poisoned_padding, 3, "run a mixture of experts"),
    TEST(the_labs_check_of_ownership, 3, "run a mixture of experts"),
    TEST(the_labs_check_without_a_cache, 3, "run a mixture of experts"),
    TEST(the_labs_check_of_metadata, 3, "run a mixture of experts"),
    TEST(the_labs_check_of_positions, 3, "run a mixture of experts"),
    TEST(the_labs_check_of_greedy_tokens, 3, "run a mixture of experts"),
    TEST(the_labs_check_of_ended_rows, 3, "run a mixture of experts"),
    TEST(a_request_goes_on_behind_a_loaded_prefix_for_every_length, 3,
         "run a mixture of experts"),
    TEST(rows_of_different_lengths_run_as_they_do_alone, 3,
         "run a mixture of experts"),
    TEST(a_cut_request_goes_on_as_if_it_had_gone_no_further, 3,
         "run a mixture of experts"),
    TEST(a_prompt_in_chunks_of_any_size_gives_the_same_bits, 3,
         "run a mixture of experts"),
    TEST(a_stored_prefix_is_used_again_at_its_own_positions, 3,
         "run a mixture of experts"),
    TEST(greedy_tokens_are_those_of_a_model_without_a_cache, 3,
         "run a mixture of experts"),
    TEST(drafts_of_either_family_change_no_token, 3,
         "run a mixture of experts"),
};

SUITE("chapter 15, mixture of experts", tests);
