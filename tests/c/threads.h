/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two threads of every simulated rank, its application and its agent, and when each
 * goes on. Where the world asks for it they pause between steps in memory, for a while,
 * and everybody else goes on. Nobody drives a rank while its application holds the
 * progress lock, nor the other way round.
 */
#pragma once

#include "world.h"

struct world;

/* Another process has this rank's number: those of the dead one never go on. */
void threads_renew(struct world *w, uint32_t rank);
/* Until nothing is left to happen. */
void threads_run(struct world *w);
