/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model of one handle: arrivals, stored deposits, the activation broadcast and the
 * rounds, with every interleaving of P applications and P agents.
 *
 * Names are those of the C code: current, released, engine outcomes (schedule/sched.h);
 * frozen, complete, delivered, arrived, call, wanted (protocol/member.h); pending and
 * the plan of a deposit (protocol/member.h); start, active, from (algorithms/
 * algorithms.c). tests/house/test_model.py checks that they still exist there.
 *
 * Simplifications, and their reasons:
 *   - The data part is one condition: a round is complete on a rank when all ranks have
 *     frozen their contributions for it. Every allreduce has that dependency, whatever
 *     its messages. The simulator tests that the messages match.
 *   - A deposit is a bit, and a carry the union, so a lost or doubled deposit is detected.
 *   - Steps under one lock are one step. Steps without it (between the plan of a deposit
 *     and its publication, between the operations of an engine) interleave.
 *   - Agents see conditions, not notifications, and reading a result is one step: lost
 *     wake-ups, results overwritten during a read, and losses with deliver="all" are not
 *     in the model. Neither are quorums, lingers and deadlines.
 *   - join, leave, closing, several handles, deaths during a recovery: simulated, not modelled.
 *
 * Parameters (-D): P ranks, ROUNDS calls of each rank, HISTORY; POLICY one of SOLO,
 * MAJORITY (with every possible draw), FULL; DELIVER_ALL; STOPS: applications may stop
 * forever between two calls, and the others must still finish;
 *   CALLERS a set of ranks as bits: the applications of the others make no call
 *   (their agents take part; by symmetry only the distances between callers matter);
 *   RUN_TO_COMPLETION the reduction that is explained below;
 *   CRASH one rank, any, dies at any moment, and the others continue without it.
 */
#define SOLO 0
#define MAJORITY 1
#define FULL 2
#ifndef P
#define P 3
#endif
#ifndef ROUNDS
#define ROUNDS 2
#endif
#ifndef HISTORY
#define HISTORY 1
#endif
#ifndef CALLERS
#define CALLERS 255
#endif
#ifndef POLICY
#define POLICY SOLO
#endif
#if P <= 2
#define EDGES 1
#else
#define EDGES 2 /* enough up to P = 4 */
#endif

/* The agent's. */
byte current[P];   /* engine.current */
bool start[P];     /* N0: this rank starts the round itself */
byte from[P];      /* in-edges through which the current round was activated */
byte early[P];     /* the same for the next round: ENGINE_KEPT */
byte sent[P];      /* out-edges that have fired */
bool entered[P];   /* N1, activation.active: the contribution is frozen */

/* The member's. */
byte frozen[P], complete[P], delivered[P];
byte pending[P];   /* deposits that the next activation takes, one bit a call */
bool arrived[P];
bool over[P];      /* the application has made all its calls, or stopped */

/* The death of a rank (runtime/recovery.h, protocol/member.h). Each survivor learns of it at its
 * own time, and stops. When all have stopped, they agree on the largest number of completed
 * rounds, and each inherits its own state, while its application may be in the middle of a
 * deposit except for the gate (allreduce/handle.h). When all have inherited, each continues. */
#define HEALTHY 0
#define STOPPED 1
#define INHERITED 2
#define GONE_ON 3
#ifdef CRASH
byte dead = P;       /* P: none */
byte outage[P];
bool agreed;
byte most;           /* if agreed: the most rounds complete on any rank */
bool gate[P];        /* the application is between the plan of a deposit and its publication */
byte froze[P];       /* deposits in the round in progress */
byte awaited[P];     /* member.wanted, 0 where no call is outstanding */
#define lives(r) (dead != (r))
#define left_out(r) (agreed && dead == (r))
#define runs(r) (lives(r) && (outage[r] == HEALTHY || outage[r] == GONE_ON))
#define stopped(r) (!lives(r) || outage[r] != HEALTHY)
#define inherited(r) (!lives(r) || outage[r] >= INHERITED)
#else
#define lives(r) true
#define left_out(r) false
#define runs(r) true
#endif

