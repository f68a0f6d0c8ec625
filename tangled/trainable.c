#include "trainable.h"
#include <stdlib.h>
#include <string.h>
#include "backward.h"
#include "llama_parts.h"
#include "llama_training.h"
#include "mode.h"

static void list(struct trainable *made, const char *name,
                 const struct tensor *tensor)
{
    struct trainable_tensor *entry = &made->tensors[made->count++];
    entry->name = name;
    entry->tensor = tensor;
    entry->decays = tensor->rank == 2;
}

static enum status loss_of_tiny_gpt(struct trainable *trainable,
                                    const struct training_batch *batch,
                                    bool with_gradients, float *loss,
                                    struct error *error)
{
    struct activations activations = { 0 };
    struct forward_output output = { 0 };
    const struct forward_input input = {
        .ids = batch->ids, .labels = batch->labels, .batch = batch->batch,
        .tokens = batch->tokens, .generator = batch->generator,
        .activations = with_gradients ? &activations : NULL };
    const bool drops = with_gradients && batch->generator != NULL;
    const enum mode mode = tiny_gpt_mode(trainable->model);
    tiny_gpt_set_mode(trainable->model,
                      drops ? MODE_TRAINING : MODE_EVALUATION);
    enum status status = tiny_gpt_forward(trainable->model, &input, &output,
                                          error);
    tiny_gpt_set_mode(trainable->model, mode);
    if (status == STATUS_OK && with_gradients)
        status = tiny_gpt_backward(trainable->model, &input, &activations,
                                   &output, trainable->gradient_set, error);
    if (status == STATUS_OK)
        *loss = output.loss;
    forward_output_free(&output);
    activations_free(&activations);
    return status;
}

static void release_tiny_gpt(struct trainable *trainable)
{
    struct parameters *set = trainable->gradient_set;
    parameters_free(&set);
}

enum status tiny_gpt_trainable(struct trainable *trainable,
                               struct tiny_gpt *model, struct error *error)
{
    struct parameters *p = tiny_gpt_parameters(model), *set = NULL;
    struct trainable made = {
        .vocab_size = p->config.vocab_size,
        .context_length = p->config.context_length, .size = p->size,
        .weights = p->storage, .model = model, .loss = loss_of_tiny_gpt,
        .release = release_tiny_gpt
    };
    enum status status = parameters_new(&set, &p->config, error);
    if (status != STATUS_OK)
        return status;
    made.gradient_set = set;
    made.gradients = set->storage;
    made.tensors = calloc((size_t)p->count, sizeof *made.tensors);
    if (made.tensors == NULL) {
        trainable_free(&made);
        return error_set(error, STATUS_NO_MEMORY, "trainable: no memory for the"
                         " list of its tensors");
    }
    for (int k = 0; k < p->count; k++)
        if (!p->registry[k].alias)
            list(&made, p->registry[k].path, p->registry[k].tensor);
    *trainable = made;
    return STATUS_OK;
}

static enum status loss_of_llama(struct trainable *trainable,
                                 const struct training_batch *batch,
                                 bool with_gradients, float *loss,
                                 struct error *error)
{
    struct llama_workspace *workspace = trainable->workspace;
    if (workspace->batch != batch->batch || workspace->tokens != batch->tokens) {
        llama_workspace_free(workspace);
        enum status status = llama_workspace_new(
            workspace, llama_config(trainable->model), batch->batch,
            batch->tokens, error);
        if (status != STATUS_OK)
            return status;
    }
    return llama_loss_and_gradients(trainable->model, batch->ids,
                                    batch->labels, workspace, loss,
                                    with_gradients ? trainable->gradient_set
                                                   : NULL, error);
}

static void release_llama(struct trainable *trainable)
{
    struct llama *set = trainable->gradient_set;
    llama_free(&set);
    llama_workspace_free(trainable->workspace);
    free(trainable->workspace);
}

enum status llama_trainable(struct trainable *trainable, struct llama *model,
                            struct error *error)
{
    const struct llama_config *config = llama_config(model);
    struct llama *set = NULL;
    enum status status = llama_new(&set, config, error);
    if (status != STATUS_OK)
        return status;
    struct trainable made = {
        .vocab_size = config->vocab_size,
        .context_length = config->context_length, .size = model->floats,
        .weights = model->storage, .model = model, .gradient_set = set,
        .gradients = set->storage, .loss = loss_of_llama,
        .release = release_llama
    };
    made.tensors = calloc(model->count, sizeof *made.tensors);
    made.workspace = calloc(1, sizeof (struct llama_workspace));
    if (made.tensors == NULL || made.workspace == NULL) {
        trainable_free(&made);
        return error_set(error, STATUS_NO_MEMORY, "trainable: no memory for the"
                         " list of its tensors");
    }
    for (size_t k = 0; k < model->count; k++)
        if (!model->registry[k].alias)
            list(&made, model->registry[k].name, model->registry[k].tensor);
    *trainable = made;
    return STATUS_OK;
}

enum status trainable_loss_and_gradients(struct trainable *trainable,
                                         const struct training_batch *batch,
                                         float *loss, struct error *error)
{
    memset(trainable->gradients, 0, trainable->size * sizeof (float));
    return trainable->loss(trainable, batch, true, loss, error);
}

enum status trainable_loss(struct trainable *trainable,
                           const struct training_batch *batch, float *loss,
                           struct error *error)
{
    return trainable->loss(trainable, batch, false, loss, error);
}

void trainable_free(struct trainable *trainable)
{
    if (trainable == NULL)
        return;
    if (trainable->release != NULL)
        trainable->release(trainable);
    free(trainable->tensors);
    *trainable = (struct trainable){ 0 };
}

enum status moments_new(struct moments *moments,
                        const struct trainable *trainable,
                        struct error *error)
{
    struct moments made = {
        .first = calloc(trainable->size, sizeof (float)),
        .second = calloc(trainable->size, sizeof (float))
    };
    if (made.first == NULL || made.second == NULL) {
        moments_free(&made);
        return error_set(error, STATUS_NO_MEMORY, "moments: no memory for"
                         " those of %zu weights", trainable->size);
    }
    *moments = made;
    return STATUS_OK;
}

void moments_free(struct moments *moments)
{
    if (moments == NULL)
        return;
    free(moments->first);
    free(moments->second);
    *moments = (struct moments){ 0 };
}

void trainable_step(struct trainable *trainable, struct adamw *adamw,
                    struct moments *moments)
{
    adamw->step++;
    for (size_t k = 0; k < trainable->count; k++) {
        const struct trainable_tensor *entry = &trainable->tensors[k];
        const ptrdiff_t at = entry->tensor->data - trainable->weights;
        adamw_floats(adamw, entry->decays ? adamw->weight_decay : 0,
                     tensor_size(entry->tensor), trainable->weights + at,
                     trainable->gradients + at, moments->first + at,
                     moments->second + at);
    }
}
