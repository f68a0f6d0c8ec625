#include "kernels.h"
#include <string.h>

#ifdef __x86_64__
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f")
        && __builtin_cpu_supports("avx512bw")
        && __builtin_cpu_supports("avx512dq")
        && __builtin_cpu_supports("avx512vl");
}
#else
static bool has_avx2(void) { return false; }
static bool has_avx512(void) { return false; }
#endif

int kernels_available(const struct kernels *tables[KERNELS_MAX])
{
    int count = 0;
    if (has_avx512())
        tables[count++] = &kernels_avx512;
    if (has_avx2())
        tables[count++] = &kernels_avx2;
    tables[count++] = &kernels_base;
    tables[count++] = &kernels_plain;
    return count;
}

const struct kernels *kernels_named(const char *name)
{
    const struct kernels *tables[KERNELS_MAX];
    const int count = kernels_available(tables);
    for (int i = 0; i < count; i++)
        if (strcmp(tables[i]->name, name) == 0)
            return tables[i];
    return NULL;
}

const struct kernels *kernels_best(void)
{
#ifdef KERNELS
    const struct kernels *chosen = kernels_named(KERNELS);
    if (chosen != NULL)
        return chosen;
#endif
    const struct kernels *tables[KERNELS_MAX];
    kernels_available(tables);
    return tables[0];
}
