#include <limits.h>
#include <math.h>
#include <string.h>
#include "hub_config.h"
#include "json.h"

enum kind { SIZE, NUMBER, FLAG };

struct hub_field {
    const char *name;
    enum kind kind;
    size_t offset;
    double fallback;     /* NAN: has to be there */
};

static enum status take_field(const cJSON *object,
                              const struct hub_field *field, void *config,
                              struct error *error)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object,
                                                         field->name);
    const bool absent = item == NULL || cJSON_IsNull(item);
    double number = absent ? field->fallback : item->valuedouble;
    void *at = (char *)config + field->offset;
    if (absent && isnan(field->fallback))
        return error_set(error, STATUS_FORMAT, "%s: missing", field->name);
    if (field->kind == FLAG) {
        if (!absent && !cJSON_IsBool(item))
            return error_set(error, STATUS_FORMAT,
                             "%s: expected true or false", field->name);
        *(bool *)at = absent ? field->fallback != 0 : cJSON_IsTrue(item);
        return STATUS_OK;
    }
    if (!absent && (!cJSON_IsNumber(item) || !isfinite(number)))
        return error_set(error, STATUS_FORMAT, "%s: expected a finite number",
                         field->name);
    if (!absent && field->kind == SIZE
        && !(number >= 1 && number <= INT_MAX && number == floor(number)))
        return error_set(error, STATUS_FORMAT, "%s: expected a size from 1 to"
                         " %d, got %g", field->name, INT_MAX, number);
    if (field->kind == SIZE)
        *(int *)at = (int)number;
    else
        *(double *)at = number;
    return STATUS_OK;
}

enum setting_value { ONLY_NULL, ONLY_FALSE, ONLY_TRUE };

struct setting {
    const char *name;
    enum setting_value value;
};

static enum status check_settings(const cJSON *object,
                                  const struct setting *settings,
                                  size_t count, struct error *error)
{
    static const char *const words[] = {"null", "false", "true"};
    for (size_t k = 0; k < count; k++) {
        const cJSON *item =
            cJSON_GetObjectItemCaseSensitive(object, settings[k].name);
        const enum setting_value value = settings[k].value;
        if (item != NULL && !cJSON_IsNull(item)
            && !(value == ONLY_FALSE && cJSON_IsFalse(item))
            && !(value == ONLY_TRUE && cJSON_IsTrue(item)))
            return error_set(error, STATUS_FORMAT, "%s: only %s is supported",
                             settings[k].name, words[value]);
    }
    return STATUS_OK;
}

#define COUNT(table) (sizeof (table) / sizeof *(table))

static enum status take_fields(const cJSON *object,
                               const struct hub_field *fields, size_t count,
                               void *config, struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t k = 0; k < count && status == STATUS_OK; k++)
        status = take_field(object, &fields[k], config, error);
    return status;
}

/* One of the names, or absent: the first. *index says which. */
static enum status take_name(const cJSON *object, const char *field,
                             const char *const *names, int count, int *index,
                             struct error *error)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, field);
    const char *text = cJSON_GetStringValue(item);
    *index = 0;
    if (item == NULL || cJSON_IsNull(item))
        return STATUS_OK;
    for (int k = 0; text != NULL && k < count; k++)
        if (strcmp(text, names[k]) == 0) {
            *index = k;
            return STATUS_OK;
        }
    return error_set(error, STATUS_FORMAT, "%s: expected %s%s%s, got %.40s",
                     field, names[0], count > 1 ? " or " : "",
                     count > 1 ? names[count - 1] : "",
                     text != NULL ? text : "no string");
}

#define GPT(name) offsetof(struct gpt_config, name)
static const struct hub_field gpt2_fields[] = {
    {"vocab_size", SIZE, GPT(vocab_size), NAN},
    {"n_positions", SIZE, GPT(context_length), NAN},
    {"n_embd", SIZE, GPT(d_model), NAN},
    {"n_layer", SIZE, GPT(n_layers), NAN},
    {"n_head", SIZE, GPT(n_heads), NAN},
    {"n_inner", SIZE, GPT(d_ff), 0},
    {"layer_norm_epsilon", NUMBER, GPT(layer_norm_eps), 1e-5},
};

static const struct setting gpt2_settings[] = {
    {"scale_attn_weights", ONLY_TRUE},
    {"scale_attn_by_inverse_layer_idx", ONLY_FALSE},
    {"reorder_and_upcast_attn", ONLY_FALSE},
    {"add_cross_attention", ONLY_FALSE},
    {"tie_word_embeddings", ONLY_TRUE},
    {"quantization_config", ONLY_NULL},
};

static enum status take_gpt2(struct hub_config *config, const cJSON *object,
                             struct error *error)
{
    static const char *const bends[] = {"gelu_new", "gelu_pytorch_tanh",
                                        "gelu"};
    struct gpt_config *gpt = &config->gpt;
    int bend = 0;
    enum status status = check_settings(object, gpt2_settings,
                                        COUNT(gpt2_settings), error);
    if (status == STATUS_OK)
        status = take_fields(object, gpt2_fields, COUNT(gpt2_fields), gpt,
                             error);
    if (status == STATUS_OK)
        status = take_name(object, "activation_function", bends, 3, &bend,
                           error);
    if (status != STATUS_OK)
        return status;
    if (gpt->d_ff == 0 && gpt->d_model > INT_MAX / 4)
        return error_set(error, STATUS_FORMAT, "n_embd: too large, got %d",
                         gpt->d_model);
    if (gpt->d_ff == 0)
        gpt->d_ff = 4 * gpt->d_model;
    gpt->tanh_gelu = bend < 2;
    return gpt_config_check(gpt, error);
}

