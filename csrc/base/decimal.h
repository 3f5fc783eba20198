/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as texts, with a point in whatever locale the program has chosen. */
#ifndef PCOLL_BASE_DECIMAL_H
#define PCOLL_BASE_DECIMAL_H

#include <stddef.h>

/* As strtod. */
double decimal_parse(const char *text, char **end);
/* As "%.*g". */
void decimal_print(char *text, size_t capacity, int digits, double value);

#endif
