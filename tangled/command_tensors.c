#include <stdio.h>
#include <string.h>
#include "checkpoint.h"
#include "command_tensors.h"

static void print_quoted(const char *text)
{
    putchar('"');
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        putchar(*text);
    }
    putchar('"');
}

static void print_tensor(const struct stored_tensor *stored, bool json)
{
    const struct safetensors_entry *entry = &stored->entry;
    char shape[24 * SAFETENSORS_RANK_MAX + 4] = "[";
    size_t used = 1;
    for (int k = 0; k < entry->rank; k++)
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld",
                                 k == 0 ? "" : ", ",
                                 (long long)entry->shape[k]);
    snprintf(shape + used, sizeof shape - used, "]");
    printf(json ? "{\"dtype\": \"%s\", \"bytes\": %zu, \"used\": %s,"
                  " \"shape\": %s, \"name\": "
                : "%-4s %10zu  %s %-14s ", dtype_name(entry->dtype),
           entry->bytes, json ? (stored->used ? "true" : "false")
                              : stored->used ? " " : "-", shape);
    if (json)
        print_quoted(entry->name);
    printf(json ? "}" : "%s\n", entry->name);
}

static void print_all(const struct checkpoint *checkpoint, bool json)
{
    size_t bytes = 0, unused = 0;
    const size_t count = checkpoint_tensor_count(checkpoint);
    printf(json ? "{\"format\": \"%s\", \"tensors\": [" : "%s\n",
           checkpoint_format_name(checkpoint));
    for (size_t k = 0; k < count; k++) {
        const struct stored_tensor *stored =
            checkpoint_tensor_at(checkpoint, k);
        bytes += stored->entry.bytes;
        unused += stored->used ? 0 : stored->entry.bytes;
        printf(json ? (k == 0 ? "\n " : ",\n ") : "");
        print_tensor(stored, json);
    }
    printf(json ? "\n], \"tensor_bytes\": %zu, \"unused_bytes\": %zu,"
                  " \"file_bytes\": %zu}\n"
                : "%zu bytes of tensors, %zu of them not used, %zu of"
                  " files\n",
           bytes, unused, checkpoint_file_bytes(checkpoint));
}

static int run(const struct command *command, int argc, char **argv)
{
    const char *model = NULL, *value;
    struct checkpoint *checkpoint = NULL;
    struct error error;
    bool json = false;
    int status = 0;
    for (int i = 1; i < argc && status == 0; i++)
        if (command_option(argc, argv, &i, "--model", &value))
            status = command_text(command, "--model", value, &model);
        else if (strcmp(argv[i], "--json") == 0)
            json = true;
        else
            status = command_usage_error(command, "no option %s", argv[i]);
    if (status == 0 && model == NULL)
        status = command_usage_error(command, "--model PATH is needed");
    if (status != 0)
        return status;
    if (checkpoint_open(&checkpoint, model, &error) != STATUS_OK)
        return command_failure(command, &error);
    print_all(checkpoint, json);
    checkpoint_close(&checkpoint);
    return 0;
}

const struct command command_tensors = {
    "tensors", "what the files of a model hold",
    "usage: tinygpt tensors --model PATH [--json]\n"
    "\n"
    "Opens a model directory (ours, or GPT-2, Llama or Mixtral of the hub)\n"
    "or a .bin file of llama2.c, and prints each stored tensor: its type,\n"
    "its bytes, whether the model uses it, shape and name. The last line\n"
    "has their sum and the size of the files with their headers.\n"
    "\n"
    "  --json  the same as JSON\n",
    run
};
