/* Holds a checkpoint of your own against what is recorded beside it:

       check_checkpoint DIRECTORY | FILE.bin

   In the directory of the model, as far as they are there:

   greedy_ids.txt     lines "position id-in id-out logit second-id logit" of
                      a greedy run of another program
   logits*.txt        after "# pos P", lines "id logit": all of position P of
                      the same run
   encode_ids.txt     lines "text in hex | ids", BOS first; "-" is no text
   expected.safetensors   in.prompt, out.greedy, out.rows, as the oracle of
                      tests/golden writes them

   Without any run of another program, 256 greedy tokens of the cached loop
   are held against one call over the whole text. Says what was compared and
   the largest difference; status 1 when something differs. */
#include <dirent.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "checkpoint.h"
#include "file.h"
#include "request.h"
#include "tokenizer.h"

enum { RECORDED_MAX = 100000, SELF_STEPS = 256 };
static const double tolerance = 1e-4;    /* absolute, and relative above 1 */

struct check {
    char directory[3000], model[3600];
    struct checkpoint *checkpoint;
    struct causal_lm lm;
    int32_t *ids;           /* of the recorded run, by position */
    int count;
    int compared;           /* kinds of records */
    int failed;             /* of them */
};

static void die(const struct error *error)
{
    fprintf(stderr, "check-checkpoint: %s\n", error->message);
    exit(1);
}

static void must(enum status status, const struct error *error)
{
    if (status != STATUS_OK)
        die(error);
}

static double off(double got, double want)
{
    const double difference = fabs(got - want) / fmax(1, fabs(want));
    return isnan(difference) ? INFINITY : difference;
}

/* verdict("256 greedy tokens", 3, 2e-6): 3 of them differ */
static void verdict(struct check *check, const char *what, int wrong,
                    double largest)
{
    const bool good = wrong == 0 && largest <= tolerance;
    printf("%s %s", good ? "ok     " : "DIFFERS", what);
    if (wrong > 0)
        printf(": %d of them differ", wrong);
    if (largest >= 0)
        printf("; largest difference of a logit %.2g", largest);
    printf("\n");
    fflush(stdout);
    check->compared++;
    check->failed += !good;
}

static int best(const float *logits, int count)
{
    int best_id = 0;
    for (int k = 1; k < count; k++)
        if (logits[k] > logits[best_id])
            best_id = k;
    return best_id;
}

/* NULL when there is no such file. */
static FILE *beside(const struct check *check, const char *name)
{
    char path[3600];
    snprintf(path, sizeof path, "%s/%s", check->directory, name);
    return fopen(path, "r");
}

static void check_greedy(struct check *check, FILE *file)
{
    struct error error;
    struct request *request = NULL;
    char line[400], what[200];
    int steps = 0, wrong = 0;
    double largest = 0, margin = INFINITY;
    check->ids = calloc(RECORDED_MAX, sizeof *check->ids);
    must(request_new(&request, &check->lm, 1, check->lm.context_length, 1,
                     &error), &error);
    while (fgets(line, sizeof line, file) != NULL && steps < RECORDED_MAX) {
        int position, in, out, second;
        double first_logit, second_logit;
        const float *logits;
        if (sscanf(line, "%d %d %d %lf %d %lf", &position, &in, &out,
                   &first_logit, &second, &second_logit) != 6)
            continue;
        const int32_t id = in;
        check->ids[steps++] = id;
        must(request_feed(request, &id, 1, true, &logits, &error), &error);
        wrong += best(logits, check->lm.vocab_size) != out;
        if (out >= 0 && out < check->lm.vocab_size && second >= 0
            && second < check->lm.vocab_size) {
            largest = fmax(largest, off(logits[out], first_logit));
            largest = fmax(largest, off(logits[second], second_logit));
        }
        margin = fmin(margin, first_logit - second_logit);
    }
    check->count = steps;
    request_free(&request);
    snprintf(what, sizeof what, "%d recorded greedy tokens (smallest margin"
             " %.2g)", steps, margin);
    verdict(check, what, wrong + (steps == 0), largest);
}

