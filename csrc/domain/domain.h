/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The domain: ranks that share memory, as the rest of the core sees them. A round is: gather
 * in the domain, run the schedule between domains, publish in the domain.
 *
 *   member side     called by the threads of applications, each for its own member
 *   endpoint side   called by the thread that drives the fabric, one at a time
 *
 * node.h is the implementation. Neither side ever waits for the other.
 *
 * A message is a round header, in the form that it has on the wire, followed by the payload.
 * Contributions and results have that form, so they are sent from where they are.
 */
#pragma once

#include "kernels/payload.h"
#include "protocol/member.h"

/* The properties of a handle that a domain and its endpoint need. */
struct round_shape {
    uint32_t ranks; /* of the communicator */
    size_t header_bytes;
    struct payload payload;
    size_t message_bytes; /* header and payload */
    size_t slot_bytes;    /* of a message in memory, with room for a header after it */
    uint64_t *failed;     /* ranks that have died; NULL: none */
    uint64_t intent;      /* of this rank's next deposits (protocol/round.h) */
    bool described;       /* the form changes from call to call: see below */
};

/*
 * A described shape: its payload is one buffer, of another form in each call, for which there is
 * room up to the capacity. Each rank sets its own shape, between two rounds; no other thread reads
 * it then (allreduce/handle.c). A live rank without a deposit is freeing its handle; it takes part in
 * the round with an intent that differs from all others. So while a round is under way, the shape of
 * each rank with a deposit has the form of that deposit, and if the intents do not differ all forms
 * are the same. If they differ, no payload is read. No address depends on the form.
 */

/* Return the bytes of payload that there is room for. */
static inline size_t round_shape_capacity(const struct round_shape *shape)
{
    return shape->message_bytes - shape->header_bytes;
}

struct domain; /* node.h */

/* The functions that tests watch: they put their own table in front of that of node.c. The others
 * are in node.h. */
struct domain_ops {
    /* Member side, for the member of this process. */

    /* Begin a call and deposit the buffers (NULL: the contents of node_send_slot, in the form of
     * the application). PCOLL_ESTATE, or the error of an op of MPI. */
    int (*deposit)(struct domain *d, const void *const *buffers,
                   enum deposit_outcome *outcome);
    bool (*ready)(struct domain *d);
    /* Copy out the next result up to round `last`, as if at most `horizon` rounds were
     * complete (in a replay; otherwise UINT64_MAX). PCOLL_EEMPTY. Sets *moved if the endpoint
     * should check the open round, because a round was held back for this member. masks as
     * in pcoll_handle_deliver. */
    int (*deliver)(struct domain *d, uint64_t last, uint64_t horizon,
                   void *const *buffers, pcoll_round *round, uint64_t *masks,
                   bool *moved);
    /* Make one of the state changes of protocol/member.h. */
    int (*change)(struct domain *d, int (*step)(struct member *));

    /* Endpoint side. */

    bool (*admits)(struct domain *d);
    /* Activation: take the deposits. Returns a message (only the header if no member
     * contributes) that stays valid until publish. The masks of the members are filled in;
     * the caller sets the initiator. */
    struct round_header *(*freeze)(struct domain *d, uint64_t round);
    /* The result is complete. */
    void (*publish)(struct domain *d, uint64_t round);
    void (*destroy)(struct domain *d);

    /* Continue where an old domain has stopped: see below. `last` is the message of the round
     * before, NULL before the first one. */
    void (*begin_at)(struct domain *d, struct domain *old, uint64_t round,
                     const struct round_header *last);
    int (*inherit)(struct domain *d, struct domain *old, uint64_t round,
                   const struct round_header *last);
};

/*
 * Recovery. A new domain continues where an old one has stopped, because ranks have died, or
 * because others have taken their numbers. The old domain may have had other members; a joining
 * rank has none (NULL).
 *
 * There are two steps, with an agreement between them. First every member calls begin_at, so
 * that a rank that reads the new domain afterwards finds it at the right round, with the results
 * that can still be read. Then every member brings its own state and deposits with `inherit`;
 * from then on its application uses the new domain. No round starts before all have done so.
 */

/* Create a domain; the shape must outlive it. PCOLL_ENOMEM names the bytes. */
typedef int domain_create_fn(const struct round_shape *shape,
                             const pcoll_options *options, void *arg,
                             struct domain **out);

/* Return the payload of a message, which follows its header. */
static inline void *message_payload(const struct round_header *h)
{
    return (void *)(uintptr_t)(h + 1);
}

/* Return the header of a message in this memory. */
static inline struct round_header *message_in(const struct round_shape *shape,
                                              void *memory)
{
    return (struct round_header *)((char *)memory + shape->header_bytes) - 1;
}

/* Lay out header and payload; make_user as in payload_init. */
int round_shape_init(struct round_shape *shape, uint32_t ranks,
                     const pcoll_buffer *buffers, int nbuffers,
                     user_reduction_fn *make_user);
/* Set the intent of this rank's next calls: this number, and the form of a described shape. */
void round_shape_call(struct round_shape *shape, uint64_t number);
/* Give the next call of a described shape its form. PCOLL_EINVAL: there is no room for it, or it is
 * none. */
int round_shape_describe(struct round_shape *shape, const pcoll_buffer *form);
/* Copy the form, without padding; of a described shape the capacity. PCOLL_ENOMEM. */
int round_shape_share(struct round_shape *shape, const struct round_shape *old);
/* Copy what this rank's last call has set: for the successor, when the application is away. */
void round_shape_follow(struct round_shape *shape, const struct round_shape *old);
/* Return the bytes of a payload that a successor copies. */
size_t round_shape_data_bytes(const struct round_shape *shape);
/* These ranks have died (a set of ranks; NULL: none). PCOLL_ENOMEM. */
int round_shape_bury(struct round_shape *shape, const uint64_t *failed);
/* Pad the payload, so that each of its `slices` slices is as long as a header. */
void round_shape_pad(struct round_shape *shape, uint32_t slices);
void round_shape_destroy(struct round_shape *shape);

/*
 * A segment: memory that processes of one machine share, an anonymous memory file. The process
 * that makes it keeps it open until the others have opened it through /proc. It has no name, so
 * a job that crashes leaves nothing behind, no old file can be mistaken for it, and neither the
 * size of /dev/shm nor the number of MPI windows limits it. Its first word identifies its maker,
 * because the process id may have been reused.
 */
struct segment {
    void *memory; /* initially zeros, on a page boundary; NULL: none */
    size_t bytes;
    int fd; /* -1 after segment_sealed */
};

/* Make a segment, of which `needed` bytes will be reserved. PCOLL_ENOMEM says how much is needed and
 * how much is left. */
int segment_create(size_t bytes, size_t needed, uint64_t cookie, struct segment *s);
/* Open the segment that process pid has open as fd. PCOLL_ENOMEM. */
int segment_open(uint64_t pid, uint64_t fd, size_t bytes, uint64_t cookie,
                 struct segment *s);
/* Close the file: all processes have opened it. */
void segment_sealed(struct segment *s);
/* Allocate and map these bytes now, near the caller, so that later accesses cannot fail.
 * PCOLL_ENOMEM. */
int segment_reserve(struct segment *s, size_t offset, size_t bytes);
void segment_close(struct segment *s);
