#include "learner.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "hub_save.h"
#include "init.h"
#include "model_file.h"

static bool ends_in(const char *name, const char *end)
{
    const size_t length = strlen(name), part = strlen(end);
    return length >= part && strcmp(name + length - part, end) == 0;
}

void llama_init(struct llama *model, struct generator *generator)
{
    const int layers = llama_config(model)->n_layers;
    for (size_t k = 0; k < llama_tensor_count(model); k++) {
        const struct llama_tensor *entry = llama_tensor_at(model, k);
        const struct tensor *tensor = entry->tensor;
        const bool writes = ends_in(entry->name, ".o_proj.weight")
                            || ends_in(entry->name, ".down_proj.weight")
                            || ends_in(entry->name, ".w2.weight");
        const double deviation = writes ? 0.02 / sqrt(2.0 * layers) : 0.02;
        for (size_t n = 0; !entry->alias && n < tensor_size(tensor); n++)
            tensor->data[n] = tensor->rank == 1 ? 1
                : (float)(deviation * generator_normal(generator));
    }
}

bool learner_is_gpt(const struct hub_config *config)
{
    return config->format == FORMAT_TINY_GPT
           || config->format == FORMAT_GPT2;
}

enum status learner_new(struct learner *learner,
                        const struct hub_config *config,
                        struct generator *generator, struct error *error)
{
    const bool gpt = learner_is_gpt(config);
    struct learner made = { 0 };
    enum status status = gpt ? tiny_gpt_new(&made.gpt, &config->gpt, error)
                             : llama_new(&made.llama, &config->llama, error);
    if (status != STATUS_OK)
        return status;
    if (generator != NULL && gpt)
        parameters_init(tiny_gpt_parameters(made.gpt), generator);
    else if (generator != NULL)
        llama_init(made.llama, generator);
    *learner = made;
    return STATUS_OK;
}

enum status learner_open(struct learner *learner, const char *path,
                         struct error *error)
{
    struct learner made = { 0 };
    enum status status = checkpoint_open(&made.checkpoint, path, error);
    if (status != STATUS_OK)
        return status;
    made.gpt = checkpoint_tiny_gpt(made.checkpoint);
    made.llama = checkpoint_llama(made.checkpoint);
    *learner = made;
    return STATUS_OK;
}

void learner_free(struct learner *learner)
{
    if (learner == NULL)
        return;
    if (learner->checkpoint == NULL) {
        tiny_gpt_free(&learner->gpt);
        llama_free(&learner->llama);
    }
    checkpoint_close(&learner->checkpoint);
    *learner = (struct learner){ 0 };
}

enum status learner_trainable(const struct learner *learner,
                              struct trainable *trainable,
                              struct error *error)
{
    return learner->gpt != NULL
           ? tiny_gpt_trainable(trainable, learner->gpt, error)
           : llama_trainable(trainable, learner->llama, error);
}

enum status learner_format(const struct learner *learner, char **text,
                           struct error *error)
{
    return learner->gpt != NULL
           ? gpt_config_format(tiny_gpt_config(learner->gpt), text, error)
           : hub_llama_format(llama_config(learner->llama), text, error);
}

enum status learner_save(const struct learner *learner,
                         const char *directory, struct error *error)
{
    enum status status = hub_save_check(directory, error);
    if (status != STATUS_OK)
        return status;
    return learner->gpt != NULL
           ? tiny_gpt_save(learner->gpt, directory, error)
           : hub_save_llama(learner->llama, directory, error);
}
