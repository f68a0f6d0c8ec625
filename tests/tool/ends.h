/* What the end-to-end tests of the re-solve tool share. They run the program
   that --program names, in the top directory of the project, on the book as
   it is, and judge it by its exit status, its output and its log.

   Each test works in a place of its own: attempts/, and a build/ whose parts
   are links to the real ones but for resolve/, which is its own. So several
   suites can run at once without waiting for each other's locks. */
#ifndef ENDS_H
#define ENDS_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <sys/types.h>
#include "score.h"
#include "stages.h"
#include "support/harness.h"

/* Makes the place, and reads the book's stages. */
void place_make(void);
/* Every process that the tool started must be gone; removes the place. */
void place_remove(void);
/* A path below the place; good for 64 calls. */
const char *below(const char *format, ...);
extern struct stages stages;

/* Runs the tool with these words, the last of them NULL, and waits. Returns
   its exit status, or 128 and the signal. Fails when it takes too long. */
int resolve(const char *word, ...);
/* Grades on the data of make check; other data are make seeds' business. */
int grade_on_known_data(const char *stage_key);
/* The last run's stdout and stderr, and how many seconds it took. */
extern char *said, *complained;
extern double took;
/* What the next run reads on stdin, once. */
void type_in(const char *text);
/* The same without waiting; the output goes nowhere. */
pid_t resolve_start(const char *word, ...);
int resolve_wait(pid_t child);
/* Whether a whole line of the text is this, but for blanks around it. */
bool has_line(const char *text, const char *line);
void expect_says(const char *text, const char *words);
/* How many processes run that carry the place's mark. */
int processes_left(void);
double seconds_now(void);

/* The log: an array of its lines, each of which must be an object, and the
   last of them. NULL when there is none. To be deleted. */
cJSON *log_read(void);
cJSON *log_last(void);
int log_count(const char *event);
int number_in(const cJSON *event, const char *name);
const char *text_in(const cJSON *event, const char *name);
/* The last line must be a grade of these numbers; -1: any,
   but some must have failed. */
void expect_grade(int passed, int failed);
/* What has become of the stage's latest attempt. */
enum result result_of(const char *key);

/* The path of the latest attempt's folder. */
const char *folder_of(const char *key);
char *read_text(const char *path);          /* to be freed; fails */
void write_text(const char *path, const char *text);
void write_into(const char *key, const char *file, const char *text);
char *read_from(const char *key, const char *file);
/* The text with one occurrence of `old` replaced; frees the text. */
char *replaced(char *text, const char *old, const char *by);

/* The book's code up to a chapter, by noweb alone: a file, or a chunk with
   all that is in it. To be freed. */
char *right_text(int chapter, const char *root);
/* Puts the book's chunks where the blanks are, whole functions where those
   are blank, and whole files where they are empty. */
void paste_chunks(const struct stage *stage);
void paste_functions(const struct stage *stage);
void paste_files(const struct stage *stage);

/* A number that changes when a name, a mode or a byte below the directory
   does. A name that begins with `except` is left out; NULL leaves none. */
unsigned long long tree_sum(const char *directory, const char *except);

#endif
