#ifndef SCORE_H
#define SCORE_H

#include "calendar.h"
#include "clock.h"
#include "workshop.h"

struct tally { double elapsed, paused, slept; bool uncertain; };

struct attempt {
    char *stage;        /* key: "5", "10.2" */
    char *folder;       /* "05-mask/2026-11-29T20-31-05", below attempts/ */
    enum level level;
    double budget;      /* seconds */
    double elapsed;     /* awake and not paused, up to the end or up to now */
    double paused, slept;   /* what was not counted, and why */
    bool uncertain;     /* a reboot lies inside: wall time was counted */
    bool is_paused;
    int pauses;         /* how often it was paused before its end */
    enum result result; /* CLEAN, LATE: of the first full pass */
    int grades;             /* how often it was graded */
    int passed, failed;     /* tests, by the last grade */
    unsigned long long seed;    /* of the last grade */
    char *problem;          /* of the last grade; "" when there was a verdict */
    char **owners;          /* of its failures, the first failure first */
    size_t owner_count;
    char *first_owner;      /* of the first failure of all grades, or "" */
    char *wrong;        /* first wrong decision; "" until revealed */
    bool reveal_refused;
    struct moment began, last;  /* its first event and its latest */
    struct tally counted;       /* the times up to last */
    char end_date[11];  /* of the pass, the reveal or the abandoning */
};

/* Moves the four times of an open attempt on to now; the rest stays. */
void attempt_advance(struct attempt *attempt, const struct moment *now);

struct score;
bool score_open(struct score **score, const struct workshop *workshop);
bool score_open_at(struct score **score, const struct workshop *workshop,
                   struct moment (*now)(void));
void score_close(struct score **score);

/* The attempt of the stage that began last; NULL: it was never begun. Valid,
   as all attempts of a score, until score_start or score_close. */
const struct attempt *score_latest(const struct score *score,
                                   const char *stage);

/* All attempts, the oldest first; returns how many. */
size_t score_attempts(const struct score *score,
                      const struct attempt **items);

/* The state of a stage, and when it is due. */
struct standing score_standing(const struct score *score, const char *stage);

struct verdict {
    int passed, failed;
    unsigned long long seed;
    const char *const *owners;
    size_t owner_count;
    const char *problem;    /* NULL, or "compile", "link", "no verdict" */
    const struct moment *asked;     /* NULL: now */
};

bool score_start(struct score *score, const char *stage, const char *folder,
                 enum level level, double budget);
bool score_grade(struct score *score, const struct attempt *attempt,
                 const struct verdict *verdict);
bool score_pause(struct score *score, const struct attempt *attempt);
bool score_resume(struct score *score, const struct attempt *attempt);
bool score_abandon(struct score *score, const struct attempt *attempt);
bool score_refuse_reveal(struct score *score, const struct attempt *attempt);
bool score_reveal(struct score *score, const struct attempt *attempt,
                  const char *wrong);

#endif
