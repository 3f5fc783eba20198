/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Complete rounds: MPI's or ours? The functions and what they promise are in
 * include/partialcoll.h, the measured limits in docs/interposer.md.
 *
 * Ranks compare a number by combining it and its complement with OR: the two results are
 * complements of each other only if the number is the same on all ranks.
 */
#include <sched.h>
#include <string.h>

#include "base/doorbell.h"
#include "base/error.h"
#include "base/random.h"
#include "allreduce/tuning.h"

enum { NODE, OTHER_NODES, TABLE, OTHER_TABLES, CORES };
_Static_assert((PCOLL_FULL_WORDS - CORES) * 8 == sizeof(cpu_set_t), "cores fit");

/* Estimated cost of a handle, and what a call saves, in nanoseconds. */
enum { FIRST_HANDLE_NS = 15000000, NEXT_HANDLE_NS = 1000000 };
enum { CROWDED_SAVING_NS = 10000, TABLE_SAVING_NS = 1000, BYTES_PER_SAVED_NS = 8 };

int pcoll_full_look(int32_t open_mpi, pcoll_full_facts *f)
{
    struct tuning_threshold table[PCOLL_FULL_LINES];
    cpu_set_t cores;
    uint64_t hash = 0;
    int rc = fail_if_null_as("facts", f);
    if (rc != PCOLL_OK)
        return rc;
    *f = (pcoll_full_facts){.open_mpi = open_mpi != 0};
    rc = tuning_thresholds(table, PCOLL_FULL_LINES, &f->lines);
    for (uint32_t i = 0; i < f->lines; i++) {
        f->line_ranks[i] = table[i].ranks;
        f->line_bytes[i] = table[i].bytes;
        hash = splitmix_mix(splitmix_mix(hash ^ table[i].ranks) ^ table[i].bytes);
    }
    CPU_ZERO(&cores);
    sched_getaffinity(0, sizeof cores, &cores);
    memcpy(f->words + CORES, &cores, sizeof cores);
    f->words[NODE] = doorbell_neighborhood();
    f->words[OTHER_NODES] = ~f->words[NODE];
    f->words[TABLE] = hash;
    f->words[OTHER_TABLES] = ~hash;
    return rc;
}

void pcoll_full_settle(pcoll_full_facts *f, uint32_t ranks)
{
    cpu_set_t cores;
    if (fail_if_null_as("facts", f))
        return;
    memcpy(&cores, f->words + CORES, sizeof cores);
    f->one_node = f->words[NODE] == ~f->words[OTHER_NODES];
    f->crowded = ranks > (uint32_t)CPU_COUNT(&cores);
    f->tables_differ = f->words[TABLE] != ~f->words[OTHER_TABLES];
    if (f->tables_differ)
        f->lines = 0;
}

static uint64_t full_look_up(const pcoll_full_facts *f, uint32_t ranks)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < f->lines; i++)
        if (tuning_compare_ranks(ranks, f->line_ranks[i], f->line_ranks[best]) > 0)
            best = i;
    return f->line_bytes[best];
}

uint64_t pcoll_full_from(const pcoll_full_facts *f, uint32_t ranks)
{
    if (fail_if_null_as("facts", f) || ranks < 2)
        return UINT64_MAX;
    if (f->lines)
        return full_look_up(f, ranks);
    if (!f->one_node)
        return UINT64_MAX;
    if (f->crowded && ranks > 3)
        return f->open_mpi ? 4096 : 1;
    return f->crowded || ranks == 2 ? 16384 : UINT64_MAX;
}

int pcoll_full_pays(const pcoll_full_facts *f, uint32_t ranks, uint64_t bytes,
                    int32_t has_handles, uint64_t *saved)
{
    int rc = fail_if_null_as("facts, saved", f, saved);
    if (rc != PCOLL_OK || bytes < pcoll_full_from(f, ranks))
        return rc;
    *saved += bytes / BYTES_PER_SAVED_NS;
    if (f->crowded && ranks > 3)
        *saved += CROWDED_SAVING_NS;
    if (f->lines)
        *saved += TABLE_SAVING_NS;
    return *saved >= (has_handles ? NEXT_HANDLE_NS : FIRST_HANDLE_NS);
}
