#include <cjson/cJSON.h>
#include <errno.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "bench_load.h"
#include "cache_bytes.h"
#include "json.h"
#include "request.h"

static double peak_bytes(void)
{
    char line[256];
    double kilobytes = 0;
    struct rusage usage;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "VmHWM: %lf", &kilobytes) == 1)
            break;
    if (file != NULL)
        fclose(file);
    if (kilobytes == 0 && getrusage(RUSAGE_SELF, &usage) == 0)
        kilobytes = (double)usage.ru_maxrss;
    return 1024 * kilobytes;
}

static enum status time_feeds(struct request *request,
                              const struct stopwatch *watch,
                              struct bench_load *load, struct error *error)
{
    struct samples again = {0};
    const int32_t *ids = request_columns(request);
    const float *logits;
    enum status status = STATUS_OK;
    for (int k = 0; k <= LOAD_AGAIN && status == STATUS_OK; k++) {
        kv_cache_reset(request_cache(request));
        const double began = watch->now(watch->state);
        status = request_feed(request, ids, LOAD_PROMPT, true, &logits,
                              error);
        const double took = watch->now(watch->state) - began;
        if (k == 0)
            load->first = took;
        else
            samples_add(&again, took);
    }
    load->again = samples_median(&again);
    const double began = watch->now(watch->state);
    for (int k = 0; k < LOAD_STEPS && status == STATUS_OK; k++)
        status = request_feed(request, ids, 1, true, &logits, error);
    load->decode = (watch->now(watch->state) - began) / LOAD_STEPS;
    return status;
}

enum status bench_load_here(const char *path, const struct kernels *kernels,
                            const struct stopwatch *watch,
                            struct bench_load *load, struct error *error)
{
    struct engine *engine = NULL;
    struct request *request = NULL;
    struct bench_load made = {0};
    size_t cache = 0;
    const double began = watch->now(watch->state);
    enum status status = engine_open(&engine, path, kernels, error);
    made.open = watch->now(watch->state) - began;
    if (status != STATUS_OK)
        return status;
    const struct causal_lm lm = engine_causal_lm(engine);
    const int room = LOAD_PROMPT + LOAD_STEPS;
    status = request_new(&request, &lm, 1, room, LOAD_PROMPT, error);
    if (status == STATUS_OK)
        status = time_feeds(request, watch, &made, error);
    if (status == STATUS_OK && cache_bytes(&lm.cache, 1, room,
                                           sizeof (float), &cache)) {
        made.weight_bytes = (double)engine_bytes(engine);
        made.cache_bytes = (double)cache;
        made.peak_bytes = peak_bytes();
        *load = made;
    }
    request_free(&request);
    engine_free(&engine);
    return status;
}

static const struct load_row {
    const char *name;
    size_t offset;
} load_rows[] = {
#define ROW(name) {#name, offsetof(struct bench_load, name)}
    ROW(open), ROW(first), ROW(again), ROW(decode), ROW(weight_bytes),
    ROW(cache_bytes), ROW(peak_bytes)
#undef ROW
};
enum { LOAD_ROWS = sizeof load_rows / sizeof load_rows[0] };

void bench_load_print(FILE *out, const struct bench_load *load)
{
    for (int r = 0; r < LOAD_ROWS; r++)
        fprintf(out, "%s\"%s\": %.9g", r == 0 ? "{" : ", ",
                load_rows[r].name,
                *(const double *)((const char *)load + load_rows[r].offset));
    fprintf(out, "}\n");
}

static enum status start(char *const argv[], pid_t *child, int *output,
                         struct error *error)
{
    extern char **environ;
    posix_spawn_file_actions_t actions;
    int ends[2];
    if (pipe(ends) != 0)
        return error_set(error, STATUS_IO, "no pipe: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    posix_spawn_file_actions_addclose(&actions, ends[1]);
    const int failed = posix_spawn(child, argv[0], &actions, NULL, argv,
                                   environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    *output = ends[0];
    if (failed == 0)
        return STATUS_OK;
    close(ends[0]);
    return error_set(error, STATUS_IO, "cannot start %s: %s", argv[0],
                     strerror(failed));
}

static enum status hear(pid_t child, int output, char *text, size_t room,
                          size_t *length, struct error *error)
{
    ssize_t got = 1;
    int ended = 0;
    while (*length < room && got > 0) {
        got = read(output, text + *length, room - *length);
        *length += got > 0 ? (size_t)got : 0;
    }
    close(output);
    if (waitpid(child, &ended, 0) == child && WIFEXITED(ended)
        && WEXITSTATUS(ended) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_IO, "the process that should open the"
                     " engine failed");
}

static enum status read_load(const char *text, size_t length,
                             struct bench_load *load, struct error *error)
{
    cJSON *object;
    struct bench_load made = {0};
    enum status status = json_parse(&object, text, length, error);
    if (status != STATUS_OK)
        return status;
    for (int r = 0; r < LOAD_ROWS && status == STATUS_OK; r++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(
            object, load_rows[r].name);
        if (!cJSON_IsNumber(item))
            status = error_set(error, STATUS_FORMAT, "%s: missing",
                               load_rows[r].name);
        else
            *(double *)((char *)&made + load_rows[r].offset)
                = item->valuedouble;
    }
    cJSON_Delete(object);
    if (status == STATUS_OK)
        *load = made;
    return status;
}

enum status bench_load_apart(const char *path, const char *kernels,
                             int threads, struct bench_load *load,
                             struct error *error)
{
    char self[4096], number[16], text[1024];
    size_t length = 0;
    pid_t child = 0;
    int output = -1;
    const ssize_t got = readlink("/proc/self/exe", self, sizeof self - 1);
    if (got < 0)
        return error_set(error, STATUS_IO, "load: this system does not say"
                         " where the program is");
    self[got] = '\0';
    snprintf(number, sizeof number, "%d", threads);
    char *const argv[] = {
        self, "bench", "--open", (char *)path, "--kernels", (char *)kernels,
        "--threads", number, NULL
    };
    enum status status = start(argv, &child, &output, error);
    if (status == STATUS_OK)
        status = hear(child, output, text, sizeof text, &length, error);
    if (status == STATUS_OK)
        status = read_load(text, length, load, error);
    return status;
}
