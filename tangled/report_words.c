#include <stdio.h>
#include <string.h>
#include "report_words.h"

char *quantity_text(const struct quantity *quantity, char *text)
{
    char digits[32];
    if (!quantity->known)
        return strcpy(text, "–");
    if (quantity->real) {
        snprintf(text, NUMBER_TEXT_MAX, "%.4g", quantity->number);
        return text;
    }
    const int length = snprintf(digits, sizeof digits, "%zu",
                                quantity->count);
    char *out = text;
    for (int k = 0; k < length; k++) {
        if (k > 0 && (length - k) % 3 == 0)
            *out++ = ',';
        *out++ = digits[k];
    }
    *out = '\0';
    return text;
}

char *sizes_text(int rank, const int64_t *shape, char *text)
{
    size_t used = 0;
    for (int d = 0; d < rank; d++)
        used += (size_t)snprintf(text + used, SIZES_TEXT_MAX - used, "%s%lld",
                                 d == 0 ? "[" : ", ", (long long)shape[d]);
    snprintf(text + used, SIZES_TEXT_MAX - used, rank > 0 ? "]" : "scalar");
    return text;
}

char *pattern_text(const char *name, char *text)
{
    char *out = text;
    while (*name != '\0') {
        const size_t part = strcspn(name, "."), digits = strspn(name,
                                                        "0123456789");
        const bool number = part > 0 && digits == part;
        memcpy(out, number ? "*" : name, number ? 1 : part);
        out += number ? 1 : part;
        name += part;
        if (*name == '.')
            *out++ = *name++;
    }
    *out = '\0';
    return text;
}

char *parting_text(const struct report *report, char *text)
{
    const struct identity *found = &report->run.identity;
    const int step = found->steps;
    const int position = report->plan->prompt_tokens + step;
    const int layers = report->subject->lm.cache.n_layers;
    int used;
    *text = '\0';
    if (!report->has_run || found->verdict == IDENTICAL)
        return text;
    used = snprintf(text, SENTENCE_MAX, "step %d, position %d: ", step,
                    position);
    if (found->verdict == CACHE_DIFFERS)
        snprintf(text + used, SENTENCE_MAX - (size_t)used, "the cache holds"
                 " %d tokens, expected %d", found->cached, position);
    else {
        used += snprintf(text + used, SENTENCE_MAX - (size_t)used,
                         "logit %d is %.6g, recomputed %.6g; ", found->id,
                         (double)found->got, (double)found->expected);
        if (found->layer < layers)
            snprintf(text + used, SENTENCE_MAX - (size_t)used, "the caches part in"
                     " layer %d at position %d, head %d, %s", found->layer,
                     found->position, found->head, found->value ? "value" : "key");
        else
            snprintf(text + used, SENTENCE_MAX - (size_t)used,
                     "the caches of all %d layers agree", layers);
    }
    return text;
}

char *verdict_text(const struct report *report, char *text)
{
    const size_t differ = report_count(report, DIFFERS);
    const size_t unmeasured = report_count(report, UNMEASURED);
    const size_t hold = report_count(report, HOLDS);
    if (differ + unmeasured == 0)
        snprintf(text, SENTENCE_MAX, "all %zu predictions hold", hold);
    else
        snprintf(text, SENTENCE_MAX, "%zu of %zu predictions hold; %zu %s,"
                 " %zu not measured", hold, hold + differ + unmeasured,
                 differ, differ == 1 ? "differs" : "differ", unmeasured);
    return text;
}

enum judgement view_judgement(const struct report *report, enum view view)
{
    size_t differ = 0;
    for (size_t k = 0; k < report->number_count; k++)
        differ += report->numbers[k].view == view
                  && report->numbers[k].judgement == DIFFERS;
    for (int p = 0; p < PLACES && view == VIEW_SHAPES; p++)
        for (size_t k = 0; k < report->tensor_count[p]; k++)
            differ += report->tensors[p][k].judgement == DIFFERS;
    return report->failures[view] == 0 ? HOLDS
           : differ > 0 ? DIFFERS : UNMEASURED;
}
