/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P members of one domain in shared memory, step by step. Each has an application that
 * deposits, waits and takes results as csrc/allreduce/handle.c does, and a driver. Every
 * atomic step is a point where another coroutine may run. A coroutine that sleeps runs only
 * after it is woken, so a lost start or wake-up shows as a deadlock. The invariants of
 * docs/semantics.md are checked during the run. One run per seed.
 */
#pragma once

#include "domain/node.h"
#include "space.h"
#include "stepper.h"

enum { STEPS_MAX_RANKS = 70, STEPS_MAX_COUNT = 48, STEPS_SLOWNESS = 10 };

struct steps_options {
    uint32_t ranks;
    struct world_handle handle;
    uint64_t calls; /* calls of each rank; rounds with deliver="all" */
    enum world_ending ending;
    uint32_t count; /* float64 elements */
    bool fractions; /* values whose sum depends on the order of additions */
    uint32_t think; /* maximal ns between calls */
    uint32_t slow; /* this rank thinks STEPS_SLOWNESS times as long; none if >= ranks */
    bool fabric;   /* rounds start at the leader and use a fabric */
    uint32_t nosy; /* ns between unrequested polls of a driver; 0: none */
    struct stepper_options stepper;
};

/* One member: the state of its application, and its observed actions. */
struct steps_member {
    struct placement placement;
    struct node_hooks hooks;
    struct domain *domain;
    const char *doing;      /* shown after a failure */
    uint32_t rings;         /* of the application's doorbell */
    uint32_t notifications; /* of the driver */
    int64_t alarm;          /* of the driver */
    int64_t told;           /* time that the application has passed to it */
    bool in_deposit, in_change, in_deliver;
    double depositing;    /* value being deposited */
    bool deposit_taken;   /* that value has been taken already, */
    bool deposit_arrived; /* and had arrived by then */
    int64_t came_at;      /* begin of the call with which it arrives */
    uint64_t call;        /* deliver="one": the round of its last call */
    int64_t taken_in;     /* the round that took its last deposit, or -1 */
    bool calling, joining, left, retired;
    bool all_joined;   /* joining, and the round of that join is in progress */
    uint64_t next;     /* the next round to be delivered */
    double *frozen_in; /* the slot that the last round read */
    int joins;
};

/* The leader's side of the fabric. */
struct steps_fabric {
    uint64_t round;
    bool started;
    uint32_t initiator;
    struct round_header *frozen; /* NULL: not yet */
    uint64_t live[(STEPS_MAX_RANKS + 63) / 64], drawn[(STEPS_MAX_RANKS + 63) / 64],
        overdue[(STEPS_MAX_RANKS + 63) / 64], arrived[(STEPS_MAX_RANKS + 63) / 64],
        deposited[(STEPS_MAX_RANKS + 63) / 64];
    uint32_t absences[STEPS_MAX_RANKS];
};

struct steps {
    struct steps_options o;
    pcoll_options options;
    pcoll_policy policy;
    struct round_shape shape;
    void *memory;
    size_t bytes;
    uint32_t slot; /* of the handle, for the draws */
    struct steps_member member[STEPS_MAX_RANKS];
    struct steps_fabric fabric;
    struct domain *observer; /* rank 0's view, for steps_idle */
    struct ledger *ledger;
    uint32_t applications; /* applications that have not ended */
    uint32_t leavers;      /* how many of them have left and wait for the others */
    uint64_t joined_at[2]; /* 1 + the round of the first and second join */
    uint64_t rounds, lost;
    struct stepper_report report;
};

/* Run to the end. A violation ends the program with a message and the state of all
 * members. The return value is valid until the next run. */
const struct steps *steps_run(const struct steps_options *o);

/* For the files of this test. */

static inline struct domain *steps_node(const struct steps *s, uint32_t rank)
{
    return s->member[rank].domain;
}

/* steps_check.c */

/* Hook of the domain: a member has been frozen. */
void steps_frozen(void *arg, uint32_t rank, uint64_t round,
                  const struct round_header *header, const void *payload);
/* Hook of the domain: all members have ended a round. */
void steps_over(void *arg, uint64_t round);
/* Element i of a deposit is the value times a power of two. */
double steps_element(double value, uint32_t i);
/* Check the outcome of a deposit. */
void steps_deposited(struct steps *s, uint32_t rank, enum deposit_outcome outcome);
/* Check a delivered round. */
void steps_delivered(struct steps *s, uint32_t rank, const pcoll_round *r,
                     const uint64_t *masks, const double *recv);
void steps_joined(struct steps *s, uint32_t rank, const pcoll_round *r);
/* Check that a rank may begin to close a round. */
void steps_closing(uint32_t rank);
/* Check that all may sleep until then. */
void steps_idle(int64_t until);
/* Check the end of the run. */
void steps_end(struct steps *s);
