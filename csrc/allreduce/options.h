/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle may be asked for. */
#ifndef PCOLL_ALLREDUCE_OPTIONS_H
#define PCOLL_ALLREDUCE_OPTIONS_H

#include "include/partialcoll.h"

/* PCOLL_EINVAL names the option that is impossible and its range. */
int options_check(const pcoll_options *options);
/* With less memory where that changes nothing but how long a rank that joins may take
 * to read a round before the others wait for it. */
pcoll_options options_thrifty(const pcoll_options *o);

#endif
