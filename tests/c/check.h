/* SPDX-License-Identifier: Apache-2.0 */
/* Checks for the C tests: say what went wrong and where, and end. */
#ifndef PCOLL_TESTS_CHECK_H
#define PCOLL_TESTS_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "../../csrc/base/error.h"

/* Printed with every failure: what to set to see it again. */
extern char check_context[256];

#define CHECK(condition, ...)                                                          \
    do {                                                                               \
        if (!(condition)) {                                                            \
            fprintf(stderr, "%s:%d: %s\n  ", __FILE__, __LINE__, #condition);          \
            fprintf(stderr, __VA_ARGS__);                                              \
            fprintf(stderr, "\n  %s\n", check_context);                                \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

#define CHECK_OK(call)                                                                 \
    do {                                                                               \
        int check_rc = (call);                                                         \
        CHECK(check_rc == PCOLL_OK, "%d: %s", check_rc, pcoll_last_error());           \
    } while (0)

#endif
