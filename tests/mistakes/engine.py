# SPDX-License-Identifier: Apache-2.0
"""Mistakes in schedules: engine, activation, data, and a rank's pending deposits."""

from .mutant import Mutant

MUTANTS = [
    # The engine: readiness, two instances, consumption.
    Mutant(
        "an early message of round t+1 is dropped",
        "schedule/sched.c",
        "if (round > e->current + 1)\n        return ENGINE_IMPOSSIBLE;",
        "if (round > e->current)\n        return ENGINE_DROPPED;",
    ),
    Mutant(
        "a late activation of round t-1 is obeyed",
        "schedule/sched.c",
        "if (round < e->current) {",
        "if (round + 1 < e->current) {",
    ),
    Mutant(
        "a gate opens one predecessor early",
        "schedule/sched.c",
        "++p->done_preds == s->ops[next].need &&",
        "++p->done_preds + (s->ops[next].need > 1) == s->ops[next].need &&",
    ),
    Mutant(
        "a gate opens one predecessor late",
        "schedule/sched.c",
        "++p->done_preds == s->ops[next].need &&",
        "++p->done_preds == s->ops[next].need + (s->ops[next].need == 1) &&",
    ),
    Mutant(
        "an operation fires for every predecessor beyond its gate",
        "schedule/sched.c",
        "++p->done_preds == s->ops[next].need && p->state == OP_WAITING)",
        "++p->done_preds >= s->ops[next].need)",
    ),
    Mutant(
        "a round completes before its sends are complete",
        "schedule/sched.c",
        "state == OP_DONE && !in->running &&",
        "state == OP_DONE &&",
    ),
    Mutant(
        "the next round starts without waiting for its release",
        "schedule/sched.c",
        "    e->current++;\n    e->released = false;",
        "    e->current++;",
    ),
    # The activation broadcast.
    Mutant(
        "an activation is forwarded on the last edge only",
        "algorithms/algorithms.c",
        "for (int j = 0; j < k; j++)",
        "for (int j = 0; j < k && k == a->edges - 1; j++)",
    ),
    Mutant(
        "the highest in-edge below an out-edge does not fire the out-edge",
        "algorithms/algorithms.c",
        "for (int j = 0; j < k; j++)",
        "for (int j = 0; j < k - 1; j++)",
    ),
    Mutant(
        "the activation has one edge too few if P is not a power of two",
        "algorithms/algorithms.c",
        "while (((uint64_t)1 << edges) < size)",
        "while (((uint64_t)2 << edges) <= size)",
    ),
    # The data part.
    Mutant(
        "recursive doubling visits the distances in reverse order",
        "algorithms/algorithms.c",
        "recdbl_exchange)(&c, steps);",
        "recdbl_exchange)(&c, halves ? steps : __builtin_ctz(power) - 1 - steps);",
    ),
    Mutant(
        "a receive overwrites a temporary that has not been reduced yet",
        "algorithms/algorithms.c",
        "    c->ready = c->free_after[which] = reduce;\n",
        "    c->ready = reduce;\n",
    ),
    Mutant(
        "a reduction does not wait for the send that reads its target",
        "algorithms/algorithms.c",
        "if (sent == BUFFER_RESULT)",
        "if (0)",
    ),
    Mutant(
        "the contribution of a folded rank is received but not reduced",
        "algorithms/algorithms.c",
        "chain_absorb(&c, rank + power, EDGE_FOLD, everything, HEADER_AFTER);",
        'sched_after(s, sched_recv(s, "receive", (int)(rank + power), EDGE_FOLD, '
        "BUFFER_TEMP), freeze);",
    ),
    Mutant(
        "a half is reduced while the other half is still being sent",
        "algorithms/algorithms.c",
        "    sched_after(w->s, reduce, w->last_send);",
        "    (void)reduce;",
    ),
    Mutant(
        "a gathering receive starts before the halving phase is complete",
        "algorithms/algorithms.c",
        "    sched_after(w->s, recv, halved);",
        "    sched_after(w->s, recv, w->free_after[1]);",
    ),
    Mutant(
        "a reduction uses the same operand twice",
        "algorithms/algorithms.c",
        "BUFFER_RESULT, lower ? c->value : temp,",
        "BUFFER_RESULT, !lower ? c->value : temp,",
    ),
    Mutant(
        "a rank sends on a half before all of it has been received",
        "algorithms/algorithms.c",
        "    w->ready = both;",
        "",
    ),
    Mutant(
        "the ring starts with a copy of the wrong piece",
        "algorithms/algorithms.c",
        "sched_op(r->s, ready)->slice = ring_piece(r, 1);",
        "sched_op(r->s, ready)->slice = ring_piece(r, 0);",
    ),
    Mutant(
        "a piece is received into a temporary that is still being sent",
        "algorithms/algorithms.c",
        "i == 0 ? freeze : sent[edge]);",
        "freeze);",
    ),
    Mutant(
        "the second turn of the ring sends a piece before it has been received",
        "algorithms/algorithms.c",
        "        ready = recv;",
        "",
    ),
    Mutant(
        "a null message is sent with data",
        "allreduce/data.c",
        "    if (null)\n        return (struct message){encoded, header};",
        "",
    ),
    Mutant(
        "the header is not copied next to its slice",
        "allreduce/data.c",
        "    if (place != encoded)\n        memcpy(place, encoded, header);",
        "",
    ),
    Mutant(
        "data after a short header is read at the offset for a long header",
        "allreduce/data.c",
        "b->displaced = most - header;",
        "b->displaced = 0;",
    ),
    Mutant(
        "a run of ranks in a merged header is one rank too long",
        "protocol/round.c",
        "both.run[used++].end = end;",
        "both.run[used++].end = end + 1;",
    ),
    Mutant(
        "a header with too many runs of ranks stays in the short form",
        "protocol/round.c",
        "            if (used == ROUND_RUNS)\n                return false;",
        "            if (used == ROUND_RUNS)\n                return true;",
    ),
    Mutant(
        "the payload is not padded for the headers of its slices",
        "kernels/payload.c",
        "    p->bytes = bytes > p->bytes ? bytes : p->bytes;",
        "    (void)p;\n    (void)bytes;",
    ),
    # Pending deposits of a rank.
    Mutant(
        "a stored deposit is counted twice (a carry races with an activation)",
        "protocol/member.h",
        "return plan.carried == NO_SLOT || plan.carried == c->pending;",
        "(void)c;\n    (void)plan;\n    return true;",
    ),
    Mutant(
        "a carry loses the stored deposit",
        "protocol/member.c",
        "int carried = c->late == PCOLL_LATE_CARRY ? c->pending : NO_SLOT;",
        "int carried = NO_SLOT;",
    ),
    Mutant(
        "a deposit overwrites the frozen slot",
        "protocol/member.c",
        "if (i != c->pending && i != c->frozen && i != c->user)",
        "if (i != c->pending && i != c->user)",
    ),
]
