#include "score.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "log.h"

struct score {
    struct log *log;
    struct moment (*now)(void);
    struct attempt *items;
    size_t count, room;
};

static void *need(void *block)
{
    if (block != NULL)
        return block;
    complain("out of memory");
    exit(1);
}

static char *copy_of(const char *text)
{
    return text_format("%s", text);
}

static const char *text_of(const cJSON *event, const char *name)
{
    return cJSON_GetStringValue(
        cJSON_GetObjectItemCaseSensitive(event, name));
}

static bool number_of(const cJSON *event, const char *name, double *value)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(event, name);
    bool is_number = cJSON_IsNumber(item)
        && item->valuedouble > -1e15 && item->valuedouble < 1e15;
    if (is_number)
        *value = item->valuedouble;
    return is_number;
}

static bool count_of(const cJSON *event, const char *name, int *value)
{
    double number;
    bool is_count = number_of(event, name, &number) && number >= 0
        && number <= 1e9;
    if (is_count)
        *value = (int)number;
    return is_count;
}

static bool moment_read(struct moment *moment, const cJSON *event)
{
    const char *at = text_of(event, "at"), *boot = text_of(event, "boot");
    if (at == NULL || boot == NULL || strlen(at) >= sizeof moment->stamp
        || strlen(boot) >= sizeof moment->boot
        || !number_of(event, "wall", &moment->wall)
        || !number_of(event, "awake", &moment->awake)
        || !number_of(event, "since_boot", &moment->since_boot))
        return false;
    strcpy(moment->stamp, at);
    strcpy(moment->boot, boot);
    snprintf(moment->date, sizeof moment->date, "%.10s", at);
    return calendar_valid(moment->date);
}

static struct tally tally_after(const struct attempt *attempt,
                                const struct span *span)
{
    struct tally tally = attempt->counted;
    if (attempt->is_paused) {
        tally.paused += span->awake + span->slept;
    } else {
        tally.elapsed += span->awake;
        tally.slept += span->slept;
        tally.uncertain = tally.uncertain || span->uncertain;
    }
    return tally;
}

void attempt_advance(struct attempt *attempt, const struct moment *now)
{
    struct span span = moment_span(&attempt->last, now);
    if (attempt->result != RESULT_OPEN)
        return;
    struct tally tally = tally_after(attempt, &span);
    attempt->elapsed = tally.elapsed;
    attempt->paused = tally.paused;
    attempt->slept = tally.slept;
    attempt->uncertain = tally.uncertain;
}

static void take_moment(struct attempt *attempt, const struct moment *moment)
{
    struct span span = moment_span(&attempt->last, moment);
    if (attempt->result == RESULT_OPEN)
        attempt->counted = tally_after(attempt, &span);
    if (!span.backwards)
        attempt->last = *moment;
    attempt_advance(attempt, &attempt->last);
}

static void finish(struct attempt *attempt, enum result result)
{
    if (attempt->result != RESULT_OPEN)
        return;
    attempt->result = result;
    attempt->is_paused = false;
    strcpy(attempt->end_date, attempt->last.date);
}

static bool is_inside(const char *folder)
{
    return folder[0] != '/' && folder[0] != '\0'
        && strstr(folder, "..") == NULL;
}

static void abandon_open(struct score *score, const char *stage,
                         const struct moment *at)
{
    for (size_t i = 0; i < score->count; i++)
        if (score->items[i].result == RESULT_OPEN
            && strcmp(score->items[i].stage, stage) == 0) {
            take_moment(&score->items[i], at);
            finish(&score->items[i], RESULT_ABANDONED);
        }
}

static const char *fold_start(struct score *score, const cJSON *event,
                              const char *folder, const struct moment *at)
{
    const char *stage = text_of(event, "stage");
    const char *level = text_of(event, "level");
    struct attempt fresh = { .began = *at, .last = *at };
    if (level == NULL || !level_parse(&fresh.level, level)
        || stage == NULL || !is_inside(folder)
        || !number_of(event, "budget", &fresh.budget) || fresh.budget <= 0)
        return "a start without stage, folder, level or budget";
    abandon_open(score, stage, at);
    fresh.stage = copy_of(stage);
    fresh.folder = copy_of(folder);
    fresh.problem = copy_of("");
    fresh.first_owner = copy_of("");
    fresh.wrong = copy_of("");
    if (score->count == score->room) {
        score->room = 2 * score->room + 16;
        score->items = need(realloc(score->items,
                                    score->room * sizeof *score->items));
    }
    score->items[score->count++] = fresh;
    return NULL;
}

static void replace_text(char **text, const char *by)
{
    free(*text);
    *text = copy_of(by);
}

static void free_owners(struct attempt *attempt)
{
    for (size_t i = 0; i < attempt->owner_count; i++)
        free(attempt->owners[i]);
    free(attempt->owners);
    attempt->owners = NULL;
    attempt->owner_count = 0;
}

