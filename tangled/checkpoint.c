#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "checkpoint.h"
#include "file_map.h"
#include "hub.h"
#include "llama2c.h"
#include "model_file.h"
#include "shards.h"

struct checkpoint {
    enum checkpoint_format format;
    struct tiny_gpt *gpt;        /* one of them is NULL */
    struct llama *llama;
    struct stored_tensor *tensors;
    size_t count, file_bytes;
    char *names;
};

static bool note_begin(struct checkpoint *made, size_t count,
                       size_t name_bytes)
{
    made->tensors = calloc(count + 1, sizeof *made->tensors);
    made->names = malloc(name_bytes + 1);
    return made->tensors != NULL && made->names != NULL;
}

/* *name is where the next name goes. */
static void note_tensor(struct checkpoint *made, char **name,
                        const struct safetensors_entry *entry, bool used)
{
    struct stored_tensor *stored = &made->tensors[made->count++];
    *stored = (struct stored_tensor){*entry, used};
    strcpy(*name, entry->name);
    stored->entry.name = *name;
    stored->entry.data = NULL;
    *name += strlen(*name) + 1;
}

static enum status note_shards(struct checkpoint *made,
                               const struct shards *shards, const bool *used,
                               struct error *error)
{
    const size_t count = shards_count(shards);
    size_t name_bytes = 0;
    for (size_t k = 0; k < count; k++)
        name_bytes += strlen(shards_at(shards, k)->name) + 1;
    if (!note_begin(made, count, name_bytes))
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    char *name = made->names;
    for (size_t k = 0; k < count; k++)
        note_tensor(made, &name, shards_at(shards, k),
                    used == NULL || used[k]);
    made->file_bytes = shards_bytes(shards);
    return STATUS_OK;
}

static enum status fill_hub(struct checkpoint *made,
                            const struct hub_config *config,
                            const struct shards *shards, struct error *error)
{
    bool *used = calloc(shards_count(shards) + 1, sizeof *used);
    if (used == NULL)
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    enum status status = config->format == FORMAT_GPT2
        ? hub_load_gpt2(&made->gpt, &config->gpt, shards, used, error)
        : hub_load_llama(&made->llama, &config->llama, shards, used, error);
    if (status == STATUS_OK)
        status = note_shards(made, shards, used, error);
    free(used);
    return status;
}

static enum status read_config(struct hub_config *config,
                               const char *directory, struct error *error)
{
    const size_t size = strlen(directory) + sizeof "/config.json";
    struct file_map map;
    struct error reason = {.status = STATUS_OK};
    char *path = malloc(size);
    if (path == NULL)
        return file_error(error, STATUS_NO_MEMORY, directory, "no memory");
    snprintf(path, size, "%s/config.json", directory);
    enum status status = file_map_open(&map, path, error);
    if (status == STATUS_OK) {
        status = hub_config_parse(config, (const char *)map.bytes,
                                  map.length, &reason);
        file_map_close(&map);
        if (status != STATUS_OK)
            file_error(error, status, path, reason.message);
    }
    free(path);
    return status;
}

static enum status fill_directory(struct checkpoint *made,
                                  const char *directory,
                                  struct error *error)
{
    struct hub_config config;
    struct shards *shards = NULL;
    struct error reason = {.status = STATUS_OK};
    enum status status = read_config(&config, directory, error);
    if (status == STATUS_OK)
        status = shards_open(&shards, directory, error);
    if (status != STATUS_OK)
        return status;
    made->format = config.format;
    if (config.format == FORMAT_TINY_GPT)
        status = note_shards(made, shards, NULL, &reason);
    else
        status = fill_hub(made, &config, shards, &reason);
    shards_close(&shards);
    if (status != STATUS_OK)
        return file_error(error, status, directory, reason.message);
    return config.format == FORMAT_TINY_GPT
           ? tiny_gpt_load(&made->gpt, directory, error) : STATUS_OK;
}

