/* SPDX-License-Identifier: Apache-2.0 */
/* See text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/check.h"

void text_add(struct text *text, const char *format, ...)
{
    CHECK(text->left);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text->at, text->left, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : (size_t)n < text->left ? (size_t)n : text->left - 1;
    text->at += used;
    text->left -= used;
}
