#ifndef VERDICT_H
#define VERDICT_H

#include "grade.h"
#include "score.h"

/* Prints a grade; attempt is NULL when the code is somebody else's. */
void verdict_print(const struct grade *grade, const struct stage *stage,
                   const struct attempt *attempt);
/* "12:04"; minutes may pass 59. To be freed. */
char *time_format(double seconds);
/* What to do about a failure of this owner, by the routing table as far as
   that chapter; or NULL. */
const char *repair_of(const char *owner, int chapter);
/* Adds the grade of an attempt to the log. Prints it, if stage is given. */
bool log_grade(const struct workshop *workshop, const struct stage *stage,
               const char *folder, const struct grade *grade,
               const struct moment *asked);

#endif
