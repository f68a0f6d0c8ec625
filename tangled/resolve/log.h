#ifndef LOG_H
#define LOG_H

#include <stdbool.h>
#include <cjson/cJSON.h>

/* Is given every event in order. Returns NULL, or what is wrong with it:
   the line is then named in a warning. */
typedef const char *log_visit(void *context, const cJSON *event);

/* Locks the log of the directory, which is made when it is missing, repairs
   a torn last line and visits every event. Waits while another process holds
   the lock. Where nothing can be written it reads without a lock. False
   after a complaint. */
struct log;
bool log_open(struct log **log, const char *directory, log_visit *visit,
              void *context);

/* Adds one line, all of it or nothing, and waits until it is on the disk.
   False after a complaint. */
bool log_append(struct log *log, const cJSON *event);

void log_close(struct log **log);

#endif
