/* SPDX-License-Identifier: Apache-2.0 */
/* A thread of the library's own: signals are for the application's. */
#ifndef PCOLL_BASE_THREAD_H
#define PCOLL_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create. */
static inline int thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

#endif
