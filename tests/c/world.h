/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P simulated ranks, each with an application that loops over its handles. The invariants
 * of docs/semantics.md are checked during the run. One run per seed.
 */
#pragma once

#include "transport/sim/sim_transport.h"
#include "ledger.h"

/* Handles at a time, and how often they are created and freed in the same slots. */
enum { WORLD_MAX_HANDLES = 4, WORLD_MAX_GENERATIONS = 2 };
enum { WORLD_MAX_MADE = WORLD_MAX_HANDLES * WORLD_MAX_GENERATIONS };

/* How the loops of the ranks end. */
enum world_ending {
    END_LOOP,  /* the same number of calls, then free */
    END_JOIN,  /* different numbers of calls, then join; twice */
    END_LEAVE, /* some ranks leave early; the others continue and join */
    END_FREE   /* different numbers of calls, then free; solo only */
};

struct world_handle {
    int policy, modifier, algorithm; /* rows of space.h */
    int deliver, late, op;
    bool owned_send;
    uint32_t history;
};

/* A rank dies after a number of its steps, counted: */
enum world_moment {
    AT_ANY_TIME,
    WHILE_RECOVERING, /* during the recovery from another death */
    WHILE_CLOSING,
    WHILE_JOINING,
    WHILE_GROWING,
    AFTER_ANOTHER, /* after another rank has died */
    WORLD_MOMENTS
};

struct world_crash {
    uint32_t rank;
    enum world_moment moment;
    uint32_t steps;
};

enum { WORLD_MAX_CRASHES = 3 };

/* Each happens once in that many steps; 0: never. */
struct world_trouble {
    uint32_t agent_stalls, application_stalls;
    uint32_t spurious_wakes, duplicates, misuses;
    uint32_t close_all;   /* close several handles at once, so that closings queue up */
    uint32_t interleaves; /* other ranks run between two steps in memory */
    int64_t stall_longest;
};

struct world_options {
    uint32_t ranks;
    uint64_t seed;
    int grouping; /* grouping of ranks: row of space.h; 0: none */
    int handles;
    struct world_handle handle[WORLD_MAX_HANDLES];
    int generations;
    uint64_t calls; /* calls of each rank; rounds with deliver="all" */
    enum world_ending ending;
    uint32_t count; /* float64 elements, at least 1 */
    bool fractions; /* values whose sum depends on the order of additions */
    int64_t think;  /* mean time between calls, ns */
    uint32_t slow;  /* this rank thinks for slow_think; none if >= ranks */
    int64_t slow_think;
    int64_t asleep; /* all but rank `awake` begin after this time; 0: all begin */
    uint32_t awake;
    bool in_call; /* they begin their first call before they sleep */
    pcoll_network network;
    struct world_trouble trouble;
    int crashes; /* one generation of handles; at least one rank lives */
    struct world_crash crash[WORLD_MAX_CRASHES];
    int64_t detection; /* maximal delay after a death */
    bool grows;        /* newcomers take the numbers of dead ranks; equal loops */
};

/* Observations for tests that check more than the invariants. */
struct world_report {
    uint64_t rounds[WORLD_MAX_MADE];
    uint64_t hash[WORLD_MAX_MADE]; /* of all results, in order */
    double active_mean;
    uint64_t lost;
    uint32_t died[WORLD_MOMENTS], recoveries, attempts, redone, grown, called_off,
        newcomers;
    int64_t loops_over[LEDGER_MAX_RANKS]; /* time at which a rank made its last call */
};

/* Run to the end. A violation or deadlock ends the program with a message and the state
 * of all ranks. */
void world_run(const struct world_options *options, struct world_report *report);
