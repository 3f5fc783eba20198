/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is going to happen in a simulation, earliest first; equal times in the order in
 * which they were put in. A binary heap.
 */
#ifndef PCOLL_TRANSPORT_SIM_QUEUE_H
#define PCOLL_TRANSPORT_SIM_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum happening_kind { SEND_OVER, ARRIVAL, DELIVERY, AGREEMENT_OVER, NATIVE_OVER, WAKE };

struct message;
struct endpoint;

struct happening {
    int64_t time;
    uint64_t order;
    enum happening_kind kind;
    uint32_t rank;
    uint64_t token; /* WAKE; AGREEMENT_OVER, NATIVE_OVER: cookie */
    struct message *message;
    struct endpoint *endpoint; /* AGREEMENT_OVER, NATIVE_OVER: whose */
};

struct queue {
    struct happening *heap;
    size_t count, capacity;
    uint64_t order;
};

void sim_heap_push(struct queue *q, struct happening h);
/* The queue must not be empty. */
struct happening sim_heap_pop(struct queue *q);

#endif
