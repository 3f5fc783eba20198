/* SPDX-License-Identifier: Apache-2.0 */
#include "check.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
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

/* Make a CHECK of the core fail like a check of the test. The core may hold a lock that
 * the dump of the state needs, so limit the time. */
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

enum { FIRED = 7 };

static void fired(void)
{
    fflush(stderr);
    _exit(FIRED);
}

bool check_breaks(const char *part)
{
    static bool child;
    int ends[2], status;
    char said[4096] = "";
    if (child) /* No CHECK fired in the last case. */
        _exit(0);
    EXPECT(pipe(ends) == 0, "no pipe");
    child = fork() == 0;
    if (child) {
        dup2(ends[1], STDERR_FILENO);
        check_hook = fired;
        return true;
    }
    close(ends[1]);
    FILE *from = fdopen(ends[0], "r");
    (void)!fread(said, 1, sizeof said - 1, from);
    fclose(from);
    wait(&status);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == FIRED &&
               strstr(said, "invariant broken: check") && strstr(said, part),
           "no CHECK of %s has fired (status %d): %s", part, status, said);
    return false;
}

uint64_t check_setting(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

uint64_t check_seeds(uint64_t schedules, void (*run)(uint64_t seed))
{
    uint64_t only = check_setting("PARTIALCOLL_SEED", 0);
    schedules = check_setting("PARTIALCOLL_SCHEDULES", schedules);
    for (uint64_t seed = only ? only : 1; seed <= (only ? only : schedules); seed++)
        run(seed);
    if (!only)
        return schedules;
    printf("%s\npassed\n", check_context);
    exit(0);
}
