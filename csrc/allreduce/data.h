/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data part of a round: the buffers that the operations of a schedule name, where
 * the messages lie in them, and the operations that need no other rank.
 *
 * Contribution and result are messages of the domain: header, payload, and room for
 * another header. A temporary holds the whole payload, each slice at its own place, or
 * (plan.pieces) one slice. It has room for a header after it, and before it where one is received
 * or written there. The header of what was received into a temporary stays where it was received.
 *
 * A slice is sent from where it lies, with the encoded header (protocol/round.h) next to
 * it: after it, or before it, in space that belongs to a slice which this endpoint has
 * given away (the builders ensure that), or in the room around the payload. A header
 * before the data has one of two lengths, and the receive is posted for the longer one:
 * after a short header the received data lies before its place, and it is read there.
 *
 * The value of an endpoint is null while none of its ranks has contributed. A null
 * message is the encoded header alone.
 *
 * Only the driver uses this module, and the domain owns contribution and result.
 */
#pragma once

#include "algorithms/algorithms.h"
#include "domain/domain.h"
#include "transport/transport.h"

struct data_buffer {
    struct round_header *header; /* Of what the buffer holds; NULL: nothing yet. */
    char *data;                  /* The payload, or the slice if the plan has pieces. */
    size_t displaced; /* Bytes by which the received data lies before its place. */
};

struct round_data {
    const struct round_shape *shape;
    struct algorithm_plan plan;
    struct data_buffer buffers[BUFFERS];
    char *memory;     /* Of the temporaries, unless the owner has provided it. */
    uint64_t *native; /* Headers in an allreduce of MPI. */
};

struct message {
    void *at;
    size_t bytes;
};

/* PCOLL_ENOMEM names the bytes. The shape must outlive it. */
int data_init(struct round_data *d, const struct round_shape *shape,
              const struct algorithm_plan *plan);
void data_destroy(struct round_data *d);
/* Place the temporaries: in this memory of data_bytes() bytes, at a cache line, which must outlive
 * it. NULL: allocate it. PCOLL_ENOMEM. */
int data_place(struct round_data *d, char *memory);
/* Return the bytes that the temporaries take. */
size_t data_bytes(const struct round_shape *shape, const struct algorithm_plan *plan);

/* Begin a round with this contribution (the header alone, if there is none). `result` is the
 * place for its result. */
void data_begin(struct round_data *d, struct round_header *contribution,
                struct round_header *result);

/* SEND: return the message, with its header in place. */
struct message data_outgoing(struct round_data *d, const struct op *op);
/* RECV: return the place for the message, with the most bytes that it can have. */
struct message data_incoming(struct round_data *d, const struct op *op);
/* Return the bytes that an operation sends, receives or processes if all ranks contribute. */
size_t data_message_bytes(const struct round_data *d, const struct op *op);
/* RECV is complete. PCOLL_EPROTOCOL: this cannot be a message of the round. */
int data_received(struct round_data *d, const struct op *op, size_t bytes,
                  uint64_t round);

/* PCOLL_EMPI if an op of MPI failed. */
int data_reduce(struct round_data *d, const struct op *op);
void data_copy(struct round_data *d, const struct op *op);

/* NATIVE: return the call. */
struct native_call data_native(struct round_data *d, const struct op *op);
/* NATIVE is complete. PCOLL_EPROTOCOL: the result cannot be a header. */
int data_native_over(struct round_data *d, const struct op *op);
