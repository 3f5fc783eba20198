/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The domain: ranks that share memory, seen from both sides. A round is: gather in the
 * domain, run the schedule between domains, publish in the domain.
 *
 *   member side   called by the threads of applications, each for its own member
 *   endpoint side   called by whoever drives the fabric, one at a time
 *
 * Implementations: single.c (every rank is a domain of its own), node.c (ranks that
 * share memory). Each brings its own synchronization between the two sides; neither
 * side ever waits for the other.
 *
 * A message is a round header followed by the payload: contributions and results have
 * that form, so they are sent from where they lie.
 */
#ifndef PCOLL_DOMAIN_H
#define PCOLL_DOMAIN_H

#include "kernels/payload.h"
#include "protocol/member.h"
#include "protocol/recovery.h"

/* What a domain and its endpoint both must know of a handle. */
struct round_shape {
    uint32_t ranks; /* of the communicator */
    size_t header_bytes;
    struct payload payload;
    size_t message_bytes; /* header and payload */
    size_t slot_bytes;    /* what a message takes in memory, room behind it and all */
    uint64_t *failed;     /* ranks that have died; NULL: none */
};

struct domain;

struct domain_ops {
    /* Member side, of this process's member. */

    /* Begin a call and deposit the buffers (NULL: what lies in send_slot, in the form
     * of the application). PCOLL_ESTATE; what an op of MPI fails with. */
    int (*deposit)(struct domain *d, const void *const *buffers,
                   enum deposit_outcome *outcome);
    void *(*send_slot)(struct domain *d);
    bool (*ready)(struct domain *d);
    /* Copy out the next result up to round `last`, as if no more than `horizon` rounds
     * were complete (a replay; else UINT64_MAX); PCOLL_EEMPTY. Sets *moved if the
     * endpoint should look again because a round was held back for this member. masks
     * as in pcoll_handle_deliver. */
    int (*deliver)(struct domain *d, uint64_t last, uint64_t horizon,
                   void *const *buffers, pcoll_round *round, uint64_t *masks,
                   bool *moved);
    /* A copy of the member's state, for its application; of what all may know of any
     * member, counted from 0 in this domain, for anybody. */
    void (*snapshot)(struct domain *d, struct member *copy);
    void (*poll)(struct domain *d, int who, struct member *copy);
    /* One of the state changes of protocol/member.h. */
    int (*change)(struct domain *d, int (*step)(struct member *));
    /* The handle is being freed: this process's member holds nobody up any more. */
    void (*retire)(struct domain *d);

    /* Shared memory only, else NULL. For this process's member: */

    /* Do what there is to do: take part in a reduction, start a round where there is no
     * fabric. Comes again at *alarm (INT64_MAX: no need to). */
    void (*help)(struct domain *d, bool driver, int64_t *alarm);
    /* From now on, until it says otherwise, it wants to be woken. */
    void (*sleeps)(struct domain *d, bool asleep);
    /* PCOLL_OK, or what a reduction has failed with. */
    int (*failure)(struct domain *d);
    /* Add the ranks on whose work the round waits. */
    void (*busy)(struct domain *d, uint64_t *set);
    /* No fabric: the ranks whose arrivals start the open round; NULL: those of any. */
    const uint64_t *(*awaited)(struct domain *d);
    /* With a fabric: ask the leader's driver to look; has somebody asked? */
    void (*alert)(struct domain *d);
    bool (*attention)(struct domain *d);

    /* Endpoint side. */

    /* Add the ranks that have arrived at the open round to one set, those with a
     * deposit that has not left to the other. */
    void (*arrivals)(struct domain *d, uint64_t *arrived, uint64_t *deposited);
    bool (*admits)(struct domain *d);
    /* Activation: take what has been deposited. Returns a message (the header alone, if
     * nobody contributes) that stays until publish. The header's masks of the members are
     * filled in; the initiator is left to the caller. */
    struct round_header *(*freeze)(struct domain *d, uint64_t round);
    /* Have bytes [begin, end) of that message's payload added up. False if other members
     * are still at it: call again after `alert`. All bytes must have been gathered before
     * the round is published. NULL: they are there. */
    bool (*gather)(struct domain *d, uint64_t round, size_t begin, size_t end);
    /* Where the result of a frozen round is to be built, as a message. */
    struct round_header *(*result)(struct domain *d, uint64_t round);
    /* The result is there. */
    void (*publish)(struct domain *d, uint64_t round);
    void (*destroy)(struct domain *d);

