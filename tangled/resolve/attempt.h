#ifndef ATTEMPT_H
#define ATTEMPT_H

#include "score.h"
#include "stages.h"

/* What make blank-N was told. */
struct blank_request {
    enum level level;
    const char *only;       /* one chunk, or a part of its name; or NULL */
    bool restart;           /* an attempt that runs is abandoned first */
};

/* Makes the folder, starts the clock, says what to solve. */
bool command_blank(const struct workshop *workshop,
                   const struct stages *stages, const struct stage *stage,
                   const struct blank_request *request);

#endif
