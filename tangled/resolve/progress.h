#ifndef PROGRESS_H
#define PROGRESS_H

#include <stdbool.h>
#include <stdio.h>
#include "score.h"
#include "stages.h"

bool command_progress(const struct workshop *workshop,
                      const struct stages *stages, bool html);
bool command_history(const struct workshop *workshop,
                     const struct stage *stage);
bool command_pause(const struct workshop *workshop,
                   const struct stage *stage);
bool command_resume(const struct workshop *workshop,
                    const struct stage *stage);
bool command_abandon(const struct workshop *workshop,
                     const struct stage *stage);

/* The stage to solve next: the one whose attempt is open, else the most
   overdue, else the first new one, else the one that is due soonest. *now
   says whether to begin it today: not when it is open, and not before it is
   due. *why says why, to be freed. NULL when there are no stages. */
const struct stage *stage_due(const struct score *score,
                              const struct stages *stages, const char *today,
                              bool *now, char **why);

/* What to blank in the next attempt at the stage. */
enum level level_due(const struct score *score, const struct stage *stage);

/* Print for a reader whose date is today. */
void progress_print(FILE *out, const struct score *score,
                    const struct stages *stages, const char *today);
void history_print(FILE *out, const struct score *score,
                   const struct stage *stage, const char *today);

#endif
