#ifndef REPORT_PRINT_H
#define REPORT_PRINT_H

#include <stdio.h>
#include "report.h"

/* Each prints the whole report, whatever it says. Trouble with the stream is
   the stream's to remember. */
void report_print_text(FILE *out, const struct report *report);
void report_print_json(FILE *out, const struct report *report);
/* A page that needs nothing else: no script, no font, no request. */
void report_print_html(FILE *out, const struct report *report);

/* Replaces the file at path by the page, whatever the report says; the file
   is what it was on error. */
enum status report_write_page(const struct report *report, const char *path,
                              struct error *error);
#endif
