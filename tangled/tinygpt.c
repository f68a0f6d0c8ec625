#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "command.h"
#include "command_config.h"
#include "command_ledger.h"
#include "command_train.h"
#include "command_mask.h"
#include "command_generate.h"
#include "command_logits.h"
#include "command_route.h"
#include "command_slots.h"
#include "command_cache.h"
#include "command_chat.h"
#include "command_prefix.h"
#include "command_schedule.h"
#include "command_rope.h"
#include "command_phases.h"
#include "command_experts.h"
#include "command_pages.h"
#include "command_int8.h"
#include "command_batching.h"
#include "command_tensors.h"
#include "command_tokenize.h"
#include "command_serve.h"
#include "command_steps.h"
#include "command_kernels.h"
#include "command_bench.h"
#include "command_pack.h"
#include "thread_wait.h"
#include "command_audit.h"

static const struct command *const commands[] = {
    &command_config,
    &command_ledger,
    &command_train,
    &command_mask,
    &command_generate,
    &command_logits,
    &command_route,
    &command_slots,
    &command_cache,
    &command_chat,
    &command_prefix,
    &command_schedule,
    &command_rope,
    &command_phases,
    &command_experts,
    &command_pages,
    &command_int8,
    &command_batching,
    &command_tensors,
    &command_tokenize,
    &command_serve,
    &command_steps,
    &command_kernels,
    &command_bench,
    &command_pack,
    &command_audit,
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *file)
{
    fputs("usage: tinygpt COMMAND [OPTION...]\n\n", file);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(file, "  %-10s  %s\n", commands[i]->name,
                commands[i]->summary);
    fputs("\ntinygpt COMMAND --help says more. Exit status: 0 fine,"
          " 1 bad input, 2 bad usage.\n", file);
}

static int run(const struct command *command, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            fputs(command->usage, stdout);
            return 0;
        }
    }
    return command->run(command, argc, argv);
}

int main(int argc, char **argv)
{
    int status = -1;
    signal(SIGPIPE, SIG_IGN);
    thread_wait_for_a_moment(argv);
    if (argc > 1 && strcmp(argv[1], "--help") == 0) {
        print_help(stdout);
        status = 0;
    }
    for (int i = 0; i < COMMANDS && argc > 1 && status < 0; i++)
        if (strcmp(argv[1], commands[i]->name) == 0)
            status = run(commands[i], argc - 1, argv + 1);
    if (status < 0) {
        if (argc > 1)
            fprintf(stderr, "tinygpt: no command %s\n\n", argv[1]);
        print_help(stderr);
        status = 2;
    }
    if ((fflush(stdout) != 0 || ferror(stdout)) && status == 0) {
        fprintf(stderr, "tinygpt: cannot write: %s\n", strerror(errno));
        status = 1;
    }
    return status;
}
