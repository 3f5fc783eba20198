/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new domain goes on where an old one has stopped, since ranks have died, or others have taken
 * their numbers. The old one may have had other members, and be of the other kind; who is new
 * has none (NULL).
 *
 * Two steps, with an agreement between them. First every member calls begin_at, so that
 * whoever looks at the new domain afterwards finds it at the right round, with the results
 * that can still be read. Then each brings its own state and deposits with `inherit`; from
 * then on its application uses the new domain. Nobody starts a round before all have.
 *
 * A slot for a result that none was written to has a blank header, which is not that of round 0
 * (protocol/round.h).
 */
#ifndef PCOLL_DOMAIN_RECOVERY_H
#define PCOLL_DOMAIN_RECOVERY_H

#include "domain/domain.h"
#include "protocol/recovery.h"

/* Copy the results that this member may still read, and the last one that it has read if it is
 * there (a newcomer has none from before); up to round - 1, whose message is `last`; of the last
 * `kept` rounds. Where members share them, each writes the same. */
void domain_copy_results(struct domain *d, struct domain *old, uint64_t round,
                         const struct round_header *last, uint32_t kept);
/* The old domain's member as it goes on, its deposit moved to the new domain. *m comes
 * back whole unless a user's op failed. Without an old domain *m is new, and enters. */
int domain_recover_member(struct domain *d, struct domain *old, uint64_t round,
                          const struct round_header *last, struct member *m);

#endif
