/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated peers and their network; see matching.h. */
#include "matching.h"

#include <string.h>

#include "base/random.h"
#include "check.h"

enum { EVENTS_OF_RUN = 2000000 };

struct sim_world sim;

static int64_t last_arrival[MAX_PEERS][MAX_PEERS]; /* by pair */

/* Future events: a binary heap ordered by time. Events of the same time happen in the
 * order of their creation. */

enum event_kind {
    EVENT_MESSAGE,
    EVENT_BEGIN,
    EVENT_LOOK_UP,
    EVENT_EXPECT,
    EVENT_LOST,
    EVENT_BACK,
    EVENT_ABANDON,
    EVENT_ROUND,
    EVENT_END
};

struct event {
    int64_t at;
    uint64_t number;
    enum event_kind kind;
    uint32_t peer;
    uint64_t round;
    uint32_t about;
    struct match_message message;
};

enum { MAX_EVENTS = 1 << 16 }; /* pending at one time */

static struct {
    struct event heap[MAX_EVENTS];
    uint32_t count;
    uint64_t number;
} queue;

static bool earlier(const struct event *a, const struct event *b)
{
    return a->at < b->at || (a->at == b->at && a->number < b->number);
}

/* Insert an event, or reinsert it at a later time with its original order. */
static void insert(struct event e)
{
    EXPECT(queue.count < MAX_EVENTS, "more than %d events are pending", MAX_EVENTS);
    uint32_t at = queue.count++;
    for (; at && earlier(&e, &queue.heap[(at - 1) / 2]); at = (at - 1) / 2)
        queue.heap[at] = queue.heap[(at - 1) / 2];
    queue.heap[at] = e;
}

static struct event events_pop(void)
{
    struct event first = queue.heap[0], last = queue.heap[--queue.count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child + 1 < queue.count &&
            earlier(&queue.heap[child + 1], &queue.heap[child]))
            child++;
        if (child >= queue.count || !earlier(&queue.heap[child], &last))
            break;
        queue.heap[at] = queue.heap[child];
        at = child;
    }
    queue.heap[at] = last;
    return first;
}

static void events_add(struct event e)
{
    e.number = queue.number++;
    insert(e);
}

uint32_t sim_draw(uint32_t bound)
{
    return splitmix_below(sim.plan.seed, sim.draws++, bound);
}

static int64_t draw_time(int64_t bound)
{
    return bound > 0 ? sim_draw((uint32_t)bound + 1) : 0;
}

uint64_t sim_key(uint32_t peer, uint64_t round)
{
    return splitmix_mix(sim.plan.seed + 31 * round + 1009 * (peer + 1)) % sim.plan.keys;
}

uint32_t sim_comers(uint64_t round, uint64_t key)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sim.plan.peers; i++)
        count += sim_key(i, round) == key;
    return count;
}

int64_t sim_clock(const struct sim_peer *p, int64_t at)
{
    return p->skew + at + (int64_t)(p->drift * (double)at);
}

/* Return the first true time at which this peer's clock shows at least `shows`. */
static int64_t clock_reaches(const struct sim_peer *p, int64_t shows)
{
    int64_t at = (int64_t)((double)(shows - p->skew) / (1 + p->drift)) - 2;
    while (sim_clock(p, at) < shows)
        at++;
    return at;
}

bool sim_before(uint32_t a, uint32_t b, uint64_t round)
{
    int64_t of_a = sim.peers[a].rounds[round].goal_time;
    int64_t of_b = sim.peers[b].rounds[round].goal_time;
    return of_a < of_b || (of_a == of_b && a < b);
}

static void schedule_call(enum event_kind kind, uint32_t peer, uint64_t round,
                          int64_t at)
{
    events_add((struct event){.at = at, .kind = kind, .peer = peer, .round = round});
}

static int64_t draw_delay(void)
{
    const struct matching_plan *plan = &sim.plan;
    if (plan->delays == DELAY_CONSTANT)
        return plan->delay;
    if (plan->delays == DELAY_UNIFORM || sim_draw(20))
        return 1 + draw_time(plan->delay - 1);
    return sim_draw(4) ? draw_time(3 * PATIENCE) : draw_time(40 * PATIENCE);
}

