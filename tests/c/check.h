/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks for the C tests: say what went wrong and where, and end. INVARIANT names which
 * promise of docs/semantics.md was broken; EXPECT is for everything else. The core has
 * CHECKs of its own (csrc/base/check.h).
 */
#ifndef PCOLL_TESTS_CHECK_H
#define PCOLL_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

/* Printed with every failure: what to set to see it again. */
extern char check_context[512];
/* Prints the state of things after a failure, if set. */
extern void (*check_dump)(FILE *out);

/* Ends the program. */
_Noreturn void check_failed(void);

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

#endif
