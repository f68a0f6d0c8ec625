#include "generate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sampler.h"
#include "mode.h"

struct run {
    struct tiny_gpt *model;
    const struct generate_input *input;
    int vocab_size;
    int stride;                  /* T + max_new_tokens */
    int32_t *ids;                /* [B, stride] */
    int32_t *next;               /* [B] the step's choices */
    bool *finished;              /* [B] rows that have emitted EOS */
    int steps;                   /* taken so far */
    struct generator generator;
    struct forward_output last;  /* logits to choose from, and the cache */
};

static enum status check(const struct tiny_gpt *model,
                         const struct generate_input *input,
                         const struct generate_output *output,
                         struct error *error)
{
    const char *missing = model == NULL ? "model"
                          : input == NULL ? "input"
                          : output == NULL ? "output"
                          : input->ids == NULL ? "ids" : NULL;
    if (missing != NULL)
        return error_set(error, STATUS_INVALID, "%s: is NULL", missing);
    if (output->ids != NULL)
        return error_set(error, STATUS_INVALID,
                         "output: expected an empty struct, got %d rows of ids",
                         output->batch);
    const struct gpt_config *config = tiny_gpt_config(model);
    if (input->batch < 1)
        return error_set(error, STATUS_INVALID,
                         "batch: expected at least one prompt, got %d",
                         input->batch);
    if (input->tokens < 1)
        return error_set(error, STATUS_INVALID,
                         "tokens: expected at least one prompt token, got %d",
                         input->tokens);
    if (input->max_new_tokens < 0)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: expected 0 or more, got %d",
                         input->max_new_tokens);
    if (input->max_new_tokens > config->context_length - input->tokens)
        return error_set(error, STATUS_INVALID,
                         "max_new_tokens: %d prompt tokens and %d new ones "
                         "exceed context_length %d", input->tokens,
                         input->max_new_tokens, config->context_length);
    for (int b = 0; b < input->batch; b++)
        for (int t = 0; t < input->tokens; t++) {
            int32_t id = input->ids[(size_t)b * (size_t)input->tokens
                                    + (size_t)t];
            if (id < 0 || id >= config->vocab_size)
                return error_set(error, STATUS_INVALID,
                                 "ids[%d,%d]: expected [0, %d), got %d", b, t,
                                 config->vocab_size, (int)id);
        }
    if (!(input->temperature >= 0) || isinf(input->temperature))
        return error_set(error, STATUS_INVALID,
                         "temperature: expected a finite number >= 0, got %g",
                         input->temperature);
    if (input->temperature > 0 && input->generator == NULL)
        return error_set(error, STATUS_INVALID,
                         "generator: temperature %g needs one, got none",
                         input->temperature);
    if (input->eos_token_id < NO_EOS
        || input->eos_token_id >= config->vocab_size)
        return error_set(error, STATUS_INVALID,
                         "eos_token_id: expected %d or [0, %d), got %d",
                         NO_EOS, config->vocab_size, (int)input->eos_token_id);
    return STATUS_OK;
}

static void run_free(struct run *run)
{
    free(run->ids);
    free(run->next);
    free(run->finished);
    forward_output_free(&run->last);
}

static enum status run_new(struct run *run, struct tiny_gpt *model,
                           const struct generate_input *input,
                           struct error *error)
{
    *run = (struct run){
        .model = model,
        .input = input,
        .vocab_size = tiny_gpt_config(model)->vocab_size,
        .stride = input->tokens + input->max_new_tokens,
    };
    if (input->generator != NULL)
        run->generator = *input->generator;
    size_t rows = (size_t)input->batch;
    run->ids = calloc(rows, (size_t)run->stride * sizeof *run->ids);
    run->next = calloc(rows, sizeof *run->next);
    run->finished = calloc(rows, sizeof *run->finished);
    if (run->ids == NULL || run->next == NULL || run->finished == NULL) {
        run_free(run);
        return error_set(error, STATUS_NO_MEMORY,
                         "generate: no memory for %d rows of %d ids",
                         input->batch, run->stride);
    }
    for (size_t b = 0; b < rows; b++)
        memcpy(run->ids + b * (size_t)run->stride,
               input->ids + b * (size_t)input->tokens,
               (size_t)input->tokens * sizeof *run->ids);
    return STATUS_OK;
}

