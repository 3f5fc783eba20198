/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The algorithm that PCOLL_ALGORITHM_AUTO stands for: a table by ranks and bytes, built in or
 * read from a file that was measured (`partialcoll bench tune`).
 *
 * A table is text. A comment begins with `#`. Every other line has three words:
 *
 *     ranks  from_bytes  algorithm
 *
 * For a job of a given size the lines with the largest number of ranks that the job has count
 * (if the job is smaller than all of them, the lines with the fewest). Of these the line with the
 * most bytes that the job sends counts; if the job sends fewer bytes, recursive doubling.
 *
 * The last word may also be "ours": this library serves complete rounds of calls that look like
 * MPI_Allreduce if they have at least this number of bytes, and MPI serves smaller ones ("never"
 * instead of the bytes: MPI serves all). There is one such line for each number of ranks, as above.
 *
 * The file is $PARTIALCOLL_TUNE. If that is not set, it is partialcoll/tune.txt under
 * $XDG_CONFIG_HOME or ~/.config, if it exists. PARTIALCOLL_TUNE=none selects the built-in table.
 */
#pragma once

#include "domain/placement.h"

/* Choose for these domains. Only `domains` and `per_host` are read. off_node (for the built-in
 * table): the ranks are on several machines. PCOLL_EINVAL names the wrong file and line. */
int tuning_choose(const struct placement *placement, uint64_t bytes, bool off_node,
                  enum pcoll_algorithm *algorithm);
