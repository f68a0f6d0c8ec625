#ifndef KEPT_MEMORY_H
#define KEPT_MEMORY_H

/* For programs: what is freed from now on stays with the process, where the
   allocator can be told so. */
void kept_memory(void);

#endif
