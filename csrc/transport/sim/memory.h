/* SPDX-License-Identifier: Apache-2.0 */
/* Without memory a simulation has no sense: it ends the program. */
#ifndef PCOLL_TRANSPORT_SIM_MEMORY_H
#define PCOLL_TRANSPORT_SIM_MEMORY_H

#include <stdlib.h>

static inline void *must(void *memory)
{
    if (!memory)
        abort();
    return memory;
}

#endif
