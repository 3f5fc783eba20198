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
        "a round is over before its sends are",
        "schedule/sched.c",
        "state == OP_DONE && !in->running &&",
        "state == OP_DONE &&",
    ),
    Mutant(
        "the next round is not held",
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
        "the last in-edge below an out-edge does not fire it",
        "algorithms/algorithms.c",
        "for (int j = 0; j < k; j++)",
        "for (int j = 0; j < k - 1; j++)",
    ),
    Mutant(
        "one activation edge too few where P is no power of two",
        "algorithms/algorithms.c",
        "while (((uint64_t)1 << edges) < size)",
        "while (((uint64_t)2 << edges) <= size)",
    ),
    # The data part.
    Mutant(
        "the additions have another order",
        "algorithms/algorithms.c",
        "recdbl_exchange)(&c, steps);",
        "recdbl_exchange)(&c, halves ? steps : __builtin_ctz(power) - 1 - steps);",
    ),
    Mutant(
        "a temporary is received into before it was reduced",
        "algorithms/algorithms.c",
        "    c->ready = c->free_after[which] = reduce;\n",
        "    c->ready = reduce;\n",
    ),
    Mutant(
        "a reduction does not wait for the send from its target",
        "algorithms/algorithms.c",
        "if (sent == BUFFER_RESULT)",
        "if (0)",
    ),
    Mutant(
        "a folded rank is forgotten",
        "algorithms/algorithms.c",
        "chain_absorb(&c, rank + power, EDGE_FOLD, everything, HEADER_AFTER);",
        'sched_after(s, sched_recv(s, "receive", (int)(rank + power), EDGE_FOLD, '
        "BUFFER_TEMP), freeze);",
    ),
    Mutant(
        "a half is reduced while the other one is being sent",
        "algorithms/algorithms.c",
        "    sched_after(w->s, reduce, w->last_send);",
        "    (void)reduce;",
    ),
    Mutant(
        "what was given is gathered before the halving is over",
        "algorithms/algorithms.c",
        "    sched_after(w->s, recv, halved);",
        "    sched_after(w->s, recv, w->free_after[1]);",
    ),
    Mutant(
        "halves are added in another order",
        "algorithms/algorithms.c",
        "BUFFER_RESULT, lower ? c->value : temp,",
        "BUFFER_RESULT, !lower ? c->value : temp,",
    ),
    Mutant(
        "a half is given on before all of it is there",
        "algorithms/algorithms.c",
        "    w->ready = both;",
        "",
    ),
    Mutant(
        "the ring begins with another piece",
        "algorithms/algorithms.c",
        "sched_op(r->s, ready)->slice = ring_piece(r, 1);",
        "sched_op(r->s, ready)->slice = ring_piece(r, 0);",
    ),
    Mutant(
        "a piece is received into a temporary that is being sent",
        "algorithms/algorithms.c",
        "i == 0 ? freeze : sent[edge]);",
        "freeze);",
    ),
    Mutant(
        "a piece of the second turn is sent before it is there",
        "algorithms/algorithms.c",
        "        ready = recv;",
        "",
    ),
    Mutant(
        "a null message is sent with data behind it",
        "allreduce/data.c",
        "    if (null)\n        return (struct message){encoded, header};",
        "",
    ),
    Mutant(
        "the header is not put next to the slice",
        "allreduce/data.c",
        "    if (place != encoded)\n        memcpy(place, encoded, header);",
        "",
    ),
    Mutant(
        "data after a short header is read at the place of data after a long one",
        "allreduce/data.c",
        "b->displaced = most - header;",
        "b->displaced = 0;",
    ),
    Mutant(
        "a run of ranks on the wire is one rank too long",
        "protocol/round.c",
        "both.run[used++].end = end;",
        "both.run[used++].end = end + 1;",
    ),
    Mutant(
        "all headers are short",
        "protocol/round.c",
        "            if (used == ROUND_RUNS)\n                return false;",
        "            if (used == ROUND_RUNS)\n                return true;",
    ),
    Mutant(
        "slices have no room for their headers",
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
        "a stored deposit is lost in a carry",
        "protocol/member.c",
        "int carried = c->late == PCOLL_LATE_CARRY ? c->pending : NO_SLOT;",
        "int carried = NO_SLOT;",
    ),
    Mutant(
        "a deposit is written over the frozen one",
        "protocol/member.c",
        "if (i != c->pending && i != c->frozen && i != c->user)",
        "if (i != c->pending && i != c->user)",
    ),
]
