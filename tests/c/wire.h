/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A watched transport. Every message belongs to an existing handle, an edge carries at most
 * one message per round, and rounds never go back. Sometimes an activation is sent twice,
 * which must be harmless.
 */
#pragma once

#include "transport/sim/sim_transport.h"
#include "ledger.h"

/* handles: slots in use, from 0. duplicate_one_in: 0 for never. Freed by its
 * destroy. */
struct transport *wire_create(struct sim *s, uint32_t rank, uint32_t handles,
                              uint32_t duplicate_one_in);
/* The slots have new handles, whose rounds begin at 0. Their ledgers note who started a
 * round (the first out-edge fires with nothing else). */
void wire_renew(struct transport *wire, struct ledger *ledgers);
