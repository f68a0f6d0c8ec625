#ifndef LEARNER_H
#define LEARNER_H

#include "checkpoint.h"
#include "generator.h"
#include "hub_config.h"
#include "trainable.h"

struct learner {
    struct tiny_gpt *gpt;             /* NULL in the other family */
    struct llama *llama;
    struct checkpoint *checkpoint;    /* the model's owner, or NULL: we are */
};

/* Whether config.gpt counts, or config.llama. */
bool learner_is_gpt(const struct hub_config *config);
/* A model of config.format's family. Weights are drawn from the generator,
   or zero when it is NULL. Owned by the caller: learner_free. *learner is
   unchanged on error, here and below. */
enum status learner_new(struct learner *learner,
                        const struct hub_config *config,
                        struct generator *generator, struct error *error);
enum status learner_open(struct learner *learner, const char *path,
                         struct error *error);
void learner_free(struct learner *learner);    /* NULL-safe; twice is fine */

/* Borrows the learner, which must live longer. */
enum status learner_trainable(const struct learner *learner,
                              struct trainable *trainable,
                              struct error *error);
/* The text of its config.json, which the caller frees. hub_config_parse
   reads the same config from it. */
enum status learner_format(const struct learner *learner, char **text,
                           struct error *error);
/* Our own directory, or one of the hub in F32; made when only its last part
   is missing. Both files are on disk before either is replaced. Refuses a
   directory where other files would be read in the place of these. */
enum status learner_save(const struct learner *learner,
                         const char *directory, struct error *error);

/* Norms 1, matrices N(0, 0.02), those that write to the residual stream
   scaled by 1/sqrt(2L), in the order of the registry. */
void llama_init(struct llama *model, struct generator *generator);

#endif
