/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport between threads of one process, each of which plays a rank with a
 * progress engine and an agent of its own: what the thread sanitizer can look at.
 */
#pragma once

#include "base/doorbell.h"
#include "transport/transport.h"

struct inproc;

struct inproc *inproc_create(uint32_t size);
void inproc_free(struct inproc *n);
/* The transport of a rank, whose doorbell others ring. */
struct transport *inproc_endpoint(struct inproc *n, uint32_t rank,
                                  struct doorbell_page *doorbell);

/* What their applications do. Wait for it, a minute at most. */
struct progress;
struct communicator;
void inproc_wait(struct progress *p, struct communicator *c, bool (*what)(void *),
                 void *arg);
/* Half of the time nothing, else long enough for the agent to take over. */
void inproc_nap(uint32_t rank, uint64_t n);
