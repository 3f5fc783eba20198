/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks for the C tests: say what went wrong and where, and end. INVARIANT names which
 * promise of docs/semantics.md was broken; EXPECT is for everything else. The core has
 * CHECKs of its own (csrc/base/check.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* Printed with every failure: what to set to see it again. */
extern char check_context[512];
/* Prints the state of things after a failure, if set. */
extern void (*check_dump)(FILE *out);

/* Ends the program. */
_Noreturn void check_failed(void);

/* Return the number that a variable of the environment has, or `otherwise`. */
uint64_t check_setting(const char *name, uint64_t otherwise);
/* Run seeds 1 to PARTIALCOLL_SCHEDULES (or `schedules`) and return how many. Or run the seed
 * PARTIALCOLL_SEED again, and end the program. */
uint64_t check_seeds(uint64_t schedules, void (*run)(uint64_t seed));

/* Return true in a new process, which a CHECK has to end before the next call; and false in this
 * one, after that. `part`: of the message of the CHECK, such as its condition or its file. */
bool check_breaks(const char *part);

#define EXPECT_AS(what, condition, ...)                                                \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s\n  %s\n  ", __FILE__, __LINE__, what,           \
                    #condition);                                                       \
            fprintf(stderr, __VA_ARGS__);                                              \
            check_failed();                                                            \
        }                                                                              \
    } while (0)

#define EXPECT(condition, ...) EXPECT_AS("check failed", condition, __VA_ARGS__)

#define INVARIANT(name, condition, ...)                                                \
    EXPECT_AS("invariant broken: " name, condition, __VA_ARGS__)

#define EXPECT_OK(call)                                                                \
    do {                                                                               \
        int check_rc = (call);                                                         \
        EXPECT(check_rc == PCOLL_OK, "%d: %s", check_rc, pcoll_last_error());          \
    } while (0)
