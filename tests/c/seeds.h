/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds drawn from consecutive seeds, as the environment asks:
 *
 *   PARTIALCOLL_SEED=n       run only seed n
 *   PARTIALCOLL_SCHEDULES=n  run n seeds
 *   PARTIALCOLL_FIRST=n      start with seed n (default 1)
 *   PARTIALCOLL_JOBS=n       use n processes (default 1)
 *   PARTIALCOLL_RANKS=n      use n ranks in every world
 */
#pragma once

#include "world.h"

/* The main function of a program. Call `before` (unless NULL), then run `schedules`
 * seeds unless the environment sets a number. Return the exit status. */
int seeds_run(struct world_options (*draw)(uint64_t seed), uint64_t schedules,
              void (*before)(void));