/* Positions of the recorded run. */
static void check_logits(struct check *check, FILE *file, const char *name)
{
    struct error error;
    struct request *request = NULL;
    const float *logits = NULL;
    char line[200], what[300];
    int position = -1, fed = 0, rows = 0, values = 0, wrong = 0;
    double largest = 0;
    must(request_new(&request, &check->lm, 1, check->lm.context_length, 1,
                     &error), &error);
    while (fgets(line, sizeof line, file) != NULL) {
        int id;
        double want;
        if (sscanf(line, "# pos %d", &position) == 1) {
            rows++;
            for (; fed <= position && fed < check->count; fed++)
                must(request_feed(request, &check->ids[fed], 1, true,
                                  &logits, &error), &error);
            if (fed != position + 1)
                wrong++;
        } else if (sscanf(line, "%d %lf", &id, &want) == 2
                   && logits != NULL && id >= 0
                   && id < check->lm.vocab_size) {
            values++;
            largest = fmax(largest, off(logits[id], want));
        }
    }
    request_free(&request);
    snprintf(what, sizeof what, "%d logits of %d positions in %.100s",
             values, rows, name);
    verdict(check, what, wrong + (values == 0), largest);
}

static void check_all_logits(struct check *check)
{
    DIR *directory = opendir(check->directory);
    const struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        const size_t length = strlen(entry->d_name);
        if (strncmp(entry->d_name, "logits", 6) != 0 || length < 4
            || strcmp(entry->d_name + length - 4, ".txt") != 0)
            continue;
        FILE *file = beside(check, entry->d_name);
        if (file != NULL) {
            check_logits(check, file, entry->d_name);
            fclose(file);
        }
    }
    if (directory != NULL)
        closedir(directory);
}

static size_t from_hex(const char *hex, char *bytes, size_t room)
{
    size_t count = 0;
    unsigned byte;
    while (count < room && sscanf(hex + 2 * count, "%2x", &byte) == 1
           && hex[2 * count + 1] != '\0')
        bytes[count++] = (char)byte;
    return count;
}

/* Whether the ids are those that stand in the text. */
static bool same_ids(const char *text, const int32_t *ids, int count)
{
    char *end;
    for (int k = 0; k < count; k++, text = end) {
        const long id = strtol(text, &end, 10);
        if (end == text || id != ids[k])
            return false;
    }
    (void)strtol(text, &end, 10);
    return end == text;
}

static void check_encoding(struct check *check, FILE *file)
{
    struct error error;
    struct tokenizer *tokenizer = NULL;
    static char line[20000], bytes[9000];
    char what[100];
    int texts = 0, wrong = 0;
    must(tokenizer_open(&tokenizer, check->model, NULL, check->lm.vocab_size,
                        &error), &error);
    while (fgets(line, sizeof line, file) != NULL) {
        char *bar = strchr(line, '|');
        int32_t *ids = NULL;
        int count = 0;
        if (line[0] == '#' || bar == NULL)
            continue;
        *bar = '\0';
        const size_t length = line[0] == '-' ? 0
                              : from_hex(line, bytes, sizeof bytes);
        must(tokenizer_encode(tokenizer, bytes, length, TOKENIZER_BEGIN,
                              &ids, &count, &error), &error);
        texts++;
        wrong += !same_ids(bar + 1, ids, count);
        free(ids);
    }
    tokenizer_close(&tokenizer);
    snprintf(what, sizeof what, "ids of %d texts", texts);
    verdict(check, what, wrong + (texts == 0), -1);
}

static const struct safetensors_entry *
entry_of(const struct safetensors *file, const char *name, enum dtype dtype)
{
    const struct safetensors_entry *entry = safetensors_find(file, name);
    if (entry == NULL || entry->dtype != dtype || entry->rank < 1) {
        fprintf(stderr, "check-checkpoint: expected.safetensors: no %s of"
                " %s\n", name, dtype_name(dtype));
        exit(1);
    }
    return entry;
}

