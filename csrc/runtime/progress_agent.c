/* SPDX-License-Identifier: Apache-2.0 */
/* The agent, and the life of the engine that it belongs to. */
#include "runtime/progress_state.h"

#include <sched.h>
#include <stdlib.h>

#include "base/check.h"
#include "base/error.h"
#include "base/thread.h"

static const struct backoff agent_busy_rung = {200, 4000, 1},
                            agent_busy_unrung = {50, 1000, 16},
                            agent_idle_rung = {1000, 100000, 1},
                            agent_idle_unrung = {1000, 5000, 1},
                            agent_replaced_rung = {100000, 100000, 1},
                            agent_replaced_unrung = {5000, 5000, 1};

static struct backoff agent_backoff(const struct progress *p, bool waiters)
{
    bool must_poll = progress_must_poll(p);
    if (waiters)
        return must_poll ? agent_replaced_unrung : agent_replaced_rung;
    if (atomic_load(&p->rounds) || atomic_load(&p->unrung))
        return must_poll ? agent_busy_unrung : agent_busy_rung;
    return must_poll ? agent_idle_unrung : agent_idle_rung;
}

static void *agent_main(void *arg)
{
    struct progress *p = arg;
    struct rest rest = {0};
    while (!atomic_load(&p->stop)) {
        uint32_t seen = atomic_load(&p->doorbell.page->count);
        bool waiters = atomic_load(&p->doorbell.page->waiters);
        if (waiters) /* they poll, and wake the agent if they leave work behind */
            rest.looks = AGENT_LOOKS;
        if (!waiters && progress_drive_or_notify(p) > 0)
            rest = (struct rest){0};
        else if (atomic_load(&p->spins))
            sched_yield();
        else
            progress_take_rest(p, &rest, seen, DOORBELL_AGENT, AGENT_LOOKS,
                               agent_backoff(p, waiters), INT64_MAX);
    }
    return NULL;
}

int progress_create(struct progress **out)
{
    CHECK(out);
    struct progress *p = calloc(1, sizeof *p);
    if (!p)
        return fail(PCOLL_ENOMEM, "no memory for the progress engine");
    int rc = doorbell_create(&p->doorbell);
    if (rc != PCOLL_OK) {
        free(p);
        return rc;
    }
    atomic_store(&p->alarm_us, INT64_MAX);
    *out = p;
    return PCOLL_OK;
}

int progress_start_agent(struct progress *p)
{
    CHECK(!atomic_load(&p->stop));
    if (atomic_load(&p->has_agent))
        return PCOLL_OK;
    atomic_store(&p->has_agent, true);
    if (thread_start(&p->agent, agent_main, p) == 0)
        return PCOLL_OK;
    atomic_store(&p->has_agent, false);
    return fail(PCOLL_ENOMEM, "the agent thread could not be started");
}

void progress_spin(struct progress *p, bool spins)
{
    CHECK(p);
    if (atomic_exchange(&p->spins, spins) != spins)
        doorbell_wake_agent(p->doorbell.page);
}

void progress_stop_agent(struct progress *p)
{
    CHECK(!atomic_load(&p->stop));
    if (!atomic_load(&p->has_agent))
        return;
    atomic_store(&p->stop, true);
    doorbell_wake_agent(p->doorbell.page);
    pthread_join(p->agent, NULL);
    atomic_store(&p->has_agent, false);
    atomic_store(&p->stop, false);
}

void progress_destroy(struct progress **at)
{
    CHECK(*at);
    struct progress *p = *at;
    progress_stop_agent(p);
    doorbell_destroy(&p->doorbell);
    free(p);
    *at = NULL;
}
