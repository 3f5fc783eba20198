/* SPDX-License-Identifier: Apache-2.0 */
/*
 * P members of one domain in shared memory, step by step: each has an application that
 * deposits, waits and takes as csrc/allreduce/handle.c does, and a driver. Every atomic
 * step is a point where the others may go on, and whoever sleeps is really gone until
 * it is woken, so a start or a wake-up that is lost shows as a deadlock. The invariants
 * of docs/semantics.md are checked as they go. One seed, one run.
 */
#pragma once

#include "domain/node.h"
#include "space.h"
#include "stepper.h"

enum { STEPS_MAX_RANKS = 70, STEPS_MAX_COUNT = 48 };

struct steps_options {
    uint32_t ranks;
    struct world_handle handle;
    uint64_t calls; /* of each rank, or rounds with deliver="all" */
    enum world_ending ending;
    uint32_t count; /* float64 elements */
    bool fractions; /* values whose sum depends on the order of additions */
    uint32_t think; /* ns between calls, at most */
    uint32_t slow;  /* this rank thinks ten times as long; none if >= ranks */
    bool fabric;    /* rounds start at the leader, and pass through a fabric */
    uint32_t nosy;  /* ns between looks of a driver that nobody has asked; 0: none */
    struct stepper_options stepper;
};

/* One member: what its application does, and what it is known to have done. */
struct steps_member {
    struct placement placement;
    struct node_hooks hooks;
    struct domain *domain;
    const char *doing;      /* for a failure */
    uint32_t rings;         /* of the application's doorbell */
    uint32_t notifications; /* of the driver */
    int64_t alarm;          /* of the driver */
    int64_t told;           /* that its application has told it of */
    bool in_deposit, in_change, in_deliver;
    double depositing;    /* the value that is being handed in */
    bool deposit_taken;   /* and has been taken already, */
    bool deposit_arrived; /* as one that had arrived */
    int64_t came_at;      /* the call with which it arrives began */
    uint64_t call;        /* deliver="one": the round its last call stands for */
    int64_t taken_in;     /* its last deposit, or -1 */
    bool calling, joining, left, retired;
    bool all_joined;   /* joining, and the round with which all had is under way */
    uint64_t next;     /* the round that it has not been given */
    double *frozen_in; /* the slot that the last round reads */
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
    struct domain *observer; /* as rank 0 sees it: for steps_idle */
    struct ledger *ledger;
    uint32_t applications; /* that are not over */
    uint32_t leavers;      /* of them: have left, and wait for the others */
    uint64_t joined_at[2]; /* round with which the first, second join was over, +1 */
    uint64_t rounds, lost;
    struct stepper_report report;
};

/* Runs it to its end; any violation ends the program with a message and the state of
 * all members. The answer stays until the next run. */
const struct steps *steps_run(const struct steps_options *o);

/* For its files. */

static inline struct node *steps_node(const struct steps *s, uint32_t rank)
{
    return (struct node *)s->member[rank].domain;
}

/* steps_check.c */

/* The domain says: a member has been frozen. */
void steps_frozen(void *arg, uint32_t rank, uint64_t round,
                  const struct round_header *header, const void *payload);
/* All have ended a round. */
void steps_over(void *arg, uint64_t round);
/* Element i of what is handed in is the value times a power of two. */
double steps_element(double value, uint32_t i);
/* Its deposit is handed in. */
void steps_deposited(struct steps *s, uint32_t rank, enum deposit_outcome outcome);
/* A rank was given a round. */
void steps_delivered(struct steps *s, uint32_t rank, const pcoll_round *r,
                     const uint64_t *masks, const double *recv);
void steps_joined(struct steps *s, uint32_t rank, const pcoll_round *r);
/* A rank begins to close a round. */
void steps_closing(uint32_t rank);
/* All are asleep until then. */
void steps_idle(int64_t until);
/* All is over. */
void steps_end(struct steps *s);