static void send(uint32_t from, struct match_message message)
{
    uint32_t to = message.peer;
    int64_t at = sim.now + draw_delay();
    if (at < last_arrival[from][to])
        at = last_arrival[from][to]; /* keep the order within each pair */
    last_arrival[from][to] = at;
    sim.late += at - sim.now > PATIENCE / 4;
    sim.messages++;
    if (message.round < MAX_ROUNDS)
        sim.sent[message.round][sim_key(from, message.round)]++;
    message.peer = from;
    events_add((struct event){
        .at = at, .kind = EVENT_MESSAGE, .peer = to, .message = message});
}

static bool paused(const struct sim_peer *p)
{
    return p->fate == FATE_PAUSES && sim.now >= p->fate_at && sim.now < p->back_at;
}

static bool stopped(const struct sim_peer *p)
{
    return p->fate == FATE_STOPS && sim.now >= p->fate_at;
}

/* Record that the peers with this peer's key may have been disturbed in this round. */
static void touch(uint32_t peer, uint64_t round)
{
    if (round < MAX_ROUNDS)
        sim.touched[round][sim_key(peer, round)] = true;
}

static void next_round(uint32_t peer, uint64_t round)
{
    struct sim_peer *p = &sim.peers[peer];
    p->round = round;
    p->done = round >= sim.plan.rounds;
    if (p->done)
        return;
    p->waiting = true;
    schedule_call(EVENT_BEGIN, peer, round, sim.now + draw_time(sim.plan.spread));
}

/* Matching has ended for this peer: use the group. */
static void note_over(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    struct sim_round *r = &p->rounds[p->round];
    r->over = true;
    r->over_at = sim.now;
    r->behind = p->m.state == MATCH_BEHIND;
    if (!r->behind) {
        check_formed(peer);
        sim_round_begin(peer);
    }
    schedule_call(r->behind ? EVENT_END : EVENT_ROUND, peer, p->round,
                  sim.now + draw_time(PATIENCE));
}

/* Run after every event at a peer. */
static void settle(uint32_t peer, bool ticked)
{
    struct sim_peer *p = &sim.peers[peer];
    struct match_message message;
    while (match_next(&p->m, &message))
        if (message.kind == MATCH_VOID)
            check_refusal(peer, message.peer, message.list.seq);
        else
            send(peer, message);
    enum match_state state = p->m.state;
    bool over = state == MATCH_FORMED || state == MATCH_BEHIND;
    if (over && !p->rounds[p->round].over)
        note_over(peer);
    check_peer(peer, ticked);
}

static struct match_goal goal_of(uint32_t peer, uint64_t round)
{
    const struct matching_plan *plan = &sim.plan;
    struct sim_peer *p = &sim.peers[peer];
    struct sim_round *r = &p->rounds[round];
    uint64_t key = sim_key(peer, round);
    bool clock = plan->knowledge == KNOW_DIRECTORY;
    r->goal_time = clock ? sim_clock(p, sim.now) : 0;
    r->self = (struct match_member){.rank = peer, .bandwidth = 1, .chain = 7};
    if (!plan->alike) {
        r->self.bandwidth = 0.5f + (float)sim_draw(9);
        r->self.chain = sim_draw(100);
    }
    bool known = plan->expectation == EXPECT_AT_ONCE;
    return (struct match_goal){.round = round,
                               .key = key,
                               .time = r->goal_time,
                               .max_members = plan->most,
                               .expected = known ? sim_comers(round, key) : 0,
                               .window = plan->window,
                               .self = r->self};
}

static void look_up(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    struct match_entry entries[MAX_PEERS];
    uint32_t count = 0;
    uint64_t round = p->round, key = sim_key(peer, round);
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        const struct sim_round *r = &sim.peers[i].rounds[round];
        if (sim_key(i, round) != key && !(sim.plan.wrong_keys && sim_draw(3) == 0))
            continue;
        if (sim.plan.knowledge == KNOW_ALL) {
            entries[count++] = (struct match_entry){.peer = i};
            continue;
        }
        int64_t age = sim.now - r->begun_at;
        if (!r->begun || age < draw_time(sim.plan.look_up))
            continue;
        bool wrong = sim.plan.wrong_times && sim_draw(3) == 0;
        entries[count++] = (struct match_entry){
            .peer = i, .time = r->goal_time - (wrong ? draw_time(90 * PATIENCE) : 0)};
    }
    match_candidates(&p->m, sim_clock(p, sim.now), entries, count);
    if (sim.plan.knowledge == KNOW_DIRECTORY)
        schedule_call(EVENT_LOOK_UP, peer, round, sim.now + sim.plan.look_up);
}

