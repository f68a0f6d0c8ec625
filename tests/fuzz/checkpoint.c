/* libFuzzer: everything that reads a checkpoint of somebody else, from
   memory. The first byte of an input chooses the door:

       0  a file of tensors
       1  config.json
       2  model.safetensors.index.json
       3  a llama2.c file
       4  a whole directory: two bytes with the length of the config, the
          config, a file of tensors

   What is accepted has to hold what it promises; a model has to run. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cjson/cJSON.h>
#include "hub.h"
#include "hub_config.h"
#include "llama2c.h"
#include "request.h"
#include "safetensors.h"
#include "shards.h"

enum { DOORS = 5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room,
                               unsigned seed);

static void require(bool holds, const char *what)
{
    if (holds)
        return;
    fprintf(stderr, "does not hold: %s\n", what);
    abort();
}

static unsigned touch(const void *bytes, size_t length)
{
    const unsigned char *at = bytes;
    unsigned sum = 0;
    for (size_t k = 0; k < length; k++)
        sum += at[k];
    return sum;
}

static volatile unsigned sink;

/* A status other than STATUS_OK comes with one line. */
static void check_refusal(enum status status, const struct error *error)
{
    require(status == STATUS_OK || error->status == status, "status");
    require(status == STATUS_OK
            || (memchr(error->message, '\0', sizeof error->message) != NULL
                && error->message[0] != '\0'
                && strchr(error->message, '\n') == NULL), "one line");
}

static void check_entry(const struct safetensors_entry *entry,
                        const uint8_t *data, size_t size)
{
    const uint8_t *at = entry->data;
    size_t bytes = dtype_size(entry->dtype);
    require(entry->rank >= 0 && entry->rank <= SAFETENSORS_RANK_MAX, "rank");
    for (int k = 0; k < entry->rank; k++)
        bytes *= (size_t)entry->shape[k];
    require(bytes == entry->bytes, "bytes of the shape");
    require(at >= data && entry->bytes <= size
            && (size_t)(at - data) <= size - entry->bytes, "inside");
    sink += touch(at, entry->bytes);
}

static void door_tensors(const uint8_t *data, size_t size)
{
    struct safetensors *file = NULL;
    struct error error = {STATUS_OK, ""};
    const enum status status = safetensors_parse(&file, "it", data, size,
                                                 &error);
    check_refusal(status, &error);
    require((file != NULL) == (status == STATUS_OK), "a file or a refusal");
    size_t sum = 0;
    for (size_t k = 0; file != NULL && k < safetensors_count(file); k++) {
        const struct safetensors_entry *entry = safetensors_at(file, k);
        check_entry(entry, data, size);
        require(safetensors_find(file, entry->name) == entry, "found");
        sum += entry->bytes;
    }
    require(sum <= size, "bytes of all");
    safetensors_close(&file);
}

static void door_config(const uint8_t *data, size_t size)
{
    struct hub_config config;
    struct error error = {STATUS_OK, ""};
    const enum status status = hub_config_parse(&config, (const char *)data,
                                                size, &error);
    check_refusal(status, &error);
    if (status != STATUS_OK)
        return;
    require((config.format <= FORMAT_GPT2
             ? gpt_config_check(&config.gpt, &error)
             : llama_config_check(&config.llama, &error)) == STATUS_OK,
            "legal");
}

static void door_index(const uint8_t *data, size_t size)
{
    struct shard_line *lines = NULL;
    size_t count = 0;
    struct cJSON *json = NULL;
    struct error error = {STATUS_OK, ""};
    const enum status status = shard_index_parse(&lines, &count, &json,
                                                 (const char *)data, size,
                                                 &error);
    check_refusal(status, &error);
    for (size_t k = 0; k < count; k++) {
        require(strchr(lines[k].file, '/') == NULL
                && strcmp(lines[k].file, "..") != 0, "plain");
        const int files = k == 0 ? -1 : strcmp(lines[k - 1].file,
                                               lines[k].file);
        require(files < 0 || (files == 0 && strcmp(lines[k - 1].tensor,
                                                   lines[k].tensor) < 0),
                "in order");
    }
    free(lines);
    cJSON_Delete(json);
}