/* Recorded for assertions. */
byte deposited[P], taken[P];
bool started[ROUNDS + 1]; /* by a rank that had arrived and was allowed to */
byte drawn[ROUNDS + 1];
byte contributed[ROUNDS]; /* ranks with data in a round, as bits */
byte mask[ROUNDS];        /* the same, as seen by the first rank that finished the round */
bool seen[ROUNDS];

/* Into rank r through in-edge k: r*EDGES+k. A rank that was activated through another
 * edge may leave late messages unread, so an edge holds one of every round. */
chan edge[P * EDGES] = [ROUNDS] of { byte };

#define into(r, k) edge[(r) * EDGES + (k)]
#ifdef CRASH /* by their numbers among the survivors */
#define LEFT (agreed -> P - 1 : P)
#define number(r) ((agreed && dead < (r)) -> (r) - 1 : (r))
#define numbered(n) ((agreed && (n) >= dead) -> (n) + 1 : (n))
#define has_edge(k) ((1 << (k)) < LEFT)
#define target(r, k) numbered((number(r) + (1 << (k))) % LEFT)
#else
#define has_edge(k) true
#define target(r, k) (((r) + (1 << (k))) % P)
#endif
#define below(k) ((1 << (k)) - 1) /* the in-edges that fire out-edge k */

/* The drawn rank, which must be live. */
#ifdef CRASH
#define draw(t) ((agreed && drawn[t] == dead) -> (dead + 1) % P : drawn[t])
#else
#define draw(t) drawn[t]
#endif

#if POLICY == SOLO
#define met(r) arrived[r]
#define activates true
#elif POLICY == MAJORITY
#define met(r) (arrived[r] && draw(current[r]) == (r))
#define activates true
#else
#define met(r) arrived[r]
#define activates false
#endif

/* engine.released, by node_admits: once true it stays so for the round, since only
 * delivered can grow. */
#ifdef DELIVER_ALL
#define released(r) true
#else
#define released(r) (current[r] < delivered[r] + HISTORY)
#endif

#define fires(r, k) (activates && runs(r) && has_edge(k) && released(r) && !(sent[r] & (1 << (k))) && \
                     (start[r] || (from[r] & below(k))))
#if EDGES == 1
#define ready(r) fires(r, 0)
#else
#define ready(r) (fires(r, 0) || fires(r, 1))
#endif

#define has_frozen(r, t) (left_out(r) || frozen[r] > (t))
#define all_frozen(t) (has_frozen(0, t) && has_frozen(1, t) && frozen2(t) && frozen3(t))
#if P > 2
#define frozen2(t) has_frozen(2, t)
#else
#define frozen2(t) true
#endif
#if P > 3
#define frozen3(t) has_frozen(3, t)
#else
#define frozen3(t) true
#endif

/* round_trigger_evaluate. */
inline begin(r)
{
    assert(current[r] < ROUNDS); /* a late deposit starts no round */
#if POLICY == MAJORITY
    assert(draw(current[r]) == r); /* quorum */
#endif
    start[r] = true;
    started[current[r]] = true
}

/* Activation: take what has been deposited (node_freeze_all). */
inline freeze(r)
{
    assert(started[current[r]]);             /* quorum */
    assert(frozen[r] == current[r]);         /* at most once */
    assert((taken[r] & pending[r]) == 0);    /* conservation: nothing counted twice */
    taken[r] = taken[r] | pending[r];
    if
    :: pending[r] -> contributed[current[r]] = contributed[current[r]] | (1 << r)
    :: else -> skip
    fi;
#ifdef CRASH
    froze[r] = pending[r];
#endif
    pending[r] = 0;
    arrived[r] = false;
    frozen[r]++;
    entered[r] = true;
    assert(!pending[r]) /* staleness: the next round takes stored deposits */
}

inline fire(r, k)
{
    assert(nfull(into(target(r, k), k))); /* at most once */
    into(target(r, k), k)!current[r];
    sent[r] = sent[r] | (1 << (k))
}

/* engine_complete of an activation. */
inline take(r, k, round)
{
    if
    :: round < current[r] -> skip                               /* ENGINE_DROPPED */
    :: round == current[r] -> from[r] = from[r] | (1 << (k))    /* ENGINE_TAKEN */
    :: round == current[r] + 1 -> early[r] = early[r] | (1 << (k)) /* ENGINE_KEPT */
    :: else -> assert(false)                                    /* ENGINE_IMPOSSIBLE */
    fi;
    round = 0
}