static enum status fill_llama2c(struct checkpoint *made,
                                const struct file_map *map,
                                struct error *error)
{
    struct llama2c file;
    enum status status = llama2c_parse(&file, map->bytes, map->length,
                                       error);
    if (status == STATUS_OK)
        status = llama2c_load(&made->llama, &file, error);
    if (status != STATUS_OK)
        return status;
    made->format = FORMAT_LLAMA2C;
    made->file_bytes = map->length;
    if (!note_begin(made, LLAMA2C_TENSORS, 32 * LLAMA2C_TENSORS))
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    char *name = made->names;
    for (int k = 0; k < file.count; k++)
        note_tensor(made, &name, &file.tensors[k], llama2c_used(&file, k));
    return STATUS_OK;
}

static enum status fill_file(struct checkpoint *made, const char *path,
                             struct error *error)
{
    struct file_map map;
    struct error reason = {.status = STATUS_OK};
    enum status status = file_map_open(&map, path, error);
    if (status != STATUS_OK)
        return status;
    status = fill_llama2c(made, &map, &reason);
    file_map_close(&map);
    return status == STATUS_OK ? status
           : file_error(error, status, path, reason.message);
}

enum status checkpoint_open(struct checkpoint **checkpoint, const char *path,
                            struct error *error)
{
    struct stat facts;
    if (stat(path, &facts) != 0)
        return file_error(error, STATUS_IO, path, strerror(errno));
    struct checkpoint *made = calloc(1, sizeof *made);
    if (made == NULL)
        return file_error(error, STATUS_NO_MEMORY, path, "no memory");
    const enum status status = S_ISDIR(facts.st_mode)
        ? fill_directory(made, path, error) : fill_file(made, path, error);
    if (status == STATUS_OK)
        *checkpoint = made;
    else
        checkpoint_close(&made);
    return status;
}

void checkpoint_close(struct checkpoint **checkpoint)
{
    if (checkpoint == NULL || *checkpoint == NULL)
        return;
    tiny_gpt_free(&(*checkpoint)->gpt);
    llama_free(&(*checkpoint)->llama);
    free((*checkpoint)->tensors);
    free((*checkpoint)->names);
    free(*checkpoint);
    *checkpoint = NULL;
}

enum family checkpoint_family(const struct checkpoint *checkpoint)
{
    return checkpoint->gpt != NULL ? FAMILY_TINY_GPT : FAMILY_LLAMA;
}

struct causal_lm checkpoint_causal_lm(const struct checkpoint *checkpoint)
{
    return checkpoint->gpt != NULL ? tiny_gpt_causal_lm(checkpoint->gpt)
                                   : llama_causal_lm(checkpoint->llama);
}

struct tiny_gpt *checkpoint_tiny_gpt(struct checkpoint *checkpoint)
{
    return checkpoint->gpt;
}

struct llama *checkpoint_llama(struct checkpoint *checkpoint)
{
    return checkpoint->llama;
}

enum checkpoint_format checkpoint_format(const struct checkpoint *checkpoint)
{
    return checkpoint->format;
}

const char *checkpoint_format_name(const struct checkpoint *checkpoint)
{
    static const char *const names[] = {
        [FORMAT_TINY_GPT] = "tiny GPT", [FORMAT_GPT2] = "GPT-2",
        [FORMAT_LLAMA] = "Llama", [FORMAT_MIXTRAL] = "Mixtral",
        [FORMAT_LLAMA2C] = "llama2.c"
    };
    return names[checkpoint->format];
}

size_t checkpoint_tensor_count(const struct checkpoint *checkpoint)
{
    return checkpoint->count;
}

const struct stored_tensor *checkpoint_tensor_at(
    const struct checkpoint *checkpoint, size_t index)
{
    return &checkpoint->tensors[index];
}

size_t checkpoint_file_bytes(const struct checkpoint *checkpoint)
{
    return checkpoint->file_bytes;
}
