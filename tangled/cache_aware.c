#include "cache_aware.h"
#include <stdlib.h>
#include <string.h>
#include "sampler.h"

static enum status past_check(const struct causal_lm *lm,
                              const struct cache_aware_input *input,
                              struct error *error)
{
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    enum status status = past_key_values_check(input->past, &shape,
                                               input->batch, error);
    if (status != STATUS_OK)
        return status;
    const int slots = past_key_values_length(input->past);
    for (int b = 0; b < input->batch; b++) {
        const long length = input->cache_lengths[b];
        const long start = input->cache_start_positions[b];
        const long first = input->positions[b * input->tokens];
        if (length < 0 || length > slots)
            return error_set(error, STATUS_INVALID,
                             "cache_lengths[%d]: expected 0 to %d, got %ld", b, slots,
                             length);
        if (start < 0 || start + length != first)
            return error_set(error, STATUS_INVALID,
                             "cache_start_positions[%d]: expected %ld (position %ld"
                             " behind %ld cached tokens), got %ld", b, first - length,
                             first, length, start);
    }
    return STATUS_OK;
}

static enum status check(const struct causal_lm *lm,
                         const struct cache_aware_input *input,
                         const struct cache_aware_output *output,
                         struct error *error)
{
    const char *missing = lm == NULL ? "lm"
                          : input == NULL ? "input"
                          : output == NULL ? "output"
                          : input->ids == NULL ? "ids"
                          : input->positions == NULL ? "positions" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    if (output->logits.data != NULL || output->past_key_values.layers != NULL
        || output->cache_lengths != NULL || output->cache_start_positions != NULL)
        return error_set(error, STATUS_INVALID,
                         "output: expected an empty struct");
    const bool past = input->past != NULL;
    if ((input->cache_lengths != NULL) != past
        || (input->cache_start_positions != NULL) != past)
        return error_set(error, STATUS_INVALID,
                         "cache_lengths, cache_start_positions: expected %s",
                         past ? "both with a past" : "neither without a past");
    enum status status = tokens_check(lm, input->ids, input->positions,
                                      input->batch, input->tokens, error);
    if (status == STATUS_OK && input->past != NULL)
        status = past_check(lm, input, error);
    return status;
}

void cache_aware_output_free(struct cache_aware_output *output)
{
    if (output == NULL)
        return;
    tensor_free(&output->logits);
    past_key_values_free(&output->past_key_values);
    free(output->cache_lengths);
    free(output->cache_start_positions);
    *output = (struct cache_aware_output){0};
}

static enum status make_room(const struct causal_lm *lm,
                             const struct cache_aware_input *input,
                             struct cache_aware_output *made,
                             struct error *error)
{
    const struct gpt_config shape = cache_shape_config(&lm->cache);
    int longest = 0;
    const size_t batch = (size_t)input->batch;
    made->cache_lengths = calloc(batch, sizeof *made->cache_lengths);
    made->cache_start_positions = calloc(batch,
                                         sizeof *made->cache_start_positions);
    if (made->cache_lengths == NULL || made->cache_start_positions == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "cache_lengths: no memory for %d rows", input->batch);
    for (int b = 0; b < input->batch; b++) {
        const bool past = input->past != NULL;
        made->cache_lengths[b] = past ? input->cache_lengths[b] : 0;
        made->cache_start_positions[b] = past
            ? input->cache_start_positions[b]
            : input->positions[b * input->tokens];
        if (made->cache_lengths[b] > longest)
            longest = made->cache_lengths[b];
    }
    enum status status = past_key_values_new(&made->past_key_values, &shape,
                                             input->batch,
                                             longest + input->tokens, error);
    if (status == STATUS_OK)
        status = tensor_new(&made->logits, SHAPE(input->batch, input->tokens,
                                                 lm->vocab_size), error);
    return status;
}

static void copy_valid(const struct tensor *from, const int32_t *lengths,
                       struct tensor *to)
{
    const int batch = to->shape[0], heads = to->shape[1], dim = to->shape[3];
    const float *in = from->data;
    float *out = to->data;
    for (int b = 0; b < batch; b++)
        for (int h = 0; h < heads; h++) {
            memcpy(out, in, (size_t)lengths[b] * (size_t)dim * sizeof *out);
            in += (ptrdiff_t)from->shape[2] * dim;
            out += (ptrdiff_t)to->shape[2] * dim;
        }
}

