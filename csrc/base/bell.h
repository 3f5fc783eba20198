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
#ifndef PCOLL_BASE_BELL_H
#define PCOLL_BASE_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum bell_sleeper { BELL_WAITER = 1, BELL_AGENT = 2 };

struct bell_page {
    uint64_t cookie; /* random: tells this page from one of a recycled process id */
    _Atomic uint32_t count;
    _Atomic uint32_t waiters;
    _Atomic uint32_t waiters_asleep;
    _Atomic uint32_t agent_asleep;
};

struct bell {
    struct bell_page *page;
    int fd;
};

/* A bell of one's own. PCOLL_ENOMEM. */
int bell_create(struct bell *b);
void bell_destroy(struct bell *b);

/* Map the bell of another process on this machine; NULL if it cannot be had. */
struct bell_page *bell_open(uint64_t pid, uint64_t fd, uint64_t cookie);
void bell_close(struct bell_page *page);

/* Something has been sent to the owner. */
void bell_ring(struct bell_page *page);
/* Wake every waiter (a round is complete), the agent (take over). */
void bell_wake_waiters(struct bell_page *page);
void bell_wake_agent(struct bell_page *page);

/* Sleep unless count has moved from `seen`; at most timeout_us. */
void bell_sleep(struct bell_page *page, uint32_t seen, enum bell_sleeper who,
                int64_t timeout_us);

/* Names the kernel this process runs on and its view of processes and networks: bells
 * can be opened between processes with equal values. */
uint64_t bell_neighbourhood(void);

#endif
