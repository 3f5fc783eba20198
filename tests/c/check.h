/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks for the C tests: say what went wrong and where, and end. INVARIANT names which
 * promise of docs/semantics.md was broken; CHECK is for everything else.
 */
#ifndef PCOLL_TESTS_CHECK_H
#define PCOLL_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "../../csrc/base/error.h"

/* Printed with every failure: what to set to see it again. */
extern char check_context[512];
/* Prints the state of things after a failure, if set. */
extern void (*check_dump)(FILE *out);

/* Ends the program. */
_Noreturn void check_failed(void);

#define CHECK_AS(what, condition, ...)                                                 \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s\n  %s\n  ", __FILE__, __LINE__, what,           \
                    #condition);                                                       \
            fprintf(stderr, __VA_ARGS__);                                              \
            check_failed();                                                            \
        }                                                                              \
    } while (0)

#define CHECK(condition, ...) CHECK_AS("check failed", condition, __VA_ARGS__)

#define INVARIANT(name, condition, ...)                                                \
    CHECK_AS("invariant broken: " name, condition, __VA_ARGS__)

#define CHECK_OK(call)                                                                 \
    do {                                                                               \
        int check_rc = (call);                                                         \
        CHECK(check_rc == PCOLL_OK, "%d: %s", check_rc, pcoll_last_error());           \
    } while (0)

#endif