static void begin(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    struct sim_round *r = &p->rounds[p->round];
    struct match_goal goal = goal_of(peer, p->round);
    p->waiting = false;
    r->begun = true;
    r->begun_at = sim.now;
    match_begin(&p->m, sim_clock(p, sim.now), &goal);
    look_up(peer);
    if (sim.plan.expectation == EXPECT_LATER)
        schedule_call(EVENT_EXPECT, peer, p->round,
                      sim.now + draw_time(sim.plan.window));
}

static void expect(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    uint32_t comers = sim_comers(p->round, sim_key(peer, p->round));
    match_expect(&p->m, sim_clock(p, sim.now), comers);
}

/* Return whether the peer is still in the round for which the call was meant. */
static bool in_round(const struct sim_peer *p, uint64_t round)
{
    return p->round == round && !p->waiting && !p->done && p->rounds[round].begun;
}

static void abandon(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    bool matching = in_round(p, p->round) && !p->rounds[p->round].over;
    if (!matching)
        return;
    touch(peer, p->round);
    match_end(&p->m);
    p->rounds[p->round].over = true;
    p->rounds[p->round].over_at = sim.now;
    p->gone = sim_draw(2);
    if (!p->gone)
        next_round(peer, p->round + 1);
}

static void report_lost(uint32_t peer, uint32_t about)
{
    struct sim_peer *p = &sim.peers[peer];
    if (p->round < MAX_ROUNDS) {
        touch(peer, p->round);
        touch(about, p->round);
    }
    p->reported_at[about] = sim.now;
    match_present(&p->m, sim_clock(p, sim.now), about, false);
}

static void end_round(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    bool behind = p->m.state == MATCH_BEHIND;
    uint64_t ahead = p->m.ahead;
    match_end(&p->m);
    INVARIANT("ahead", !behind || ahead > p->round, "behind in %llu, ahead is %llu",
              (unsigned long long)p->round, (unsigned long long)ahead);
    next_round(peer, behind ? ahead : p->round + 1);
}

static void go_on_with_round(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    int64_t next = sim.now + sim_round_go_on(peer);
    bool over = p->rounds[p->round].step == STEP_OVER;
    schedule_call(over ? EVENT_END : EVENT_ROUND, peer, p->round, next);
}

static void handle(const struct event *e)
{
    struct sim_peer *p = &sim.peers[e->peer];
    int64_t clock = sim_clock(p, sim.now);
    switch (e->kind) {
    case EVENT_MESSAGE:
        EXPECT_OK(match_on_message(&p->m, clock, &e->message));
        break;
    case EVENT_BEGIN:
        begin(e->peer);
        break;
    case EVENT_LOOK_UP:
        if (in_round(p, e->round) && !p->rounds[e->round].over)
            look_up(e->peer);
        break;
    case EVENT_EXPECT:
        if (in_round(p, e->round))
            expect(e->peer);
        break;
    case EVENT_LOST:
        report_lost(e->peer, e->about);
        break;
    case EVENT_BACK:
        match_present(&p->m, clock, e->about, true);
        break;
    case EVENT_ABANDON:
        abandon(e->peer);
        break;
    case EVENT_ROUND:
        go_on_with_round(e->peer);
        break;
    case EVENT_END:
        end_round(e->peer);
        break;
    }
    settle(e->peer, false);
}

