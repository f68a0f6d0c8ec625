#define _DEFAULT_SOURCE
#include "pages.h"
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "tensor.h"

enum { LARGE = 2 << 20 };

void *pages_new(size_t bytes, void **room)
{
    size_t all;
    if (!size_add(bytes, LARGE, &all) || (*room = calloc(all, 1)) == NULL)
        return NULL;
    const uintptr_t start = ((uintptr_t)*room + LARGE - 1) / LARGE * LARGE;
    void *pages = (char *)*room + (start - (uintptr_t)*room);
#ifdef MADV_HUGEPAGE
    (void)madvise(pages, bytes, MADV_HUGEPAGE);
#endif
    return pages;
}
