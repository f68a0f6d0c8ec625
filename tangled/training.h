#ifndef TRAINING_H
#define TRAINING_H

#include "learner.h"
#include "token_text.h"
#include "trainable.h"
#include "trainer.h"

struct training {
    struct trainer_settings settings;
    struct learner learner;          /* in evaluation mode between steps */
    struct trainable trainable;      /* the learner's weights, a gradient */
    struct adamw adamw;              /* rates; step counts the steps taken */
    struct moments moments;
    struct generator generator;      /* batches and dropout */
    const struct token_text *text;   /* borrowed */
    int32_t *ids;                    /* [B,T], the batch of a step */
};

/* A run at step 0 over weights as they are; batches follow from the
   generator. Refuses settings and texts by name. On success the learner is
   the run's and *learner is empty. Owned by the caller: training_free; the
   text must outlive it. Unchanged on error, here and below. */
enum status training_new(struct training *training, struct learner *learner,
                         const struct trainer_settings *settings,
                         const struct token_text *text,
                         const struct generator *generator,
                         struct error *error);
void training_free(struct training *training);    /* NULL-safe */

/* One step; *loss is the batch's loss before it. On error (no memory, a loss
   that is not finite) the state of the run is unchanged. */
enum status training_step(struct training *training, float *loss,
                          struct error *error);
/* The mean loss over up to 64 windows spread over the held-out text. */
enum status training_held_out_loss(struct training *training, float *loss,
                                   struct error *error);

/* Writes the model, as learner_save does, and the whole state
   (training.safetensors) into an existing directory. */
enum status training_save(const struct training *training,
                          const char *directory, struct error *error);
/* Continues the run that training_save wrote, or trainer_save. Refuses a
   state that is damaged or was trained on another text. */
enum status training_load(struct training *training, const char *directory,
                          const struct token_text *text,
                          struct error *error);
/* Of the model in a state: what its text has to be encoded for. */
enum status training_vocab_size(const char *directory, int *vocab_size,
                                struct error *error);

#endif