static void copy_past(const struct past_key_values *past,
                      struct cache_aware_output *made)
{
    for (int l = 0; l < past->n_layers; l++) {
        struct layer_kv *layer = &made->past_key_values.layers[l];
        copy_valid(&past->layers[l].key, made->cache_lengths, &layer->key);
        copy_valid(&past->layers[l].value, made->cache_lengths,
                   &layer->value);
    }
}

static enum status compute(const struct causal_lm *lm,
                           const struct cache_aware_input *input,
                           struct cache_aware_output *made,
                           struct error *error)
{
    const struct past_key_values *storage = &made->past_key_values;
    if (input->past != NULL)
        copy_past(input->past, made);
    const struct step step = {
        .ids = input->ids, .positions = input->positions,
        .batch = input->batch, .tokens = input->tokens, .storage = storage,
        .lengths = made->cache_lengths, .logits = made->logits.data
    };
    const size_t floats = lm->scratch_size(lm->model, input->batch,
                                           input->tokens,
                                           past_key_values_length(storage));
    float *scratch = floats == SIZE_MAX ? NULL
                                        : malloc(floats * sizeof *scratch);
    if (scratch == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "scratch: no memory for %zu floats", floats);
    enum status status = causal_lm_step(lm, &step, scratch, floats, error);
    free(scratch);
    for (int b = 0; b < input->batch; b++) {
        made->cache_lengths[b] += input->tokens;
    }
    return status;
}

enum status cache_aware_forward(const struct causal_lm *lm,
                                const struct cache_aware_input *input,
                                struct cache_aware_output *output,
                                struct error *error)
{
    struct cache_aware_output made = {0};
    enum status status = check(lm, input, output, error);
    if (status == STATUS_OK)
        status = make_room(lm, input, &made, error);
    if (status == STATUS_OK)
        status = compute(lm, input, &made, error);
    if (status == STATUS_OK) {
        output->logits = made.logits;
        made.logits = (struct tensor){0};
        if (input->use_cache) {
            output->past_key_values = made.past_key_values;
            output->cache_lengths = made.cache_lengths;
            output->cache_start_positions = made.cache_start_positions;
            made = (struct cache_aware_output){0};
        }
    }
    cache_aware_output_free(&made);
    return status;
}

struct run {
    const struct causal_lm *lm;
    const struct generate_input *input;
    int stride;                  /* T + max_new_tokens */
    int steps;                   /* taken so far */
    int32_t *ids;                /* [B,stride] */
    int32_t *next;               /* [B] the step's choices */
    int32_t *positions;          /* [B,T] of the prompt, then [B] */
    bool *finished;              /* [B] rows that have said EOS */
    struct cache_aware_output last;
};

static enum status request_check(const struct causal_lm *lm,
                                 const struct generate_input *input,
                                 const struct generate_output *output,
                                 struct error *error)
{
    const char *missing = lm == NULL ? "lm"
                          : input == NULL ? "input"
                          : output == NULL ? "output"
                          : input->ids == NULL ? "ids" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    if (output->ids != NULL)
        return error_set(error, STATUS_INVALID,
                         "output: expected an empty struct");
    if (input->batch < 1)
        return error_set(error, STATUS_INVALID,
                         "batch: expected at least 1, got %d", input->batch);
    if (input->tokens < 1 || input->tokens > lm->context_length)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected 1 to %d, got %d", lm->context_length,
                         input->tokens);
    if (input->temperature != 0)
        return error_set(error, STATUS_INVALID,
                         "temperature: expected 0, got %g", input->temperature);
    if (input->max_new_tokens < 0
        || input->max_new_tokens > lm->context_length - input->tokens)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: expected 0 to %d, got %d",
                         lm->context_length - input->tokens,
                         input->max_new_tokens);
    if (input->eos_token_id < NO_EOS || input->eos_token_id >= lm->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "eos_token_id: expected %d to %d, got %ld", NO_EOS,
                         lm->vocab_size - 1, (long)input->eos_token_id);
    return STATUS_OK;
}

static void run_end(struct run *run)
{
    free(run->ids);
    free(run->next);
    free(run->positions);
    free(run->finished);
    cache_aware_output_free(&run->last);
}

static enum status prompt_check(const struct run *run, struct error *error)
{
    const struct generate_input *input = run->input;
    const int end = run->lm->context_length - 1;
    enum status status = tokens_check(run->lm, input->ids, run->positions,
                                      input->batch, input->tokens, error);
    for (int b = 0; b < input->batch && status == STATUS_OK; b++) {
        const int last = run->positions[(b + 1) * input->tokens - 1];
        if (input->max_new_tokens > end - last)
            status = error_set(error, STATUS_INVALID,
                               "max_new_tokens: row %d ends at position %d of %d and"
                               " cannot take %d more", b, last, end,
                               input->max_new_tokens);
    }
    return status;
}

