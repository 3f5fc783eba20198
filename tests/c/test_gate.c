/* SPDX-License-Identifier: Apache-2.0 */
/* Compiled: interleaved (with points at which other threads may run). */
/*
 * The gate (csrc/base/lock.h) step by step: threads of an application enter and leave, some
 * of them only if the gate is open. Now and then the recovery thread or a thread that is
 * inside closes the gate. The schedules are seeded; for a few small programs the test runs
 * all schedules with few departures from running one thread after the other.
 *
 * A thread that sleeps does not run until it is woken, so a lost wake-up ends with all threads
 * asleep. The test replaces the sleepers of base/lock.c by its own, with the same rules.
 *
 *   PARTIALCOLL_SEED=n        run only seed n
 *   PARTIALCOLL_SCHEDULES=n   seeds 1 to n (default 20000)
 *   PARTIALCOLL_DEPARTURES=n  at most n departures (default 4)
 */
#include <string.h>
#include <time.h>

#include "base/random.h"
#include "base/lock.h"
#include "check.h"
#include "stepper.h"

enum { MAX_APPLICATIONS = 5, MAX_THREADS = MAX_APPLICATIONS + 1, NOBODY = -1 };

struct program {
    int applications;
    int calls;     /* of each thread */
    int closings;  /* by the recovery (the last thread), or for it */
    int outages;   /* the first of them: closed by an application from inside */
    int tries;     /* each `tries`-th call only tries to enter; 0: none */
    bool spurious; /* sleepers may wake spuriously */
    struct stepper_options stepper;
};

static struct program program;

/* The expected state of the gate. */
static struct {
    struct gate gate;
    int inside;      /* threads inside */
    bool alone;      /* the recovery may change `kept` */
    bool shut;       /* closing has returned, opening has not begun */
    bool open;       /* opening has returned, closing has not begun */
    uint32_t closed; /* number of closings */
    int outages;     /* outages that applications have not begun yet */
    bool met;        /* an outage has begun, for which the recovery waits */
    int kept;        /* protected by the gate */
    int entered, refused;
} w;

static bool spuriously(void)
{
    return program.spurious && stepper_random(4) == 0;
}

/* Entering and closing. */

static struct sleepers *sleepers(void)
{
    return &w.gate.sleepers;
}

static int still_counted(void)
{
    return (int)atomic_load(&w.gate.inside);
}

/* Return false if the gate is closed and the thread only tries. */
static bool come_in(bool tries)
{
    if (tries)
        return gate_try_enter(&w.gate);
    gate_enter(&w.gate);
    return true;
}

/* The sleepers. */

static struct {
    int holder;
    bool wants[MAX_THREADS], asleep[MAX_THREADS];
    uint32_t awaits, wakes, awaits_of[MAX_THREADS];
} room;

static void lock(void)
{
    stepper_point();
    while (room.holder != NOBODY) {
        room.wants[stepper_self()] = true;
        stepper_block(INT64_MAX);
    }
    room.holder = stepper_self();
}

static void unlock(void)
{
    room.holder = NOBODY;
    for (int i = 0; i < MAX_THREADS; i++)
        if (room.wants[i]) {
            room.wants[i] = false;
            stepper_wake(i);
        }
}

void sleepers_init(struct sleepers *s)
{
    (void)s;
    memset(&room, 0, sizeof room);
    room.holder = NOBODY;
}

void sleepers_destroy(struct sleepers *s)
{
    (void)s;
    EXPECT(room.holder == NOBODY, "thread %d still holds it", room.holder);
}

void sleepers_await(struct sleepers *s, bool (*so)(void *arg), void *arg)
{
    EXPECT(s == sleepers(), "other sleepers");
    room.awaits++;
    room.awaits_of[stepper_self()]++;
    lock();
    while (!so(arg)) {
        int64_t until = spuriously() ? stepper_now() + 20 : INT64_MAX;
        room.asleep[stepper_self()] = true;
        unlock();
        stepper_block(until);
        lock();
    }
    room.asleep[stepper_self()] = false;
    unlock();
}

void sleepers_wake(struct sleepers *s)
{
    EXPECT(s == sleepers(), "other sleepers");
    room.wakes++;
    lock();
    for (int i = 0; i < MAX_THREADS; i++)
        if (room.asleep[i]) {
            room.asleep[i] = false;
            stepper_wake(i);
        }
    unlock();
}

