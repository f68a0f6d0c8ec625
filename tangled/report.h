#ifndef REPORT_H
#define REPORT_H

#include "audit_loop.h"
#include "audit_subject.h"
#include "judgement.h"
#include "machine.h"
#include "phases.h"
#include "stored_form.h"

enum view {
    VIEW_SHAPES, VIEW_OWNERSHIP, VIEW_CACHE, VIEW_PHASES, VIEW_OUTPUT
};
enum { VIEWS = 5 };

const char *view_key(enum view view);      /* "shapes" */
const char *view_title(enum view view);    /* "Tensor shapes" */
const char *view_note(enum view view);     /* from what, and on what */
const char *view_topic(enum view view);    /* "chapters 9 and 14" */

struct report_number {
    enum view view;
    const char *group, *unit;    /* static */
    char what[48];
    struct quantity predicted, measured;
    enum judgement judgement;
};

enum place { IN_FILES, IN_MODEL };
enum { PLACES = 2 };

struct report_tensor {
    const char *name;                  /* borrowed */
    const struct stored_form *form;    /* NULL: nobody predicted it */
    bool found;
    enum dtype dtype;                  /* when found; and so are these: */
    int rank;
    int64_t shape[SAFETENSORS_RANK_MAX];
    size_t wanted_bytes, bytes;        /* wanted by form and dtype */
    enum judgement judgement;
};

struct report {
    const struct audit_subject *subject;      /* borrowed */
    const struct audit_plan *plan;            /* borrowed */
    struct report_number *numbers;
    size_t number_count;
    struct stored_form *forms[PLACES];
    size_t form_count[PLACES];
    struct report_tensor *tensors[PLACES];    /* the model's: none when it
                                                 was refused */
    size_t tensor_count[PLACES];
    struct work work[PHASES];
    bool has_run;                             /* false: there is no model */
    struct audit_run run;
    size_t failures[VIEWS];                   /* numbers and tensors */
};

/* Predicts, runs, measures and judges. machine is NULL, or what the least
   times are computed from. Mismatches are no error; what audit_run_new and
   the predictions refuse is. *report is unchanged on error. The caller frees
   it, before it closes the subject. */
enum status report_new(struct report *report,
                       const struct audit_subject *subject,
                       const struct audit_plan *plan,
                       const struct machine *machine, struct error *error);
void report_free(struct report *report);      /* and empties */

size_t report_failures(const struct report *report);    /* of all views */
int report_exit_status(const struct report *report);    /* 0 when it holds */
/* The topic of a view that fails; NULL of one that holds. */
const char *report_topic(const struct report *report, enum view view);
size_t report_count(const struct report *report, enum judgement judgement);
/* How many tensors from `first` on are alike but for their names. */
size_t report_alike(const struct report *report, enum place place,
                    size_t first);

#endif
