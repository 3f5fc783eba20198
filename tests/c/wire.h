/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport that is watched. Every message belongs to a handle that exists, no edge
 * carries two of one round, and rounds never go back. Now and then an activation is
 * sent twice, which has to be harmless.
 */
#pragma once

#include "transport/sim/sim_transport.h"
#include "ledger.h"

/* handles: slots in use, from 0. duplicate_one_in: 0 for never. Freed by its destroy.
 */
struct transport *wire_create(struct sim *s, uint32_t rank, uint32_t handles,
                              uint32_t duplicate_one_in);
/* New handles in the slots: their rounds begin at 0, and these are their ledgers, where
 * it is noted who started a round (the first out-edge fires with nothing else). */
void wire_renew(struct transport *wire, struct ledger *ledgers);
