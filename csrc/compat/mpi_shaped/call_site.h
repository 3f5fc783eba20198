/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where in the program a call stands. Two sums in one loop stand in two places, so they
 * get two handles, whose late contributions do not mix.
 */
#ifndef PCOLL_COMPAT_MPI_SHAPED_CALL_SITE_H
#define PCOLL_COMPAT_MPI_SHAPED_CALL_SITE_H

#include <stdint.h>

/* Of the address that a call returns to: the same number on all ranks that run the same
 * program, wherever it is loaded. Never 0. */
uint64_t call_site_hash(const void *return_address);

#endif
