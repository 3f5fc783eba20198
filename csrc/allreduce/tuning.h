/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which algorithm PCOLL_ALGORITHM_AUTO is: a table by ranks and bytes, built in or read
 * from a file that was measured (`partialcoll bench tune`).
 *
 * A table is text. After `#` comes a comment; every other line has three words:
 *
 *     ranks  from_bytes  algorithm
 *
 * A job is served by the lines with the most ranks that it has (with the fewest of all,
 * if it has fewer), and of them by that with the most bytes that it sends; by recursive
 * doubling, if it sends fewer than any.
 *
 * The last word may also be "ours": complete rounds of calls that look like MPI_Allreduce
 * are ours from so many bytes on, and MPI's below ("never" for the bytes: always MPI's). One
 * such line for each number of ranks; it serves jobs as above (allreduce/full.c).
 *
 * Which file: $PARTIALCOLL_TUNE; if that is not set, partialcoll/tune.txt under
 * $XDG_CONFIG_HOME or ~/.config, if there is one. PARTIALCOLL_TUNE=none: built in.
 */
#ifndef PCOLL_ALLREDUCE_TUNING_H
#define PCOLL_ALLREDUCE_TUNING_H

#include <stdbool.h>

#include "domain/placement.h"
#include "include/partialcoll.h"

/* Choose for these domains; only `domains` and `per_host` are read. off_node: not all
 * ranks are on one machine (for the built-in table). PCOLL_EINVAL names the file and the
 * line that is wrong. */
int tuning_choose(const struct placement *placement, uint64_t bytes, bool off_node,
                  enum pcoll_algorithm *algorithm);

struct tuning_threshold {
    uint64_t ranks, bytes;
};

/* The lines "ours" of the file, `most` at most, in their order. */
int tuning_thresholds(struct tuning_threshold *thresholds, uint32_t most,
                      uint32_t *count);

/* Does a job of `ranks` do better with a line for `a` ranks (1) or for `b` (-1)? 0: the
 * same. */
int tuning_compare_ranks(uint64_t ranks, uint64_t a, uint64_t b);

#endif