static void replace_owners(struct attempt *attempt, const cJSON *event)
{
    const cJSON *owners = cJSON_GetObjectItemCaseSensitive(event, "owners");
    const cJSON *owner;
    size_t room = (size_t)cJSON_GetArraySize(owners) + 1;
    free_owners(attempt);
    attempt->owners = allocate(room * sizeof *attempt->owners);
    cJSON_ArrayForEach(owner, owners)
        if (cJSON_IsString(owner))
            attempt->owners[attempt->owner_count++] =
                copy_of(owner->valuestring);
    if (attempt->first_owner[0] == '\0' && attempt->owner_count > 0)
        replace_text(&attempt->first_owner, attempt->owners[0]);
}

static const char *fold_grade(struct attempt *attempt, const cJSON *event)
{
    const char *problem = text_of(event, "problem");
    const char *seed = text_of(event, "seed");
    int passed, failed;
    if (!count_of(event, "passed", &passed)
        || !count_of(event, "failed", &failed))
        return "a grade without its numbers";
    attempt->is_paused = false;
    attempt->grades++;
    attempt->passed = passed;
    attempt->failed = failed;
    attempt->seed = seed != NULL ? strtoull(seed, NULL, 10) : 0;
    replace_text(&attempt->problem, problem != NULL ? problem : "");
    replace_owners(attempt, event);
    if (problem == NULL && failed == 0 && passed > 0)
        finish(attempt, attempt->elapsed <= attempt->budget
               ? RESULT_CLEAN : RESULT_LATE);
    return NULL;
}

static const char *fold_pause(struct attempt *attempt, const cJSON *event)
{
    (void)event;
    if (attempt->result == RESULT_OPEN && !attempt->is_paused) {
        attempt->is_paused = true;
        attempt->pauses++;
    }
    return NULL;
}

static const char *fold_resume(struct attempt *attempt, const cJSON *event)
{
    (void)event;
    attempt->is_paused = false;
    return NULL;
}

static const char *fold_refuse(struct attempt *attempt, const cJSON *event)
{
    (void)event;
    attempt->reveal_refused = true;
    return NULL;
}

static const char *fold_reveal(struct attempt *attempt, const cJSON *event)
{
    const char *wrong = text_of(event, "wrong");
    if (wrong != NULL && wrong[0] != '\0')
        replace_text(&attempt->wrong, wrong);
    finish(attempt, RESULT_REVEALED);
    return NULL;
}

static const char *fold_abandon(struct attempt *attempt, const cJSON *event)
{
    (void)event;
    finish(attempt, RESULT_ABANDONED);
    return NULL;
}

static const struct kind {
    const char *name;
    const char *(*fold)(struct attempt *attempt, const cJSON *event);
} kinds[] = {
    { "start", NULL }, { "grade", fold_grade }, { "pause", fold_pause },
    { "resume", fold_resume }, { "refuse", fold_refuse },
    { "reveal", fold_reveal }, { "abandon", fold_abandon },
};

static struct attempt *find(const struct score *score, const char *folder)
{
    for (size_t i = score->count; i-- > 0; )
        if (strcmp(score->items[i].folder, folder) == 0)
            return &score->items[i];
    return NULL;
}

static const char *fold(void *context, const cJSON *event)
{
    struct score *score = context;
    const char *name = text_of(event, "event");
    const char *folder = text_of(event, "folder");
    struct moment at = { 0 };
    size_t kind = 0, kind_count = sizeof kinds / sizeof kinds[0];
    while (name != NULL && kind < kind_count
           && strcmp(kinds[kind].name, name) != 0)
        kind++;
    if (kind == kind_count)
        return NULL;
    if (name == NULL || folder == NULL || !moment_read(&at, event))
        return "an event without kind, folder or time";
    struct attempt *attempt = find(score, folder);
    if (kinds[kind].fold == NULL)
        return attempt != NULL ? "a second start of one folder"
            : fold_start(score, event, folder, &at);
    if (attempt == NULL)
        return "of an attempt that was not started";
    take_moment(attempt, &at);
    return kinds[kind].fold(attempt, event);
}

bool score_open_at(struct score **out, const struct workshop *workshop,
                   struct moment (*now)(void))
{
    struct score *score = allocate(sizeof *score);
    score->now = now;
    *out = score;
    if (!log_open(&score->log, workshop->attempts, fold, score)) {
        score_close(out);
        return false;
    }
    struct moment moment = now();
    for (size_t i = 0; i < score->count; i++)
        attempt_advance(&score->items[i], &moment);
    return true;
}

bool score_open(struct score **score, const struct workshop *workshop)
{
    return score_open_at(score, workshop, moment_now);
}

void score_close(struct score **score)
{
    if (*score == NULL)
        return;
    for (size_t i = 0; i < (*score)->count; i++) {
        struct attempt *attempt = &(*score)->items[i];
        free_owners(attempt);
        free(attempt->stage);
        free(attempt->folder);
        free(attempt->problem);
        free(attempt->first_owner);
        free(attempt->wrong);
    }
    log_close(&(*score)->log);
    free((*score)->items);
    free(*score);
    *score = NULL;
}

