#ifndef PHASE_PRINT_H
#define PHASE_PRINT_H

#include <stdio.h>
#include "machine.h"
#include "phase_study.h"
#include "phases.h"

/* "CPU, diagnostic": what every time that this program takes is. */
extern const char phase_label[];

struct phase_report {
    const char *model;               /* a name for it */
    struct phase_plan plan;
    struct work prefill, decode;     /* decode: of all steps */
    bool timed, machine_known;
    struct phase_seconds seconds;    /* when timed */
    struct machine machine;          /* when known */
};

/* Predicts both phases of the plan. What phase_work refuses is refused. */
enum status phase_predict(const struct ownership *ownership,
                          struct phase_report *report, struct error *error);
void phase_print_text(FILE *out, const struct phase_report *report);
void phase_print_json(FILE *out, const struct phase_report *report);

/* Parameters by owner; held may be NULL. */
void ownership_print_text(FILE *out, const struct ownership *ownership,
                          const struct holding *held);
void ownership_print_json(FILE *out, const struct ownership *ownership,
                          const struct holding *held);

#endif
