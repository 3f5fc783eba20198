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

#endif