#ifdef CRASH
#define the_dead (agreed -> 1 << dead : 0)
#else
#define the_dead 0
#endif

/* finish_round, engine_advance. */
inline finish(r)
{
    if
    :: seen[current[r]] -> assert(mask[current[r]] == contributed[current[r]]) /* agreement */
    :: else ->
        seen[current[r]] = true;
        mask[current[r]] = contributed[current[r]]
    fi;
#if POLICY == FULL
    assert((contributed[current[r]] | the_dead) == (1 << P) - 1); /* quorum */
#endif
    complete[r]++;
    assert(complete[r] == frozen[r]);
#ifdef CRASH
    froze[r] = 0;
#endif
    current[r]++;
    entered[r] = false;
    start[r] = false;
    sent[r] = 0;
    from[r] = early[r];
    early[r] = 0;
#ifndef DELIVER_ALL
    assert(over[r] || complete[r] - delivered[r] <= HISTORY) /* staleness */
#endif
}

#define may_begin(r) (runs(r) && released(r) && !start[r] && !entered[r] && !from[r] && met(r))
#define may_freeze(r) (runs(r) && released(r) && !entered[r] && (start[r] || from[r]))
#define may_finish(r) (runs(r) && entered[r] && all_frozen(current[r]) && !ready(r))

#define may_take(r, k) (runs(r) && nempty(into(r, k)))

#ifdef CRASH
#if P > 3
#define all(what) (what(0) && what(1) && what(2) && what(3))
#else
#define all(what) (what(0) && what(1) && what(2))
#endif

inline agree()
{
    byte i;
    for (i : 0 .. P - 1) {
        if
        :: lives(i) && complete[i] > most -> most = complete[i]
        :: else -> skip
        fi
    }
    for (i : 0 .. P * EDGES - 1) { /* messages of the old epoch */
        do
        :: nempty(edge[i]) -> edge[i]?_
        :: empty(edge[i]) -> break
        od
    }
    if
    :: most < ROUNDS -> /* void: no survivor has seen it */
        started[most] = false;
        contributed[most] = 0;
        seen[most] = false
    :: else -> skip
    fi;
    i = 0;
    agreed = true
}

/* member_recover. */
inline inherit(r)
{
    assert(complete[r] == most || complete[r] + 1 == most);
    assert(frozen[r] == complete[r] || frozen[r] == complete[r] + 1);
    assert(frozen[r] >= most);
    complete[r] = most;
    if
    :: frozen[r] > most ->
        frozen[r]--;
        assert((pending[r] & froze[r]) == 0);
        taken[r] = taken[r] & ~froze[r];
        pending[r] = pending[r] | froze[r]
    :: else -> skip
    fi;
    froze[r] = 0;
    arrived[r] = awaited[r] > most;
    current[r] = most;
    entered[r] = false;
    start[r] = false;
    sent[r] = 0;
    from[r] = 0;
    early[r] = 0;
    outage[r] = INHERITED
}

/* The recovery thread of each rank. */
proctype recovery(byte r)
{
end:
    atomic { dead < P && lives(r) && outage[r] == HEALTHY -> outage[r] = STOPPED };
    atomic { agreed || all(stopped) ->
        if
        :: !agreed -> agree()
        :: else -> skip
        fi
    };
    atomic { !gate[r] -> inherit(r) };
    all(inherited);
    outage[r] = GONE_ON
}

proctype killer()
{
    atomic { select(dead : 0 .. P - 1) }
}
#endif

#ifndef RUN_TO_COMPLETION
proctype agent(byte r)
{
    byte round;
end:
    do
    :: atomic { may_begin(r) -> begin(r) }
    :: atomic { may_freeze(r) -> freeze(r) }
    :: atomic { fires(r, 0) -> fire(r, 0) }
#if EDGES > 1
    :: atomic { fires(r, 1) -> fire(r, 1) }
#endif
    :: atomic { may_finish(r) -> finish(r) }
    :: atomic { may_take(r, 0) -> into(r, 0)?round; take(r, 0, round) }
#if EDGES > 1
    :: atomic { may_take(r, 1) -> into(r, 1)?round; take(r, 1, round) }
#endif
    od
}
#else
/* Whatever an agent can do after an event, it does at once, as endpoint_run does under
 * the progress lock. Only applications get in between, at the locks of the domain: one
 * that deposits between an event and the freeze might as well have done so before the
 * event. Messages still take as long as they like. */