/* The threads. */

static int recovery(void)
{
    return program.applications;
}

/* Applications read `kept` while they are inside. Only the recovery changes it. */
static void use(void)
{
    int before = w.kept;
    for (int i = 0; i < 2; i++) {
        INVARIANT("alone", !w.alone, "thread %d is inside, too", stepper_self());
        stepper_point();
        INVARIANT("alone", w.kept == before, "thread %d sees %d, then %d",
                  stepper_self(), before, w.kept);
    }
}

static void close_it(void)
{
    w.open = false;
    gate_close(&w.gate);
    w.shut = true;
    w.closed++;
}

/* Close the gate from inside, like a thread that detects a death. */
static void begin_outage(void)
{
    if (!w.outages || !w.open)
        return;
    w.outages--;
    close_it();
    w.met = true;
    stepper_wake(recovery());
}

/* A gate that was closed during the whole call lets no thread in, and one that was open
 * lets every thread in. A thread sleeps once for each closing during the call,
 * including one in progress. */
static bool enter(bool tries)
{
    uint32_t closed = w.closed, slept = room.awaits_of[stepper_self()];
    bool was_shut = w.shut, was_open = w.open;
    bool enters = come_in(tries);
    slept = room.awaits_of[stepper_self()] - slept;
    INVARIANT("one sleep for each closing",
              slept <= (tries ? 0 : w.closed - closed + !was_open), "thread %d: %u",
              stepper_self(), slept);
    bool same = closed == w.closed;
    INVARIANT("no thread enters a closed gate", !(enters && was_shut && w.shut && same),
              "thread %d did", stepper_self());
    INVARIANT("an open gate refuses no thread", enters || !(was_open && w.open && same),
              "thread %d", stepper_self());
    return enters;
}

static void call(bool tries)
{
    if (!enter(tries)) {
        w.refused++;
        return;
    }
    w.entered++;
    w.inside++;
    use();
    begin_outage();
    w.inside--;
    gate_leave(&w.gate);
}

static void recover(void)
{
    gate_await_empty(&w.gate);
    INVARIANT("alone", !w.inside, "%d are inside", w.inside);
    w.alone = true;
    w.kept++;
    stepper_point();
    w.kept++;
    stepper_point();
    INVARIANT("alone", !w.inside, "%d are inside", w.inside);
    w.alone = false;
    w.shut = false;
    gate_open(&w.gate);
    w.open = true;
}

static void await_outage(void)
{
    while (!w.met)
        stepper_block(INT64_MAX);
    w.met = false;
}

static void body(int id)
{
    for (int i = 0; id == recovery() && i < program.closings; i++) {
        if (i < program.outages)
            await_outage();
        else
            close_it();
        recover();
    }
    for (int i = 1; id != recovery() && i <= program.calls; i++)
        call(program.tries && i % program.tries == 0);
    while (id == 0 && w.outages) /* begin the remaining outages */
        call(false);
}

/* One run. */

static void idle(int64_t until)
{
    INVARIANT("no wake up is lost", until != INT64_MAX,
              "all sleep: the gate is %s, %d inside, recovery %s",
              gate_is_closed(&w.gate) ? "closed" : "open", still_counted(),
              room.asleep[recovery()] ? "asleep" : "not asleep");
}

struct count {
    uint64_t schedules, steps, entered, refused, slept;
};

static void describe(void)
{
    static const char *const modes[] = {"uniform", "stay", "priority", "stall",
                                        "planned"};
    snprintf(check_context, sizeof check_context,
             "PARTIALCOLL_SEED=%llu: a gate, %d threads, %d calls each, %d closings, "
             "%d from "
             "inside, tries %d%s; %s",
             (unsigned long long)program.stepper.seed, program.applications,
             program.calls, program.closings, program.outages, program.tries,
             program.spurious ? ", spurious wake-ups" : "",
             modes[program.stepper.mode]);
}

