/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A text that is written piece by piece, and numbers as texts.
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

/* Numbers as texts, with a point in whatever locale the program has chosen. */

/* As strtod. */
double decimal_parse(const char *text, char **end);
/* As "%.*g". */
void decimal_print(char *text, size_t capacity, int digits, double value);

#endif
