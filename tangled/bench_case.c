#include "bench_case.h"
#include <stdlib.h>
#include <string.h>
#include "request.h"
#include "trainable.h"

bool bench_case_trains(const struct bench_case *one)
{
    return strcmp(one->what, "train") == 0;
}

enum status bench_case_work(const struct ownership *ownership,
                            const struct bench_case *one,
                            struct bench_work *work, struct error *error)
{
    const struct phase phase = {one->batch, one->tokens, one->context, true};
    if (bench_case_trains(one))
        return bench_training_work(ownership, one->batch, one->tokens, work,
                                   error);
    return bench_work(ownership, &phase, bench_weights_type(one->weights),
                      work, error);
}

struct call {
    struct on_kernels on;
    struct causal_lm lm;
    struct request *request;
    int tokens;
    int32_t *lengths;        /* [B] of the cache before each call */
};

static enum status feed(struct call *call, const struct stopwatch *watch,
                        double *seconds, struct error *error)
{
    const float *logits;
    const int32_t *ids = request_columns(call->request);
    const double began = watch->now(watch->state);
    const enum status status = request_feed(call->request, ids, call->tokens,
                                            true, &logits, error);
    *seconds += watch->now(watch->state) - began;
    return status;
}

static enum status prefill_once(void *state, const struct stopwatch *watch,
                                double *seconds, struct error *error)
{
    struct call *call = state;
    kv_cache_reset(request_cache(call->request));
    *seconds = 0;
    return feed(call, watch, seconds, error);
}

static enum status decode_once(void *state, const struct stopwatch *watch,
                               double *seconds, struct error *error)
{
    struct call *call = state;
    enum status status = STATUS_OK;
    *seconds = 0;
    for (int k = 0; k < BENCH_DECODE_STEPS && status == STATUS_OK; k++) {
        status = kv_cache_truncate(request_cache(call->request), call->lengths,
                                   error);
        if (status == STATUS_OK)
            status = feed(call, watch, seconds, error);
    }
    *seconds /= BENCH_DECODE_STEPS;
    return status;
}

static void call_free(void *state)
{
    struct call *call = state;
    request_free(&call->request);
    free(call->lengths);
    free(call);
}

struct training_task {
    struct trainable trainable;
    struct adamw adamw;
    struct moments moments;
    struct generator generator;
    struct training_batch batch;
    int32_t *ids;                /* [B,T+1] */
};

static enum status train_once(void *state, const struct stopwatch *watch,
                              double *seconds, struct error *error)
{
    struct training_task *task = state;
    float loss;
    const double began = watch->now(watch->state);
    const enum status status = trainable_loss_and_gradients(
        &task->trainable, &task->batch, &loss, error);
    if (status == STATUS_OK)
        trainable_step(&task->trainable, &task->adamw, &task->moments);
    *seconds = watch->now(watch->state) - began;
    return status;
}

static void training_free_task(void *state)
{
    struct training_task *task = state;
    moments_free(&task->moments);
    trainable_free(&task->trainable);
    free(task->ids);
    free(task);
}

static enum status training_task_new(struct training_task **task,
                                     const struct bench_model *model,
                                     const struct bench_case *one,
                                     struct error *error)
{
    const int count = one->batch * one->tokens;
    struct training_task *made = calloc(1, sizeof *made);
    if (made != NULL)
        made->ids = calloc((size_t)count + 1, sizeof *made->ids);
    if (made == NULL || made->ids == NULL) {
        free(made);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a case");
    }
    for (int k = 0; k <= count; k++)
        made->ids[k] = (int32_t)((5 * (int64_t)k + 3)
                                 % model->rows.vocab_size);
    made->adamw = (struct adamw){1e-12, 0.9, 0.95, 1e-8, 0, 0, NULL, NULL};
    made->batch = (struct training_batch){made->ids, made->ids + 1,
                                          one->batch, one->tokens,
                                          &made->generator};
    generator_seed(&made->generator, 21, 5);
    enum status status = model->gpt != NULL
        ? tiny_gpt_trainable(&made->trainable, model->gpt, error)
        : llama_trainable(&made->trainable, model->llama, error);
    if (status == STATUS_OK)
        status = moments_new(&made->moments, &made->trainable, error);
    if (status == STATUS_OK)
        *task = made;
    else
        training_free_task(made);
    return status;
}

static enum status fill_cache(struct call *call, const struct bench_case *one,
                              struct error *error)
{
    const int count = one->batch * one->tokens;
    int32_t *ids = request_columns(call->request);
    for (int k = 0; k < count; k++)
        ids[k] = (int32_t)((5 * (int64_t)k + 3) % call->lm.vocab_size);
    call->lengths = calloc(2 * (size_t)one->batch, sizeof *call->lengths);
    if (call->lengths == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a case");
    if (one->context == 0)
        return STATUS_OK;
    const struct gpt_config config = cache_shape_config(&call->lm.cache);
    struct past_key_values past = {0};
    enum status status = past_key_values_new(&past, &config, one->batch,
                                             one->context, error);
    for (int l = 0; l < past.n_layers; l++)
        for (int side = 0; side < 2; side++) {
            const struct tensor *tensor = side == 0 ? &past.layers[l].key
                                                    : &past.layers[l].value;
            for (size_t k = 0; k < tensor_size(tensor); k++)
                tensor->data[k] = (float)((k * 7919 + (size_t)l) % 1009) / 1008
                                  - 0.5f;
        }
    for (int b = 0; b < one->batch; b++)
        call->lengths[b] = one->context;
    if (status == STATUS_OK)
        status = kv_cache_load(request_cache(call->request), &past,
                               call->lengths, call->lengths + one->batch, error);
    past_key_values_free(&past);
    return status;
}

static enum status call_new(struct call **call,
                            const struct bench_model *model,
                            const struct bench_case *one,
                            struct error *error)
{
    struct call *made = calloc(1, sizeof *made);
    if (made == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a case");
    made->on = (struct on_kernels){bench_model_stack(model, one->weights),
                                   one->kernels};
    made->lm = on_kernels_causal_lm(&made->on);
    made->tokens = one->tokens;
    enum status status = request_new(&made->request, &made->lm, one->batch,
                                     one->context + one->tokens, one->tokens,
                                     error);
    if (status == STATUS_OK)
        status = fill_cache(made, one, error);
    if (status == STATUS_OK)
        *call = made;
    else
        call_free(made);
    return status;
}

enum status bench_task_new(struct bench_task *task,
                           const struct bench_model *model,
                           const struct bench_case *one,
                           struct error *error)
{
    struct training_task *training = NULL;
    struct call *call = NULL;
    enum status status;
    if (bench_case_trains(one)) {
        status = training_task_new(&training, model, one, error);
        if (status == STATUS_OK)
            *task = (struct bench_task){training, train_once,
                                        training_free_task};
        return status;
    }
    status = call_new(&call, model, one, error);
    if (status == STATUS_OK)
        *task = (struct bench_task){
            call, one->tokens > 1 ? prefill_once : decode_once, call_free
        };
    return status;
}

void bench_task_free(struct bench_task *task)
{
    if (task->release != NULL)
        task->release(task->state);
    *task = (struct bench_task){NULL, NULL, NULL};
}