static enum status run_begin(struct run *run, const int32_t *positions,
                             struct error *error)
{
    const size_t batch = (size_t)run->input->batch;
    const size_t tokens = (size_t)run->input->tokens;
    run->ids = calloc(batch, (size_t)run->stride * sizeof *run->ids);
    run->next = calloc(batch, sizeof *run->next);
    run->positions = calloc(batch, tokens * sizeof *run->positions);
    run->finished = calloc(batch, sizeof *run->finished);
    if (run->ids == NULL || run->next == NULL || run->positions == NULL
        || run->finished == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "generate: no memory for %d rows of %d ids",
                         run->input->batch, run->stride);
    for (size_t b = 0; b < batch; b++) {
        memcpy(run->ids + b * (size_t)run->stride, run->input->ids + b * tokens,
               tokens * sizeof *run->ids);
        for (size_t t = 0; t < tokens; t++)
            run->positions[b * tokens + t] =
                positions == NULL ? (int32_t)t : positions[b * tokens + t];
    }
    return prompt_check(run, error);
}

static enum status call_model(struct run *run, struct error *error)
{
    struct cache_aware_output output = {0};
    struct cache_aware_input input = {
        .ids = run->input->ids, .positions = run->positions,
        .batch = run->input->batch, .tokens = run->input->tokens,
        .use_cache = true
    };
    if (run->steps > 0) {
        input.ids = run->next;
        input.tokens = 1;
        input.past = &run->last.past_key_values;
        input.cache_lengths = run->last.cache_lengths;
        input.cache_start_positions = run->last.cache_start_positions;
        for (int b = 0; b < input.batch; b++)
            run->positions[b] = input.cache_start_positions[b]
                                + input.cache_lengths[b];
    }
    enum status status = cache_aware_forward(run->lm, &input, &output, error);
    if (status != STATUS_OK)
        return status;
    cache_aware_output_free(&run->last);
    run->last = output;
    return STATUS_OK;
}

static enum status choose(struct run *run, struct error *error)
{
    const int vocab_size = run->lm->vocab_size;
    const size_t tokens = (size_t)run->last.logits.shape[1];
    for (size_t b = 0; b < (size_t)run->input->batch; b++) {
        const float *logits = run->last.logits.data
                              + ((b + 1) * tokens - 1) * (size_t)vocab_size;
        enum status status = sampler_check(logits, vocab_size, error);
        if (status != STATUS_OK)
            return status;
        const int32_t eos = run->input->eos_token_id;
        run->next[b] = run->finished[b] ? eos : sampler_greedy(logits, vocab_size);
        run->finished[b] = run->next[b] == eos;
        run->ids[b * (size_t)run->stride
                 + (size_t)(run->input->tokens + run->steps)] = run->next[b];
    }
    run->steps++;
    return STATUS_OK;
}

static bool speaking(const struct run *run)
{
    for (int b = 0; b < run->input->batch; b++)
        if (!run->finished[b])
            return true;
    return false;
}

static enum status decode(struct run *run, struct error *error)
{
    const struct generate_input *input = run->input;
    enum status status = STATUS_OK;
    while (run->steps < input->max_new_tokens && speaking(run)) {
        status = call_model(run, error);
        if (status == STATUS_OK)
            status = choose(run, error);
        if (status != STATUS_OK)
            break;
        if (input->on_step != NULL
            && !input->on_step(input->context, run->next, input->batch))
            break;
    }
    return status;
}

enum status cache_aware_generate(const struct causal_lm *lm,
                                 const struct generate_input *input,
                                 const int32_t *positions,
                                 struct generate_output *output,
                                 struct error *error)
{
    enum status status = request_check(lm, input, output, error);
    if (status != STATUS_OK)
        return status;
    struct run run = {.lm = lm, .input = input,
                      .stride = input->tokens + input->max_new_tokens};
    status = run_begin(&run, positions, error);
    if (status == STATUS_OK)
        status = decode(&run, error);
    if (status == STATUS_OK) {
        const size_t width = (size_t)(input->tokens + run.steps);
        for (size_t b = 1; b < (size_t)input->batch; b++)
            memmove(run.ids + b * width, run.ids + b * (size_t)run.stride,
                    width * sizeof *run.ids);
        *output = (struct generate_output){run.ids, input->batch, (int)width};
        run.ids = NULL;
    }
    run_end(&run);
    return status;
}
