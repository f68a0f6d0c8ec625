#include "command_ledger.h"
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "config.h"
#include "ledger.h"

struct options {
    const char *model, *config;
    int batch, tokens, past;
    bool json;
};

static int read_options(const struct command *command, int argc,
                        char **argv, struct options *options)
{
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++) {
        const char *value;
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &options->model);
        else if (command_option(argc, argv, &i, "--config", &value))
            status = command_text(command, "--config", value, &options->config);
        else if (command_option(argc, argv, &i, "--batch", &value))
            status = command_int(command, "--batch", value, 1, INT_MAX,
                                 &options->batch);
        else if (command_option(argc, argv, &i, "--tokens", &value))
            status = command_int(command, "--tokens", value, 1, INT_MAX,
                                 &options->tokens);
        else if (command_option(argc, argv, &i, "--past", &value))
            status = command_int(command, "--past", value, 0, INT_MAX,
                                 &options->past);
        else if (strcmp(argv[i], "--json") == 0)
            options->json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    }
    if (status == 0 && (options->model == NULL) == (options->config == NULL))
        status = command_usage_error(command,
            "either --model DIR or --config FILE is needed");
    return status;
}

static void widen(int *width, int length)
{
    if (length > *width)
        *width = length;
}

static void print_table(const struct ledger *ledger)
{
    char shape[TENSOR_SHAPE_TEXT_MAX];
    size_t all = 0;
    int name = 5, letters = 4, sizes = 5;
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_row *row = &ledger->rows[i];
        shape_text(row->rank, row->shape, shape);
        widen(&name, (int)strlen(row->name));
        widen(&letters, (int)strlen(row->dims));
        widen(&sizes, (int)strlen(shape));
    }
    printf("%-*s  %-*s  %-*s  %10s  owner\n", name, "name", letters, "dims",
           sizes, "shape", "bytes");
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_row *row = &ledger->rows[i];
        printf("%-*s  %-*s  %-*s  %10zu  %s\n", name, row->name, letters,
               row->dims, sizes, shape_text(row->rank, row->shape, shape),
               row->bytes, state_owner_name(row->owner));
    }
    for (int owner = 0; owner < STATE_OWNERS; owner++) {
        size_t bytes = ledger_bytes(ledger, (enum state_owner)owner);
        printf("%-*s  %10zu  %s\n", name + letters + sizes + 4, "total", bytes,
               state_owner_name((enum state_owner)owner));
        all += bytes;
    }
    printf("%-*s  %10zu  all\n", name + letters + sizes + 4, "total", all);
}

static void print_json(const struct ledger *ledger,
                       const struct options *options)
{
    char shape[TENSOR_SHAPE_TEXT_MAX];
    printf("{\"batch\": %d, \"tokens\": %d, \"past\": %d, \"rows\": [",
           options->batch, options->tokens, options->past);
    for (int i = 0; i < ledger->count; i++) {
        const struct ledger_row *row = &ledger->rows[i];
        printf("%s\n  {\"name\": \"%s\", \"dims\": \"%s\", \"shape\": %s,"
               " \"bytes\": %zu, \"owner\": \"%s\"}", i == 0 ? "" : ",",
               row->name, row->dims,
               shape_text(row->rank, row->shape, shape), row->bytes,
               state_owner_name(row->owner));
    }
    printf("\n], \"totals\": {");
    for (int owner = 0; owner < STATE_OWNERS; owner++)
        printf("%s\"%s\": %zu", owner == 0 ? "" : ", ",
               state_owner_name((enum state_owner)owner),
               ledger_bytes(ledger, (enum state_owner)owner));
    printf("}}\n");
}

static int run(const struct command *command, int argc, char **argv)
{
    struct options options = { .batch = 1, .tokens = 1 };
    struct gpt_config config;
    struct ledger ledger = { 0 };
    struct error error;
    int status = read_options(command, argc, argv, &options);
    if (status != 0)
        return status;
    char path[4096];
    const char *from = options.config;
    if (options.model != NULL) {
        int length = snprintf(path, sizeof path, "%s/config.json",
                              options.model);
        if (length < 0 || (size_t)length >= sizeof path)
            return command_usage_error(command, "--model: the path is too long");
        from = path;
    }
    if (gpt_config_read(&config, from, &error) != STATUS_OK)
        return command_failure(command, &error);
    if (ledger_new(&ledger, &config, options.batch, options.tokens,
                   options.past, &error) != STATUS_OK)
        return command_failure(command, &error);
    if (options.json)
        print_json(&ledger, &options);
    else
        print_table(&ledger);
    ledger_free(&ledger);
    return 0;
}

const struct command command_ledger = {
    "ledger", "every tensor of one forward call, with shape, bytes and owner",
    "usage: tinygpt ledger (--model DIR | --config FILE)\n"
    "                      [--batch B] [--tokens T] [--past P] [--json]\n"
    "\n"
    "Lists every tensor of one forward call: B rows (1) of T new tokens (1)\n"
    "after P cached ones (0). --model DIR reads DIR/config.json.\n",
    run
};
