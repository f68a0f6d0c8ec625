#include "agreement.h"
#include <math.h>
#include "request.h"

static void compare(const float *full, const float *cached, int count,
                    double tolerance, struct agreement *agreement)
{
    for (int v = 0; v < count; v++) {
        const double off = fabs((double)full[v] - cached[v]);
        agreement->largest = fmax(agreement->largest, off);
        if (off <= tolerance + tolerance * fabs((double)full[v])
            || !agreement->agrees)
            continue;
        agreement->agrees = false;
        agreement->column = v;
        agreement->full = full[v];
        agreement->cached = cached[v];
    }
    agreement->token += agreement->agrees;
}

static enum status walk(struct request *request, const int32_t *ids,
                        int tokens, int prompt, const float *full,
                        double tolerance, struct agreement *agreement,
                        struct error *error)
{
    const int width = request_model(request)->vocab_size;
    enum status status = STATUS_OK;
    int fed = 0;
    agreement->token = prompt - 1;
    while (fed < tokens && status == STATUS_OK) {
        const float *cached;
        const int count = fed == 0 ? prompt : 1;
        status = request_feed(request, ids + fed, count, true, &cached,
                              error);
        fed += count;
        if (status != STATUS_OK)
            break;
        agreement->compared++;
        compare(full + (ptrdiff_t)(fed - 1) * width, cached, width, tolerance,
                agreement);
        if (!agreement->agrees)
            break;
    }
    return status;
}

enum status agreement_of(const struct causal_lm *lm, const int32_t *ids,
                         int tokens, int prompt, double tolerance,
                         struct agreement *agreement, struct error *error)
{
    struct request *whole = NULL, *parts = NULL;
    struct agreement made = {.agrees = true};
    const float *full;
    if (prompt < 1 || prompt > tokens)
        return error_set(error, STATUS_INVALID,
                         "prompt: expected 1 to %d tokens, got %d", tokens,
                         prompt);
    enum status status = request_new(&whole, lm, 1, tokens, tokens, error);
    if (status == STATUS_OK)
        status = request_new(&parts, lm, 1, tokens, prompt, error);
    if (status == STATUS_OK)
        status = request_feed(whole, ids, tokens, false, &full, error);
    if (status == STATUS_OK)
        status = walk(parts, ids, tokens, prompt, full, tolerance, &made,
                      error);
    request_free(&whole);
    request_free(&parts);
    if (status == STATUS_OK)
        *agreement = made;
    return status;
}