static int32_t *ids_of(const struct safetensors_entry *entry, int *count)
{
    *count = (int)(entry->bytes / sizeof (int64_t));
    int32_t *ids = calloc((size_t)*count + 1, sizeof *ids);
    for (int k = 0; k < *count; k++) {
        int64_t id;
        memcpy(&id, (const char *)entry->data + (size_t)k * sizeof id,
               sizeof id);
        ids[k] = (int32_t)id;
    }
    return ids;
}

/* The oracle's rows; with out.rows.index, of those steps alone. */
static void check_expected(struct check *check, const char *path)
{
    struct error error;
    struct safetensors *file = NULL;
    struct request *request = NULL;
    int prompt_count, count, row = 0, wrong = 0, kept_count = 0;
    double largest = 0;
    char what[200];
    must(safetensors_open(&file, path, &error), &error);
    int32_t *prompt = ids_of(entry_of(file, "in.prompt", DTYPE_I64),
                             &prompt_count);
    int32_t *greedy = ids_of(entry_of(file, "out.greedy", DTYPE_I64), &count);
    const struct safetensors_entry *rows = entry_of(file, "out.rows",
                                                    DTYPE_F32);
    int32_t *kept = NULL;
    if (safetensors_find(file, "out.rows.index") != NULL)
        kept = ids_of(entry_of(file, "out.rows.index", DTYPE_I64),
                      &kept_count);
    const size_t width = (size_t)check->lm.vocab_size;
    const int held = (int)(rows->bytes / (width * sizeof (float)));
    must(request_new(&request, &check->lm, 1, prompt_count + count,
                     prompt_count > 0 ? prompt_count : 1, &error), &error);
    for (int k = 0; k < count; k++) {
        const float *logits;
        must(request_feed(request, k == 0 ? prompt : &greedy[k - 1],
                          k == 0 ? prompt_count : 1, true, &logits, &error),
             &error);
        wrong += best(logits, check->lm.vocab_size) != greedy[k];
        if (row >= held || (kept != NULL && (row >= kept_count
                                             || kept[row] != k)))
            continue;
        for (size_t i = 0; i < width; i++) {
            float want;
            memcpy(&want, (const char *)rows->data
                   + ((size_t)row * width + i) * sizeof want, sizeof want);
            largest = fmax(largest, off(logits[i], want));
        }
        row++;
    }
    snprintf(what, sizeof what, "%d greedy tokens and %d rows of"
             " expected.safetensors", count, row);
    verdict(check, what, wrong + (count == 0 || row < held), largest);
    free(prompt);
    free(greedy);
    free(kept);
    request_free(&request);
    safetensors_close(&file);
}

/* A greedy run of the cached loop, against one call over all of it. */
static void check_self(struct check *check)
{
    struct error error;
    struct request *cached = NULL, *whole = NULL;
    const float *logits;
    const struct causal_lm *lm = &check->lm;
    const size_t width = (size_t)lm->vocab_size;
    const int steps = lm->context_length < SELF_STEPS ? lm->context_length
                                                      : SELF_STEPS;
    int32_t *ids = calloc((size_t)steps + 1, sizeof *ids);
    float *rows = calloc((size_t)steps * width, sizeof *rows);
    double largest = 0;
    int wrong = 0;
    char what[200];
    if (ids == NULL || rows == NULL)
        exit(1);
    ids[0] = lm->vocab_size > 1;    /* any id will do */
    must(request_new(&cached, lm, 1, steps, 1, &error), &error);
    for (int k = 0; k < steps; k++) {
        must(request_feed(cached, &ids[k], 1, true, &logits, &error),
             &error);
        memcpy(rows + (size_t)k * width, logits, width * sizeof *rows);
        ids[k + 1] = best(logits, lm->vocab_size);
    }
    request_free(&cached);
    must(request_new(&whole, lm, 1, steps, steps, &error), &error);
    must(request_feed(whole, ids, steps, false, &logits, &error), &error);
    for (size_t i = 0; i < (size_t)steps * width; i++)
        largest = fmax(largest, off(rows[i], logits[i]));
    for (int k = 0; k < steps; k++)
        wrong += best(logits + (size_t)k * width, lm->vocab_size)
                 != ids[k + 1];
    request_free(&whole);
    snprintf(what, sizeof what, "%d cached greedy tokens against one call"
             " over all of them (nothing is recorded here)", steps);
    verdict(check, what, wrong, largest);
    free(ids);
    free(rows);
}

