#ifndef TRAINER_H
#define TRAINER_H

#include "adamw.h"
#include "corpus.h"
#include "model.h"

struct trainer_settings {
    int batch, tokens;         /* B, T: windows per step and their length */
    int steps, warmup;         /* of the schedule */
    double learning_rate;      /* at its highest */
    double weight_decay;
};

/* Refuses, by name, settings that a model of this context cannot train by. */
enum status trainer_settings_check(const struct trainer_settings *settings,
                                   int context_length, struct error *error);
/* The rate of a step (0 is the first): rises linearly over the warmup, then
   falls as a half cosine to a tenth at the last step. */
double learning_rate_at(const struct trainer_settings *settings,
                        int64_t step);
struct trainer {
    struct trainer_settings settings;
    struct tiny_gpt *model;          /* in evaluation mode between steps */
    struct parameters *gradients;
    struct adamw adamw;              /* adamw.step counts the steps taken */
    struct generator generator;
    const struct corpus *corpus;     /* borrowed */
    int32_t *ids;                    /* [B, T], the batch of a step */
};
/* A fresh run at step 0: weights and batches follow from the seed. Refuses
   settings and texts by name. Owned by the caller: trainer_free; the corpus
   must outlive it. Unchanged on error. */
enum status trainer_new(struct trainer *trainer,
                        const struct gpt_config *config,
                        const struct trainer_settings *settings,
                        const struct corpus *corpus, uint64_t seed,
                        struct error *error);
void trainer_free(struct trainer *trainer);    /* NULL-safe */

/* One step; *loss is the batch's loss before it. On error (no memory, a loss
   that is not finite) the state of the run is unchanged. */
enum status trainer_step(struct trainer *trainer, float *loss,
                         struct error *error);

/* The mean loss over up to 64 windows spread over the held-out text. */
enum status trainer_held_out_loss(struct trainer *trainer, float *loss,
                                  struct error *error);

/* Writes the model (config.json, model.safetensors) and the whole state
   (training.safetensors) into an existing directory, each file atomically. */
enum status trainer_save(const struct trainer *trainer,
                         const char *directory, struct error *error);

/* Continues the run that trainer_save wrote. Refuses a state that is damaged
   or was trained on another text. Owned by the caller: trainer_free. */
enum status trainer_load(struct trainer *trainer, const char *directory,
                         const struct corpus *corpus, struct error *error);
#endif
