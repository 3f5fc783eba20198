/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P simulated ranks, each with an application that loops over its handles, and the
 * invariants of docs/semantics.md checked as they go. One seed, one run.
 */
#ifndef PCOLL_TESTS_WORLD_H
#define PCOLL_TESTS_WORLD_H

#include "../../csrc/transport/sim.h"
#include "spy.h"

enum { WORLD_MOST_HANDLES = 4, WORLD_MOST_RANKS = 64 };

/* How the loops of the ranks end. */
enum world_ending {
    END_LOOP, /* the same number of calls, then free */
    END_JOIN, /* different numbers of calls, then join; twice */
    END_LEAVE /* some ranks leave early; the others go on and join */
};

struct world_handle {
    int policy, deliver, late;
    uint32_t history;
};

struct world_options {
    uint32_t ranks;
    uint64_t seed;
    int handles;
    struct world_handle handle[WORLD_MOST_HANDLES];
    uint64_t calls; /* of each rank, or rounds with deliver="all" */
    enum world_ending ending;
    uint32_t count; /* float64 elements, at least 1 */
    int64_t think;  /* mean time between calls, ns */
    uint32_t slow;  /* this rank thinks 20 times as long; none if >= ranks */
};

/* What happened, for those who look at more than the invariants. */
struct world_report {
    uint64_t rounds[WORLD_MOST_HANDLES];
    uint64_t hash[WORLD_MOST_HANDLES]; /* of all results, in order */
    double active_mean;
    uint64_t lost;
};

/* Runs it to its end; any violation, and a deadlock, ends the program with a message.
 */
void world_run(const struct world_options *options, struct world_report *report);

#endif
