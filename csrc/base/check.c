/* SPDX-License-Identifier: Apache-2.0 */
#include "base/check.h"

#include <stdio.h>
#include <stdlib.h>

void (*check_hook)(void);

_Noreturn void check_broken(const char *file, int line, const char *condition)
{
    fprintf(stderr, "invariant broken: check\n  %s:%d: %s\n", file, line, condition);
    if (check_hook)
        check_hook();
    abort();
}
