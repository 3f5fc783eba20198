/* SPDX-License-Identifier: Apache-2.0 */
/* Which processes hold the connections between two hosts: two of each, where there are two, spread
 * over the ranks of a host. Pure: all ranks choose alike. */
#ifndef PCOLL_WATCH_PAIRING_H
#define PCOLL_WATCH_PAIRING_H

#include "watch/party.h"

/* Those of this rank. */
void pairing_each(const struct watch_party *p,
                  void (*each)(void *arg, const struct watch_card *peer, uint64_t host),
                  void *arg);

#endif