    /* Slot i of this process's member. */
    struct round_header *(*slot)(struct domain *d, int i);
    /* To go on where an old domain has stopped: see below. `last` is the message
     * of the round before, NULL before the first one. */
    void (*begin_at)(struct domain *d, struct domain *old, uint64_t round,
                     const struct round_header *last);
    int (*inherit)(struct domain *d, struct domain *old, uint64_t round,
                   const struct round_header *last);

    /* Whole pages with all slots and results, for who copies to and from them. */
    void (*memory)(struct domain *d, void **memory, size_t *bytes);
};

struct domain {
    const struct domain_ops *ops;
    const struct round_shape *shape;
    int members;
    const uint64_t *member_set; /* the ranks of this domain */
};

/* Makes a domain; the shape must outlive it. PCOLL_ENOMEM names the bytes. */
typedef int domain_create_fn(const struct round_shape *shape,
                             const pcoll_options *options, void *arg,
                             struct domain **out);

/* A rank on its own; arg points to its number (uint32_t). */
domain_create_fn domain_single_create;
size_t domain_single_bytes(const struct round_shape *shape,
                           const pcoll_options *options);

/* Payload of a message. */
static inline void *message_payload(const struct round_shape *shape,
                                    const struct round_header *h)
{
    return (char *)(uintptr_t)h + shape->header_bytes;
}

/* Lay out header and payload; make_user as in payload_init. */
int round_shape_init(struct round_shape *shape, uint32_t ranks,
                     const pcoll_buffer *buffers, int nbuffers,
                     user_reduction_fn *make_user);
/* The same form once more. PCOLL_ENOMEM. */
int round_shape_share(struct round_shape *shape, const struct round_shape *old);
/* These ranks have died (a set of ranks; NULL: nobody). PCOLL_ENOMEM. */
int round_shape_bury(struct round_shape *shape, const uint64_t *failed);
/* Each of so many slices is to be as long as a header, and there is to be room for one
 * behind the last. */
void round_shape_pad(struct round_shape *shape, uint32_t slices);
void round_shape_destroy(struct round_shape *shape);

/* Describe a delivered round from its header (index, active, stored, initiator, masks).
 */
void round_describe(const struct round_shape *shape, const struct round_header *h,
                    pcoll_round *round, uint64_t *masks);

/*
 * A new domain goes on where an old one has stopped, since ranks have died, or others have taken
 * their numbers. The old one may have had other members, and be of the other kind; who is new
 * has none (NULL).
 *
 * Two steps, with an agreement between them. First every member calls begin_at, so that
 * whoever looks at the new domain afterwards finds it at the right round, with the results
 * that can still be read. Then each brings its own state and deposits with `inherit`; from
 * then on its application uses the new domain. Nobody starts a round before all have.
 *
 * A slot for a result that none was written to has a blank header, which is not that of round 0
 * (protocol/round.h).
 */

/* Copy the results that this member may still read, and the last one that it has read if it is
 * there (a newcomer has none from before); up to round - 1, whose message is `last`; of the last
 * `kept` rounds. Where members share them, each writes the same. */
void domain_copy_results(struct domain *d, struct domain *old, uint64_t round,
                         const struct round_header *last, uint32_t kept);
/* The old domain's member as it goes on, its deposit moved to the new domain. *m comes
 * back whole unless a user's op failed. Without an old domain *m is new, and enters. */
int domain_recover_member(struct domain *d, struct domain *old, uint64_t round,
                          const struct round_header *last, struct member *m);

#endif
