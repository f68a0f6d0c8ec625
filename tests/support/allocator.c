#include "allocator.h"
#include <stdlib.h>

static long calls, live, fail_at;
static bool failed;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void __wrap_free(void *block);

static bool fails(void)
{
    calls++;
    if (fail_at > 0 && --fail_at == 0) {
        failed = true;
        return true;
    }
    return false;
}

void *__wrap_malloc(size_t size)
{
    void *block = fails() ? NULL : __real_malloc(size);
    live += block != NULL;
    return block;
}

void *__wrap_calloc(size_t count, size_t size)
{
    void *block = fails() ? NULL : __real_calloc(count, size);
    live += block != NULL;
    return block;
}

void *__wrap_realloc(void *old, size_t size)
{
    void *block = fails() ? NULL : __real_realloc(old, size);
    live += old == NULL && block != NULL;
    return block;
}

void __wrap_free(void *block)
{
    live -= block != NULL;
    __real_free(block);
}

void allocator_fail_at(long n)
{
    fail_at = n;
    failed = false;
}

bool allocator_stop(void)
{
    fail_at = 0;
    return failed;
}

long allocator_live(void)
{
    return live;
}

long allocator_calls(void)
{
    return calls;
}
