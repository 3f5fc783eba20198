/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <signal.h>
#include <unistd.h>

#include "base/check.h"

char check_context[512] = "";
void (*check_dump)(FILE *out);

_Noreturn void check_failed(void)
{
    fprintf(stderr, "\n  %s\n", check_context);
    if (check_dump)
        check_dump(stderr);
    exit(1);
}

static void give_up(int signal)
{
    (void)signal;
    _exit(1);
}

/* What the core finds wrong with itself ends a test like what the test finds. It may
 * hold a lock that the dump of the state waits for. */
static void core_failed(void)
{
    signal(SIGALRM, give_up);
    alarm(2);
    check_failed();
}

__attribute__((constructor)) static void watch_the_core(void)
{
    check_hook = core_failed;
}
