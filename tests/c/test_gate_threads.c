/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: threads (with the thread sanitizer). */
/*
 * The gate (csrc/base/lock.h) and an outage (csrc/runtime/communicator.h) with real threads and
 * the real sleepers. The data that the gate protects is not atomic, so the thread sanitizer reports
 * a thread that is wrongly inside. Applications enter and leave as fast as they can. A recovery
 * closes the gate, has exclusive access for a moment, and opens the gate.
 *
 * The gate is closed again only after a thread has been inside. So applications enter in
 * between, and the alarm ends the test if the gate stays closed or a wake-up is lost.
 */
#include <pthread.h>
#include <sched.h>
#include <unistd.h>

#include "runtime/communicator.h"
#include "check.h"

enum { APPLICATIONS = 4, CLOSINGS = 300, OUTAGES = 100, LIMIT_S = 120 };

static struct {
    struct gate gate;
    struct outage outage;
    _Atomic bool over;
    _Atomic uint64_t entered, refused;
    uint64_t kept[2]; /* equal, except while the recovery has exclusive access */
} w;

/* Give each closing its own time limit. */
static void wind_alarm(void)
{
    alarm(LIMIT_S);
}

/* Wait until a thread has entered since then. */
static void await_calls(uint64_t since)
{
    wind_alarm();
    while (atomic_load(&w.entered) == since)
        sched_yield();
}

static void use(void)
{
    uint64_t first = w.kept[0];
    INVARIANT("alone", first == w.kept[1], "%llu and %llu", (unsigned long long)first,
              (unsigned long long)w.kept[1]);
    atomic_fetch_add(&w.entered, 1);
}

static void change(void)
{
    w.kept[0]++;
    sched_yield();
    w.kept[1]++;
}

/* The gate. */

static bool enter(unsigned call)
{
    if (call % 3) {
        gate_enter(&w.gate);
        return true;
    }
    return gate_try_enter(&w.gate);
}

static void *go_in_and_out(void *arg)
{
    (void)arg;
    for (unsigned call = 0; !atomic_load(&w.over); call++)
        if (enter(call)) {
            use();
            gate_leave(&w.gate);
        } else
            atomic_fetch_add(&w.refused, 1);
    return NULL;
}

static void run_gate(void)
{
    pthread_t threads[APPLICATIONS];
    snprintf(check_context, sizeof check_context, "the gate alone");
    gate_init(&w.gate, LOCK_COMMUNICATOR);
    for (int i = 0; i < APPLICATIONS; i++)
        pthread_create(&threads[i], NULL, go_in_and_out, NULL);
    for (int i = 0; i < CLOSINGS; i++) {
        await_calls(atomic_load(&w.entered));
        gate_close(&w.gate);
        gate_await_empty(&w.gate);
        change();
        gate_open(&w.gate);
    }
    atomic_store(&w.over, true);
    for (int i = 0; i < APPLICATIONS; i++)
        pthread_join(threads[i], NULL);
    EXPECT(w.kept[0] == CLOSINGS, "%llu changes", (unsigned long long)w.kept[0]);
    gate_destroy(&w.gate);
}

/* An outage: an application detects the death inside the gate, as the driver. */

static void *call(void *arg)
{
    bool meets = arg;
    uint32_t epoch = 0;
    while (epoch < OUTAGES) {
        outage_enter(&w.outage);
        use();
        uint32_t now = outage_epoch(&w.outage);
        INVARIANT("an outage ends an epoch", now >= epoch, "%u after %u", now, epoch);
        if (meets && now < OUTAGES)
            EXPECT(outage_begin(&w.outage, &(struct failed_ranks){0}),
                   "no thread recovers");
        epoch = now;
        outage_leave(&w.outage);
    }
    return NULL;
}

static void *recover(void *arg)
{
    (void)arg;
    while (outage_await(&w.outage)) {
        wind_alarm();
        gate_await_empty(&w.outage.gate);
        outage_take_turn(&w.outage);
        INVARIANT("alone", !outage_try_enter(&w.outage), "another got in");
        change();
        outage_end(&w.outage);
    }
    return NULL;
}

static void run_outages(void)
{
    pthread_t threads[APPLICATIONS], recovery;
    int64_t began, ended;
    snprintf(check_context, sizeof check_context, "outages");
    outage_init(&w.outage);
    w.kept[0] = w.kept[1] = 0;
    pthread_create(&recovery, NULL, recover, NULL);
    for (int i = 0; i < APPLICATIONS; i++)
        pthread_create(&threads[i], NULL, call, i == 0 ? &w : NULL);
    for (int i = 0; i < APPLICATIONS; i++)
        pthread_join(threads[i], NULL);
    outage_cease(&w.outage);
    pthread_join(recovery, NULL);
    EXPECT(outage_times(&w.outage, &began, &ended) == OUTAGES && ended >= began,
           "%u outages", outage_epoch(&w.outage));
    EXPECT(w.kept[0] == OUTAGES, "%llu changes", (unsigned long long)w.kept[0]);
    gate_destroy(&w.outage.gate);
}

int main(void)
{
    wind_alarm();
    setvbuf(stdout, NULL, _IOLBF, 0);
    run_gate();
    printf("gate threads: %llu calls, %llu turned away\n",
           (unsigned long long)atomic_load(&w.entered),
           (unsigned long long)atomic_load(&w.refused));
    run_outages();
    printf("gate threads: all tests passed\n");
    return 0;
}
