/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport between threads of one process. Each thread plays a rank that has its own
 * progress engine and agent, so that the thread sanitizer sees all ranks.
 */
#pragma once

#include "base/doorbell.h"
#include "transport/transport.h"

struct inproc;

struct inproc *inproc_create(uint32_t size);
void inproc_free(struct inproc *n);
/* Return the transport of a rank. Other ranks ring `doorbell`. */
struct transport *inproc_endpoint(struct inproc *n, uint32_t rank,
                                  struct doorbell_page *doorbell);

/* Wait as the application of a rank does, for at most one minute. */
struct progress;
struct communicator;
void inproc_wait(struct progress *p, struct communicator *c, bool (*what)(void *),
                 void *arg);
/* Return at once in half of the calls. Else sleep until the agent takes over. */
void inproc_pause(uint32_t rank, uint64_t n);
