#ifndef HUB_CONFIG_H
#define HUB_CONFIG_H

#include "config.h"
#include "llama.h"

enum checkpoint_format {
    FORMAT_TINY_GPT,    /* our own directory */
    FORMAT_GPT2, FORMAT_LLAMA, FORMAT_MIXTRAL,    /* of the hub */
    FORMAT_LLAMA2C      /* a .bin file */
};

struct hub_config {
    enum checkpoint_format format;
    struct gpt_config gpt;        /* of FORMAT_TINY_GPT, FORMAT_GPT2 */
    struct llama_config llama;    /* of the others */
};

/* The text of a config.json; without a model_type it is one of our own.
   Refuses by name what our models do not compute; ignores what does not
   matter to inference. *config is unchanged on error. */
enum status hub_config_parse(struct hub_config *config, const char *text,
                             size_t length, struct error *error);
#endif
