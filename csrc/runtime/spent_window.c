/* SPDX-License-Identifier: Apache-2.0 */
/* Windows that nobody uses any more. */
#include "runtime/spent_window.h"

#include <stdlib.h>
#include "base/check.h"

static void end(struct leftover *l)
{
    struct spent_window *spent = (struct spent_window *)l;
    spent->window->ops->destroy(spent->window);
    free(spent);
}

void window_spend(struct communicator *c, struct window *w, struct spent_window **spent)
{
    CHECK(w && *spent);
    w->ops->retire(w);
    **spent = (struct spent_window){.base.end = end, .window = w};
    communicator_leave(c, &(*spent)->base);
    *spent = NULL;
}
