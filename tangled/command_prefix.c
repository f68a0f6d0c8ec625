#include "command_prefix.h"
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "model_file.h"
#include "prefix_blocks.h"

enum { SIZE_LIMIT = 65536 };

struct options {
    const char *model;
    int block_size, shared, tail, branches;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    const struct { const char *name; int *size; int least; } sizes[] = {
        {"--block-size", &options->block_size, 1},
        {"--shared", &options->shared, 0}, {"--tail", &options->tail, 0},
        {"--branches", &options->branches, 1}
    };
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        bool known = command_option(argc, argv, &i, "--model", &value);
        if (known)
            status = command_text(command, "--model", value, &options->model);
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes && !known; k++) {
            known = command_option(argc, argv, &i, sizes[k].name, &value);
            if (known)
                status = command_int(command, sizes[k].name, value, sizes[k].least,
                                     SIZE_LIMIT, sizes[k].size);
        }
        if (!known)
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && options->model == NULL)
        status = command_usage_error(command, "--model DIR is needed");
    return status;
}

static size_t snapshot_blocks(size_t s, size_t t, size_t branches)
{
    return s * (s + 1) / 2 + branches * (s * t + t * (t + 1) / 2);
}

static size_t shared_blocks(size_t s, size_t t, size_t branches)
{
    return s + branches * t;
}

struct study {
    const struct options *options;
    struct prefix_cache *caches[2];  /* of snapshots, of blocks */
    struct past_key_values past;     /* [1,H,shared + tail,D] */
    int32_t *ids;                    /* [shared + tail] */
};

static enum status store_branch(struct study *study, int branch,
                                struct error *error)
{
    const struct options *options = study->options;
    const int tokens = options->shared + options->tail;
    const struct prefix_key key = {{"", ""}, 0, study->ids, tokens};
    for (int t = options->shared; t < tokens; t++)
        study->ids[t] = branch + 1;
    enum status status = STATUS_OK;
    for (int k = 0; k < 2 && status == STATUS_OK; k++)
        status = prefix_cache_store(study->caches[k], &key, &study->past,
                                    error);
    return status;
}

static enum status print_branches(struct study *study, size_t block_bytes,
                                  struct error *error)
{
    const struct options *options = study->options;
    const int all = (options->shared + options->tail) / options->block_size;
    const size_t s = (size_t)(options->shared / options->block_size);
    const size_t t = (size_t)all - s;
    enum status status = STATUS_OK;
    printf("branches  snapshots    formula     blocks    formula\n");
    for (int k = 0; k < options->branches && status == STATUS_OK; k++) {
        status = store_branch(study, k, error);
        const size_t branches = (size_t)k + 1;
        if (status == STATUS_OK)
            printf("%8d %10zu %10zu %10zu %10zu\n", k + 1,
                   prefix_cache_stats(study->caches[0]).kv_bytes,
                   snapshot_blocks(s, t, branches) * block_bytes,
                   prefix_cache_stats(study->caches[1]).kv_bytes,
                   shared_blocks(s, t, branches) * block_bytes);
    }
    return status;
}

static enum status study_begin(struct study *study,
                               const struct cache_shape *shape,
                               struct error *error)
{
    const struct options *options = study->options;
    const int tokens = options->shared + options->tail;
    const int all = tokens / options->block_size;
    const int s = options->shared / options->block_size;
    const struct gpt_config config = cache_shape_config(shape);
    if (all - s > (INT_MAX - s) / options->branches)
        return error_set(error, STATUS_INVALID,
                         "--branches: %d of %d blocks are too many",
                         options->branches, all - s);
    const int entries = s + options->branches * (all - s);
    const struct prefix_cache_options cache = {
        *shape, options->block_size, entries > 0 ? entries : 1, NULL
    };
    enum status status = past_key_values_new(&study->past, &config, 1, tokens,
                                             error);
    if (status == STATUS_OK)
        status = prefix_snapshots_new(&study->caches[0], &cache, error);
    if (status == STATUS_OK)
        status = prefix_blocks_new(&study->caches[1], &cache, error);
    study->ids = calloc((size_t)tokens + 1, sizeof *study->ids);
    if (status == STATUS_OK && study->ids == NULL)
        status = error_set(error, STATUS_NO_MEMORY, "no memory for %d ids",
                           tokens);
    return status;
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = {NULL, 16, 64, 32, 8};
    struct study study = {.options = &options};
    struct tiny_gpt *model = NULL;
    struct error error;
    int failed = read_options(command, argc, argv, &options);
    if (failed != 0)
        return failed;
    enum status status = tiny_gpt_load(&model, options.model, &error);
    if (status == STATUS_OK) {
        const struct cache_shape shape = tiny_gpt_causal_lm(model).cache;
        const size_t block_bytes = 2 * sizeof (float) * (size_t)shape.n_layers
            * (size_t)shape.n_kv_heads * (size_t)shape.head_dim
            * (size_t)options.block_size;
        tiny_gpt_free(&model);
        status = study_begin(&study, &shape, &error);
        if (status == STATUS_OK)
            status = print_branches(&study, block_bytes, &error);
    }
    prefix_cache_free(&study.caches[0]);
    prefix_cache_free(&study.caches[1]);
    past_key_values_free(&study.past);
    free(study.ids);
    return status == STATUS_OK ? 0 : command_failure(command, &error);
}

const struct command command_prefix = {
    "prefix", "what snapshots and shared blocks hold",
    "usage: tinygpt prefix --model DIR [--block-size G] [--shared TOKENS]\n"
    "                      [--tail TOKENS] [--branches K]\n"
    "\n"
    "Stores K prompts that share their first TOKENS tokens (64) and have a\n"
    "tail of their own (32), and prints after each the bytes of keys and\n"
    "values that a cache of snapshots holds and one of blocks, each beside\n"
    "its formula. G is 16, K is 8; all sizes are at most 65536.\n",
    run
};
