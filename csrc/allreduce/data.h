/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data part of a round: the buffers that the operations of a schedule name, where
 * the messages lie in them, and the operations that need nobody else.
 *
 * Contribution and result are messages of the domain, header first. A temporary holds
 * either as much, each slice at its own place, or (plan.pieces) one slice behind its
 * header. So every slice lies where it can be sent from, with the header of the round
 * next to it: before it or after it, in space that belongs to a slice which this
 * endpoint has given away (the builders see to that), or in front of or behind the
 * whole.
 *
 * An endpoint's value is null while nobody in it has contributed: then there is only a
 * header, in memory and on the wire.
 *
 * The driver's, except that the domain owns contribution and result.
 */
#ifndef PCOLL_ALLREDUCE_DATA_H
#define PCOLL_ALLREDUCE_DATA_H

#include "algorithms/algorithms.h"
#include "domain/domain.h"
#include "transport/transport.h"

struct data_buffer {
    char *memory;                /* header first */
    struct round_header *header; /* of what it holds now */
};

struct round_data {
    const struct round_shape *shape;
    struct algorithm_plan plan;
    struct data_buffer buffers[BUFFERS];
    char *memory;
    uint64_t *native; /* headers under way in a vendor's allreduce */
};

struct message {
    void *at;
    size_t bytes;
};

/* PCOLL_ENOMEM names the bytes. The shape must outlive it. */
int data_init(struct round_data *d, const struct round_shape *shape,
              const struct algorithm_plan *plan);
void data_destroy(struct round_data *d);
/* Bytes that the temporaries take. */
size_t data_bytes(const struct round_shape *shape, const struct algorithm_plan *plan);

/* The round begins: its contribution (the header alone, if there is none), and where
 * its result is to be. */
void data_begin(struct round_data *d, struct round_header *contribution,
                struct round_header *result);

/* SEND: the message, its header in place. */
struct message data_outgoing(struct round_data *d, const struct op *op);
/* RECV: where it is to be received, with the most bytes it can have. */
struct message data_incoming(struct round_data *d, const struct op *op);
/* Bytes that an operation sends, receives, or goes through, where all contribute. */
size_t data_message_bytes(const struct round_data *d, const struct op *op);
/* RECV is over. PCOLL_EPROTOCOL if that cannot be a message of this round. */
int data_received(struct round_data *d, const struct op *op, size_t bytes,
                  uint64_t round);

/* PCOLL_EMPI if an op of MPI failed. */
int data_reduce(struct round_data *d, const struct op *op);
void data_copy(struct round_data *d, const struct op *op);

/* NATIVE: the call. */
struct native_call data_native(struct round_data *d, const struct op *op);
/* It is over. PCOLL_EPROTOCOL if no header can come of it. */
int data_native_over(struct round_data *d, const struct op *op);

#endif
