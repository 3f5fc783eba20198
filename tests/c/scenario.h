/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A scenario: what some ranks do and when, and the transcript of what comes of it. One
 * file of tests/scenarios each: an explanation in lines that begin with "#", settings
 * and the ranks' programs, a line "--", the transcript. README.md there has the words.
 */
#ifndef PCOLL_TESTS_SCENARIO_H
#define PCOLL_TESTS_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

#include "allreduce/endpoint.h"

enum { SCENARIO_RANKS = 16, SCENARIO_ACTIONS = 16 };

enum action_kind { ACT_DEPOSIT, ACT_JOIN, ACT_LEAVE, ACT_FREE };

struct action {
    enum action_kind kind;
    double value; /* of a deposit */
    int64_t at;   /* ns; later if the one before is not over by then */
};

struct program {
    int count;
    struct action action[SCENARIO_ACTIONS];
};

struct scenario {
    uint32_t ranks;
    uint64_t hosts[SCENARIO_RANKS];
    bool shares; /* some ranks share memory */
    uint64_t elements;
    double latency; /* ns */
    pcoll_options options;
    struct program program[SCENARIO_RANKS];
};

/* Ends the program with the line that cannot be read. Returns where the transcript
 * begins. */
const char *scenario_read(const char *file, const char *text, struct scenario *out);

#endif
