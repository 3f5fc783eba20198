/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mutexes with a rank, the order in which threads take locks, and other means of threads to wait for
 * each other. docs/locking.md says what each lock protects and who takes it.
 *
 * Rule: a thread waits for a lock only while every lock that it holds has a lower rank. So
 * threads of one process cannot wait for each other in a circle. A lock that a thread only
 * tries needs no order, but counts as held afterwards. A thread may be inside several gates of
 * one rank: a thread that closes gates waits at one of them at a time, outside of all others.
 *
 * If CHECK is compiled in, each thread counts the locks of each rank that it holds, and a wait
 * in the wrong order ends the process with the names of both locks. Tests that interleave
 * simulated threads on one thread count nothing: each simulated thread holds its locks alone.
 * Locks that are not mutexes (the drive lock, gates, staging) report with lock_waits, lock_held
 * and lock_released.
 */
#pragma once

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Outermost first. The name in docs/locking.md is the second argument. */
#define LOCK_RANKS(X)                                                                  \
    X(LOCK_PERSISTENT, "persistent requests")                                          \
    X(LOCK_INFO, "info keys")                                                          \
    X(LOCK_STATES, "communicator states")                                              \
    X(LOCK_HANDLE, "handle")                                                           \
    X(LOCK_COMMUNICATOR, "communicator")                                               \
    X(LOCK_STAGING, "staging")                                                         \
    X(LOCK_DRIVE, "drive")                                                             \
    X(LOCK_FAILURE, "failure")                                                         \
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

#if defined(PCOLL_CHECKS) && !defined(PCOLL_TEST_INTERLEAVE)
/* Fail if this thread holds a lock of rank `first` or later. */
void lock_check_order(enum lock_rank rank, int first);
/* This thread may wait for a lock of this rank, … */
#define lock_waits(rank) lock_check_order(rank, rank)
/* … or may wait to enter a gate of this rank. */
#define lock_waits_shared(rank) lock_check_order(rank, (rank) + 1)
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

/* Start a thread as pthread_create does, with all signals blocked that are meant for the
 * application. Faults of the thread itself are not blocked: otherwise the process would die
 * without a message, whatever handler the application or MPI has installed. */
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

/*
 * Contention for cores: should a waiting thread yield its core or sleep?
 *
 * If the other threads wait, too, a yield takes microseconds. If one of them computes, a yield
 * takes its whole time slice, and the kernel counts the rest of our slice as used: some twenty
 * milliseconds where there are many threads. A thread that sleeps instead gets the core as soon as
 * a ring wakes it. So after a yield that took long, the cores count as crowded, and threads that
 * would yield sleep for a while.
 *
 * Any number of threads may share one struct, which begins as zeros. Each writes what it has
 * measured; a value that is wrong for another thread costs it one yield or one sleep.
 */
struct contention {
    _Atomic int64_t until_us;   /* Until then the cores count as crowded, … */
    _Atomic int64_t lasting_us; /* … for as long as that. Each fast yield halves it. */
};

/* Return whether other threads need the cores for longer than a yield, so that this thread
 * should sleep. */
bool contention_is_high(const struct contention *c);

/* Yield, and measure how long that takes. */
void contention_yield(struct contention *c);

/*
 * Threads that sleep until a condition holds. The thread that makes it hold wakes all of them,
 * and each checks again.
 *
 * A sleeper checks under the mutex, and a waker takes the mutex after its change. So either the
 * check sees the change, or the wake-up comes while the sleeper sleeps. The condition reads
 * atomic variables; the mutex protects nothing else.
 */

struct sleepers {
    struct lock mutex;
    pthread_cond_t changed;
};

void sleepers_init(struct sleepers *s);
/* No thread sleeps any more, or wakes others. */
void sleepers_destroy(struct sleepers *s);
/* Sleep until so(arg) is true; it must take no locks. */
void sleepers_await(struct sleepers *s, bool (*so)(void *arg), void *arg);
void sleepers_wake(struct sleepers *s);

/*
 * A reader/writer lock with a rare writer. Threads of the application enter and leave all the
 * time, for one atomic addition each. Now and then a recovery closes the gate, waits until no
 * thread is inside, uses alone what the gate protects, and opens the gate again.
 *
 * Protocol. Every operation below is sequentially consistent.
 *
 *   enter   E1. inside++   E2. read `closed`. If the gate is closed, leave, sleep until the
 *           gate is open, and begin again.
 *   leave   L1. inside--   L2. read `closed`. If the gate is closed, wake the sleepers.
 *   close   C1. closed = true   C2. sleep until inside == 0.
 *   open    O1. closed = false  O2. wake the sleepers.
 *
 * One thread at a time writes `closed`. Every thread that enters or leaves writes `inside`.
 *
 * Invariant: between C2 and O1 no thread is past E2 and before L1. Proof: a thread that reads
 * an open gate in E2 does so before C1 or after O1. If it reads before C1, its E1 comes before
 * C1 as well, so C2 does not read 0 until the thread has left.
 *
 * No wake-up is lost: if a thread that leaves reads an open gate in L2, then L2 comes before C1.
 * Its L1 comes before that, so C2 reads the new value. A thread that reads an open gate as closed
 * leaves, reads `closed` again under the mutex of the sleepers, and tries again.
 *
 * The data that the gate protects need not be atomic. The writer that reads inside == 0 acquires what
 * every thread that left has released, because `inside` changes by additions only. A thread
 * that enters reads what O1 released.
 *
 * A thread that leaves reads `closed` after L1. The caller keeps the gate in memory until then.
 */

struct gate {
    _Atomic uint32_t inside; /* Threads inside, or about to leave again. */
    _Atomic bool closed;
    enum lock_rank rank;
    struct sleepers sleepers;
};

void gate_init(struct gate *g, enum lock_rank rank);
void gate_destroy(struct gate *g);

/* Enter, from any thread. Wait while the gate is closed. */
void gate_enter(struct gate *g);
/* Enter if the gate is open, and return whether it was. */
bool gate_try_enter(struct gate *g);
void gate_leave(struct gate *g);

/* Close an open gate. From now on no thread enters. */
void gate_close(struct gate *g);
/* Wait until no thread is inside. The caller is not inside. */
void gate_await_empty(struct gate *g);
void gate_open(struct gate *g);

/* Return whether the gate was closed when this read it. */
static inline bool gate_is_closed(struct gate *g)
{
    return atomic_load(&g->closed);
}
