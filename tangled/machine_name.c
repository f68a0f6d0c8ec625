#include "machine_name.h"
#include <stdio.h>
#include <string.h>
#include "thread_count.h"

/* text has room for 128; mark 0: the whole line */
static int find_line(const char *path, const char *key, int mark, char *text)
{
    char line[256];
    const char *from = NULL;
    FILE *file = fopen(path, "r");
    while (file != NULL && from == NULL
           && fgets(line, sizeof line, file) != NULL)
        if (strncmp(line, key, strlen(key)) == 0)
            from = mark == 0 ? line : strchr(line, mark);
    if (file != NULL)
        fclose(file);
    if (from == NULL)
        return 0;
    from += mark != 0;
    from += strspn(from, " \t");
    snprintf(text, 128, "%.*s", (int)strcspn(from, "\n") % 127, from);
    return 1;
}

static void name_compiler(char *name, size_t room)
{
#if defined __clang__
    snprintf(name, room, "clang %d.%d.%d", __clang_major__,
             __clang_minor__, __clang_patchlevel__);
#elif defined __GNUC__
    snprintf(name, room, "gcc %d.%d.%d", __GNUC__, __GNUC_MINOR__,
             __GNUC_PATCHLEVEL__);
#else
    (void)name, (void)room;
#endif
}

struct machine_name machine_name_now(void)
{
    struct machine_name name = {
        "unknown", thread_count_available(), "unknown", "unknown", -1
    };
    char text[128];
    if (find_line("/proc/cpuinfo", "model name", ':', text))
        snprintf(name.processor, sizeof name.processor, "%.95s", text);
    if (find_line("/sys/kernel/mm/transparent_hugepage/enabled", "", '[',
                  text))
        snprintf(name.pages, sizeof name.pages, "%.*s",
                 (int)strcspn(text, "]") % 31, text);
    if (find_line("/proc/loadavg", "", 0, text))
        (void)sscanf(text, "%lf", &name.load);
    name_compiler(name.compiler, sizeof name.compiler);
    return name;
}
