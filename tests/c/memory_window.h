/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Windows of ranks that are coroutines of one thread: every step on another's memory is a point at
 * which somebody else may go on, and takes no more than the seam promises
 * (csrc/transport/window.h): gets see memory piece by piece; puts and additions arrive piece by
 * piece, in any order, at the latest in flush; one element at a time is atomic.
 */
#pragma once

#include "transport/window.h"

enum { MEMORY_RANKS = 8 };

/* The window of each of `ranks`, zeroed. */
void memory_windows_create(uint32_t ranks, size_t bytes, struct window **windows);
void memory_windows_destroy(uint32_t ranks, struct window **windows);

/* Its rank has died: what it has begun arrives, since windows that outlive a rank are memory
 * that all share (csrc/runtime/shared_window.c). */
void memory_window_die(struct window *w);

/* Called after every change of a word, if set. */
extern void (*memory_window_watch)(void);
