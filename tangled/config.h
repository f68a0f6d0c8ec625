#ifndef CONFIG_H
#define CONFIG_H

#include <stddef.h>
#include "error.h"

struct gpt_config {
    int vocab_size;         /* V */
    int context_length;     /* N */
    int d_model;            /* C */
    int n_layers;           /* L */
    int n_heads;            /* H */
    int d_ff;               /* F */
    double dropout;         /* [0, 1) */
    double layer_norm_eps;  /* finite, > 0 */
    int tanh_gelu;          /* 1: GELU by its tanh form; 0: exact */
};

/* Refuses by field name. Everything below this module relies on a checked
   config and does not ask again. */
enum status gpt_config_check(const struct gpt_config *config,
                             struct error *error);
/* D = C / H, of a checked config. */
int gpt_config_head_dim(const struct gpt_config *config);
/* Refuses, by name, a call that a model of this (checked) config cannot
   answer: batch B or tokens T below 1, past P below 0, P + T above
   context_length, or B so large that B·T or B·H does not fit an int. */
enum status gpt_config_check_call(const struct gpt_config *config,
                                  int batch, int tokens, int past,
                                  struct error *error);

/* JSON with the field names above. dropout (0) and layer_norm_eps (1e-5) may
   be absent; a missing, unknown, repeated or wrongly typed field is refused
   by name. *config is unchanged on error. */
enum status gpt_config_parse(struct gpt_config *config,
                             const char *text, size_t length,
                             struct error *error);
/* The same from a file; messages begin with the path. */
enum status gpt_config_read(struct gpt_config *config, const char *path,
                            struct error *error);
/* Writes a legal config as JSON into a malloc'd string, which the caller
   frees. Doubles read back exactly. *text is unchanged on error. */
enum status gpt_config_format(const struct gpt_config *config, char **text,
                              struct error *error);

#endif
