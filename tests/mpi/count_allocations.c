/* Counts a program's calls of malloc and its like for at least LARGE bytes. Preloaded by test_allocations.py, whose
 * program reads large_allocations. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

#define LARGE 16384

long large_allocations;

static void count(size_t nbytes) {
    if (nbytes >= LARGE) __atomic_add_fetch(&large_allocations, 1, __ATOMIC_RELAXED);
}

void* __libc_malloc(size_t nbytes);
void* __libc_calloc(size_t members, size_t nbytes);
void* __libc_realloc(void* memory, size_t nbytes);
void* __libc_memalign(size_t alignment, size_t nbytes);

void* malloc(size_t nbytes) {
    count(nbytes);
    return __libc_malloc(nbytes);
}

void* calloc(size_t members, size_t nbytes) {
    count(members * nbytes);
    return __libc_calloc(members, nbytes);
}

void* realloc(void* memory, size_t nbytes) {
    count(nbytes);
    return __libc_realloc(memory, nbytes);
}

void* memalign(size_t alignment, size_t nbytes) {
    count(nbytes);
    return __libc_memalign(alignment, nbytes);
}
