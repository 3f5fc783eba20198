/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that outlives its object: users have views of it, and who looks at an array
 * after the object was freed shall see an array, not a signal. Views are held with
 * pcoll_memory_hold. Anybody may call these.
 */
#ifndef PCOLL_BASE_HELD_MEMORY_H
#define PCOLL_BASE_HELD_MEMORY_H

#include <stddef.h>

/* end(memory, bytes): now, or by whoever releases the last address in there. */
void memory_dispose(void *memory, size_t bytes,
                    void (*end)(void *memory, size_t bytes));

#endif
