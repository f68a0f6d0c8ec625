#ifndef TRAINING_RECORD_H
#define TRAINING_RECORD_H

#include <stdint.h>
#include "safetensors.h"
#include "trainer.h"

struct training_record {
    struct trainer_settings settings;
    uint64_t step;
    uint64_t generator_state, generator_increment;
    uint64_t text_length, text_fingerprint;
};

enum { RECORD_FIELDS = 11, RECORD_VALUE_MAX = 40 };

/* pairs [RECORD_FIELDS] for safetensors_write; values is where their text
   lies, and must live as long. */
void training_record_write(const struct training_record *record,
                           char values[RECORD_FIELDS][RECORD_VALUE_MAX],
                           struct safetensors_pair *pairs);
/* Refuses, by key, what is missing or cannot have been written. */
enum status training_record_read(struct training_record *record,
                                 const struct safetensors *file,
                                 struct error *error);

#endif