static enum status predict(struct run *run, struct error *error)
{
    struct forward_input input = {
        .batch = run->input->batch,
        .use_cache = true,
    };
    struct forward_output output = { 0 };
    if (run->steps == 0) {
        input.ids = run->input->ids;
        input.tokens = run->input->tokens;
    } else {
        input.ids = run->next;
        input.tokens = 1;
        input.past_key_values = &run->last.past_key_values;
    }
    enum status status =
        tiny_gpt_forward(run->model, &input, &output, error);
    if (status != STATUS_OK)
        return status;
    forward_output_free(&run->last);
    run->last = output;
    return STATUS_OK;
}

static enum status choose(struct run *run, int b, int32_t *id,
                          struct error *error)
{
    double temperature = run->input->temperature;
    if (run->finished[b]) {
        *id = run->input->eos_token_id;
        if (temperature > 0)
            (void)generator_uniform(&run->generator);
        return STATUS_OK;
    }
    const struct tensor *all = &run->last.logits;
    size_t position = (size_t)b * (size_t)all->shape[1]
                      + (size_t)(all->shape[1] - 1);
    const float *logits = all->data + position * (size_t)run->vocab_size;
    if (temperature > 0)
        return sampler_sample(logits, run->vocab_size, temperature,
                              &run->generator, id, error);
    enum status status = sampler_check(logits, run->vocab_size, error);
    if (status == STATUS_OK)
        *id = sampler_greedy(logits, run->vocab_size);
    return status;
}

static enum status choose_all(struct run *run, struct error *error)
{
    size_t column = (size_t)(run->input->tokens + run->steps);
    for (int b = 0; b < run->input->batch; b++) {
        struct error reason;
        enum status status = choose(run, b, &run->next[b], &reason);
        if (status != STATUS_OK)
            return error_set(error, status, "step %d, row %d: %s",
                             run->steps, b, reason.message);
        run->ids[(size_t)b * (size_t)run->stride + column] = run->next[b];
        if (run->next[b] == run->input->eos_token_id)
            run->finished[b] = true;
    }
    run->steps++;
    return STATUS_OK;
}

static bool all_finished(const struct run *run)
{
    for (int b = 0; b < run->input->batch; b++)
        if (!run->finished[b])
            return false;
    return true;
}

static enum status decode(struct run *run, struct error *error)
{
    const struct generate_input *input = run->input;
    while (run->steps < input->max_new_tokens) {
        enum status status = predict(run, error);
        if (status == STATUS_OK)
            status = choose_all(run, error);
        if (status != STATUS_OK)
            return status;
        if (input->on_step != NULL
            && !input->on_step(input->context, run->next, input->batch))
            break;
        if (all_finished(run))
            break;
    }
    return STATUS_OK;
}

enum status tiny_gpt_generate(struct tiny_gpt *model,
                              const struct generate_input *input,
                              struct generate_output *output,
                              struct error *error)
{
    struct run run;
    enum status status = check(model, input, output, error);
    if (status == STATUS_OK)
        status = run_new(&run, model, input, error);
    if (status != STATUS_OK)
        return status;
    enum mode mode = tiny_gpt_mode(model);
    tiny_gpt_set_mode(model, MODE_EVALUATION);
    status = decode(&run, error);
    tiny_gpt_set_mode(model, mode);
    if (status == STATUS_OK && input->generator != NULL)
        *input->generator = run.generator;
    if (status == STATUS_OK) {
        size_t width = (size_t)(input->tokens + run.steps);
        for (size_t b = 1; b < (size_t)input->batch; b++)
            memmove(run.ids + b * width, run.ids + b * (size_t)run.stride,
                    width * sizeof *run.ids);
        *output = (struct generate_output){
            .ids = run.ids,
            .batch = input->batch,
            .tokens = (int)width,
        };
        run.ids = NULL;
    }
    run_free(&run);
    return status;
}

void generate_output_free(struct generate_output *output)
{
    if (output == NULL)
        return;
    free(output->ids);
    *output = (struct generate_output){ 0 };
}
