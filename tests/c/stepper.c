/* SPDX-License-Identifier: Apache-2.0 */
#include "stepper.h"

#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include "base/check.h"
#include "base/random.h"
#include "check.h"

enum { NOWHERE = -1, STACK = 128 << 10 };

/* A coroutine whose body has returned is kept for the next run. */
static ucontext_t caller, context[COROUTINES];
static char *stack[COROUTINES];

static struct {
    struct stepper_options o;
    struct stepper_report *report;
    int current;
    int ready[COROUTINES], where[COROUTINES], ready_count;
    int64_t timer[COROUTINES], next_timer, clock;
    bool over[COROUTINES];
    int left; /* coroutines not yet finished */
    uint64_t draws;
    int64_t priority[COROUTINES], lowest;
    int victim;
    uint64_t stalled_until;
    int next_victim; /* after this many steps */
    coroutine_body *body;
    uint32_t steps_left;
} s;

int stepper_self(void)
{
    return s.current;
}

int64_t stepper_now(void)
{
    return s.clock;
}

uint32_t stepper_random(uint32_t bound)
{
    return splitmix_below(s.o.seed, s.draws++, bound);
}

static void make_ready(int id)
{
    if (s.where[id] != NOWHERE || s.over[id])
        return;
    s.timer[id] = INT64_MAX;
    s.where[id] = s.ready_count;
    s.ready[s.ready_count++] = id;
}

static void make_unready(int id)
{
    int last = s.ready[--s.ready_count];
    s.ready[s.where[id]] = last;
    s.where[last] = s.where[id];
    s.where[id] = NOWHERE;
}

static void fire_timers(void)
{
    s.next_timer = INT64_MAX;
    for (int id = 0; id < s.o.coroutines; id++) {
        if (s.timer[id] <= s.clock)
            make_ready(id);
        else if (s.timer[id] < s.next_timer)
            s.next_timer = s.timer[id];
    }
}

static int any(void)
{
    return s.ready[stepper_random((uint32_t)s.ready_count)];
}

static int stay(void)
{
    bool can = s.where[s.current] != NOWHERE;
    return can && stepper_random(s.o.stay) ? s.current : any();
}

static int highest(void)
{
    int best = s.ready[0];
    if (!stepper_random(s.o.stay))
        s.priority[s.current] = --s.lowest;
    for (int i = 1; i < s.ready_count; i++)
        if (s.priority[s.ready[i]] > s.priority[best])
            best = s.ready[i];
    return best;
}

static void choose_victim(void)
{
    uint32_t const once_in = 200, longest = 3000;
    bool now = s.steps_left && s.current == s.next_victim && --s.steps_left == 0;
    bool over = s.report->steps >= s.stalled_until;
    if (!now && !(over && !stepper_random(once_in)))
        return;
    s.victim = now ? s.current : any();
    s.stalled_until = s.report->steps + stepper_random(longest);
}

void stepper_stall_soon(uint32_t steps)
{
    s.next_victim = s.current;
    s.steps_left = 1 + stepper_random(steps);
}

/* Choose another coroutine than the victim, unless only the victim can run. */
static int not_the_victim(void)
{
    choose_victim();
    int id = stay();
    if (s.report->steps < s.stalled_until)
        for (int tries = 0; id == s.victim && tries < s.ready_count; tries++)
            id = s.ready[(s.where[id] + 1) % s.ready_count];
    return id;
}

/* The same coroutine again, or else the one with the lowest number. */
static int planned(void)
{
    uint64_t step = s.report->steps;
    int id = s.current, n = 0;
    bool sorted[COROUTINES] = {false};
    if (step < STEPPER_PLANNED_STEPS)
        s.report->choices[step] = (uint8_t)s.ready_count;
    for (int i = 0; i < s.ready_count; i++)
        sorted[s.ready[i]] = true;
    for (int i = 0; i < s.o.departures; i++)
        if (s.o.departure[i].at == step)
            n = (int)s.o.departure[i].n;
    while (n || !sorted[id]) {
        id = (id + 1) % s.o.coroutines;
        if (n && sorted[id])
            n--;
    }
    return id;
}

static int choose(void)
{
    switch (s.o.mode) {
    case STEPPER_UNIFORM:
        return any();
    case STEPPER_STAY:
        return stay();
    case STEPPER_PRIORITY:
        return highest();
    case STEPPER_STALL:
        return not_the_victim();
    case STEPPER_PLANNED:
        return planned();
    }
    return s.ready[0];
}

static ucontext_t *context_of(int id);

static void go_on(void)
{
    s.report->steps++;
    INVARIANT("liveness", s.report->steps < s.o.longest, "no end in sight");
    s.clock += s.o.tick;
    if (s.clock >= s.next_timer)
        fire_timers();
    while (!s.ready_count) { /* all sleep */
        interleave_hook = NULL;
        s.o.idle(s.next_timer);
        interleave_hook = stepper_point;
        INVARIANT("liveness", s.next_timer != INT64_MAX,
                  "deadlock: everybody waits, and no timer is set");
        s.clock = s.next_timer;
        fire_timers();
    }
    int from = s.current, to = choose();
    if (to == from)
        return;
    s.current = to;
    s.report->switches++;
    swapcontext(&context[from], context_of(to));
}

void stepper_point(void)
{
    go_on();
}

void stepper_block(int64_t until)
{
    make_unready(s.current);
    s.timer[s.current] = until;
    s.next_timer = until < s.next_timer ? until : s.next_timer;
    go_on();
}

void stepper_wake(int id)
{
    make_ready(id);
}

static void loop(int id)
{
    for (;;) {
        s.body(id);
        make_unready(id);
        s.over[id] = true;
        if (--s.left)
            go_on();
        else
            swapcontext(&context[id], &caller);
    }
}

static ucontext_t *context_of(int id)
{
    if (!stack[id]) {
        stack[id] = malloc(STACK);
        EXPECT(stack[id] && getcontext(&context[id]) == 0, "no memory for a coroutine");
        context[id].uc_stack.ss_sp = stack[id];
        context[id].uc_stack.ss_size = STACK;
        makecontext(&context[id], (void (*)(void))(uintptr_t)loop, 1, id);
    }
    return &context[id];
}

void stepper_run(const struct stepper_options *o, coroutine_body *body,
                 struct stepper_report *report)
{
    memset(&s, 0, sizeof s);
    report->steps = report->switches = 0;
    s.o = *o;
    s.report = report;
    s.left = o->coroutines;
    s.victim = NOWHERE;
    s.next_timer = INT64_MAX;
    s.draws = (uint64_t)1 << 40; /* other draws use the same seed */
    for (int id = 0; id < o->coroutines; id++) {
        s.where[id] = NOWHERE;
        s.timer[id] = INT64_MAX;
        make_ready(id);
        s.priority[id] = stepper_random(1 << 20);
    }
    interleave_hook = stepper_point;
    s.current = o->mode == STEPPER_PLANNED ? 0 : any();
    s.body = body;
    swapcontext(&caller, context_of(s.current));
    interleave_hook = NULL;
    report->time = s.clock;
}
