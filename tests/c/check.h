/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks for the C tests: print what failed and where, and exit. INVARIANT names the
 * promise of docs/semantics.md that was broken; EXPECT is for everything else. The core has
 * its own CHECKs (csrc/base/check.h).
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* Printed with every failure: the settings that reproduce it. */
extern char check_context[512];
/* Print the state after a failure, if set. */
extern void (*check_dump)(FILE *out);

/* End the program. */
_Noreturn void check_failed(void);

/* Return the number in an environment variable, or `otherwise` if it is not set. */
uint64_t check_setting(const char *name, uint64_t otherwise);
/* Run seeds 1 to PARTIALCOLL_SCHEDULES (default `schedules`) and return their number.
 * With PARTIALCOLL_SEED run only that seed and end the program. */
uint64_t check_seeds(uint64_t schedules, void (*run)(uint64_t seed));

/* Fork. Return true in the child, in which a CHECK must fire before the next call, and
 * then false in the parent. `part` is a part of the CHECK's message, such as its
 * condition or its file. */
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
