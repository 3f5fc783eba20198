/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes with a rank, and the order in which threads take locks (docs/locking.md says what
 * each lock protects and who takes it).
 *
 * Rule: a thread waits for a lock only while every lock that it holds has a lower rank. So
 * threads of one process cannot wait for each other in a circle. A lock that a thread only
 * tries needs no order, but counts as held afterwards. A thread may be inside several gates of
 * one rank: a thread that closes gates waits at one of them at a time, outside of all others.
 *
 * Where CHECK is compiled in, each thread keeps a list of the ranks that it holds, and a wait
 * in the wrong order ends the process with the names of both locks. Other builds keep no list,
 * and a lock is a pthread mutex. Tests that interleave simulated threads on one thread keep no
 * list either: what one of them holds is not held by the others.
 *
 * Locks that are not mutexes (the drive lock, gates, staging) report with lock_waits, lock_held
 * and lock_released.
 */
#ifndef PCOLL_BASE_LOCK_H
#define PCOLL_BASE_LOCK_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Outermost first. The name in docs/locking.md is the second argument. */
#define LOCK_RANKS(X)                                                                  \
    X(LOCK_PERSISTENT, "persistent requests")                                          \
    X(LOCK_INFO, "info keys")                                                          \
    X(LOCK_CACHE_KEY, "cache key")                                                     \
    X(LOCK_STATES, "communicator states")                                              \
    X(LOCK_HANDLE, "handle")                                                           \
    X(LOCK_COMMUNICATOR, "communicator")                                               \
    X(LOCK_STAGING, "staging")                                                         \
    X(LOCK_DRIVE, "drive")                                                             \
    X(LOCK_CONTEXTS, "list of communicators")                                          \
    X(LOCK_ENTRIES, "list of objects")                                                 \
    X(LOCK_GROUP, "group")                                                             \
    X(LOCK_FAILURE, "failure")                                                         \
    X(LOCK_RETIRED, "retire list")                                                     \
    X(LOCK_EVENTS, "event log")                                                        \
    X(LOCK_IN_MPI, "exclusion from MPI")                                               \
    X(LOCK_WATCH, "watch")                                                             \
    X(LOCK_USER_OP, "user operation")                                                  \
    X(LOCK_NOTIFIED, "notified objects")                                               \
    X(LOCK_HELD_MEMORY, "held memory")                                                 \
    X(LOCK_SLEEPERS, "sleepers")

enum lock_rank {
#define LOCK_RANK(rank, name) rank,
    LOCK_RANKS(LOCK_RANK)
#undef LOCK_RANK
        LOCK_COUNT
};

struct lock {
    pthread_mutex_t mutex;
    enum lock_rank rank;
};

/* Initialize a lock with static storage. */
#define LOCK_INIT(rank) {PTHREAD_MUTEX_INITIALIZER, rank}

void lock_init(struct lock *lock, enum lock_rank rank);
void lock_destroy(struct lock *lock);
void lock_take(struct lock *lock);
/* Return whether the lock was free; this thread then holds it. */
bool lock_try(struct lock *lock);
void lock_release(struct lock *lock);
/* Sleep until `changed` is signaled. The lock is released meanwhile. */
void lock_sleep(struct lock *lock, pthread_cond_t *changed);

#if defined(PCOLL_CHECKS) && !defined(PCOLL_TEST_INTERLEAVE)
/* This thread may wait for a lock of this rank, … */
void lock_waits(enum lock_rank rank);
/* … or may wait to enter a gate of this rank. */
void lock_waits_shared(enum lock_rank rank);
/* This thread holds a lock of this rank, or is inside a gate of it, … */
void lock_held(enum lock_rank rank);
/* … and has released it. Locks can be released in any order. */
void lock_released(enum lock_rank rank);
#else
#define lock_waits(rank) ((void)(rank))
#define lock_waits_shared(rank) ((void)(rank))
#define lock_held(rank) ((void)(rank))
#define lock_released(rank) ((void)(rank))
#endif

/*
 * The fences of a sequence lock, whose readers copy data that may be overwritten meanwhile.
 * The reader's fence is between its reads and its last read of the counter, the writer's
 * between the counter and its writes. fence_all() orders everything before it and after it.
 * The thread sanitizer does not support fences; on the machines on which it runs, the atomic
 * counters are enough.
 */

#ifdef __SANITIZE_THREAD__
#define fence_after_reads() ((void)0)
#define fence_before_writes() ((void)0)
#define fence_all() ((void)0)
#else
#define fence_after_reads() atomic_thread_fence(memory_order_acquire)
#define fence_before_writes() atomic_thread_fence(memory_order_release)
#define fence_all() atomic_thread_fence(memory_order_seq_cst)
#endif

#endif
