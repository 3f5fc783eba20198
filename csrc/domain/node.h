/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain of several ranks: its shared memory, and the protocol by which they gather,
 * reduce and publish there. No locks; whoever is present does the work.
 *
 * Life of a round t:
 *
 *   OPEN       members deposit. Where there is no fabric, each looks after its deposit
 *              (and after reading, and at an alarm) whether the round may start; with a
 *              fabric only the leader's driver does.
 *   CLOSING    one member, who won the swap of `control`, freezes the others: for each
 *              it swaps the descriptor to one more round, its deposit frozen. Then it
 *              writes the header, the list of frozen slots, and
 *   REDUCING   everybody present takes chunks and reduces them over the frozen slots in
 *              the order of the ranks (so the same contributions give the same bits);
 *              who ends the last chunk goes on. (With one chunk the closer does it.)
 *              With a fabric the schedule runs already: it asks for one part of the sum
 *              after the other (node_fabric_gather), and chunks are taken in the order in
 *              which the ring needs them.
 *   FABRIC     with a fabric: the whole sum of the domain is there.
 *   OPEN t+1   the result is in the ring. Those who sleep are woken.
 *
 * Who writes what; every word is 64 bits (flags 32), atomic, sequentially consistent
 * unless said otherwise:
 *
 *   control    {round, phase, who}. OPEN to CLOSING by swap, by anybody (with a fabric
 *              the leader's driver); then only by the one who closes, ends the last
 *              chunk, or drives the fabric: one at a time.
 *   descriptor of each member (protocol/descriptor.h): by swap, its application to
 *              deposit, join, leave; the closer to freeze.
 *   taken      {round, next chunk}: by swap. Set by the closer before REDUCING.
 *   done       chunks finished, by addition. Set by the closer before REDUCING.
 *   finished   with a fabric, of each chunk: the round in which it was last added up, +1.
 *              By whoever did, before it adds to `done`.
 *   awaited    the leader's driver waits for a chunk: set by it, cleared by the member
 *              who then alerts it.
 *   workers    those who take chunks, by addition: the closer, and helpers while there are
 *              fewer than cores.
 *   lines      one per member: `delivered`, `arrived_at`, `flags` by its application;
 *              `taken_in` by the closer; `working` by whoever works for it.
 *   asleep     a set of members: each its own bit.
 *   met        {round, time}: by swap, see node_round.c.
 *   live, absent, all_joined: by the one who completes a round, before OPEN t+1.
 *              Relaxed: read during round t, and used only if control still says so.
 *   slots      of a member: by its application while neither pending nor frozen.
 *   gathered, results: while CLOSING and REDUCING by those who hold a chunk; headers
 *              by the closer; results of a fabric by its driver.
 *
 * Invariants, and why stale reads do no harm:
 *
 *   1. Nobody acts on a later round than it looked at. control, taken and descriptors
 *      carry the round, and it only grows: a swap that was prepared for round t fails
 *      once t is over. A member holding a chunk of round t keeps t from ending, so what
 *      it reads (list, slots) and writes (its chunk) stays in round t.
 *   2. A deposit is frozen at most once, and what is frozen is not written. The swap of
 *      the descriptor is the only way in, and the application writes slots that its
 *      descriptor names neither as pending nor as frozen. A frozen slot is free again
 *      when control, read after the descriptor, says that the round which froze it is
 *      over; an old value of control only makes it look busy, and three slots suffice.
 *      Nobody has to thaw it.
 *   3. No start is lost. Who deposits swaps its descriptor, then reads all; of two
 *      deposits one reads the other. Who delivers writes `delivered`, then looks; who
 *      deposits reads it after its swap: one of them sees both.
 *   4. A policy is met in the round for which it was counted: descriptors counted as
 *      arrived stay so until the round is closed, and the swap of control fails if it
 *      has been.
 *   5. A result is not overwritten while it may be read. deliver="one": the ring is
 *      reused after every member has delivered (node_admits), and what is counted there
 *      only grows. deliver="all": the reader copies, then looks at control: if the
 *      round that reuses the slot has begun to close, the copy is void and the round
 *      counts as lost. (A read of bytes under change; they are not looked at.)
 *   6. No sleeper is forgotten: it sets its bit, then looks at control, then sleeps on
 *      its doorbell; who completes a round sets control, then reads the bits, then
 *      rings.
 *   7. No chunk is forgotten: the closer takes them until there is none, whoever else is
 *      at work; with a fabric the leader's driver, when the schedule asks for parts of the
 *      sum. A helper may be refused, or not come at all; workers that it counts may be
 *      about to leave, so nobody relies on them.
 *   8. No driver waits for a chunk that is finished: it sets `awaited`, then reads
 *      `finished` once more; who finishes a chunk writes that, then reads `awaited`.
 *
 * A member that stops (SIGSTOP, a debugger) stops the round only if it is closing or
 * holds a chunk: node_busy() names it. Elsewhere nobody needs it.
 */
#ifndef PCOLL_DOMAIN_NODE_H
#define PCOLL_DOMAIN_NODE_H

#include <stdatomic.h>

#include "base/check.h"
#include "base/random.h"
#include "protocol/descriptor.h"
#include "protocol/round_trigger.h"
#include "domain/domain.h"
#include "domain/placement.h"

/* Every atomic step is a point where the tests let the others go on. */
#define STEP(operation) (INTERLEAVE(), (operation))

enum node_phase { NODE_OPEN, NODE_CLOSING, NODE_REDUCING, NODE_FABRIC };

/* control: round, phase, the member that closes. */
enum { NODE_WHO_BITS = 20, NODE_PHASE_BITS = 2, NODE_ROUND_SHIFT = 22 };

static inline uint64_t node_control_word(uint64_t round, enum node_phase phase,
                                         uint32_t who)
{
    return round << NODE_ROUND_SHIFT | (uint64_t)phase << NODE_WHO_BITS | who;
}

static inline uint64_t node_control_round(uint64_t word)
{
    return word >> NODE_ROUND_SHIFT;
}

static inline enum node_phase node_control_phase(uint64_t word)
{
    return (enum node_phase)(word >> NODE_WHO_BITS & 3);
}

static inline uint32_t node_control_who(uint64_t word)
{
    return (uint32_t)(word & (((uint64_t)1 << NODE_WHO_BITS) - 1));
}

enum node_flag { NODE_CALLING = 1, NODE_RETIRED = 2 };

/* One member's words that are not read in every round. */
struct node_line {
    _Alignas(64) _Atomic uint64_t delivered;
    _Atomic uint64_t taken_in; /* round that took the last deposit, +1; 0: none */
    _Atomic int64_t arrived_at;
    _Atomic uint64_t working; /* round of the chunk in hand, +1; 0: none */
    _Atomic uint32_t flags;
};

/* A frozen slot, in the order of the ranks. */
struct node_frozen {
    uint32_t member;
    uint32_t slot;
};

struct node_shared {
    _Alignas(64) _Atomic uint64_t control;
    _Atomic uint32_t attention; /* the leader is to look */
    _Alignas(64) _Atomic uint64_t taken;
    _Atomic uint64_t done;
    _Atomic uint32_t workers; /* members that take chunks */
    _Atomic uint32_t awaited; /* the leader's driver waits for a chunk */
    _Alignas(64) _Atomic uint64_t met;
    _Atomic uint64_t all_joined; /* round with which all had joined, +1; 0: none yet */
    _Atomic int failure;         /* an op of MPI failed: rounds are worthless */
    _Atomic uint32_t parts;      /* frozen slots in the list: relaxed */
};

/* Where this domain runs. All pointers stay valid until its end. */
struct node_hooks {
    void *memory; /* node_bytes() of zeros, shared by all members */
    const struct placement *placement;
    const uint32_t *slot; /* of the handle, for the draws */
    bool owned_sends;     /* some member has send buffers in its slots */
    void *arg;
    /* A member sleeps and should look. */
    void (*wake)(void *arg, uint32_t rank);
    /* The rank's driver should look. */
    void (*alert)(void *arg, uint32_t rank);
    uint32_t cores;            /* that the members share; 0: one for each */
    int64_t (*now)(void *arg); /* nanoseconds; the same clock for all members */
    /* Tests: a member has been frozen. NULL: nobody is told. */
    void (*frozen)(void *arg, uint32_t rank, uint64_t round,
                   const struct round_header *header, const void *payload);
    /* Tests: all have ended the round; what it has read is its owners' from now on. */
    void (*over)(void *arg, uint64_t round);
};

/* Whose thread it is: each has its own room for counting. */
enum node_side { NODE_APPLICATION, NODE_DRIVER, NODE_SIDES };

/* A round as seen by one thread. */
struct node_view {
    struct policy_round round;
    uint64_t *live, *arrived, *deposited;
    uint32_t *absences; /* NULL: not counted */
    uint64_t opened;    /* of this round, +1 */
    uint64_t admitted;  /* rounds below this one are admitted */
};

struct node {
    struct domain base;
    struct node_hooks hooks;
    pcoll_policy policy;
    uint64_t seed;
    bool fabric;
    uint32_t members, who, chunks, ring;
    uint32_t hands;             /* that can work at one time */
    uint32_t first_chunk;       /* with a fabric: behind the first one to be taken */
    enum pcoll_deliver deliver; /* these two as in member, but for all threads */
    uint32_t history;
    uint64_t *set;        /* of the members */
    struct member member; /* this rank; its application's alone */
    struct node_view view[NODE_SIDES];
    bool owes; /* its last deposit has not been seen to leave */

    /* In the shared memory. */
    struct node_shared *shared;
    _Atomic uint64_t *descriptors, *asleep, *live;
    _Atomic uint32_t *absent; /* by rank; NULL: not counted */
    struct node_line *lines;
    struct node_frozen *list;
    _Atomic uint64_t *finished;
    char *slots, *results;
    size_t bytes;                  /* of it */
    struct round_header *gathered; /* with a fabric: the sum of the domain */
    int slots_each;
};

/* Bytes of shared memory, and the parts of it that this rank is to reserve: who touches
 * memory first decides on which side of the machine it is. options->owned_send: of any
 * member. */
enum node_part { NODE_PART_SLOTS, NODE_PART_RESULTS, NODE_PART_WORDS, NODE_PARTS };
size_t node_bytes(const struct round_shape *shape, const pcoll_options *options,
                  const struct placement *placement);
void node_part(const struct round_shape *shape, const pcoll_options *options,
               const struct placement *placement, enum node_part part, size_t *offset,
               size_t *bytes);

/* arg is a struct node_hooks. */
domain_create_fn domain_node_create;

/* For the files of the domain. */

static inline struct node *node_of(struct domain *d)
{
    return (struct node *)d;
}

static inline uint64_t node_control(const struct node *n)
{
    return STEP(atomic_load(&n->shared->control));
}

static inline struct round_header *node_slot(const struct node *n, uint32_t member,
                                             int slot)
{
    size_t number = (size_t)member * (size_t)n->slots_each + (size_t)slot;
    return (struct round_header *)(n->slots + number * n->base.shape->slot_bytes);
}

static inline struct round_header *node_result(const struct node *n, uint64_t round)
{
    return (struct round_header *)(n->results +
                                   round % n->ring * n->base.shape->slot_bytes);
}

/* What a round asks for, of those who are live in it: `asked` names them. */
static inline void node_ask(const struct node *n, uint64_t round,
                            const uint32_t *absences, struct policy_round *asked)
{
    struct round_draw draw = {
        .seed = n->seed, .slot = *n->hooks.slot, .round = round, .endpoints = 1};
    round_trigger_open(&n->policy, &draw, absences, asked);
}

static inline struct node_line *node_own_line(const struct node *n)
{
    return &n->lines[n->who];
}

static inline _Atomic uint64_t *node_own_descriptor(const struct node *n)
{
    return &n->descriptors[n->who];
}

/* What the others have changed of this member: descriptor first, so that what
 * control says is not older. Returns the descriptor. */
uint64_t node_look(struct node *n);
void node_set_flag(struct node *n, uint32_t flag, bool on);
void node_note_arrival_time(struct node *n);

/* The entries of its table that have files of their own. */
int node_deposit(struct domain *d, const void *const *buffers,
                 enum deposit_outcome *outcome);
void *node_send_slot(struct domain *d);
int node_deliver(struct domain *d, uint64_t last, uint64_t horizon,
                 void *const *buffers, pcoll_round *round, uint64_t *masks,
                 bool *moved);
/* node_round.c: */
bool node_attention(struct domain *d);
void node_fabric_arrivals(struct domain *d, uint64_t *arrived, uint64_t *deposited);
bool node_fabric_admits(struct domain *d);
struct round_header *node_fabric_freeze(struct domain *d, uint64_t round);
bool node_fabric_gather(struct domain *d, uint64_t round, size_t begin, size_t end);
struct round_header *node_fabric_result(struct domain *d, uint64_t round);
void node_fabric_publish(struct domain *d, uint64_t round);
/* node_recovery.c: */
void node_begin_at(struct domain *d, struct domain *old, uint64_t round,
                   const struct round_header *last);
int node_inherit(struct domain *d, struct domain *old, uint64_t round,
                 const struct round_header *last);

/* The swap to CLOSING and what follows, as far as it goes here; false if
 * the round had been closed by somebody else. */
bool node_close(struct node *n, uint64_t round, uint32_t initiator);
/* Take chunks as long as there are any. True if this ended the reduction. */
bool node_reduce(struct node *n, uint64_t round);
/* The leader's driver: take one. False if there is none left. */
bool node_reduce_next(struct node *n, uint64_t round);
/* The result is there: OPEN for the next round. */
void node_complete(struct node *n, uint64_t round);
/* Have the leader's driver look. */
void node_alert(struct domain *d);
/* Members that close the round or hold a chunk of it. */
void node_busy(struct domain *d, uint64_t *set);
/* After a round: have all ranks joined with it? */
void node_note_join(struct node *n, uint64_t round, const struct round_header *result);

/* node_round.c: start the open round, if it may; the time to look again. */
bool node_decide(struct node *n, uint64_t round, enum node_side side, int64_t *alarm);
bool node_admits(struct node *n, uint64_t round, enum node_side side);
void node_arrivals(struct node *n, struct node_view *v, uint64_t round);
/* The round asks for these ranks; NULL: any. */
const uint64_t *node_awaited(struct domain *d);

#endif