/* Return the time of the first alarm and its peer, or INT64_MAX. */
static int64_t first_alarm(uint32_t *peer)
{
    int64_t first = INT64_MAX;
    for (uint32_t i = 0; i < sim.plan.peers; i++) {
        struct sim_peer *p = &sim.peers[i];
        int64_t alarm = match_alarm(&p->m);
        if (alarm == INT64_MAX || stopped(p))
            continue;
        int64_t at = clock_reaches(p, alarm);
        at = at > sim.now ? at : sim.now;
        if (p->fate == FATE_STOPS && at >= p->fate_at)
            continue;
        if (p->fate == FATE_PAUSES && at >= p->fate_at && at < p->back_at)
            at = p->back_at;
        if (at < first) {
            first = at;
            *peer = i;
        }
    }
    return first;
}

static bool step(void)
{
    uint32_t peer = 0;
    int64_t alarm = first_alarm(&peer);
    if (!queue.count && alarm == INT64_MAX)
        return false;
    if (!queue.count || alarm < queue.heap[0].at) {
        sim.now = alarm;
        match_tick(&sim.peers[peer].m, sim_clock(&sim.peers[peer], sim.now));
        settle(peer, true);
        return true;
    }
    struct event e = events_pop();
    struct sim_peer *p = &sim.peers[e.peer];
    sim.now = e.at;
    if (stopped(p))
        return true;
    if (paused(p)) {
        e.at = p->back_at;
        insert(e);
    } else {
        handle(&e);
    }
    return true;
}

static void tell(enum event_kind kind, uint32_t about, int64_t from)
{
    for (uint32_t i = 0; i < sim.plan.peers; i++)
        if (i != about)
            events_add((struct event){.at = from + draw_time(4 * PATIENCE),
                                      .kind = kind,
                                      .peer = i,
                                      .about = about});
}

static void draw_fate(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    int64_t horizon = sim.plan.spread + sim.plan.rounds * sim.plan.window;
    if (!sim.plan.faults || sim_draw(4))
        return;
    p->fate = (enum fate)(1 + sim_draw(3));
    p->fate_at = draw_time(sim_draw(2) ? horizon : sim.plan.spread + 4 * PATIENCE);
    p->back_at = p->fate_at + draw_time(sim_draw(2) ? horizon : 4 * PATIENCE);
    sim.faults++;
    if (p->fate == FATE_LEAVES)
        schedule_call(EVENT_ABANDON, peer, 0, p->fate_at);
    if (sim_draw(2))
        tell(EVENT_LOST, peer, p->fate_at + draw_time(10 * PATIENCE));
}

static void report_falsely(uint32_t about)
{
    int64_t from = draw_time(sim.plan.rounds * sim.plan.window);
    sim.faults++;
    tell(EVENT_LOST, about, from);
    if (sim_draw(2))
        tell(EVENT_BACK, about, from + 4 * PATIENCE + draw_time(4 * PATIENCE));
}

/* Mark all rounds of peers that stop, pause or left as disturbed. */
static void touch_by_fate(uint32_t peer)
{
    struct sim_peer *p = &sim.peers[peer];
    for (uint64_t r = 0; r < sim.plan.rounds && p->fate != FATE_NONE; r++)
        if (p->fate != FATE_LEAVES || p->gone)
            touch(peer, r);
}

void sim_run(const struct matching_plan *plan)
{
    memset(&sim, 0, sizeof sim);
    queue.count = 0;
    queue.number = 0;
    memset(last_arrival, 0, sizeof last_arrival);
    sim.plan = *plan;
    for (uint32_t i = 0; i < plan->peers; i++) {
        struct sim_peer *p = &sim.peers[i];
        EXPECT_OK(match_init(&p->m, i, plan->peers, PATIENCE));
        p->skew = draw_time(2000 * PATIENCE) - 1000 * PATIENCE;
        p->drift = ((double)sim_draw(2001) - 1000) * 1e-6;
    }
    for (uint32_t i = 0; i < plan->peers; i++) {
        draw_fate(i);
        next_round(i, 0);
        if (plan->false_reports && sim_draw(6) == 0)
            report_falsely(i);
    }
    while (step())
        INVARIANT("bounded", ++sim.events < EVENTS_OF_RUN,
                  "after %llu events it is still not over",
                  (unsigned long long)sim.events);
    for (uint32_t i = 0; i < plan->peers; i++)
        touch_by_fate(i);
    check_end();
}

void sim_destroy(void)
{
    for (uint32_t i = 0; i < sim.plan.peers; i++)
        match_destroy(&sim.peers[i].m);
}
