/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Schedules the two threads of every simulated rank, its application and its agent. If the
 * world asks for it, they pause between steps in memory for a while, and other ranks run.
 * The agent does not drive while its application holds the progress lock, and vice versa.
 */
#pragma once

#include "world.h"

struct world;

/* A new process has this rank: the threads of the dead one never continue. */
void threads_renew(struct world *w, uint32_t rank);
/* Run until nothing is left to happen. */
void threads_run(struct world *w);
