#include <stdio.h>
#include <string.h>
#include "stored_form.h"

#define LAYER "model.layers.*."

static const struct convention {
    enum checkpoint_format format;
    const char *ours, *theirs;
    bool turned;
} conventions[] = {
    {FORMAT_GPT2, "token_embedding.weight", "wte.weight", false},
    {FORMAT_GPT2, "position_embedding.weight", "wpe.weight", false},
    {FORMAT_GPT2, "final_norm.weight", "ln_f.weight", false},
    {FORMAT_GPT2, "final_norm.bias", "ln_f.bias", false},
    {FORMAT_GPT2, "blocks.*.attention_norm.weight", "h.*.ln_1.weight", false},
    {FORMAT_GPT2, "blocks.*.attention_norm.bias", "h.*.ln_1.bias", false},
    {FORMAT_GPT2, "blocks.*.attention.qkv_proj.weight",
     "h.*.attn.c_attn.weight", true},
    {FORMAT_GPT2, "blocks.*.attention.qkv_proj.bias",
     "h.*.attn.c_attn.bias", false},
    {FORMAT_GPT2, "blocks.*.attention.out_proj.weight",
     "h.*.attn.c_proj.weight", true},
    {FORMAT_GPT2, "blocks.*.attention.out_proj.bias",
     "h.*.attn.c_proj.bias", false},
    {FORMAT_GPT2, "blocks.*.mlp_norm.weight", "h.*.ln_2.weight", false},
    {FORMAT_GPT2, "blocks.*.mlp_norm.bias", "h.*.ln_2.bias", false},
    {FORMAT_GPT2, "blocks.*.mlp.up_proj.weight", "h.*.mlp.c_fc.weight", true},
    {FORMAT_GPT2, "blocks.*.mlp.up_proj.bias", "h.*.mlp.c_fc.bias", false},
    {FORMAT_GPT2, "blocks.*.mlp.down_proj.weight",
     "h.*.mlp.c_proj.weight", true},
    {FORMAT_GPT2, "blocks.*.mlp.down_proj.bias", "h.*.mlp.c_proj.bias", false},
    {FORMAT_LLAMA2C, "model.embed_tokens.weight", "token_embedding_table", 0},
    {FORMAT_LLAMA2C, LAYER "input_layernorm.weight", "rms_att_weight", false},
    {FORMAT_LLAMA2C, LAYER "self_attn.q_proj.weight", "wq", false},
    {FORMAT_LLAMA2C, LAYER "self_attn.k_proj.weight", "wk", false},
    {FORMAT_LLAMA2C, LAYER "self_attn.v_proj.weight", "wv", false},
    {FORMAT_LLAMA2C, LAYER "self_attn.o_proj.weight", "wo", false},
    {FORMAT_LLAMA2C, LAYER "post_attention_layernorm.weight",
     "rms_ffn_weight", false},
    {FORMAT_LLAMA2C, LAYER "mlp.gate_proj.weight", "w1", false},
    {FORMAT_LLAMA2C, LAYER "mlp.down_proj.weight", "w2", false},
    {FORMAT_LLAMA2C, LAYER "mlp.up_proj.weight", "w3", false},
    {FORMAT_LLAMA2C, "model.norm.weight", "rms_final_weight", false},
    {FORMAT_LLAMA2C, "lm_head.weight", "wcls", false}
};

static const struct convention *find_convention(
    enum checkpoint_format format, const struct owned_row *row)
{
    for (size_t k = 0; k < sizeof conventions / sizeof *conventions; k++)
        if (conventions[k].format == format
            && strcmp(conventions[k].ours, row->pattern) == 0)
            return &conventions[k];
    return NULL;
}

static struct stored_form form_of(const struct ownership *ownership,
                                  const struct owned_row *row,
                                  enum checkpoint_format format,
                                  const char *prefix, int layer, int expert)
{
    const struct convention *convention = find_convention(format, row);
    struct stored_form form = {.row = row, .optional = row->alias};
    struct owned_row theirs = *row;
    int64_t shape[STORED_RANK_MAX] = {1, row->rows, row->columns};
    char name[OWNED_NAME_MAX];
    if (convention != NULL && convention->turned) {
        shape[1] = row->columns;
        shape[2] = row->rows;
    }
    if (format == FORMAT_LLAMA2C && owned_row_stars(row) > 0)
        shape[0] = ownership->cache.n_layers;
    if (row->columns == 0) {
        shape[2] = shape[1];
        shape[1] = 1;
    }
    form.elements = 1;
    for (int d = 0; d < STORED_RANK_MAX; d++) {
        const bool bare = d == 0 || row->columns == 0
                          || format == FORMAT_LLAMA2C;
        form.elements *= (size_t)shape[d];
        if (d == 2 || shape[d] > 1 || !bare)
            form.shape[form.rank++] = shape[d];
    }
    if (convention != NULL)
        theirs.pattern = convention->theirs;
    owned_row_name(&theirs, layer, expert, name);
    snprintf(form.name, sizeof form.name, "%s%s",
             format == FORMAT_GPT2 && convention != NULL ? prefix : "", name);
    return form;
}

size_t stored_forms(const struct ownership *ownership,
                    enum checkpoint_format format, const char *prefix,
                    struct stored_form *list)
{
    size_t count = 0;
    for (int r = 0; r < ownership->count; r++) {
        const struct owned_row *row = &ownership->rows[r];
        const int stars = format == FORMAT_LLAMA2C ? 0 : owned_row_stars(row);
        const int layers = stars > 0 ? ownership->cache.n_layers : 1;
        const int experts = stars > 1 ? ownership->n_experts : 1;
        for (int l = 0; l < layers; l++)
            for (int e = 0; e < experts; e++, count++)
                if (list != NULL)
                    list[count] = form_of(ownership, row, format, prefix, l,
                                          e);
    }
    return count;
}
