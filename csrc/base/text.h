/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text that is written piece by piece. What does not fit is left out.
 */
#ifndef PCOLL_BASE_TEXT_H
#define PCOLL_BASE_TEXT_H

#include <stddef.h>

struct text {
    char *at;
    size_t left; /* with the 0 at the end */
    int items;   /* the writer's, for what stands between them */
};

void text_add(struct text *text, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
