/* SPDX-License-Identifier: Apache-2.0 */
/* What a handle may be asked for. */
#ifndef PCOLL_ALLREDUCE_OPTIONS_H
#define PCOLL_ALLREDUCE_OPTIONS_H

#include "../include/partialcoll.h"

/* PCOLL_EINVAL names the option that is impossible and its range. */
int options_check(const pcoll_options *options);
/* With less memory where that changes nothing that a user can see. */
pcoll_options options_thrifty(const pcoll_options *o);

#endif
