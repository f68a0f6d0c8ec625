#include "program.h"
#include <check.h>
#include <stdio.h>
#include <sys/wait.h>
#include "harness.h"

const char *run_program(const char *arguments, int expected)
{
    static char output[8192];
    char line[6000];
    snprintf(line, sizeof line, "'%s' %s 2>&1", harness_program(),
             arguments);
    FILE *pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    output[fread(output, 1, sizeof output - 1, pipe)] = '\0';
    int status = pclose(pipe);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == expected,
                  "%s: status %d: %s", arguments, WEXITSTATUS(status),
                  output);
    return output;
}
