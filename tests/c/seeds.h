/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worlds drawn from seeds, one after the other, as many as the environment asks for:
 *
 *   PARTIALCOLL_SEED=n       run seed n only, again
 *   PARTIALCOLL_SCHEDULES=n  so many seeds
 *   PARTIALCOLL_FIRST=n      from n on (default 1)
 *   PARTIALCOLL_JOBS=n       in n processes (default 1)
 *   PARTIALCOLL_RANKS=n      n ranks in all of them
 */
#pragma once

#include "world.h"

/* A program's main: so many if it is not told otherwise, after what else there is to run
 * (NULL: nothing). Its exit status. */
int seeds_run(struct world_options (*draw)(uint64_t seed), uint64_t schedules,
              void (*before)(void));
