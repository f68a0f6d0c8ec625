/* What suites 19b, 19c and 22 share: a checkpoint of every format that is
   opened, written here, and what the model in it says by a computation that
   knows no file and no cache. Header only. */
#ifndef FORMATS_H
#define FORMATS_H

#include "hub_config.h"
#include "model_file.h"
#include "support/hub.h"
#include "support/llama_plain.h"

enum written {
    OWN, GPT2, GPT2_PREFIX, GPT2_HEAD, LLAMA_TIED, MIXTRAL, LLAMA2C_TIED,
    LLAMA2C, LLAMA_SHARDS, LLAMA, FORMATS
};

/* What a checkpoint_format is of a file, and of the model when it is saved
   again. */
static const struct written_format {
    const char *name;
    enum checkpoint_format opens_as, saves_as;
    enum dtype dtype;
    bool tied;
} written_formats[FORMATS] = {
    [OWN] = {"our own", FORMAT_TINY_GPT, FORMAT_TINY_GPT, DTYPE_F32, true},
    [GPT2] = {"GPT-2 in BF16", FORMAT_GPT2, FORMAT_TINY_GPT, DTYPE_BF16,
              true},
    [GPT2_PREFIX] = {"GPT-2 in F16, with a prefix and buffers", FORMAT_GPT2,
                     FORMAT_TINY_GPT, DTYPE_F16, true},
    [GPT2_HEAD] = {"GPT-2 with its head stored again", FORMAT_GPT2,
                   FORMAT_TINY_GPT, DTYPE_F32, true},
    [LLAMA_TIED] = {"a tied Llama", FORMAT_LLAMA, FORMAT_LLAMA, DTYPE_F32,
                    true},
    [MIXTRAL] = {"Mixtral in F16", FORMAT_MIXTRAL, FORMAT_MIXTRAL, DTYPE_F16,
                 false},
    [LLAMA2C_TIED] = {"a tied file of llama2.c", FORMAT_LLAMA2C,
                      FORMAT_LLAMA, DTYPE_F32, true},
    [LLAMA2C] = {"a file of llama2.c", FORMAT_LLAMA2C, FORMAT_LLAMA,
                 DTYPE_F32, false},
    [LLAMA_SHARDS] = {"a Llama in two shards", FORMAT_LLAMA, FORMAT_LLAMA,
                      DTYPE_F32, false},
    [LLAMA] = {"a Llama in BF16", FORMAT_LLAMA, FORMAT_LLAMA, DTYPE_BF16,
               false},
};

/* ---------------------------------------------------------------- the model */

/* The model that such files say: GPT-2's, or a Llama's. */
struct original {
    struct tiny_gpt *gpt;
    struct llama *llama;
    int vocab_size, context_length;
};

/* What a number is once it was stored. */
static inline void original_round(enum dtype dtype, float *data, size_t count)
{
    for (size_t k = 0; k < count; k++)
        data[k] = dtype == DTYPE_F16 ? f16_to_f32(f16_from_f32(data[k]))
            : dtype == DTYPE_BF16 ? bf16_to_f32(bf16_from_f32(data[k]))
            : data[k];
}

/* Files of llama2.c do not say their base, and have heads that share C. */
static inline struct llama_config original_config(enum written format)
{
    struct llama_config config = format == MIXTRAL ? small_moe_config()
                                                   : small_llama_config();
    config.tie_word_embeddings = written_formats[format].tied;
    if (written_formats[format].opens_as == FORMAT_LLAMA2C) {
        config.d_model = config.n_heads * config.head_dim;
        config.rope_theta = 10000;
    }
    return config;
}

static inline struct original original_of(enum written format)
{
    const enum dtype dtype = written_formats[format].dtype;
    if (written_formats[format].saves_as == FORMAT_TINY_GPT) {
        const struct gpt_config config = small_gpt2_config();
        struct tiny_gpt *gpt = noisy_model(&config, 223);
        struct parameters *p = tiny_gpt_parameters(gpt);
        original_round(dtype, p->storage, p->size);
        return (struct original){gpt, NULL, config.vocab_size,
                                 config.context_length};
    }
    const struct llama_config config = original_config(format);
    struct llama *llama = noisy_llama(&config, 224);
    for (size_t k = 0; k < llama_tensor_count(llama); k++) {
        const struct tensor *tensor = llama_tensor_at(llama, k)->tensor;
        original_round(dtype, tensor->data, tensor_size(tensor));
    }
    return (struct original){NULL, llama, config.vocab_size,
                             config.context_length};
}