#define LLAMA(name) offsetof(struct llama_config, name)
static const struct hub_field llama_fields[] = {
    {"vocab_size", SIZE, LLAMA(vocab_size), NAN},
    {"max_position_embeddings", SIZE, LLAMA(context_length), NAN},
    {"hidden_size", SIZE, LLAMA(d_model), NAN},
    {"num_hidden_layers", SIZE, LLAMA(n_layers), NAN},
    {"num_attention_heads", SIZE, LLAMA(n_heads), NAN},
    {"num_key_value_heads", SIZE, LLAMA(n_kv_heads), 0},
    {"head_dim", SIZE, LLAMA(head_dim), 0},
    {"intermediate_size", SIZE, LLAMA(d_ff), NAN},
    {"rms_norm_eps", NUMBER, LLAMA(rms_norm_eps), 1e-6},
    {"rope_theta", NUMBER, LLAMA(rope_theta), 10000},
    {"tie_word_embeddings", FLAG, LLAMA(tie_word_embeddings), 0},
};

static const struct setting llama_settings[] = {
    {"attention_bias", ONLY_FALSE}, {"mlp_bias", ONLY_FALSE},
    {"rope_scaling", ONLY_NULL}, {"sliding_window", ONLY_NULL},
    {"quantization_config", ONLY_NULL},
};

static enum status take_turns(const cJSON *object,
                              struct llama_config *llama,
                              struct error *error)
{
    static const char *const types[] = {"default"};
    const struct hub_field theta = {"rope_theta", NUMBER, LLAMA(rope_theta),
                                    llama->rope_theta};
    const cJSON *turns = cJSON_GetObjectItemCaseSensitive(object,
                                                          "rope_parameters");
    const cJSON *item;
    int type;
    if (turns != NULL && !cJSON_IsNull(turns) && !cJSON_IsObject(turns))
        return error_set(error, STATUS_FORMAT, "rope_parameters: expected"
                         " an object");
    enum status status = json_unique(turns, error);
    if (status != STATUS_OK)
        return status;
    cJSON_ArrayForEach(item, turns)
        if (strcmp(item->string, "rope_type") != 0
            && strcmp(item->string, theta.name) != 0)
            return error_set(error, STATUS_FORMAT, "rope_parameters: %.64s"
                             " is not supported", item->string);
    status = take_name(turns, "rope_type", types, 1, &type, error);
    return status == STATUS_OK ? take_field(turns, &theta, llama, error)
                               : status;
}

static const struct hub_field mixtral_fields[] = {
    {"num_local_experts", SIZE, LLAMA(n_experts), 8},
    {"num_experts_per_tok", SIZE, LLAMA(experts_per_token), 2},
    {"rms_norm_eps", NUMBER, LLAMA(rms_norm_eps), 1e-5},
    {"rope_theta", NUMBER, LLAMA(rope_theta), 1e6},
};

static enum status take_llama(struct hub_config *config, const cJSON *object,
                              struct error *error)
{
    static const char *const acts[] = {"silu"};
    struct llama_config *llama = &config->llama;
    int act;
    enum status status = check_settings(object, llama_settings,
                                        COUNT(llama_settings), error);
    if (status == STATUS_OK)
        status = take_fields(object, llama_fields, COUNT(llama_fields),
                             llama, error);
    if (status == STATUS_OK && config->format == FORMAT_MIXTRAL)
        status = take_fields(object, mixtral_fields, COUNT(mixtral_fields),
                             llama, error);
    if (status == STATUS_OK)
        status = take_turns(object, llama, error);
    if (status == STATUS_OK)
        status = take_name(object, "hidden_act", acts, 1, &act, error);
    if (status != STATUS_OK)
        return status;
    if (config->format == FORMAT_MIXTRAL
        && cJSON_GetObjectItemCaseSensitive(object,
                                            "num_key_value_heads") == NULL)
        llama->n_kv_heads = 8;
    if (llama->n_kv_heads == 0)
        llama->n_kv_heads = llama->n_heads;
    if (llama->head_dim == 0 && llama->d_model % llama->n_heads != 0)
        return error_set(error, STATUS_FORMAT, "num_attention_heads: expected a"
                         " divisor of hidden_size %d, got %d", llama->d_model,
                         llama->n_heads);
    if (llama->head_dim == 0)
        llama->head_dim = llama->d_model / llama->n_heads;
    return llama_config_check(llama, error);
}

static enum status take_config(struct hub_config *config,
                               const cJSON *object, const char *text,
                               size_t length, struct error *error)
{
    static const char *const types[] = {"gpt2", "llama", "mixtral"};
    int type;
    const cJSON *named = cJSON_GetObjectItemCaseSensitive(object, "model_type");
    if (named == NULL)
        return gpt_config_parse(&config->gpt, text, length, error);
    if (!cJSON_IsString(named))
        return error_set(error, STATUS_FORMAT, "model_type: expected a string");
    const enum status status = take_name(object, "model_type", types, 3,
                                         &type, error);
    if (status != STATUS_OK)
        return status;
    config->format = (enum checkpoint_format)(FORMAT_GPT2 + type);
    return type == 0 ? take_gpt2(config, object, error)
                     : take_llama(config, object, error);
}

enum status hub_config_parse(struct hub_config *config, const char *text,
                             size_t length, struct error *error)
{
    struct hub_config made = {.format = FORMAT_TINY_GPT};
    cJSON *object = NULL;
    enum status status = json_parse(&object, text, length, error);
    if (status != STATUS_OK)
        return status;
    status = take_config(&made, object, text, length, error);
    cJSON_Delete(object);
    if (status == STATUS_OK)
        *config = made;
    return status;
}
