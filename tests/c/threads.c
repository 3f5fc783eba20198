/* SPDX-License-Identifier: Apache-2.0 */
#include "threads.h"

#include <stdlib.h>
#include <ucontext.h>

#include "base/check.h"
#include "check.h"
#include "world_state.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

/*
 * Fibers: one runs at a time, until it pauses or ends. So anything can happen between two of its
 * steps, and each run is reproducible.
 */

enum { STACK_BYTES = 256 << 10 };

struct fiber {
    ucontext_t inside, outside;
    void (*body)(void *arg);
    void *arg;
    char *stack;
    bool runs; /* started, and not ended */
};

static struct fiber *current;

/* The current stack, for the sanitizer. */
struct stack {
    const void *bottom;
    size_t bytes;
};

static struct stack outside;

static void leave_stack(void **keep, struct stack to)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(keep, to.bottom, to.bytes);
#else
    (void)keep;
    (void)to;
#endif
}

static void enter_stack(void *kept, struct stack *from)
{
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(kept, &from->bottom, &from->bytes);
#else
    (void)kept;
    (void)from;
#endif
}

/* swapcontext with the annotations that the sanitizer needs. */
static void swap(ucontext_t *from, const ucontext_t *to)
{
    volatile bool back = false;
    getcontext(from);
    if (!back) {
        back = true;
        setcontext(to);
    }
}

static void fiber_begin(void)
{
    struct fiber *f = current;
    enter_stack(NULL, &outside);
    f->body(f->arg);
    f->runs = false;
    leave_stack(NULL, outside);
    setcontext(&f->outside);
}

/* Continue the fiber until it ends or pauses again. */
static void fiber_resume(struct fiber *f)
{
    void *kept;
    struct stack inside;
    current = f;
    leave_stack(&kept, (struct stack){f->stack, STACK_BYTES});
    swap(&f->outside, &f->inside);
    enter_stack(kept, &inside);
    current = NULL;
}

static void fiber_prepare(struct fiber *f)
{
    getcontext(&f->inside);
    f->inside.uc_stack.ss_sp = f->stack;
    f->inside.uc_stack.ss_size = STACK_BYTES;
    makecontext(&f->inside, fiber_begin, 0);
}

/* Run body(arg) in *at, which is created at the first use, until it ends or pauses. Not
 * from within a fiber. */
static void fiber_run(struct fiber **at, void (*body)(void *arg), void *arg)
{
    struct fiber *f = *at;
    if (!f) {
        *at = f = calloc(1, sizeof *f);
        EXPECT(f && (f->stack = malloc(STACK_BYTES)), "no memory for a fiber");
    }
    EXPECT(!f->runs && !current, "a fiber is run twice");
    f->body = body;
    f->arg = arg;
    f->runs = true;
    fiber_prepare(f);
    fiber_resume(f);
}

static bool fiber_is_paused(const struct fiber *f)
{
    return f && f->runs && f != current;
}

/* The fiber will not continue. */
static void fiber_abandon(struct fiber **at)
{
    if (*at)
        free((*at)->stack);
    free(*at);
    *at = NULL;
}

static struct fiber *fiber_current(void)
{
    return current;
}

/* Return from within a fiber to its caller. */
static void fiber_pause(void)
{
    void *kept;
    struct fiber *f = current;
    leave_stack(&kept, outside);
    swap(&f->inside, &f->outside);
    enter_stack(kept, &outside);
}

/* Application and agent. */

enum { MAX_STEPS = 20000000, MAX_POLLS = 100000, SHORTEST_PAUSE = 400 };

enum who { APPLICATION, AGENT, RECOVERY, THREADS };

struct thread {
    struct world *world;
    uint32_t rank;
    enum who who;
    struct fiber *fiber; /* kept between worlds */
    uint64_t token;      /* application: the token that woke it, or NO_TOKEN */
    bool more;           /* it has made a step and may make another */
};

static uint64_t const NO_TOKEN = UINT64_MAX;
static const enum wake_token paused_token[THREADS] = {[APPLICATION] = WAKE_PAUSED,
                                                      [AGENT] = WAKE_PAUSED_AGENT,
                                                      [RECOVERY] =
                                                          WAKE_PAUSED_RECOVERY};

/* By rank; the one that runs. */
static struct thread threads[THREADS][LEDGER_MAX_RANKS], *running;

static bool is_paused(const struct thread *t)
{
    return fiber_is_paused(t->fiber);
}

/* Sometimes let other ranks run for a while in the middle of this rank's step. */
static void pause_now_and_then(void)
{
    bool round_ends = spy_round_ends();
    struct thread *t = running;
    if (!t || !fiber_current())
        return;
    struct world *w = t->world;
    if (round_ends && w->o.crashes)
        return;
    if (crash_step(w, t->rank))
        fiber_pause(); /* never continues */
    if (sim_random(w->sim, w->o.trouble.interleaves))
        return;
    int64_t longest = w->o.trouble.stall_longest;
    if (sim_random(w->sim, 8))
        longest = sim_random(w->sim, 2) ? SHORTEST_PAUSE : 0;
    sim_wake(w->sim, t->rank, sim_random(w->sim, (uint32_t)longest + 1),
             paused_token[t->who]);
    fiber_pause();
}

