/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A window that nobody uses any more. Freeing one is collective and blocks, so it is
 * left with the context, and freed with the next window of this communicator or with
 * the communicator; its memory is given back at once.
 */
#ifndef PCOLL_RUNTIME_SPENT_WINDOW_H
#define PCOLL_RUNTIME_SPENT_WINDOW_H

#include "runtime/communicator.h"
#include "transport/window.h"

struct spent_window {
    struct leftover base; /* first: found again from it */
    struct window *window;
};

/* Driver: w is spent; *spent takes it over and is set to NULL. */
void window_spend(struct communicator *c, struct window *w,
                  struct spent_window **spent);

#endif
