#include "judgement.h"
#include <math.h>
#include "phase_print.h"

const char *judgement_name(enum judgement judgement)
{
    static const char *const names[JUDGEMENTS] = {
        "holds", "differs", "not measured", NULL, "observed", "derived"
    };
    return judgement == DIAGNOSTIC ? phase_label : names[judgement];
}

bool judgement_fails(enum judgement judgement)
{
    return judgement == DIFFERS || judgement == UNMEASURED;
}

struct quantity quantity_none(void)
{
    return (struct quantity){.known = false};
}

struct quantity quantity_count(size_t count)
{
    return (struct quantity){.known = true, .count = count};
}

struct quantity quantity_real(double number)
{
    return isfinite(number)
           ? (struct quantity){.known = true, .real = true, .number = number}
           : quantity_none();
}

enum judgement judge(enum number_kind kind, const struct quantity *predicted,
                     const struct quantity *measured)
{
    if (kind == NUMBER_TIME)
        return DIAGNOSTIC;
    if (kind != NUMBER_EXACT)
        return kind == NUMBER_FREE ? OBSERVED : DERIVED;
    if (!measured->known)
        return UNMEASURED;
    if (!predicted->known)
        return DIFFERS;
    return predicted->count == measured->count ? HOLDS : DIFFERS;
}