/* A directory of the hub or of ours, else the .bin file in it that opens. */
static void find_model(struct check *check, const char *path)
{
    struct error error;
    struct stat facts;
    char config[3600];
    snprintf(check->model, sizeof check->model, "%.2900s", path);
    snprintf(check->directory, sizeof check->directory, "%.2900s", path);
    if (stat(path, &facts) == 0 && !S_ISDIR(facts.st_mode)) {
        char *slash = strrchr(check->directory, '/');
        strcpy(slash == NULL ? check->directory : slash,
               slash == NULL ? "." : "");
    }
    snprintf(config, sizeof config, "%s/config.json", check->directory);
    DIR *directory = stat(path, &facts) == 0 && S_ISDIR(facts.st_mode)
                     && stat(config, &facts) != 0 ? opendir(path) : NULL;
    const struct dirent *entry;
    while (directory != NULL && check->checkpoint == NULL
           && (entry = readdir(directory)) != NULL) {
        const size_t length = strlen(entry->d_name);
        snprintf(check->model, sizeof check->model, "%s/%s",
                 check->directory, entry->d_name);
        if (length > 4 && strcmp(entry->d_name + length - 4, ".bin") == 0)
            (void)checkpoint_open(&check->checkpoint, check->model, &error);
    }
    if (directory != NULL)
        closedir(directory);
    if (check->checkpoint == NULL && directory != NULL) {
        fprintf(stderr, "check-checkpoint: %s: no config.json, and no .bin"
                " file that is a model\n", path);
        exit(1);
    }
    if (check->checkpoint == NULL)
        must(checkpoint_open(&check->checkpoint, check->model, &error),
             &error);
}

static void check_all(struct check *check)
{
    char path[3600];
    struct stat facts;
    FILE *file = beside(check, "greedy_ids.txt");
    bool recorded = file != NULL;
    if (file != NULL) {
        check_greedy(check, file);
        fclose(file);
        check_all_logits(check);
    }
    file = beside(check, "encode_ids.txt");
    if (file != NULL) {
        check_encoding(check, file);
        fclose(file);
    }
    snprintf(path, sizeof path, "%s/expected.safetensors", check->directory);
    if (stat(path, &facts) == 0) {
        check_expected(check, path);
        recorded = true;
    }
    if (!recorded)
        check_self(check);
}

int main(int argc, char **argv)
{
    static struct check check;
    if (argc != 2) {
        fprintf(stderr, "usage: check_checkpoint DIRECTORY | FILE.bin\n");
        return 2;
    }
    find_model(&check, argv[1]);
    check.lm = checkpoint_causal_lm(check.checkpoint);
    printf("%s: %s, %d ids, %zu tensors in %zu bytes\n", check.model,
           checkpoint_format_name(check.checkpoint), check.lm.vocab_size,
           checkpoint_tensor_count(check.checkpoint),
           checkpoint_file_bytes(check.checkpoint));
    check_all(&check);
    printf("%d of %d records agree%s\n", check.compared - check.failed,
           check.compared, check.failed ? ": NOT the same model" : "");
    free(check.ids);
    checkpoint_close(&check.checkpoint);
    return check.failed != 0;
}