const struct attempt *score_latest(const struct score *score,
                                   const char *stage)
{
    for (size_t i = score->count; i-- > 0; )
        if (strcmp(score->items[i].stage, stage) == 0)
            return &score->items[i];
    return NULL;
}

size_t score_attempts(const struct score *score,
                      const struct attempt **items)
{
    *items = score->items;
    return score->count;
}

struct standing score_standing(const struct score *score, const char *stage)
{
    struct outcome *outcomes =
        allocate((score->count + 1) * sizeof *outcomes);
    size_t count = 0;
    for (size_t i = 0; i < score->count; i++) {
        const struct attempt *attempt = &score->items[i];
        struct outcome *outcome = &outcomes[count];
        if (strcmp(attempt->stage, stage) != 0)
            continue;
        outcome->result = attempt->result;
        outcome->level = attempt->level;
        outcome->paused = attempt->pauses > 0;
        strcpy(outcome->date, attempt->end_date);
        count++;
    }
    struct standing standing = calendar_standing(outcomes, count);
    free(outcomes);
    return standing;
}

static cJSON *event_new(const char *kind, const char *folder,
                        const struct moment *at)
{
    cJSON *event = need(cJSON_CreateObject());
    need(cJSON_AddStringToObject(event, "event", kind));
    need(cJSON_AddStringToObject(event, "at", at->stamp));
    need(cJSON_AddNumberToObject(event, "wall", at->wall));
    need(cJSON_AddNumberToObject(event, "awake", at->awake));
    need(cJSON_AddNumberToObject(event, "since_boot", at->since_boot));
    need(cJSON_AddStringToObject(event, "boot", at->boot));
    need(cJSON_AddStringToObject(event, "folder", folder));
    return event;
}

static bool append(struct score *score, cJSON *event)
{
    bool written = log_append(score->log, event);
    const char *wrong = written ? fold(score, event) : NULL;
    if (wrong != NULL)
        complain("this event will be skipped: %s", wrong);
    cJSON_Delete(event);
    return written && wrong == NULL;
}

static bool append_plain(struct score *score, const char *kind,
                         const struct attempt *attempt)
{
    struct moment now = score->now();
    return append(score, event_new(kind, attempt->folder, &now));
}

bool score_start(struct score *score, const char *stage, const char *folder,
                 enum level level, double budget)
{
    struct moment now = score->now();
    if (!is_inside(folder) || budget <= 0 || find(score, folder) != NULL)
        return complain("%s: not the folder of a new attempt", folder);
    cJSON *event = event_new("start", folder, &now);
    need(cJSON_AddStringToObject(event, "stage", stage));
    need(cJSON_AddStringToObject(event, "level", level_name(level)));
    need(cJSON_AddNumberToObject(event, "budget", budget));
    return append(score, event);
}

bool score_grade(struct score *score, const struct attempt *attempt,
                 const struct verdict *verdict)
{
    struct moment now = score->now();
    const struct moment *at = verdict->asked != NULL ? verdict->asked : &now;
    char *seed = text_format("%llu", verdict->seed);
    if (attempt->is_paused
        && !append(score, event_new("resume", attempt->folder, at))) {
        free(seed);
        return false;
    }
    cJSON *event = event_new("grade", attempt->folder, at);
    need(cJSON_AddNumberToObject(event, "passed", verdict->passed));
    need(cJSON_AddNumberToObject(event, "failed", verdict->failed));
    need(cJSON_AddStringToObject(event, "seed", seed));
    cJSON *owners = need(cJSON_AddArrayToObject(event, "owners"));
    for (size_t i = 0; i < verdict->owner_count; i++)
        cJSON_AddItemToArray(owners,
                             need(cJSON_CreateString(verdict->owners[i])));
    if (verdict->problem != NULL)
        need(cJSON_AddStringToObject(event, "problem", verdict->problem));
    else
        need(cJSON_AddNullToObject(event, "problem"));
    free(seed);
    return append(score, event);
}

bool score_reveal(struct score *score, const struct attempt *attempt,
                  const char *wrong)
{
    struct moment now = score->now();
    cJSON *event = event_new("reveal", attempt->folder, &now);
    need(cJSON_AddStringToObject(event, "wrong", wrong));
    return append(score, event);
}

bool score_pause(struct score *score, const struct attempt *attempt)
{
    return append_plain(score, "pause", attempt);
}

bool score_resume(struct score *score, const struct attempt *attempt)
{
    return append_plain(score, "resume", attempt);
}

bool score_abandon(struct score *score, const struct attempt *attempt)
{
    return append_plain(score, "abandon", attempt);
}

bool score_refuse_reveal(struct score *score, const struct attempt *attempt)
{
    return append_plain(score, "refuse", attempt);
}
