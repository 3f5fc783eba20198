/* SPDX-License-Identifier: Apache-2.0 */
/* How much the cache holds that the cores of a machine share. */
#ifndef PCOLL_BASE_CPU_CACHE_H
#define PCOLL_BASE_CPU_CACHE_H

#include <stddef.h>

/* Of the largest cache that this machine's first core has, as the kernel tells: the C
 * library may answer for all of a processor's together. */
size_t cache_size(void);

#endif