static inline void original_free(struct original *original)
{
    tiny_gpt_free(&original->gpt);
    llama_free(&original->llama);
}

/* logits [T,V] of a text from its beginning: chapter 2's forward pass, or a
   Llama in double. */
static inline void original_logits(const struct original *original,
                                   const int32_t *ids, int tokens,
                                   float *logits)
{
    int32_t positions[PLAIN_T];
    ck_assert_int_le(tokens, PLAIN_T);
    for (int t = 0; t < tokens; t++)
        positions[t] = t;
    if (original->llama != NULL) {
        const struct plain plain = {
            .model = original->llama, .config = llama_config(original->llama),
            .ids = ids, .positions = positions, .tokens = tokens
        };
        plain_forward(&plain, logits);
        return;
    }
    const struct forward_input input = {.ids = ids, .batch = 1,
                                        .tokens = tokens};
    struct forward_output output = {0};
    expect_ok(tiny_gpt_forward(original->gpt, &input, &output, &error),
              &error);
    memcpy(logits, output.logits.data,
           tensor_size(&output.logits) * sizeof *logits);
    forward_output_free(&output);
}

/* ---------------------------------------------------------------- the files */

static inline void write_shards(const struct hub_file *file,
                                const char *directory)
{
    char index[8192] = "{\"weight_map\": {";
    for (int f = 0; f < 2; f++) {
        struct safetensors_entry part[HUB_MAX];
        char name[32];
        size_t count = 0;
        snprintf(name, sizeof name, "part-%d.safetensors", f);
        for (size_t k = (size_t)f; k < file->count; k += 2) {
            part[count++] = file->entries[k];
            snprintf(index + strlen(index), sizeof index - strlen(index),
                     "%s\"%s\": \"%s\"", k == 0 ? "" : ",",
                     file->names[k], name);
        }
        write_tensors(in(directory, name), part, count);
    }
    strcat(index, "}}");
    write_text(in(directory, "model.safetensors.index.json"), index);
}

static inline void write_gpt2(const struct tiny_gpt *gpt, enum written format,
                              const char *directory)
{
    static const float ones[81] = {1};
    const enum dtype dtype = written_formats[format].dtype;
    struct hub_file file = {.count = 0};
    gpt2_tensors(&file, gpt, dtype,
                 format == GPT2_PREFIX ? "transformer." : "");
    if (format == GPT2_PREFIX)
        hub_add(&file, "transformer.h.1.attn.bias", DTYPE_F32, 4,
                (const int[]){1, 1, 9, 9}, ones);
    if (format == GPT2_HEAD)
        gpt2_add(&file, "lm_head.weight", dtype,
                 &tiny_gpt_weights(gpt)->token_embedding.weight, false);
    hub_write(&file, directory, gpt2_text(tiny_gpt_config(gpt), ""));
    hub_clear(&file);
}

static inline void write_llama(const struct llama *llama, enum written format,
                               const char *directory)
{
    const char *config = llama_text(llama_config(llama), "");
    struct hub_file file = {.count = 0};
    llama_tensors(&file, llama, written_formats[format].dtype);
    if (format == LLAMA_SHARDS) {
        write_shards(&file, directory);
        write_text(in(directory, "config.json"), config);
    } else
        hub_write(&file, directory, config);
    hub_clear(&file);
}

/* Writes the original of this format, and returns where. */
static inline const char *write_format(enum written format)
{
    const char *directory = new_directory();
    struct original original = original_of(format);
    if (format == OWN)
        expect_ok(tiny_gpt_save(original.gpt, directory, &error), &error);
    else if (original.gpt != NULL)
        write_gpt2(original.gpt, format, directory);
    else if (written_formats[format].opens_as == FORMAT_LLAMA2C) {
        size_t length;
        unsigned char *bytes = llama2c_bytes(original.llama, &length);
        directory = in(directory, "model.bin");
        write_bytes(directory, bytes, length);
        free(bytes);
    } else
        write_llama(original.llama, format, directory);
    original_free(&original);
    return directory;
}

#endif
