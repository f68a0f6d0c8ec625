#include "allocator.h"
#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>

static long calls, live, bytes, asked, fail_at;
static bool failed;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *block, size_t size);
void __real_free(void *block);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *block, size_t size);
void __wrap_free(void *block);
void *__real_mmap(void *at, size_t size, int access, int kind, int file,
                  off_t offset);
int __real_munmap(void *block, size_t size);
void *__wrap_mmap(void *at, size_t size, int access, int kind, int file,
                  off_t offset);
int __wrap_munmap(void *block, size_t size);

static bool fails(size_t size)
{
    calls++;
    asked += (long)size;
    if (fail_at > 0 && --fail_at == 0) {
        failed = true;
        return true;
    }
    return false;
}

/* Counts a block in, or out. */
static void count(void *block, int sign)
{
    if (block == NULL)
        return;
    live += sign;
    bytes += sign * (long)malloc_usable_size(block);
}

void *__wrap_malloc(size_t size)
{
    void *block = fails(size) ? NULL : __real_malloc(size);
    count(block, 1);
    return block;
}

void *__wrap_calloc(size_t items, size_t size)
{
    void *block = fails(items * size) ? NULL : __real_calloc(items, size);
    count(block, 1);
    return block;
}

void *__wrap_realloc(void *old, size_t size)
{
    if (fails(size))
        return NULL;
    count(old, -1);
    void *block = __real_realloc(old, size);
    count(block != NULL ? block : old, 1);
    return block;
}

void __wrap_free(void *block)
{
    count(block, -1);
    __real_free(block);
}

/* A mapping is a block without bytes. */
void *__wrap_mmap(void *at, size_t size, int access, int kind, int file,
                  off_t offset)
{
    if (fails(0)) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    void *block = __real_mmap(at, size, access, kind, file, offset);
    live += block != MAP_FAILED;
    return block;
}

int __wrap_munmap(void *block, size_t size)
{
    live--;
    return __real_munmap(block, size);
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

long allocator_bytes(void)
{
    return bytes;
}

long allocator_asked(void)
{
    return asked;
}

long allocator_calls(void)
{
    return calls;
}
