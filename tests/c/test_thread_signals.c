/* SPDX-License-Identifier: Apache-2.0 */
/* Signals in the library's threads: they handle only those that they cause. */
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/lock.h"
#include "check.h"

static void *look(void *found)
{
    pthread_sigmask(SIG_SETMASK, NULL, found);
    return NULL;
}

static void *fault(void *number)
{
    raise(*(int *)number);
    return NULL;
}

static void test_masks(void)
{
    sigset_t before, after, inside;
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    EXPECT(thread_start(&thread, look, &inside) == 0, "not started");
    pthread_join(thread, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int number = 1; number < SIGSYS; number++)
        EXPECT(sigismember(&before, number) == sigismember(&after, number),
               "signal %d is not what it was", number);
    static const int of_others[] = {SIGHUP,  SIGINT,  SIGTERM, SIGALRM,
                                    SIGUSR1, SIGCHLD, SIGPIPE, SIGWINCH};
    for (size_t i = 0; i < sizeof of_others / sizeof *of_others; i++)
        EXPECT(sigismember(&inside, of_others[i]), "signal %d may come", of_others[i]);
}

static void tell(int number)
{
    _exit(number);
}

/* A handler of the process for this signal is called. */
static void test_fault(int number)
{
    pthread_t thread;
    int status;
    pid_t child = fork();
    if (child == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0});
        signal(number, tell);
        thread_start(&thread, fault, &number);
        pthread_join(thread, NULL);
        _exit(0);
    }
    EXPECT(waitpid(child, &status, 0) == child, "no child");
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == number,
           "a thread's signal %d went past the handler: status %x", number,
           (unsigned)status);
}

int main(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    test_masks();
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        test_fault(faults[i]);
    printf("signals in threads: all tests passed\n");
    return 0;
}
