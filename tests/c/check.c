/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

char check_context[512] = "";
void (*check_dump)(FILE *out);

_Noreturn void check_failed(void)
{
    fprintf(stderr, "\n  %s\n", check_context);
    if (check_dump)
        check_dump(stderr);
    exit(1);
}
