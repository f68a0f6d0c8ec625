#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "generator.h"
#include "mask.h"
#include "mask_study.h"

void upper_left_mask(int past, int queries, bool *keep)
{
    const int keys = past + queries;
    for (int i = 0; i < queries; i++, keep += keys)
        for (int j = 0; j < keys; j++)
            keep[j] = queries == 1 || j <= i;
}

void mask_print(FILE *out, const bool *keep, int queries, int keys)
{
    for (int i = 0; i < queries; i++) {
        for (int j = 0; j < keys; j++)
            fprintf(out, "%s%d", j == 0 ? "" : " ", keep[i * keys + j]);
        putc('\n', out);
    }
}

void mask_print_json(FILE *out, const bool *keep, int past, int queries)
{
    const int keys = past + queries;
    fprintf(out, "{\"past\": %d, \"tokens\": %d, \"keep\": [", past, queries);
    for (int i = 0; i < queries; i++) {
        fprintf(out, "%s[", i == 0 ? "" : ", ");
        for (int j = 0; j < keys; j++)
            fprintf(out, "%s%d", j == 0 ? "" : ", ", keep[i * keys + j]);
        putc(']', out);
    }
    fprintf(out, "]}\n");
}

static void fill_weights(struct parameters *parameters)
{
    struct generator generator;
    generator_seed(&generator, 5, 0);
    for (int k = 0; k < parameters->count; k++) {
        const struct parameter *p = &parameters->registry[k];
        const double mean = strstr(p->path, "norm.weight") ? 1 : 0;
        for (size_t n = 0; !p->alias && n < tensor_size(p->tensor); n++)
            p->tensor->data[n] =
                (float)(mean + 0.2 * generator_normal(&generator));
    }
}

enum status mask_study_model(struct tiny_gpt **model, struct error *error)
{
    const struct gpt_config config = {
        .vocab_size = 23, .context_length = 256, .d_model = 16,
        .n_layers = 2, .n_heads = 4, .d_ff = 32, .layer_norm_eps = 1e-5
    };
    enum status status = tiny_gpt_new(model, &config, error);
    if (status == STATUS_OK)
        fill_weights(tiny_gpt_parameters(*model));
    return status;
}

struct study {
    const struct tiny_gpt *model;
    const int32_t *ids;
    mask_rule *rule;
    struct forward_output whole;     /* one causal call over all tokens */
    struct past_key_values past;     /* of the chunks that are done */
    double *errors;                  /* of the tokens that are done */
};

static void compare_rows(struct study *study, const struct tensor *logits,
                         int done)
{
    const int width = logits->shape[2];
    const float *got = logits->data;
    const float *want = study->whole.logits.data + (ptrdiff_t)done * width;
    for (int t = 0; t < logits->shape[1]; t++, got += width, want += width) {
        double worst = 0;
        for (int v = 0; v < width; v++)
            worst = fmax(worst, fabs((double)got[v] - (double)want[v]));
        study->errors[done + t] = worst;
    }
}
static enum status advance(struct study *study, int tokens,
                           struct error *error)
{
    const int done = past_key_values_length(&study->past);
    struct forward_output output = {0};
    bool *keep = NULL;
    enum status status = STATUS_OK;
    keep = calloc((size_t)tokens, (size_t)(done + tokens) * sizeof *keep);
    if (keep == NULL)
        status = error_set(error, STATUS_NO_MEMORY,
                           "mask: no memory for [%d, %d]", tokens, done + tokens);
    if (status == STATUS_OK) {
        study->rule(done, tokens, keep);
        const struct forward_input input = {
            .ids = study->ids + done, .batch = 1, .tokens = tokens, .keep = keep,
            .past_key_values = done > 0 ? &study->past : NULL, .use_cache = true
        };
        status = tiny_gpt_forward(study->model, &input, &output, error);
    }
    if (status == STATUS_OK) {
        compare_rows(study, &output.logits, done);
        past_key_values_free(&study->past);
        study->past = output.past_key_values;
        output.past_key_values = (struct past_key_values){0};
    }
    forward_output_free(&output);
    free(keep);
    return status;
}

static enum status run_chunks(struct study *study, int tokens, int first,
                              int step, struct error *error)
{
    study->errors = calloc((size_t)tokens, sizeof *study->errors);
    if (study->errors == NULL)
        return error_set(error, STATUS_NO_MEMORY,
                         "errors: no memory for %d tokens", tokens);
    enum status status = STATUS_OK;
    int chunk = first > 0 ? first : step;
    for (int at = 0; status == STATUS_OK && at < tokens; at += chunk) {
        chunk = at == 0 && first > 0 ? first : step;
        chunk = chunk < tokens - at ? chunk : tokens - at;
        status = advance(study, chunk, error);
    }
    return status;
}

enum status mask_errors(const struct tiny_gpt *model, const int32_t *ids,
                        int tokens, int first, int step, mask_rule *rule,
                        double *errors, struct error *error)
{
    if (first < 0 || (tokens > 0 && first > tokens))
        return error_set(error, STATUS_INVALID,
                         "first: expected 0 to %d, got %d", tokens, first);
    if (step < 1)
        return error_set(error, STATUS_INVALID,
                         "step: expected at least 1, got %d", step);
    struct study study = {.model = model, .ids = ids, .rule = rule};
    const struct forward_input all = {.ids = ids, .batch = 1,
                                      .tokens = tokens};
    enum status status = tiny_gpt_forward(model, &all, &study.whole, error);
    if (status == STATUS_OK)
        status = run_chunks(&study, tokens, first, step, error);
    if (status == STATUS_OK)
        memcpy(errors, study.errors, (size_t)tokens * sizeof *errors);
    forward_output_free(&study.whole);
    past_key_values_free(&study.past);
    free(study.errors);
    return status;
}