static void run(const struct program *p, struct stepper_report *report, struct count *c)
{
    program = *p;
    program.stepper.coroutines = p->applications + 1;
    program.stepper.idle = idle;
    program.stepper.longest = 100000;
    describe();
    memset(&w, 0, sizeof w);
    w.open = true;
    w.outages = p->outages;
    gate_init(&w.gate, LOCK_COMMUNICATOR);
    stepper_run(&program.stepper, body, report);
    INVARIANT("all is over", still_counted() == 0, "%d are still counted",
              still_counted());
    INVARIANT("an open gate costs no sleep", p->closings || !(room.awaits + room.wakes),
              "%u sleeps, %u wake-ups", room.awaits, room.wakes);
    INVARIANT("all is over", (int)w.closed == p->closings, "closed %u times", w.closed);
    gate_destroy(&w.gate);
    c->schedules++;
    c->steps += report->steps;
    c->entered += (uint64_t)w.entered;
    c->refused += (uint64_t)w.refused;
    c->slept += room.awaits;
}

static uint32_t roll(uint64_t seed, uint64_t n, uint32_t bound)
{
    return splitmix_below(seed, n, bound);
}

static struct count drawn;

static void run_seed(uint64_t seed)
{
    static const uint32_t stays[] = {2, 5, 20};
    struct stepper_report report;
    struct program p = {
        .applications = 1 + (int)roll(seed, 0, MAX_APPLICATIONS),
        .calls = 1 + (int)roll(seed, 1, 4),
        .closings = (int)roll(seed, 2, 4),
        .tries = (int)roll(seed, 3, 4),
        .spurious = roll(seed, 4, 3) == 0,
        .stepper = {.mode = (enum stepper_mode)roll(seed, 5, STEPPER_PLANNED),
                    .seed = seed,
                    .stay = stays[roll(seed, 6, 3)],
                    .tick = 1}};
    p.outages = p.closings ? (int)roll(seed, 7, (uint32_t)p.closings + 1) : 0;
    run(&p, &report, &drawn);
}

/* Run all schedules that extend this one by a departure after its last one. */
static void depart(struct program *p, struct count *c, int most)
{
    static uint8_t choices[STEPPER_DEPARTURES + 1][STEPPER_PLANNED_STEPS];
    struct stepper_report report;
    int depth = p->stepper.departures;
    struct departure *next = &p->stepper.departure[depth];
    run(p, &report, c);
    if (depth >= most)
        return;
    uint32_t steps = (uint32_t)report.steps;
    EXPECT(steps < STEPPER_PLANNED_STEPS, "%u steps", steps);
    memcpy(choices[depth], report.choices, steps);
    p->stepper.departures++;
    for (uint32_t at = depth ? next[-1].at + 1 : 0; at < steps; at++)
        for (uint32_t n = 1; n < choices[depth][at]; n++) {
            *next = (struct departure){at, n};
            depart(p, c, most);
        }
    p->stepper.departures--;
}

static void run_departures(struct count *c, int most)
{
    static const struct program programs[] = {
        {.applications = 1, .calls = 1, .closings = 1},
        {.applications = 1, .calls = 1, .closings = 1, .tries = 1},
        {.applications = 1, .calls = 2, .closings = 1, .outages = 1},
        {.applications = 2, .calls = 1, .closings = 1},
        {.applications = 2, .calls = 1, .closings = 1, .outages = 1},
        {.applications = 1, .calls = 2, .closings = 2},
    };
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++) {
        struct program p = programs[i];
        p.stepper =
            (struct stepper_options){.mode = STEPPER_PLANNED, .stay = 2, .tick = 1};
        depart(&p, c, most);
    }
}

static void print(const char *what, const struct count *c, clock_t begin)
{
    printf("gate, %s: %llu schedules, %llu steps, %llu entered, %llu turned away, %llu "
           "sleeps, %.1f s: all invariants held\n",
           what, (unsigned long long)c->schedules, (unsigned long long)c->steps,
           (unsigned long long)c->entered, (unsigned long long)c->refused,
           (unsigned long long)c->slept, (double)(clock() - begin) / CLOCKS_PER_SEC);
}

int main(void)
{
    struct count planned = {0};
    int most = (int)check_setting("PARTIALCOLL_DEPARTURES", 4);
    EXPECT(most <= STEPPER_DEPARTURES, "at most %d departures", STEPPER_DEPARTURES);
    clock_t begin = clock();
    check_seeds(20000, run_seed);
    print("drawn", &drawn, begin);
    EXPECT(drawn.refused && drawn.slept, "no thread has met a closed gate");
    begin = clock();
    run_departures(&planned, most);
    print("planned", &planned, begin);
    return 0;
}