inline go_on(r)
{
    do
    :: may_begin(r) -> begin(r)
    :: else ->
        if
        :: may_freeze(r) -> freeze(r)
        :: else ->
            if
            :: fires(r, 0) -> fire(r, 0)
            :: else ->
                if
#if EDGES > 1
                :: fires(r, 1) -> fire(r, 1)
#endif
                :: else ->
                    if
                    :: may_finish(r) -> finish(r)
                    :: else -> break
                    fi
                fi
            fi
        fi
    od
}

#define may_run(r) (may_begin(r) || may_freeze(r) || ready(r) || may_finish(r))

proctype agent(byte r)
{
    byte round;
end:
    do
    :: atomic { may_run(r) -> go_on(r) }
    :: atomic { may_take(r, 0) -> into(r, 0)?round; take(r, 0, round); go_on(r) }
#if EDGES > 1
    :: atomic { may_take(r, 1) -> into(r, 1)?round; take(r, 1, round); go_on(r) }
#endif
    od
}
#endif

#ifdef CRASH
#define enter(r) gate[r] = true
#define leave(r, round) gate[r] = false; awaited[r] = round
#define come_back(r) awaited[r] = 0
#else
#define enter(r) skip
#define leave(r, round) skip
#define come_back(r) skip
#endif

proctype application(byte r)
{
    byte call, wanted, carried;
    bool open;
    {
    do
    :: delivered[r] < ROUNDS ->
#ifdef STOPS
        if
        :: skip
        :: break
        fi;
#endif
plan:   atomic { enter(r); carried = pending[r] } /* deposit: plan, write, publish (domain/node.c) */
        atomic { /* member_publish, if the plan holds: else what was carried has left */
            if
            :: carried && carried != pending[r] -> goto plan
            :: else -> skip
            fi;
#ifdef DELIVER_ALL
            open = complete[r] == delivered[r] && frozen[r] == complete[r];
            wanted = delivered[r] + 1;
#else
            open = frozen[r] <= call;
            wanted = call + 1;
#endif
            pending[r] = carried | (1 << call);
            deposited[r] = deposited[r] | (1 << call);
            arrived[r] = open;
            leave(r, wanted);
            call++;
            carried = 0
        }
        atomic { /* wait, and read */
            complete[r] >= wanted ->
#ifdef DELIVER_ALL
            delivered[r] = complete[r];
#else
            delivered[r] = wanted;
#endif
            come_back(r);
            wanted = 0
        }
    :: else -> break
    od
#ifdef CRASH
    } unless { dead == r };
#else
    };
#endif
    over[r] = true
}

#ifdef CRASH
#define one_of_the_living (dead + 1) % P
#else
#define one_of_the_living 0
#endif

/* When nothing can happen any more. */
proctype watch()
{
    byte r;
    timeout ->
    for (r : 0 .. P - 1) {
        if
        :: lives(r) ->
            assert(over[r]);                                   /* liveness, survival */
            assert((taken[r] | pending[r]) == deposited[r]);   /* conservation: none lost */
            assert((taken[r] & pending[r]) == 0);
            assert(complete[r] == complete[one_of_the_living]); /* agreement, one history */
            assert(current[r] == frozen[r] || entered[r])
        :: else -> skip
        fi
    }
}

init
{
    byte i;
#if POLICY == MAJORITY
    byte d;
#endif
    atomic {
#if POLICY == MAJORITY
        for (i : 0 .. ROUNDS - 1) {
            select(d : 0 .. P - 1);
            drawn[i] = d
        }
        d = 0;
#endif
#ifdef CRASH
        run killer();
#endif
        for (i : 0 .. P - 1) {
            run agent(i);
#ifdef CRASH
            run recovery(i);
#endif
            if
            :: CALLERS & (1 << i) -> run application(i)
            :: else -> over[i] = true
            fi
        }
        run watch()
    }
}
