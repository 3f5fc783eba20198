/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of ranks that are coroutines of one thread. Every access to another rank's memory is a
 * point at which another coroutine may run, and guarantees no more than the interface
 * (csrc/transport/window.h): gets see memory piece by piece; puts and additions arrive piece by
 * piece, in any order, at the latest in flush; each element is atomic.
 */
#pragma once

#include "transport/window.h"

enum { MEMORY_RANKS = 8 };

/* Create a zeroed window for each of `ranks`. */
void memory_windows_create(uint32_t ranks, size_t bytes, struct window **windows);
void memory_windows_destroy(uint32_t ranks, struct window **windows);

/* The rank has died. Its operations in progress still arrive: a window that outlives
 * its rank is shared memory (csrc/runtime/shared_window.c). */
void memory_window_die(struct window *w);

/* Called after every change of a word, if set. */
extern void (*memory_window_watch)(void);
