/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers for the programs of this folder that create handles. */
#ifndef HANDLES_H
#define HANDLES_H

#include "../pmpi/say.h"
#include <partialcoll.h>

static void end(pcoll_handle **handle)
{
    while (pcoll_handle_free(handle, 1000000) == PCOLL_EAGAIN)
        ;
}

static void refuse(int rc, int expected, const char *text)
{
    if (rc != expected || !strstr(pcoll_last_error(), text))
        fprintf(stderr, "%d: %s\n", rc, pcoll_last_error());
    CHECK(rc == expected && strstr(pcoll_last_error(), text));
}

#endif
