/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies where in a rank's window: the decisions of the groups that it leads, its
 * part of the directory, its input, and the part of the result that it has reduced. The
 * same on all ranks.
 *
 * The input is written by the application before a round and read by the members while
 * it runs; the part, by the driver and the members. Both may be written again as soon
 * as the round is decided: whoever still reads then is in a void round and throws it
 * away.
 */
#ifndef PCOLL_GROUP_LAYOUT_H
#define PCOLL_GROUP_LAYOUT_H

#include "group/rendezvous.h"
#include "protocol/group/decision.h"

struct group_layout {
    size_t element, count; /* bytes, elements */
    size_t decisions_at, directory_at, input_at, part_at;
    size_t bytes;
};

static inline size_t group_window_round_up(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static inline struct group_layout group_window_layout(uint32_t ranks, size_t element,
                                                      size_t count)
{
    struct group_layout p = {.element = element, .count = count};
    size_t data = group_window_round_up(element * count);
    p.directory_at = group_window_round_up(DECISIONS * sizeof(int64_t));
    p.input_at =
        p.directory_at + group_window_round_up(group_window_directory_bytes(ranks));
    p.part_at = p.input_at + data;
    p.bytes = p.part_at + data;
    return p;
}

#endif
