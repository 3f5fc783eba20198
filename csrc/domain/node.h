/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A domain: one or more ranks of a node, the memory that they share, and the protocol by
 * which they gather, reduce and publish there. There are no locks: whichever member is
 * present does the work. A rank that shares memory with no other one is a domain of one
 * member, in private memory.
 *
 * Phases of a round t:
 *
 *   OPEN       Members deposit. Without a fabric, each member checks after its deposit
 *              (and after a read, and when an alarm expires) whether the round may start.
 *              With a fabric only the leader's driver decides.
 *   CLOSING    One member has won the compare-and-swap of `control`. It freezes every
 *              member: it swaps the descriptor to one more round and a frozen deposit.
 *              Then it writes the header and the list of frozen slots.
 *   REDUCING   Every member that is present takes chunks and reduces them over the frozen
 *              slots in the order of the ranks, so the same contributions give the same
 *              bits. The member that finishes the last chunk ends the reduction. (A
 *              result of one chunk is reduced by the closer alone.)
 *              With a fabric the schedule is already running. It asks for one part of the
 *              sum after the other (node_fabric_gather), and chunks are taken in the order
 *              in which the ring needs them.
 *   FABRIC     With a fabric: the whole sum of the domain is ready.
 *   OPEN t+1   The result is in the ring of results. Sleeping members are woken.
 *
 * Writers. All words are 64 bits (flags: 32), atomic, and sequentially consistent
 * unless stated otherwise:
 *
 *   control    {round, phase, member}. Any member swaps OPEN to CLOSING (with a fabric, the
 *              leader's driver). After that only the closer, the member that finished the
 *              last chunk, or the driver of the fabric writes it: one at a time.
 *   descriptor One per member (protocol/member.h). The member's owner swaps it to deposit,
 *              join or leave; the closer swaps it to freeze.
 *   taken      {round, next chunk}. By swap. The closer sets it before REDUCING.
 *   done       Number of finished chunks. By addition. The closer sets it before REDUCING.
 *   finished   With a fabric, per chunk: the last round in which it was reduced, plus 1. The
 *              member that reduced it writes it before it adds to `done`.
 *   awaited    The leader's driver waits for a chunk. The driver sets it; the member that
 *              then alerts the driver clears it.
 *   workers    Number of members that take chunks, by addition: the closer, and helpers
 *              while there are fewer workers than cores.
 *   lines      One per member. Its owner (protocol/member.h) writes `delivered`, `arrived_at`,
 *              `calling`, `retired`, and `intent` before it swaps its descriptor to deposit:
 *              the closer reads it after the swap that freezes the deposit. (Rounds with
 *              intents wait for all ranks, so a rank's next deposit comes after their end.)
 *              The closer writes `taken_in`. Threads that reduce for
 *              it write `working`, for diagnostics only: they may overwrite each other.
 *   asleep     A set of members. Each member writes its own bit.
 *   met        {round, time}. By swap; see node_round.c.
 *   live, absent, all_joined
 *              `live` and `absent` exist only without a fabric. The member that completes a
 *              round writes all three before OPEN t+1. They are read during round t and used
 *              only if control still names round t afterwards.
 *   list, parts
 *              The closer writes them before REDUCING.
 *   attention  Any member sets it, the leader's driver clears it.
 *   failure    Any thread that reduces sets it. It is never cleared.
 *   slots      The owner of a member writes a slot while it is neither pending nor frozen.
 *   gathered, results
 *              During CLOSING and REDUCING the members that hold a chunk write the payload,
 *              and the closer writes the header. With a fabric the leader's driver writes the
 *              results.
 *
 * Invariants, and why stale reads are harmless:
 *
 *   1. No member acts on a later round than the one it read. control, taken and descriptors
 *      contain the round, and the round only grows: a swap that was prepared for round t
 *      fails after round t has ended. Round t cannot end while a member holds a chunk of it,
 *      so what that member reads (list, slots) and writes (its chunk) belongs to round t.
 *   2. A deposit is frozen at most once, and the payload of a frozen slot is not written.
 *      (With a fabric and a single deposit, the leader's driver writes the header of that
 *      slot and the room behind the payload.) Only the swap of the descriptor freezes a
 *      deposit, and a member's owner writes only slots that the descriptor names neither as
 *      pending nor as frozen. A frozen slot is free again when
 *      control, read after the descriptor, says that the round which froze it is over. An
 *      old value of control only makes the slot look busy, and three slots are enough.
 *      Therefore no step is needed to release a frozen slot.
 *   3. No start is lost. A member that deposits swaps its descriptor, then reads all
 *      descriptors: of two concurrent deposits one reads the other. A member that has read a
 *      result writes `delivered`, then checks the round; a member that deposits reads
 *      `delivered` after its swap: at least one of them sees the deposit and the read.
 *   4. A policy is met in the round for which it was counted. Descriptors that were counted
 *      as arrived stay so until the round is closed. After that, the swap of control by the
 *      member that counted them fails.
 *   5. A result is not overwritten while it may be read. deliver="one": the ring entry is
 *      reused only after every member has read it (node_admits), and `delivered` only grows.
 *      deliver="all": the reader copies, then reads control. If the round that reuses the
 *      entry has begun to close, the copy is discarded and the round counts as lost. (The
 *      bytes may change during the copy, so nothing is concluded from them before.)
 *   6. No sleeping member is forgotten. It sets its bit, then reads control, then sleeps on
 *      its doorbell. The member that completes a round writes control, then reads the bits,
 *      then rings.
 *   7. No chunk is forgotten. The closer takes chunks until there are none left, even if other
 *      members take some; with a fabric the leader's driver does so when the schedule asks for
 *      parts of the sum. Helpers may be refused or absent, and a counted worker may be about
 *      to stop, so nothing depends on them.
 *   8. No driver waits for a chunk that is finished. It sets `awaited`, then reads `finished`
 *      once more. The member that finishes a chunk writes `finished`, then reads `awaited`.
 *
 * A member that stops (SIGSTOP, a debugger) stops the round only while it closes the round or
 * holds a chunk: node_busy() names it. At all other times the round does not need it.
 */
#pragma once

#include "base/check.h"
#include "base/random.h"
#include "protocol/policy.h"
#include "domain/domain.h"
#include "domain/placement.h"

/* One atomic step. Tests let other threads run before it. */
#define STEP(operation) (INTERLEAVE(), (operation))

enum node_phase { NODE_OPEN, NODE_CLOSING, NODE_REDUCING, NODE_FABRIC };

/* control: round, phase, member that closes the round. */
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

/* Words of one member that are not read in every round. */
struct node_line {
    _Alignas(64) _Atomic uint64_t delivered;
    _Atomic uint64_t taken_in; /* round that took the last deposit, plus 1; 0: none */
    _Atomic int64_t arrived_at;
    _Atomic uint64_t working; /* round of the chunk in hand, plus 1; 0: none */
    _Atomic uint32_t calling; /* a call is outstanding */
    _Atomic uint32_t retired; /* its handle is being freed: it waits for no round */
    _Atomic uint64_t intent;  /* of the pending deposit; relaxed */
};

/* A frozen slot. The list of them is in the order of the ranks. */
struct node_frozen {
    uint32_t member;
    uint32_t slot;
};

struct node_shared {
    _Alignas(64) _Atomic uint64_t control;
    _Atomic uint32_t attention; /* the leader's driver is asked to run the endpoint */
    _Alignas(64) _Atomic uint64_t taken;
    _Atomic uint64_t done;
    _Atomic uint32_t workers; /* members that take chunks */
    _Atomic uint32_t awaited; /* the leader's driver waits for a chunk */
    _Alignas(64) _Atomic uint64_t met;
    _Atomic uint64_t all_joined; /* round with which all had joined, plus 1; 0: none */
    _Atomic int failure;         /* an op of MPI has failed: results are worthless */
    _Atomic uint32_t parts;      /* frozen slots in the list; relaxed */
};

/* The environment of this domain. All pointers stay valid while the domain exists. */
struct node_hooks {
    /* node_bytes() of zeros, shared by all members; NULL: of one member, which allocates it */
    void *memory;
    /* With `memory` NULL: bytes for the caller, a multiple of 64, which begin at private_memory
     * and share the allocation with the domain's. */
    size_t beside;
    const struct placement *placement;
    const uint32_t *slot; /* of the handle, for draws */
    bool owned_sends;     /* some member has send buffers in its slots */
    void *arg;
    /* Wake a sleeping member, so that it checks the round. */
    void (*wake)(void *arg, uint32_t rank);
    /* Ask the rank's driver to run the endpoint. */
    void (*alert)(void *arg, uint32_t rank);
    uint32_t cores; /* number that the members share; 0: one for each member */
    int64_t (*now)(void *arg); /* nanoseconds; the same clock for all members */
    /* Tests: a member has been frozen. May be NULL. */
    void (*frozen)(void *arg, uint32_t rank, uint64_t round,
                   const struct round_header *header, const void *payload);
    /* Tests: the round has ended, and the slots it has read are free again. May be NULL. */
    void (*over)(void *arg, uint64_t round);
};

/* The thread that calls: each has its own memory for counting. */
enum node_side { NODE_APPLICATION, NODE_DRIVER, NODE_SIDES };

/* A round as one thread sees it. The sets are NULL with a fabric, where the endpoint counts. */
struct node_view {
    struct policy_round round;
    uint64_t *live, *arrived, *deposited;
    uint32_t *absences; /* NULL: not counted */
    uint64_t opened;    /* round of the sets, plus 1 */
    uint64_t admitted;  /* rounds below this one are admitted */
};

/*
 * Deposits of the application whose result it has not read yet (node_pending). A deposit stays in its
 * slot until the slot is written again: other slots are written first. When there is no other
 * one, which takes a rank that is two rounds or more behind, the deposit is copied. All of
 * this belongs to the application's thread, and no other thread changes a slot's payload. So
 * the sum is the same whether a round takes the pending deposit meanwhile or not.
 */
struct node_kept {
    struct node_kept *next;
    uint64_t round; /* that took the deposit */
    char *payload;
};

struct node_pending {
    bool wanted; /* node_pending was called */
    bool failed; /* a deposit could not be kept */
    int last;    /* slot of the last deposit */
    uint64_t
        taken_in[MAX_SLOTS]; /* round that took the slot's deposit, plus 1; 0: none */
    struct node_kept *kept;
};

struct domain {
    const struct domain_ops *ops;
    const struct round_shape *shape;
    struct node_hooks hooks;
    pcoll_policy policy;
    uint64_t seed;
    bool
        fabric; /* an endpoint drives the rounds: of several domains, or of one member */
    uint32_t members, chunks;
    uint32_t who;    /* index of this rank in the domain */
    uint32_t ring;   /* entries of the ring of results */
    uint64_t oldest; /* no result of a round before this one is in the ring */
    uint32_t hands;  /* members that can work at one time */
    /* With a fabric: the first chunk of this domain's part. Chunks are taken in descending
     * order, from the one before it. */
    uint32_t first_chunk;
    enum pcoll_deliver deliver; /* as in `member`; all threads may read these two */
    uint32_t history;
    struct member member; /* of this rank; only its owner uses it */
    struct node_view view[NODE_SIDES];
    struct node_pending pending;
    bool owes; /* the last deposit is not known to be in a round */

    /* Pointers into the shared memory, unless noted. */
    void *private_memory; /* the memory, if it is not shared; else NULL */
    struct node_shared *shared;
    _Atomic uint64_t *descriptors, *asleep;
    _Atomic uint64_t *live;   /* without a fabric */
    _Atomic uint32_t *absent; /* by rank; NULL: not counted */
    struct node_line *lines;
    struct node_frozen *list;
    _Atomic uint64_t *finished;
    char *slots, *results;
    size_t bytes;                  /* of the memory in `hooks`: whole pages */
    struct round_header *gathered; /* with a fabric: the sum of the domain */
    int slots_each;
};

/* Bytes of memory, and the parts of it that this rank has to reserve: the rank that
 * touches memory first decides on which NUMA node it is. options->owned_send
 * counts if any member has it. */
enum node_part { NODE_PART_SLOTS, NODE_PART_RESULTS, NODE_PART_WORDS, NODE_PARTS };
size_t node_bytes(const struct round_shape *shape, const pcoll_options *options,
                  const struct placement *placement);
void node_part(const struct round_shape *shape, const pcoll_options *options,
               const struct placement *placement, enum node_part part, size_t *offset,
               size_t *bytes);

/* Create a domain; arg is a struct node_hooks. */
domain_create_fn domain_node_create;

/* For the files of the domain. */

static inline uint64_t node_control(const struct domain *n)
{
    return STEP(atomic_load(&n->shared->control));
}

static inline struct round_header *node_slot(const struct domain *n, uint32_t member,
                                             int slot)
{
    size_t number = (size_t)member * (size_t)n->slots_each + (size_t)slot;
    return message_in(n->shape, n->slots + number * n->shape->message_bytes);
}

/* Return the message with the result of a round, or the place where it is to be built. */
static inline struct round_header *node_result(const struct domain *n, uint64_t round)
{
    return message_in(n->shape, n->results + round % n->ring * n->shape->slot_bytes);
}

/* Return where the sum of the domain is built. */
static inline struct round_header *node_target(const struct domain *n, uint64_t round)
{
    return n->fabric ? n->gathered : node_result(n, round);
}

static inline void node_set_control(struct domain *n, uint64_t round,
                                    enum node_phase phase)
{
    STEP(atomic_store(&n->shared->control, node_control_word(round, phase, n->who)));
}

static inline struct node_line *node_own_line(const struct domain *n)
{
    return &n->lines[n->who];
}

static inline void node_set_calling(struct domain *n, bool calling)
{
    atomic_store_explicit(&node_own_line(n)->calling, calling, memory_order_relaxed);
}

/* Return PCOLL_OK, or the error of a reduction. */
static inline int node_failure(const struct domain *n)
{
    return atomic_load_explicit(&n->shared->failure, memory_order_acquire);
}

static inline _Atomic uint64_t *node_own_descriptor(const struct domain *n)
{
    return &n->descriptors[n->who];
}

/* node_round.c */

/* Update n->member from the shared memory. Reads the descriptor first, then control, so that
 * `complete` is not older than `frozen`. Returns the descriptor. */
uint64_t node_look(struct domain *n);
void node_note_arrival_time(struct domain *n);
/* Write who is live before the first round, or after `last` (without a fabric). */
void node_write_live(struct domain *n, const struct round_header *last);

/* Start the open round if it may start. Sets *alarm to the time of the next check, if there
 * is one before *alarm. Returns whether the caller has to look again at once. */
bool node_decide(struct domain *n, uint64_t round, enum node_side side, int64_t *alarm);
/* Take chunks until there are none left. Returns whether this ended the reduction. */
bool node_reduce(struct domain *n, uint64_t round, enum node_side side);
/* After a round: record that all ranks have joined with it, if they have. */
void node_note_join(struct domain *n, uint64_t round,
                    const struct round_header *result);

/* Operations of struct domain_ops. */
int node_deliver(struct domain *n, uint64_t last, uint64_t horizon,
                 void *const *buffers, pcoll_round *round, uint64_t *masks,
                 bool *moved);
bool node_fabric_admits(struct domain *n);
struct round_header *node_fabric_freeze(struct domain *n, uint64_t round);
void node_fabric_publish(struct domain *n, uint64_t round);

/* Add the ranks on whose work the round waits. */
void node_busy(struct domain *n, uint64_t *set);
/* Without a fabric: return the ranks whose arrivals start the open round; NULL: any. */
const uint64_t *node_awaited(struct domain *n);
/* Several members with a fabric: ask the leader's driver to run the endpoint; has a member
 * asked? */
void node_alert(struct domain *n);
bool node_attention(struct domain *n);
/* Driver of a fabric: add the ranks that have arrived at the open round to one set, and those with a
 * deposit that no round has taken to the other. The sets begin with this word of a set of all
 * ranks. */
void node_fabric_arrivals(struct domain *n, uint32_t first_word, uint64_t *arrived,
                          uint64_t *deposited);
/* Driver of a fabric: reduce bytes [begin, end) of the payload of a frozen message over the members.
 * Returns false if other members are still working: call again after `node_alert`. All bytes must
 * have been gathered before the round is published. */
bool node_fabric_gather(struct domain *n, uint64_t round, size_t begin, size_t end);

/* node.c */

void *node_send_slot(struct domain *n);
/* See pcoll_handle_pending. */
int node_pending(struct domain *n, void *const *buffers);
/* Copy the member's state, for its application. */
void node_snapshot(struct domain *n, struct member *copy);
/* Copy what all may know of a member, counted from 0 in this domain. Any thread. */
void node_poll(struct domain *n, int who, struct member *copy);
/* The handle is being freed: no round waits for this member any more. */
void node_retire(struct domain *n);
/* Do the work that is there: take part in a reduction, start a round if there is no fabric. Sets
 * *alarm to the time of the next call (INT64_MAX: none is needed). */
void node_help(struct domain *n, bool driver, int64_t *alarm);
/* The member wants to be woken, until it says otherwise. */
void node_sleeps(struct domain *n, bool asleep);

/* Copy the results that this member may still read, and the last one that it has read if it is
 * there (a joining rank has none from before), up to round - 1, whose message is `last`. Members
 * that share the new memory all write the same. Return the first round that was copied. */
uint64_t node_copy_results(struct domain *d, struct domain *old, uint64_t round,
                           const struct round_header *last);