static void run_a_token(const struct causal_lm *lm)
{
    struct request *request = NULL;
    struct error error;
    const float *logits = NULL;
    const int32_t id = lm->vocab_size - 1;
    if (lm->scratch_size(lm->model, 1, 1, 1) > 1000000)
        return;
    if (request_new(&request, lm, 1, 1, 1, &error) == STATUS_OK) {
        require(request_feed(request, &id, 1, true, &logits, &error)
                == STATUS_OK, "a step");
        sink += touch(logits, (size_t)lm->vocab_size * sizeof *logits);
    }
    request_free(&request);
}

static void door_llama2c(const uint8_t *data, size_t size)
{
    struct llama2c file;
    struct error error = {STATUS_OK, ""};
    struct llama *model = NULL;
    enum status status = llama2c_parse(&file, data, size, &error);
    check_refusal(status, &error);
    if (status != STATUS_OK)
        return;
    for (int k = 0; k < file.count; k++)
        check_entry(&file.tensors[k], data, size);
    status = llama2c_load(&model, &file, &error);
    check_refusal(status, &error);
    if (status == STATUS_OK) {
        const struct causal_lm lm = llama_causal_lm(model);
        run_a_token(&lm);
    }
    llama_free(&model);
}

static void load(const struct hub_config *config,
                 const struct shards *shards)
{
    bool *used = calloc(shards_count(shards) + 1, sizeof *used);
    struct tiny_gpt *gpt = NULL;
    struct llama *llama = NULL;
    struct error error = {STATUS_OK, ""};
    enum status status = config->format == FORMAT_GPT2
        ? hub_load_gpt2(&gpt, &config->gpt, shards, used, &error)
        : hub_load_llama(&llama, &config->llama, shards, used, &error);
    check_refusal(status, &error);
    require((gpt != NULL || llama != NULL) == (status == STATUS_OK),
            "a model or a refusal");
    if (status == STATUS_OK) {
        const struct causal_lm lm = gpt != NULL ? tiny_gpt_causal_lm(gpt)
                                                : llama_causal_lm(llama);
        run_a_token(&lm);
    }
    tiny_gpt_free(&gpt);
    llama_free(&llama);
    free(used);
}

static void door_directory(const uint8_t *data, size_t size)
{
    const size_t text = size < 2 ? 0 : data[0] + 256u * data[1];
    struct hub_config config;
    struct shards *shards = NULL;
    struct error error;
    if (size < 2 || text > size - 2
        || hub_config_parse(&config, (const char *)data + 2, text, &error)
           != STATUS_OK || config.format == FORMAT_TINY_GPT
        || shards_parse(&shards, "it", data + 2 + text, size - 2 - text,
                        &error) != STATUS_OK)
        return;
    load(&config, shards);
    shards_close(&shards);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const doors[DOORS])(const uint8_t *, size_t) = {
        door_tensors, door_config, door_index, door_llama2c, door_directory
    };
    if (size > 0)
        doors[data[0] % DOORS](data + 1, size - 1);
    return 0;
}

/* Most changes of a header leave its length behind, and every reader would
   stop there. Half of the time it is made right again. */
static void repair(uint8_t *data, size_t size)
{
    size_t at = 1;
    if (size > 3 && data[0] % DOORS == 4)
        at = 3 + data[1] + 256u * data[2];
    if (size < 1 || (data[0] % DOORS != 0 && data[0] % DOORS != 4)
        || size < 10 || at > size - 9)
        return;
    size_t end = at + 8;
    int depth = 0;
    bool quoted = false;
    do {
        const uint8_t c = data[end++];
        if (quoted && c == '\\')
            end++;
        else if (c == '"')
            quoted = !quoted;
        else if (!quoted)
            depth += (c == '{') - (c == '}');
    } while (depth > 0 && end < size);
    if (end > size)
        return;
    for (int k = 0; k < 8; k++)
        data[at + (size_t)k] = (uint8_t)((uint64_t)(end - at - 8) >> 8 * k);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room,
                               unsigned seed)
{
    size = LLVMFuzzerMutate(data, size, room);
    if (seed % 2 == 0)
        repair(data, size);
    return size;
}
