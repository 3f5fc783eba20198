/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A transport between threads of one process, each of which plays a rank with a
 * progress engine and an agent of its own: what the thread sanitizer can look at.
 */
#ifndef PCOLL_TESTS_INPROC_H
#define PCOLL_TESTS_INPROC_H

#include "../../csrc/base/bell.h"
#include "../../csrc/transport/transport.h"

struct inproc;

struct inproc *inproc_create(uint32_t size);
void inproc_free(struct inproc *n);
/* The transport of a rank, whose bell others ring. */
struct transport *inproc_endpoint(struct inproc *n, uint32_t rank,
                                  struct bell_page *bell);

/* What their applications do. Wait for it, a minute at most. */
struct progress;
struct context;
void inproc_wait(struct progress *p, struct context *c, bool (*what)(void *),
                 void *arg);
/* Half of the time nothing, else long enough for the agent to take over. */
void inproc_nap(uint32_t rank, uint64_t n);

#endif
