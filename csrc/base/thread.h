/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of the library's own: signals that others send are for the application's. */
#ifndef PCOLL_BASE_THREAD_H
#define PCOLL_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create. Faults of the thread itself are not kept from it: were they, the process would
 * be gone without a word, whatever handler the application or MPI has for them. */
static inline int thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t kept, old;
    sigfillset(&kept);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&kept, faults[i]);
    pthread_sigmask(SIG_SETMASK, &kept, &old);
    int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

#endif