static void run(struct thread *t, void (*body)(void *))
{
    running = t;
    if (t->world->o.trouble.interleaves)
        fiber_run(&t->fiber, body, t);
    else
        body(t);
    running = NULL;
}

static void resume(struct thread *t)
{
    running = t;
    fiber_resume(t->fiber);
    running = NULL;
}

/* Run with the progress lock. */
static void drive(void *arg)
{
    struct thread *t = arg;
    struct world *w = t->world;
    int polls = 0;
    struct communicator *c;
    w->driving[t->rank] = true;
    while ((c = recover_polled(w, t->rank)) && communicator_poll(c) > 0)
        INVARIANT("liveness", polls++ < MAX_POLLS, "rank %u is busy forever", t->rank);
    w->driving[t->rank] = false;
    int rc = c ? communicator_check(c) : PCOLL_OK;
    INVARIANT("isolation", rc == PCOLL_OK, "rank %u: %d: %s", t->rank, rc,
              pcoll_last_error());
}

static void go_on(void *arg)
{
    struct thread *t = arg;
    uint64_t token = t->token;
    t->token = NO_TOKEN;
    if (token != NO_TOKEN)
        app_woken(t->world, t->rank, token);
    t->more = app_advance(t->world, t->rank) || token != NO_TOKEN;
}

static void recover(void *arg)
{
    struct thread *t = arg;
    t->more = recover_advance(t->world, t->rank);
}

/* The recovery runs only while the application and the agent are not in a step. */
static bool can_recover(struct world *w, uint32_t rank)
{
    bool idle = !w->driving[rank];
    for (int who = 0; who < THREADS; who++)
        idle = idle && !is_paused(&threads[who][rank]);
    return idle && is_recovering(w, rank);
}

/* Run each thread once. */
static bool run_threads(struct world *w, uint32_t rank)
{
    struct thread *app = &threads[APPLICATION][rank], *agent = &threads[AGENT][rank],
                  *recovery = &threads[RECOVERY][rank];
    bool drives = !w->driving[rank];
    w->again[rank] = !drives;
    app->more = recovery->more = false;
    if (drives)
        run(agent, drive);
    if (can_recover(w, rank))
        run(recovery, recover);
    if (!is_paused(app) && !is_paused(recovery) && !w->dead[rank])
        run(app, go_on);
    return app->more || recovery->more || (w->again[rank] && !w->driving[rank]);
}

/* Run agent, recovery and application until none of them has anything to do. */
static void run_rank(struct world *w, uint32_t rank)
{
    bool more = true;
    while (more && !w->dead[rank] && !crash_step(w, rank))
        more = run_threads(w, rank);
}

static bool is_pause(uint64_t token)
{
    return token >= WAKE_PAUSED && token <= WAKE_PAUSED_RECOVERY;
}

static void wake(struct world *w, const struct sim_stop *stop)
{
    struct thread *app = &threads[APPLICATION][stop->rank];
    for (int who = 0; who < THREADS; who++)
        if (stop->token == paused_token[who])
            resume(&threads[who][stop->rank]);
    if (stop->token == WAKE_DETECT)
        crash_detected(w, stop->rank);
    if (stop->token == WAKE_DETECT || is_pause(stop->token))
        return;
    if (!app_rung(w, stop->rank, stop->token) && stop->token != WAKE_AGENT)
        app->token = stop->token;
}

static bool step(struct world *w)
{
    struct sim_stop stop;
    if (!sim_step(w->sim, &stop))
        return false;
    INVARIANT("liveness", w->steps++ < MAX_STEPS, "the run does not end");
    if (stop.woken)
        wake(w, &stop);
    run_rank(w, stop.rank);
    return true;
}

static void begin(struct world *w, uint32_t rank)
{
    for (int who = 0; who < THREADS; who++) {
        struct thread *t = &threads[who][rank];
        *t = (struct thread){.world = w,
                             .rank = rank,
                             .who = (enum who)who,
                             .fiber = t->fiber,
                             .token = NO_TOKEN};
    }
}

void threads_renew(struct world *w, uint32_t rank)
{
    for (int who = 0; who < THREADS; who++)
        fiber_abandon(&threads[who][rank].fiber);
    w->driving[rank] = w->again[rank] = false;
    begin(w, rank);
}

void threads_run(struct world *w)
{
    for (uint32_t r = 0; r < w->o.ranks; r++)
        begin(w, r);
    interleave_hook = pause_now_and_then;
    while (step(w))
        ;
    interleave_hook = NULL;
    for (int who = 0; who < THREADS; who++)
        for (uint32_t r = 0; r < w->o.ranks; r++)
            if (w->dead[r])
                fiber_abandon(&threads[who][r].fiber);
}
