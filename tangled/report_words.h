#ifndef REPORT_WORDS_H
#define REPORT_WORDS_H

#include "report.h"

enum { NUMBER_TEXT_MAX = 48, SENTENCE_MAX = 256 };

/* "442,368", "0.125", "–" for what is unknown; returns text. */
char *quantity_text(const struct quantity *quantity, char *text);
/* "[288, 96]" of any rank; "scalar" of none. */
enum { SIZES_TEXT_MAX = 24 * SAFETENSORS_RANK_MAX };
char *sizes_text(int rank, const int64_t *shape, char *text);
/* The name, with * for each part that is a number. */
char *pattern_text(const char *name, char *text);    /* STORED_NAME_MAX */
/* Where the rows part, "" when they do not. */
char *parting_text(const struct report *report, char *text);
/* "all predictions hold", "2 differ, 30 are not measured" */
char *verdict_text(const struct report *report, char *text);
/* HOLDS, DIFFERS when something does, or else UNMEASURED. */
enum judgement view_judgement(const struct report *report, enum view view);
#endif
