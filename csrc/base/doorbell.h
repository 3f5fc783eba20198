/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The doorbell of a process. Other processes of the node ring it after they have sent something, so
 * that the owner does not have to poll. It is in an anonymous memory file, which peers open through
 * /proc and which disappears with the last process that has it open: nothing can be left behind.
 *
 * Protocol. `count` is the futex word. Every operation below is sequentially consistent.
 *
 *   ringer    1. makes its message visible  2. count++           3. reads who sleeps, wakes
 *   sleeper   1. c = count                  2. checks for work   3. says that it sleeps
 *             4. futex_wait(count, c)
 *
 * Either the ringer reads in step 3 that the sleeper sleeps. Or the sleeper's step 3 comes after
 * the ringer's step 3, so its step 4 comes after the ringer's step 2, and the wait returns at once.
 * No ring is lost.
 *
 * Two kinds of sleepers share the word: threads of the application that wait for a round (they
 * drive the communication themselves), and the agent, which works while no such thread does.
 * `waiters` counts the application's threads inside a wait, asleep or not. A ringer wakes one of
 * them if it sleeps, and the agent only if there is no waiter at all. A waiter that leaves first
 * removes itself from `waiters`. Then it wakes the agent if `count` has changed since its last
 * check. So either the ringer sees that there is no waiter left, or the waiter sees the ring.
 *
 * A stale read of the sleep flags only costs an unnecessary wake-up.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum doorbell_sleeper { DOORBELL_WAITER = 1, DOORBELL_AGENT = 2 };

struct doorbell_page {
    uint64_t cookie; /* random: another process may reuse the process id */
    _Atomic uint32_t count;
    _Atomic uint32_t waiters;
    _Atomic uint32_t waiters_asleep;
    _Atomic uint32_t agent_asleep;
};

struct doorbell {
    struct doorbell_page *page;
    int fd;
};

/* Create the doorbell of this process. PCOLL_ENOMEM. */
int doorbell_create(struct doorbell *b);
void doorbell_destroy(struct doorbell *b);

/* Map the doorbell of another process of this machine. NULL: it cannot be opened. */
struct doorbell_page *doorbell_open(uint64_t pid, uint64_t fd, uint64_t cookie);
void doorbell_close(struct doorbell_page *page);

/* Wake the owner's waiter or agent: something has been sent to it. */
void doorbell_ring(struct doorbell_page *page);
/* Wake every waiter: a round is complete. */
void doorbell_wake_waiters(struct doorbell_page *page);
/* Wake the agent, which takes over the communication. */
void doorbell_wake_agent(struct doorbell_page *page);

/* Sleep for at most timeout_us, unless count differs from `seen`. */
void doorbell_sleep(struct doorbell_page *page, uint32_t seen,
                    enum doorbell_sleeper who, int64_t timeout_us);

/* Return a hash of the kernel on which this process runs and of its namespaces of processes and
 * networks. Processes with equal values can open each other's doorbells. */
uint64_t doorbell_neighborhood(void);
