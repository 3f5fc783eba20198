/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What our rounds would have saved so far, for each signature of complete rounds on a
 * communicator: the calls of a signature are MPI's until that pays for a handle
 * (pcoll_full_pays).
 *
 * A communicator has a few rows. Signatures that meet in a row push each other out, on all
 * ranks alike, so each needs longer to pay.
 */
#ifndef PCOLL_COMPAT_MPI_SHAPED_SAVINGS_H
#define PCOLL_COMPAT_MPI_SHAPED_SAVINGS_H

#include <stdbool.h>

#include "compat/mpi_shaped/cache.h"

struct savings_row {
    uint64_t signature, ns;
};

/* The row of this signature: *added, if it has pushed out another one or the row was empty.
 * NULL without memory. *s is made at the first call. Local. */
struct savings_row *savings_find(struct savings **s, const struct cache_key *key,
                                 bool *added);

/* Of partial rounds: is this the first call of this signature? A handle for a signature that
 * comes only once would cost much and serve no round. Signatures that share a bit count as one.
 * *s is as above. Local. */
bool savings_is_first(struct savings **s, const struct cache_key *key);

#endif
