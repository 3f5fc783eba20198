/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The environment. All of csrc reads it through this function; tests/house/test_layers.py
 * forbids other ways.
 *
 * A program with privileges that its caller lacks (set-user-id, set-group-id, file
 * capabilities) must not trust the caller's variables: one could name a library that the
 * program then loads, or a file that it then writes. In such a program every variable
 * counts as not set.
 */
#ifndef PCOLL_BASE_ENVIRONMENT_H
#define PCOLL_BASE_ENVIRONMENT_H

#include <stdlib.h>

/* Return the value of a variable, or NULL if it is not set, is empty, or must not be
 * trusted. */
static inline const char *environment_get(const char *name)
{
    const char *value = secure_getenv(name);
    return value && *value ? value : NULL;
}

#endif
