#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "audit_subject.h"
#include "file_map.h"
#include "held.h"

const char *audit_format_title(enum checkpoint_format format)
{
    static const char *const titles[] = {
        [FORMAT_TINY_GPT] = "tiny GPT", [FORMAT_GPT2] = "GPT-2",
        [FORMAT_LLAMA] = "Llama", [FORMAT_MIXTRAL] = "Mixtral",
        [FORMAT_LLAMA2C] = "llama2.c"
    };
    return titles[format];
}

static enum status copy_stored(struct audit_subject *made,
                               struct error *error)
{
    const struct checkpoint *open = made->checkpoint;
    made->stored_count = open != NULL ? checkpoint_tensor_count(open)
                                      : shards_count(made->shards);
    made->file_bytes = open != NULL ? checkpoint_file_bytes(open)
                                    : shards_bytes(made->shards);
    made->stored = calloc(made->stored_count + 1, sizeof *made->stored);
    if (made->stored == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a list of"
                         " %zu tensors", made->stored_count);
    for (size_t k = 0; k < made->stored_count; k++)
        made->stored[k] = open != NULL
            ? *checkpoint_tensor_at(open, k)
            : (struct stored_tensor){*shards_at(made->shards, k), false};
    return STATUS_OK;
}

static enum status take_model(struct audit_subject *made,
                              struct error *error)
{
    struct tiny_gpt *gpt = checkpoint_tiny_gpt(made->checkpoint);
    const struct llama *llama = checkpoint_llama(made->checkpoint);
    made->format = checkpoint_format(made->checkpoint);
    made->lm = checkpoint_causal_lm(made->checkpoint);
    enum status status = gpt != NULL
        ? ownership_of_gpt(&made->ownership, tiny_gpt_config(gpt), error)
        : ownership_of_llama(&made->ownership, llama_config(llama), error);
    if (status == STATUS_OK)
        status = copy_stored(made, error);
    if (status != STATUS_OK)
        return status;
    made->held_count = gpt != NULL ? (size_t)tiny_gpt_weights(gpt)->count
                                   : llama_tensor_count(llama);
    made->held = calloc(made->held_count, sizeof *made->held);
    if (made->held == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a list of %zu"
                         " tensors", made->held_count);
    if (gpt != NULL)
        held_by_gpt(tiny_gpt_weights(gpt), made->held);
    else
        held_by_llama(llama, made->held);
    if (made->ownership.n_experts > 0)
        made->llama = llama;
    return STATUS_OK;
}

static enum status read_config(struct hub_config *config, const char *path,
                               struct error *error)
{
    const size_t size = strlen(path) + sizeof "/config.json";
    struct file_map map;
    char *name = malloc(size);
    if (name == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    snprintf(name, size, "%s/config.json", path);
    enum status status = file_map_open(&map, name, error);
    if (status == STATUS_OK) {
        status = hub_config_parse(config, (const char *)map.bytes,
                                  map.length, error);
        file_map_close(&map);
    }
    free(name);
    return status;
}

static enum status take_files(struct audit_subject *made, const char *path,
                              struct error *error)
{
    struct hub_config config;
    enum status status = read_config(&config, path, error);
    if (status == STATUS_OK)
        status = shards_open(&made->shards, path, error);
    if (status != STATUS_OK)
        return status;
    made->format = config.format;
    status = config.format == FORMAT_TINY_GPT || config.format == FORMAT_GPT2
        ? ownership_of_gpt(&made->ownership, &config.gpt, error)
        : ownership_of_llama(&made->ownership, &config.llama, error);
    return status == STATUS_OK ? copy_stored(made, error) : status;
}

enum status audit_subject_open(struct audit_subject *subject,
                               const char *path, struct error *error)
{
    struct audit_subject made = {.name = path};
    struct error reason = {.status = STATUS_OK, .message = ""};
    enum status status = checkpoint_open(&made.checkpoint, path, &reason);
    if (status == STATUS_OK)
        status = take_model(&made, &reason);
    else if (status != STATUS_NO_MEMORY) {
        made.refusal = reason;
        status = take_files(&made, path, &reason);
        if (status != STATUS_OK && status != STATUS_NO_MEMORY)
            reason = made.refusal;
    }
    if (status == STATUS_OK) {
        *subject = made;
        return STATUS_OK;
    }
    audit_subject_close(&made);
    return error_set(error, reason.status, "%s", reason.message);
}

void audit_subject_close(struct audit_subject *subject)
{
    checkpoint_close(&subject->checkpoint);
    shards_close(&subject->shards);
    free(subject->stored);
    free(subject->held);
    *subject = (struct audit_subject){.name = NULL};
}
