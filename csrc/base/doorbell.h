/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbell of a process: others on the node ring it after they have sent something,
 * so that nobody has to poll. It lives in an anonymous memory file, which peers open
 * through /proc and which is gone with the last process that has it: nothing can be
 * left behind.
 *
 * Protocol. `count` is the futex word. Every operation below is sequentially
 * consistent.
 *
 *   ringer    1. (has made its message visible)  2. count++  3. reads who sleeps, wakes
 *   sleeper   1. c = count  2. looks for work    3. says that it sleeps
 *             4. futex_wait(count, c)
 *
 * Either the ringer reads in 3 that the sleeper sleeps, or the sleeper's 3 comes after
 * the ringer's 3, hence its 4 after the ringer's 2, and the wait returns at once. No
 * ring is lost.
 *
 * Two kinds of sleeper share the word: threads of the application that wait for a round
 * (they drive the communication themselves), and the agent, which works while no such
 * thread does. `waiters` counts the application's threads inside a wait, asleep or not.
 * A ringer wakes one of them if it sleeps, and the agent only if there is no waiter at
 * all. A waiter that leaves first takes itself out of `waiters`, then compares count
 * with what it was before its last look; if it has moved, it wakes the agent: so either
 * the ringer sees that there is no waiter left, or the waiter sees the ring.
 *
 * Stale reads of the sleep flags only cost a wake-up for nothing.
 */
#ifndef PCOLL_BASE_DOORBELL_H
#define PCOLL_BASE_DOORBELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum doorbell_sleeper { DOORBELL_WAITER = 1, DOORBELL_AGENT = 2 };

struct doorbell_page {
    uint64_t cookie; /* random: tells this page from one of a recycled process id */
    _Atomic uint32_t count;
    _Atomic uint32_t waiters;
    _Atomic uint32_t waiters_asleep;
    _Atomic uint32_t agent_asleep;
};

struct doorbell {
    struct doorbell_page *page;
    int fd;
};

/* A doorbell of one's own. PCOLL_ENOMEM. */
int doorbell_create(struct doorbell *b);
void doorbell_destroy(struct doorbell *b);

/* Map the doorbell of another process on this machine; NULL if it cannot be had. */
struct doorbell_page *doorbell_open(uint64_t pid, uint64_t fd, uint64_t cookie);
void doorbell_close(struct doorbell_page *page);

/* Something has been sent to the owner. */
void doorbell_ring(struct doorbell_page *page);
/* Wake every waiter (a round is complete), the agent (take over). */
void doorbell_wake_waiters(struct doorbell_page *page);
void doorbell_wake_agent(struct doorbell_page *page);

/* Sleep unless count has moved from `seen`; at most timeout_us. */
void doorbell_sleep(struct doorbell_page *page, uint32_t seen,
                    enum doorbell_sleeper who, int64_t timeout_us);

/* Names the kernel this process runs on and its view of processes and networks:
 * doorbells can be opened between processes with equal values. */
uint64_t doorbell_neighborhood(void);

#endif
