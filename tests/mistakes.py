# SPDX-License-Identifier: Apache-2.0
"""The mistakes that mutants.py plants: one small change of a source under csrc/ each."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake: in a file, this text becomes that one. `program`: which has to catch it, if not
    the one that the file's folder says."""

    name: str
    file: str
    old: str
    new: str
    program: str | None = None


MUTANTS = [
    # The engine: readiness, two instances, consumption.
    Mutant(
        "an early message of round t+1 is dropped",
        "schedule/engine.c",
        "if (round > e->current + 1)\n        return ENGINE_IMPOSSIBLE;",
        "if (round > e->current)\n        return ENGINE_DROPPED;",
    ),
    Mutant(
        "a late activation of round t-1 is obeyed",
        "schedule/engine.c",
        "if (round < e->current) {",
        "if (round + 1 < e->current) {",
    ),
    Mutant(
        "a gate opens one predecessor early",
        "schedule/engine.c",
        "++p->done_preds == s->ops[next].need &&",
        "++p->done_preds + (s->ops[next].need > 1) == s->ops[next].need &&",
    ),
    Mutant(
        "a gate opens one predecessor late",
        "schedule/engine.c",
        "++p->done_preds == s->ops[next].need &&",
        "++p->done_preds == s->ops[next].need + (s->ops[next].need == 1) &&",
    ),
    Mutant(
        "an operation fires for every predecessor beyond its gate",
        "schedule/engine.c",
        "++p->done_preds == s->ops[next].need && p->state == OP_WAITING)",
        "++p->done_preds >= s->ops[next].need)",
    ),
    Mutant(
        "a round is over before its sends are",
        "schedule/engine.c",
        "state == OP_DONE && !in->running &&",
        "state == OP_DONE &&",
    ),
    Mutant(
        "the next round is not held",
        "schedule/engine.c",
        "    e->current++;\n    e->released = false;",
        "    e->current++;",
    ),
    # The activation broadcast.
    Mutant(
        "an activation is forwarded on the last edge only",
        "algorithms/activation.c",
        "for (int j = 0; j < k; j++)",
        "for (int j = 0; j < k && k == a->edges - 1; j++)",
    ),
    Mutant(
        "the last in-edge below an out-edge does not fire it",
        "algorithms/activation.c",
        "for (int j = 0; j < k; j++)",
        "for (int j = 0; j < k - 1; j++)",
    ),
    Mutant(
        "one activation edge too few where P is no power of two",
        "algorithms/activation.c",
        "while (((uint64_t)1 << edges) < size)",
        "while (((uint64_t)2 << edges) <= size)",
    ),
    # The data part.
    Mutant(
        "the additions have another order",
        "algorithms/allreduce_recdbl.c",
        "for (uint32_t hop = 1, k = 0; hop < power; hop *= 2, k++) {",
        "for (uint32_t hop = power / 2, k = 0; hop; hop /= 2, k++) {",
    ),
    Mutant(
        "a temporary is received into before it was reduced",
        "algorithms/allreduce_recdbl.c",
        "    c->free_after[which] = reduce;\n",
        "",
    ),
    Mutant(
        "a reduction does not wait for the send from its target",
        "algorithms/allreduce_recdbl.c",
        "if (c->last_send >= 0 && c->value == BUFFER_RESULT)",
        "if (0)",
    ),
    Mutant(
        "a folded rank is forgotten",
        "algorithms/allreduce_recdbl.c",
        "absorb(&c, rank + power, EDGE_FOLD);",
        'sched_after(s, sched_recv(s, "receive", (int)(rank + power), EDGE_FOLD, '
        "BUFFER_TEMP), freeze);",
    ),
    Mutant(
        "a half is reduced while the other one is being sent",
        "algorithms/allreduce_rabenseifner.c",
        "    sched_after(w->s, reduce, w->last_send);",
        "    (void)reduce;",
    ),
    Mutant(
        "what was given is gathered before the halving is over",
        "algorithms/allreduce_rabenseifner.c",
        "    sched_after(w->s, recv, halved);",
        "    sched_after(w->s, recv, w->free_after[1]);",
    ),
    Mutant(
        "halves are added in another order",
        "algorithms/allreduce_rabenseifner.c",
        "BUFFER_RESULT, lower ? w->value : temp,",
        "BUFFER_RESULT, !lower ? w->value : temp,",
    ),
    Mutant(
        "a half is given on before all of it is there",
        "algorithms/allreduce_rabenseifner.c",
        "    w->ready = both;",
        "",
    ),
    Mutant(
        "the ring begins with another piece",
        "algorithms/allreduce_ring.c",
        "sched_slice(r->s, ready, piece(r, 1));",
        "sched_slice(r->s, ready, piece(r, 0));",
    ),
    Mutant(
        "a piece is received into a temporary that is being sent",
        "algorithms/allreduce_ring.c",
        "i == 0 ? freeze : sent[edge]);",
        "freeze);",
    ),
    Mutant(
        "a piece of the second turn is sent before it is there",
        "algorithms/allreduce_ring.c",
        "        ready = recv;",
        "",
    ),
    Mutant(
        "a null message is sent with data behind it",
        "allreduce/data.c",
        "    if (null)\n        return (struct message){place, header};",
        "",
    ),
    Mutant(
        "the header is not put next to the slice",
        "allreduce/data.c",
        "    if (place != v.header)\n        memcpy(place, v.header, header);",
        "",
    ),
    Mutant(
        "slices have no room for their headers",
        "kernels/payload.c",
        "    p->bytes = bytes > p->bytes ? bytes : p->bytes;",
        "    (void)p;\n    (void)bytes;",
    ),
    # What a rank owes.
    Mutant(
        "a stored deposit is counted twice (a carry races with an activation)",
        "protocol/contribution.c",
        "return plan.carried == NO_SLOT || plan.carried == c->pending;",
        "(void)c;\n    (void)plan;\n    return true;",
    ),
    Mutant(
        "a stored deposit is lost in a carry",
        "protocol/contribution.c",
        "int carried = c->late == PCOLL_LATE_CARRY ? c->pending : NO_SLOT;",
        "int carried = NO_SLOT;",
    ),
    Mutant(
        "a deposit is written over the frozen one",
        "protocol/contribution.c",
        "if (i != c->pending && i != c->frozen && i != c->user)",
        "if (i != c->pending && i != c->user)",
    ),
    Mutant(
        "what a round took is still owed",
        "protocol/contribution.c",
        "    c->frozen = c->pending;\n    c->pending = NO_SLOT;\n",
        "    c->frozen = c->pending;\n",
    ),
    # A rank's view of the rounds.
    Mutant(
        "a late deposit arrives at a round that is over",
        "protocol/member.c",
        "*open = m->frozen <= m->call;",
        "*open = true;",
    ),
    Mutant(
        "back-pressure is off by one",
        "protocol/member.c",
        "round >= m->delivered + m->history;",
        "round > m->delivered + m->history;",
    ),
    Mutant(
        "nobody is told that a rank holds back no longer",
        "protocol/member.c",
        "bool held = m->holds_back;",
        "bool held = false;",
    ),
    Mutant(
        "a stored deposit is not called stored",
        "protocol/member.c",
        "if (!m->arrived)\n            bitset_add(",
        "if (0)\n            bitset_add(",
    ),
    Mutant(
        "an arrival outlives its round",
        "protocol/member.c",
        "    m->arrived = false;\n    m->frozen++;",
        "    m->frozen++;",
    ),
    Mutant(
        "a rank is not told that its deposit was included",
        "protocol/member.c",
        "m->taken_in = (int64_t)m->frozen;",
        "m->taken_in = (int64_t)m->frozen + 1;",
    ),
    Mutant(
        "the round after the last join does not wait for its readers",
        "protocol/member.c",
        "m->holds_back = behind || copying || unaware;",
        "m->holds_back = behind || copying;",
    ),
    Mutant(
        "a result is overwritten while it is read",
        "protocol/member.c",
        "m->holds_back = behind || copying || unaware;",
        "m->holds_back = behind || unaware;",
    ),
    Mutant(
        "a gap is not reported",
        "protocol/member.c",
        "*lost = next - m->delivered;",
        "*lost = 0;",
    ),
    Mutant(
        "one round too old is delivered",
        "protocol/member.c",
        "complete > m->history ? complete - m->history : 0;",
        "m->complete > m->history + 1 ? m->complete - m->history - 1 : 0;",
    ),
    Mutant(
        "a rank that leaves tells nobody",
        "protocol/member.c",
        "((announces_join(m) || m->left) && m->live)",
        "(announces_join(m) && m->live)",
    ),
    Mutant(
        "ranks that have joined never come back",
        "protocol/member.c",
        "m->live = !gone && (!announced || over);",
        "m->live = !gone && !announced;",
    ),
    # Policies and headers.
    Mutant(
        "an initiator is drawn from the wrong round",
        "protocol/round_trigger.c",
        ".round = draw->round,",
        ".round = draw->round + 1,",
    ),
    Mutant(
        "a rank that has gone can be drawn",
        "protocol/policy.c",
        "if (bitset_has(round->live, rank) && !bitset_has(round->drawn, rank)) {",
        "if (!bitset_has(round->drawn, rank)) {",
    ),
    Mutant(
        "full does not wait for rank 3",
        "protocol/policy.c",
        "__builtin_popcountll(members[i] & round->live[i]);",
        "__builtin_popcountll(members[i] & round->live[i] & ~(uint64_t)8);",
    ),
    Mutant(
        "a mask bit is lost",
        "protocol/round.c",
        "out->masks[i] = a->masks[i] | b->masks[i];",
        "out->masks[i] = a->masks[i] | (b->masks[i] & ~(uint64_t)4);",
    ),
    Mutant(
        "the lowest initiator is not agreed on",
        "protocol/round.c",
        "out->initiator = a->initiator < b->initiator ? a->initiator : b->initiator;",
        "out->initiator = a->initiator;",
    ),
    Mutant(
        "a quorum is one rank short",
        "protocol/policy.c",
        "report->arrived >= needed(policy, round);",
        "report->arrived + (round->live_count > 1) >= needed(policy, round);",
    ),
    Mutant(
        "a quorum is never adapted to the live ranks",
        "protocol/policy.c",
        "return smaller(count ? count : 1, round->live_count);",
        "return count ? count : 1;",
    ),
    Mutant(
        "last_of does not wait for the last",
        "protocol/policy.c",
        "return round->drawn_count && report->drawn == round->drawn_count;",
        "return round->drawn_count && report->drawn;",
    ),
    Mutant(
        "a stored deposit counts for the quorum",
        "protocol/policy.c",
        "uint64_t came = arrived[i] & round->live[i];",
        "uint64_t came = (arrived[i] | deposited[i]) & round->live[i];",
    ),
    Mutant(
        "overdue ranks are not waited for",
        "protocol/policy.c",
        "return rules[policy->kind].met(policy, round, report) &&\n"
        "           report->overdue == round->overdue_count;\n}\n\nbool policy_all",
        "return rules[policy->kind].met(policy, round, report);\n}\n\nbool policy_all",
    ),
    Mutant(
        "a rank is overdue one round late",
        "protocol/policy.c",
        "if (absences[rank] >= most &&",
        "if (absences[rank] > most &&",
    ),
    Mutant(
        "a round cut short does not say so",
        "allreduce/endpoint_trigger.c",
        "result->flags |= ROUND_BELOW_QUORUM;",
        "result->flags |= 0;",
    ),
    Mutant(
        "a round that was not cut short says so",
        "protocol/policy.c",
        "mask[ROUND_JOINED][i] | mask[ROUND_LEFT][i];",
        "mask[ROUND_LEFT][i];",
    ),
    Mutant(
        "a deadline passes early",
        "protocol/round_trigger.c",
        "after(state->first_arrival, policy->deadline)",
        "after(state->first_arrival, policy->deadline / 2)",
    ),
    Mutant(
        "nobody is woken for a deadline",
        "allreduce/endpoint_trigger.c",
        "        communicator_alarm(v->communicator, &v->base, t->alarm);\n",
        "        (void)0;\n",
    ),
    Mutant(
        "a report for the next round is dropped",
        "allreduce/endpoint_trigger.c",
        "if (message->round >= current) vote_count_add",
        "if (message->round == current)\n        vote_count_add",
    ),
    Mutant(
        "a late report counts for the round after the next",
        "allreduce/endpoint_trigger.c",
        "if (message->round >= current) vote_count_add",
        "vote_count_add",
    ),
    Mutant(
        "the coordinator adds reports up instead of keeping the largest",
        "protocol/vote_count.c",
        "uint32_t more = value > *mine ? value - *mine : 0;",
        "uint32_t more = value;",
    ),
    Mutant(
        "the votes of a finished round are not cleared",
        "protocol/vote_count.c",
        "    count->total = (struct policy_report){0};\n",
        "",
    ),
    Mutant(
        "an overdue rank does not report its stored deposit",
        "allreduce/endpoint.c",
        "(outcome == DEPOSIT_STORED && v->policy.max_staleness))",
        "false)",
    ),
    Mutant(
        "closing does not wait for reports",
        "allreduce/endpoint_trigger.c",
        "return s->reports_sent && s->reports_received",
        "return false && s->reports_received",
    ),
    # One handle on one rank.
    Mutant(
        "a null contribution is taken for data",
        "allreduce/data.c",
        "bool no_a = is_null(d, a.header), no_b = is_null(d, b.header);",
        "bool no_a = false, no_b = is_null(d, b.header);",
    ),
    Mutant(
        "leavers stay live",
        "protocol/round.c",
        "live[i] &= ~(left[i] | (back ? 0 : joined[i]));",
        "live[i] &= left[i] | ~(back ? 0 : joined[i]);",
    ),
    Mutant(
        "closing forgets the round in progress",
        "allreduce/endpoint_closing.c",
        "v->drives ? v->engine.current + v->frozen : 0;",
        "v->drives ? v->engine.current : 0;",
    ),
    Mutant(
        "closing does not wait for the last messages",
        "allreduce/endpoint_closing.c",
        "if (v->last_received < v->activation.edges ||",
        "if (",
    ),
    # The domain.
    Mutant(
        "one result slot too few",
        "domain/single.c",
        "s->ring = options->history + 1;",
        "s->ring = options->history;",
    ),
    # The domain in shared memory.
    Mutant(
        "a deposit is handed in without a swap",
        "domain/node_deposit.c",
        "            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word,\n"
        "                                                descriptor_of(&after)))) {\n"
        "            MOMENT",
        "            (STEP(atomic_store(node_own_descriptor(n), descriptor_of(&after))), true)) {\n"
        "            MOMENT",
    ),
    Mutant(
        "a join is handed in without a swap",
        "domain/node.c",
        "            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word, next))) {",
        "            (STEP(atomic_store(node_own_descriptor(n), next)), true)) {",
    ),
    Mutant(
        "a rank says that it has read a round before it ceases to join",
        "domain/node_deliver.c",
        "    if (m->joined)\n"
        "        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));\n"
        "    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));\n",
        "    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));\n"
        "    if (m->joined)\n"
        "        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));\n",
    ),
    Mutant(
        "who has read a round does not look whether it held the next one back",
        "domain/node_deliver.c",
        "control_round(control) >= before + m->history);",
        "control_round(control) > before + m->history);",
    ),
    Mutant(
        "a copy is taken for whole although its slot is being written",
        "domain/node_deliver.c",
        "uint64_t control = node_control(n), reuse = round + n->ring;",
        "uint64_t control = node_control(n), reuse = round + n->ring + 1;",
    ),
    Mutant(
        "a copy is looked at before it is known to be whole",
        "domain/node_deliver.c",
        "        joined = ends_join(n, h);",
        "        joined = joined || ends_join(n, h);",
    ),
    Mutant(
        "a rank is told the wrong round of its deposit",
        "domain/node_member.c",
        "m->taken_in = (int64_t)rounds - 1;",
        "m->taken_in = (int64_t)rounds;",
    ),
    Mutant(
        "the round of a deposit is read before it is written",
        "domain/node_member.c",
        "    uint64_t rounds = m->contribution.frozen != NO_SLOT\n",
        "    uint64_t rounds = false\n",
    ),
    Mutant(
        "an arrival has no time",
        "domain/node_deposit.c",
        "        if (*outcome == DEPOSIT_ARRIVED)\n            node_note_arrival_time(n);\n",
        "",
    ),
    Mutant(
        "a round is closed twice",
        "domain/node_close.c",
        "    if (!STEP(atomic_compare_exchange_strong(\n"
        "            &n->shared->control, &open, control_word(round, NODE_CLOSING, n->who))))\n"
        "        return false;\n",
        "    STEP(atomic_store(&n->shared->control,\n"
        "                      control_word(round, NODE_CLOSING, n->who)));\n",
    ),
    Mutant(
        "a later round is closed than was counted",
        "domain/node_close.c",
        "if (control_round(open) != round || control_phase(open) != NODE_OPEN)",
        "if (control_phase(open) != NODE_OPEN)",
    ),
    Mutant(
        "a rank is frozen without a swap",
        "domain/node_close.c",
        "    while (!STEP(atomic_compare_exchange_weak(&n->descriptors[j], &word,\n"
        "                                              descriptor_freeze(word))))\n"
        "        ;\n",
        "    STEP(atomic_store(&n->descriptors[j], descriptor_freeze(word)));\n",
    ),
    Mutant(
        "the list of an earlier round is reduced",
        "domain/node_close.c",
        "    atomic_store_explicit(&n->shared->parts, parts, memory_order_relaxed);\n"
        "    return parts;",
        "    return parts;",
    ),
    Mutant(
        "a chunk of a later round is taken",
        "domain/node_close.c",
        "if (word >> 32 != (uint32_t)round || *chunk >= n->chunks)",
        "if (*chunk >= n->chunks)",
    ),
    Mutant(
        "a chunk is given to two",
        "domain/node_close.c",
        "    } while (!STEP(atomic_compare_exchange_weak(&n->shared->taken, &word, word + 1)));",
        "        STEP(atomic_store(&n->shared->taken, word + 1));\n    } while (0);",
    ),
    Mutant(
        "chunks are finished before they are counted",
        "domain/node_close.c",
        "        STEP(atomic_store(&n->shared->done, 0));\n"
        "        STEP(atomic_store(&n->shared->taken, round << 32));\n"
        "        set_control(n, round, NODE_REDUCING);\n",
        "        STEP(atomic_store(&n->shared->taken, round << 32));\n"
        "        set_control(n, round, NODE_REDUCING);\n"
        "        STEP(atomic_store(&n->shared->done, 0));\n",
    ),
    Mutant(
        "the next round opens before it is known who is live",
        "domain/node_close.c",
        "    account(n, round, node_result(n, round));\n    node_complete(n, round);\n",
        "    node_complete(n, round);\n    account(n, round, node_result(n, round));\n",
    ),
    Mutant(
        "who has worked on a round counts as a worker for ever",
        "domain/node_close.c",
        "    STEP(atomic_fetch_sub(&n->shared->workers, 1));\n    if (ended)",
        "    if (ended)",
    ),
    Mutant(
        "the closer does not work where as many as there are cores seem to",
        "domain/node_close.c",
        "        reduce_closed(n, round);\n",
        "        node_reduce(n, round);\n",
    ),
    Mutant(
        "nobody is woken at the end of a round",
        "domain/node_close.c",
        '    MOMENT("published");\n    wake_sleepers(n, n->members);\n',
        "",
    ),
    Mutant(
        "sleepers are woken before the round is over",
        "domain/node_close.c",
        '    set_control(n, round + 1, NODE_OPEN);\n    MOMENT("published");\n'
        "    wake_sleepers(n, n->members);\n",
        "    wake_sleepers(n, n->members);\n    set_control(n, round + 1, NODE_OPEN);\n",
    ),
    Mutant(
        "a round starts with those who were live before",
        "domain/node_decide.c",
        "    if (v->opened == round + 1)\n        return true;",
        "    if (v->opened)\n        return true;",
    ),
    Mutant(
        "who has come out of join counts as arrived",
        "domain/node_decide.c",
        "descriptor_joining(word) && knows_end_of_join(n, j) &&\n"
        "           descriptor_joining(STEP(atomic_load(&n->descriptors[j])));",
        "descriptor_joining(word) && knows_end_of_join(n, j);",
    ),
    Mutant(
        "the round after a join does not wait for its readers",
        "domain/node_decide.c",
        "if (is_behind(n, j, round) || (joined && is_unaware(n, j)))",
        "if (is_behind(n, j, round))",
    ),
    Mutant(
        "the round after a join was admitted before",
        "domain/node_decide.c",
        "    if (known && !joined)",
        "    if (known)",
    ),
    Mutant(
        "one round too many is admitted",
        "domain/node_decide.c",
        "v->admitted = least + n->history;",
        "v->admitted = least + n->history + 1;",
    ),
    Mutant(
        "back-pressure of a node is off by one",
        "domain/node_decide.c",
        "round < n->history + STEP(atomic_load(&line->delivered)))",
        "round <= n->history + STEP(atomic_load(&line->delivered)))",
    ),
    Mutant(
        "a rank that is being freed holds the others back",
        "domain/node_decide.c",
        "return !away && !(STEP(atomic_load(&line->flags)) & NODE_RETIRED);",
        "return !away;",
    ),
    Mutant(
        "a rank that has left holds the others back",
        "domain/node_decide.c",
        "return !away && !(STEP(",
        "(void)away;\n    return !(STEP(",
    ),
    Mutant(
        "ranks that had gone are overdue when they are back",
        "protocol/round_trigger.c",
        "return active || !live ? 0 : before + 1;",
        "(void)live;\n    return active ? 0 : before + 1;",
    ),
    Mutant(
        "nobody is told when a linger is over",
        "protocol/round_trigger.c",
        ".alarm = over ? ROUND_NEVER : due};",
        ".alarm = ROUND_NEVER};",
    ),
    Mutant(
        "a linger begins with that of an earlier round",
        "domain/node_decide.c",
        "while ((word & ~mask) != tag) {",
        "while (!word) {",
    ),
    Mutant(
        "a deadline begins with an earlier arrival",
        "domain/node_decide.c",
        "if (!bitset_has(v->arrived, rank) || !bitset_has(v->live, rank) || at >= least)",
        "if (at >= least)",
    ),
    Mutant(
        "a frozen slot is free at once",
        "protocol/descriptor.h",
        "return DESCRIPTOR_NO_SLOT | (word & 7) << 3 | gone |",
        "return DESCRIPTOR_NO_SLOT | DESCRIPTOR_NO_SLOT << 3 | gone |",
    ),
    Mutant(
        "a join is announced once",
        "protocol/descriptor.h",
        "uint64_t gone = word & ((uint64_t)3 << 7);",
        "uint64_t gone = word & ((uint64_t)1 << 8);",
    ),
    Mutant(
        "an arrival outlives the round that took it",
        "protocol/descriptor.h",
        "uint64_t gone = word & ((uint64_t)3 << 7);",
        "uint64_t gone = word & ((uint64_t)7 << 6);",
    ),
    Mutant(
        "a stored deposit is not announced as stored",
        "protocol/descriptor.h",
        "if (active && !descriptor_arrived(word))",
        "if (false)",
    ),
    Mutant(
        "a sum lies before the fabric without a mark",
        "domain/node_close.c",
        "        node_alert(&n->base);",
        "        n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);",
    ),
    Mutant(
        "who asks the leader to look leaves no mark",
        "domain/node_close.c",
        "    STEP(atomic_store(&n->shared->attention, 1));\n",
        "",
    ),
    Mutant(
        "the leader is asked to look before there is a mark",
        "domain/node_close.c",
        "    STEP(atomic_store(&n->shared->attention, 1));\n"
        "    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);",
        "    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);\n"
        "    STEP(atomic_store(&n->shared->attention, 1));",
    ),
    Mutant(
        "a lone deposit is sent with an old header",
        "domain/node_fabric.c",
        "    memcpy(alone, n->gathered, d->shape->header_bytes);\n",
        "",
    ),
    # Found by a reviewer who tried to get past the checks.
    Mutant(
        "only 64 ranks can have joined",
        "protocol/round.c",
        "for (size_t i = 0; i < bitset_words(ranks); i++)\n        gone +=",
        "for (size_t i = 0; i < 1; i++)\n        gone +=",
    ),
    Mutant(
        "only 64 ranks can cease to be live",
        "protocol/round.c",
        "for (size_t i = 0; i < bitset_words(ranks); i++)\n        live[i] &=",
        "for (size_t i = 0; i < 1; i++)\n        live[i] &=",
    ),
    Mutant(
        "only 64 ranks count as arrived",
        "protocol/policy.c",
        "for (size_t i = 0; i < bitset_words(round->ranks); i++) {\n        uint64_t came",
        "for (size_t i = 0; i < 1; i++) {\n        uint64_t came",
    ),
    Mutant(
        "a receive waits for the send to the same rank",
        "algorithms/allreduce_recdbl.c",
        "    sched_after(c->s, recv, c->free_after[which]);\n",
        "    sched_after(c->s, recv, c->free_after[which]);\n"
        "    if (c->last_send >= 0)\n        sched_after(c->s, recv, c->last_send);\n",
    ),
    Mutant(
        "the highest initiator is reported",
        "protocol/round.c",
        "a->initiator < b->initiator ? a->initiator : b->initiator;",
        "a->initiator + 1 > b->initiator + 1 ? a->initiator : b->initiator;",
    ),
    Mutant(
        "closings do not queue up",
        "runtime/closing.c",
        "    return busy ? PCOLL_OK : vote(c);",
        "    return busy ? p->ops->begin_close(p) : vote(c);",
    ),
    Mutant(
        "the next closing is never begun",
        "runtime/closing.c",
        "    return c->closing.first ? vote(c) : PCOLL_OK;",
        "    return PCOLL_OK;",
    ),
    Mutant(
        "a rank that frees its handle still holds the others back",
        "protocol/member.c",
        "if (m->retired)\n        return true;",
        "if (0)\n        return true;",
    ),
    Mutant(
        "back-pressure with deliver=all",
        "protocol/member.c",
        "bool behind = m->deliver == PCOLL_DELIVER_ONE && !m->left &&",
        "bool behind = !m->left &&",
    ),
    Mutant(
        "whoever copies a result holds the next round back",
        "protocol/member.c",
        "bool copying = m->reading != NO_ROUND && round >= slots &&\n"
        "                   (uint64_t)m->reading == round - slots;",
        "bool copying = m->reading != NO_ROUND;\n    (void)slots;",
    ),
    Mutant(
        "a complete round is not ready while the next one runs",
        "protocol/member.c",
        "return m->complete >= m->wanted;",
        "return m->complete >= m->wanted && m->frozen == m->complete;",
    ),
    Mutant(
        "more rounds are lost than are older than the history",
        "protocol/member.c",
        "uint64_t next = m->delivered > oldest ? m->delivered : oldest;",
        "uint64_t next = m->delivered >= oldest ? m->delivered : m->complete - 1;",
    ),
    Mutant(
        "an empty round leaves the buffers as they were",
        "domain/single.c",
        "payload_identity(&d->shape->payload, buffers);",
        "(void)0;",
    ),
    Mutant(
        "full rounds run free when all have left",
        "protocol/policy.c",
        "return round->live_count && report->arrived == count;",
        "return report->arrived == count;",
    ),
    # Two planes: domains in shared memory, their leaders on the fabric.
    Mutant(
        "a member's deposit does not make its leader look",
        "allreduce/endpoint.c",
        "else if (d->ops->alert)",
        "else if (d->ops->alert && v->drives)",
    ),
    Mutant(
        "the leader forgets that its round waits for the node's sum",
        "allreduce/endpoint.c",
        "    v->gathering = *finished ? NO_OPERATION : id;",
        "    v->gathering = NO_OPERATION;\n    (void)id;",
    ),
    Mutant(
        "members of a node do not close",
        "allreduce/endpoint.c",
        "return closing == DRAINING ? endpoint_drain(v) : PCOLL_OK;",
        "return PCOLL_OK;",
    ),
    Mutant(
        "a member's timer is forgotten",
        "allreduce/endpoint.c",
        "    if (alarm != INT64_MAX)\n"
        "        communicator_alarm(v->communicator, &v->base, alarm);",
        "    (void)alarm;",
    ),
    Mutant(
        "reports are counted for the rank, not for its node",
        "allreduce/endpoint.c",
        "v->placement.domain[source], message",
        "source % v->placement.domains, message",
    ),
    Mutant(
        "reports go to the rank with the coordinator's number",
        "allreduce/endpoint_trigger.c",
        "t->ops->control(t, v->placement.leader[coordinator], &message);",
        "t->ops->control(t, coordinator, &message);",
    ),
    Mutant(
        "the last messages go to ranks with the endpoints' numbers",
        "allreduce/endpoint_closing.c",
        "control_send(v, p->leader[peer], CONTROL_LAST, k);",
        "control_send(v, peer, CONTROL_LAST, k);",
    ),
    Mutant(
        "only the leader of a node is one of its members",
        "domain/node.c",
        "bitset_add(n->set, placement->member[i]);",
        "bitset_add(n->set, placement->member[0]);",
    ),
    Mutant(
        "the ranks of a node are added up from the last one on",
        "domain/node_close.c",
        "const struct node_frozen *part = &n->list[k];",
        "const struct node_frozen *part = &n->list[n->shared->parts - 1 - k];",
    ),
    Mutant(
        "a member that has caught up does not say so",
        "domain/node_deliver.c",
        "return control_phase(control) == NODE_OPEN &&\n",
        "return false && control_phase(control) == NODE_OPEN &&\n",
    ),
    Mutant(
        "a node's back-pressure is off by one",
        "domain/node_decide.c",
        "round < n->history + STEP",
        "round <= n->history + STEP",
    ),
    Mutant(
        "a rank that has come out of join is taken for one that joins again",
        "domain/node_decide.c",
        "&&\n           descriptor_joining(STEP(atomic_load(&n->descriptors[j])));",
        ";",
    ),
    Mutant(
        "a member that frees its handle still holds the others back",
        "domain/node_decide.c",
        "return !away && !(STEP(atomic_load(&line->flags)) & NODE_RETIRED);",
        "return !away;",
    ),
    Mutant(
        "a result of a node is not looked at again after it was copied",
        "domain/node_deliver.c",
        "whole = m->deliver == PCOLL_DELIVER_ONE || !overwritten(n, index);",
        "whole = true || overwritten(n, index);",
    ),
    Mutant(
        "what an overwritten header says of a join is kept",
        "domain/node_deliver.c",
        "joined = ends_join(n, h);",
        "joined = joined || ends_join(n, h);",
    ),
    # Groups of ranks that die.
    Mutant(
        "a round with a dead member goes into the next one",
        "group/restart.c",
        "bool again = now->decision == DECISION_ABORT && !lost_a_member(g, words);",
        "bool again = now->decision == DECISION_ABORT;",
        "group crashes",
    ),
    Mutant(
        "rounds of groups that live are void with the others",
        "group/restart.c",
        "bool again = now->decision == DECISION_ABORT && !lost_a_member(g, words);",
        "bool again = false;",
        "group crashes",
    ),
    Mutant(
        "a contribution to a round that never was is lost",
        "group/restart.c",
        "        g->shared.consumed--;\n",
        "",
        "group crashes",
    ),
    Mutant(
        "the dead are away, and may come back",
        "group/restart.c",
        "words[r] ? status : MEMBER_DEAD",
        "words[r] ? status : MEMBER_AWAY",
        "group crashes",
    ),
    Mutant(
        "messages to the dead are counted",
        "group/wire.c",
        "    if (g->membership.entries[to].status == MEMBER_DEAD)\n        return PCOLL_OK;\n",
        "",
        "group crashes",
    ),
    Mutant(
        "messages that were lost with an epoch are waited for",
        "group/restart.c",
        "    g->wire.sent = g->wire.received = 0;\n",
        "",
        "group crashes",
    ),
    # Gossip buffers of ranks that die.
    Mutant(
        "half a delta of a dead rank counts as under way for ever",
        "gossip/accumulator.c",
        "return *halves ? count_up(m, own, WORD_LANDED, by) : rc;",
        "return rc;",
        "gossip crashes",
    ),
    Mutant(
        "a slot that a dead rank was writing to stays taken",
        "gossip/queue.c",
        "if (rc == PCOLL_OK && state_of(state) == WRITING)",
        "if (rc == PCOLL_OK && state_of(state) == STATES)",
        "gossip crashes",
    ),
    Mutant(
        "what lay uncollected at a dead rank is lost",
        "gossip/settle.c",
        "return rc == PCOLL_OK ? accumulator_give(m, m->window->rank, first) : rc;",
        "return rc;",
        "gossip crashes",
    ),
    Mutant(
        "what lay uncollected at a dead rank is taken over twice",
        "gossip/settle.c",
        "    if (rc == PCOLL_OK)\n        rc = accumulator_give(m, dead, first);\n",
        "",
        "gossip crashes",
    ),
    Mutant(
        "deltas of a dead rank are not counted where they are",
        "gossip/accumulator.c",
        "    rc = count_up(m, own, WORD_RESERVED, by);\n    if (rc == PCOLL_OK)\n"
        "        rc = count_up(m, own, WORD_LANDED, by);",
        "    rc = count_up(m, own, WORD_LANDED, by);",
        "gossip crashes",
    ),
    # The gossip buffers: register, accumulator, queue.
    Mutant(
        "a register has two slots",
        "gossip/layout.h",
        "REGISTER_SLOTS = 3",
        "REGISTER_SLOTS = 2",
    ),
    Mutant(
        "a chunk is taken that may have been overwritten",
        "gossip/register.c",
        "*whole = *version - before <= 1;",
        "*whole = *version - before <= 3;",
    ),
    Mutant(
        "a register is not looked at again after it was read",
        "gossip/register.c",
        "rc = register_version(m, peer, now);",
        "rc = PCOLL_OK;",
    ),
    Mutant(
        "a version is announced before it is written",
        "gossip/register.c",
        "    write_slot(m, slot, x, &header);\n",
        "    w->ops->fetch_add(w, w->rank, word_at(WORD_VERSION), 1, &last);\n"
        "    write_slot(m, slot, x, &header);\n"
        "    w->ops->fetch_add(w, w->rank, word_at(WORD_VERSION), -1, &last);\n",
    ),
    Mutant(
        "one delta more than the cap",
        "gossip/accumulator.c",
        "*reserved = *uncollected < cap;",
        "*reserved = *uncollected <= cap;",
    ),
    Mutant(
        "a reservation that was refused stays",
        "gossip/accumulator.c",
        "return *reserved ? PCOLL_OK : count_up(m, peer, WORD_RESERVED, -1);",
        "return PCOLL_OK;",
    ),
    Mutant(
        "a delta lands before it has arrived",
        "gossip/accumulator.c",
        "    int rc = m->window->ops->flush(m->window, peer);\n",
        "    int rc = PCOLL_OK;\n",
    ),
    Mutant(
        "what has landed meanwhile counts as collected",
        "gossip/exchange.c",
        "    if (rc == PCOLL_OK && *deltas)\n        rc = accumulator_collected",
        "    if (rc == PCOLL_OK && *deltas && (*deltas)++)\n        rc = accumulator_collected",
    ),
    Mutant(
        "a chunk is given that was not taken from the model",
        "gossip/exchange.c",
        "    if (rc != PCOLL_OK || !whole)\n        return rc;",
        "    if (rc != PCOLL_OK)\n        return rc;\n"
        "    if (!whole)\n        return accumulator_add_chunk(m, peer, first);",
    ),
    Mutant(
        "what was collected is not taken off the sum",
        "gossip/accumulator.c",
        "    return add(m, m->window->rank, first);",
        "    (void)first;\n    return PCOLL_OK;",
    ),
    Mutant(
        "who claims a slot does not look whether it was first",
        "gossip/queue.c",
        "if (rc != PCOLL_OK || found == *state)",
        "if (rc != PCOLL_OK || found)",
    ),
    Mutant(
        "a message is announced before it has arrived",
        "gossip/queue.c",
        "return rc == PCOLL_OK ? w->ops->flush(w, peer) : rc;",
        "return rc;",
    ),
    Mutant(
        "a slot of a queue has no generations",
        "gossip/queue.c",
        "oldest.state - FULL + STATES",
        "oldest.state - FULL",
    ),
    Mutant(
        "a message is not looked at again after it was read",
        "gossip/queue.c",
        "if (state == newest.state) {",
        "if (state >= 0) {",
    ),
    Mutant(
        "a message is given free before it is read",
        "gossip/queue.c",
        "        rc = read_message(m, own, &oldest, key, out, &whole);\n",
        "        swap(m, own, oldest.slot, oldest.state, oldest.state - FULL + STATES, &before);\n"
        "        rc = read_message(m, own, &oldest, key, out, &whole);\n",
    ),
    # Matchmaking: who may follow whom, one list, what is open.
    Mutant(
        "a list is taken from anybody while following",
        "protocol/group/matchmaking_list.c",
        "return m->state == MATCH_FOLLOWING && message->peer == m->leader &&",
        "return m->state == MATCH_FOLLOWING &&",
    ),
    Mutant(
        "a list is taken by one that follows nobody any more",
        "protocol/group/matchmaking_list.c",
        "(uint16_t)(message->value[3] >> 16) == (uint16_t)m->peers[m->leader].attempt",
        "(uint16_t)(message->value[3] >> 16) >= (uint16_t)m->peers[m->leader].attempt",
    ),
    Mutant(
        "a list of which a part has come is not refused",
        "protocol/group/matchmaking_state.c",
        "if (m->state == MATCH_FOLLOWING && m->listed)",
        "if (0)",
    ),
    Mutant(
        "a list for one that has gone elsewhere is ignored",
        "protocol/group/matchmaking_list.c",
        "        if (!match_part_first(message))\n            match_refuse(",
        "        if (match_part_first(message))\n            match_refuse(",
    ),
    Mutant(
        "who accepts does not compare priorities",
        "protocol/group/matchmaking_lead.c",
        "else if (match_below(m, p->ask.time, peer))",
        "else if (0)",
    ),
    Mutant(
        "who accepts does not compare keys",
        "protocol/group/matchmaking_lead.c",
        "else if (p->ask.key != m->goal.key)",
        "else if (0)",
    ),
    Mutant(
        "there is always room",
        "protocol/group/matchmaking_lead.c",
        "return m->follower_count + 1 < m->goal.max_members;",
        "return m->follower_count + 1 < m->size;",
    ),
    Mutant(
        "an ask that has waited counts at once",
        "protocol/group/matchmaking_lead.c",
        "bool stale = now - p->ask.since > m->answer_timeout / 2;",
        "bool stale = now < p->ask.since;",
    ),
    Mutant(
        "asks on file are not answered when the round begins",
        "protocol/group/matchmaking.c",
        "    match_answer_filed(m, now);\n",
        "    if (!m->size)\n        match_answer_filed(m, now);\n",
    ),
    Mutant(
        "asks on file are not answered when the leader has failed",
        "protocol/group/matchmaking_seek.c",
        "    m->leader = MATCH_NOBODY;\n    m->offer = true;\n",
        "    m->leader = MATCH_NOBODY;\n",
    ),
    Mutant(
        "a group is closed while somebody is asked",
        "protocol/group/matchmaking.c",
        "    if (m->asking != MATCH_NOBODY)\n        return;\n    if (m->offer)",
        "    if (m->asking != MATCH_NOBODY && !m->follower_count)\n        return;\n"
        "    if (m->offer)",
    ),
    Mutant(
        "a group is closed before all have confirmed",
        "protocol/group/matchmaking.c",
        "    if (m->unconfirmed)\n        return;\n",
        "",
    ),
    Mutant(
        "who is accepted by a lower one does not tell its followers",
        "protocol/group/matchmaking.c",
        "if (match_on_accept(m, now, message))",
        "if (match_on_accept(m, now, message) && !m->follower_count)",
    ),
    Mutant(
        "a late answer is taken by one that is bound to another",
        "protocol/group/matchmaking_seek.c",
        "bool free = m->asking == MATCH_NOBODY || m->asking == peer;",
        "bool free = true;",
    ),
    Mutant(
        "candidates are asked in descending order",
        "protocol/group/matchmaking_seek.c",
        "match_before(p->time, peer, m->peers[best].time, best)))",
        "!match_before(p->time, peer, m->peers[best].time, best)))",
    ),
    Mutant(
        "after a failure it does not look for longer",
        "protocol/group/matchmaking_seek.c",
        "    if (m->window_end < until)\n        m->window_end = until;\n",
        "    (void)until;\n",
    ),
    Mutant(
        "who sees somebody ahead is behind, though others come",
        "protocol/group/matchmaking_seek.c",
        "           (m->told || m->window_over || nobody_left(m));",
        "           (m->told || !nobody_left(m) || m->window_over);",
    ),
    Mutant(
        "a follower waits for its leader for ever",
        "protocol/group/matchmaking_seek.c",
        "    if (m->state == MATCH_FOLLOWING && now >= m->follow_by)\n",
        "    if (0)\n",
    ),
    Mutant(
        "the last member is sent no list",
        "protocol/group/matchmaking_message.c",
        "    if (o->to >= list->count)\n        return false;",
        "    if (o->to + 1 >= list->count)\n        return false;",
    ),
    Mutant(
        "two groups have one name",
        "protocol/group/matchmaking_lead.c",
        ".seq = ++m->seq,",
        ".seq = m->seq,",
    ),
    Mutant(
        "the followers are not sorted",
        "protocol/group/matchmaking_lead.c",
        "for (; at && m->followers[at - 1] > peer; at--)",
        "for (; at && m->followers[at - 1] > peer + 1; at--)",
    ),
    Mutant(
        "a member is told with another one's bandwidth",
        "protocol/group/matchmaking_message.c",
        "value[i] = member->rank | bandwidth << 32;",
        "value[i] = member->rank | (bandwidth ^ i) << 32;",
    ),
    Mutant(
        "members that are not alike are told as if they were",
        "protocol/group/matchmaking_message.c",
        "if (m->rank > UINT16_MAX || m->chain != first->chain ||",
        "if (m->rank > UINT16_MAX ||",
    ),
    Mutant(
        "large ranks are told in 16 bits",
        "protocol/group/matchmaking_message.c",
        "if (m->rank > UINT16_MAX || m->chain",
        "if (m->chain",
    ),
    Mutant(
        "a round counts before the last one is done",
        "protocol/group/decision.c",
        "return done_of(word) >= members ? DECISION_COMMIT",
        "return done_of(word) + 1 >= members ? DECISION_COMMIT",
    ),
    Mutant(
        "a round that counts is made void",
        "protocol/group/decision.c",
        "else if (read_word(word, seq, members) == DECISION_PENDING && vote == VOTE_ABORT)",
        "else if (vote == VOTE_ABORT)",
    ),
    Mutant(
        "who is done is counted twice",
        "protocol/group/decision.c",
        "        word++;\n",
        "        word += 2;\n",
    ),
    Mutant(
        "a member votes before it has fetched everything",
        "group/running.c",
        "if (g->now.marked || !round_over(&g->now.data))",
        "if (g->now.marked || g->now.contribution == CONTRIBUTION_OPEN)",
    ),
    Mutant(
        "who has voted goes without the decision",
        "group/decide.c",
        "return rc == PCOLL_OK && !g->now.marked ? learn",
        "return rc == PCOLL_OK ? learn",
    ),
    Mutant(
        "a null contribution is added",
        "group/running.c",
        "round_input(&now->data, member, n->bits & NOTICE_INPUT);",
        "round_input(&now->data, member, true);",
    ),
    Mutant(
        "the average is over all members",
        "group/round.c",
        "divide_float64((double *)(void *)sum, r->active, n);",
        "divide_float64((double *)(void *)sum, r->group.members, n);",
    ),
    Mutant(
        "notices of groups not known yet are forgotten",
        "group/running.c",
        "    n->bits |= bits;\n",
        "    if (g->phase == PHASE_ROUND)\n        n->bits |= bits;\n",
    ),
    Mutant(
        "nobody is passed over",
        "group/waiting.c",
        "rc = send_to_members(g, WIRE_PASS, true);",
        "rc = PCOLL_OK;",
    ),
    Mutant(
        "nobody is nudged",
        "group/matching.c",
        "rc = group_send(g, rank, WIRE_NUDGE, 0, g->round, (uint64_t[4]){waits});",
        "rc = PCOLL_OK;",
    ),
    Mutant(
        "members send no heartbeats",
        "group/waiting.c",
        "return send_to_members(g, WIRE_HEARTBEAT, false);",
        "return PCOLL_OK;",
    ),
    Mutant(
        "a silent member is waited for for ever",
        "group/waiting.c",
        "    return group_abort(g);\n",
        "return rc;",
    ),
    Mutant(
        "complete rounds are counted across missed ones",
        "group/matching.c",
        "        g->chain = 0;\n",
        "        (void)g->chain;\n",
    ),
    Mutant(
        "a rank that is suspected does not come back",
        "group/on_message.c",
        "g->rejoin.suspected |= returns == g->membership.entries[rank].returns;",
        "g->rejoin.suspected |= returns > g->membership.entries[rank].returns;",
    ),
    Mutant(
        "a far fetch is over when it is begun",
        "group/round.c",
        "r->under_way += rc == PCOLL_OK && is_far(r, member);",
        "r->under_way += 0;",
    ),
    Mutant(
        "a piece is fetched where one is not reduced yet",
        "group/round.c",
        "size_t slot = is_far(r, member) ? 1 + 2 * (size_t)member + piece % 2 : 0;",
        "size_t slot = is_far(r, member) ? 1 + piece % 2 : 0;",
    ),
    Mutant(
        "ranks close while messages are under way",
        "group/closing.c",
        "return d->counts[0] == d->counts[1] && d->before[0] == d->counts[0] &&",
        "return d->counts[0] || d->before[0] ||",
    ),
    Mutant(
        "who stood still blames those it has not listened to",
        "group/clock.c",
        "if (time - margin > c->due && lost > 0) {",
        "if (time - margin > c->due && lost > INT64_MAX / 2) {",
    ),
    Mutant(
        "one that is back is waited for in rounds that it has left",
        "group/matching.c",
        "(membership_takes_part(&g->membership, r, g->round) &&",
        "(membership_is_live(&g->membership, r) &&",
    ),
    Mutant(
        "who leaves forgets what it has started",
        "group/group.h",
        "(atomic_load(&g->shared.wants_away) && !group_was_started(g))",
        "atomic_load(&g->shared.wants_away)",
    ),
    Mutant(
        "a part is announced before its last piece",
        "algorithms/butterfly.c",
        "sched_after(b->s, all, averaged[odd]);",
        "if (!piece)\n            sched_after(b->s, all, averaged[odd]);",
    ),
    # The simulator runs what stands in csrc/gossip and csrc/group: mistakes there are its own.
    Mutant(
        "simulated: an average goes to where its peer was before others gave to it",
        "gossip/exchange.c",
        "own, uncollected > 0, &version",
        "own, false, &version",
        program="simulator",
    ),
    Mutant(
        "simulated: a delta lands before it has arrived",
        "gossip/accumulator.c",
        "    int rc = m->window->ops->flush(m->window, peer);\n",
        "    int rc = PCOLL_OK;\n",
        program="simulator",
    ),
    Mutant(
        "simulated: what was collected is not taken off the sum",
        "gossip/accumulator.c",
        "    return add(m, m->window->rank, first);",
        "    (void)first;\n    return PCOLL_OK;",
        program="simulator",
    ),
    Mutant(
        "simulated: a message is announced before it has arrived",
        "gossip/queue.c",
        "return rc == PCOLL_OK ? w->ops->flush(w, peer) : rc;",
        "return rc;",
        program="simulator",
    ),
    Mutant(
        "simulated: the last member's input is left out of the sum",
        "group/round.c",
        "    if (!first)\n        r->add(",
        "    if (!first && member + 1 < r->group.members)\n        r->add(",
        program="simulator",
    ),
    Mutant(
        "simulated: two rounds along each axis",
        "protocol/group/grid.c",
        "return (uint32_t)(round % g->axes);",
        "return (uint32_t)(round / 2 % g->axes);",
        program="simulator",
    ),
    Mutant(
        "simulated: a void round is told as one that counts",
        "group/outcome.c",
        "        .is_void = !counts,",
        "        .is_void = false,",
        program="simulator",
    ),
    # Copies between host and device.
    Mutant(
        "one stream does not wait for the producer's",
        "device/lane.c",
        "result = d->stream_wait(l->stream[i], l->given, 0);",
        "result = i ? CUDA_SUCCESS : d->stream_wait(l->stream[i], l->given, 0);",
    ),
    Mutant(
        "copies are over with those of the first stream",
        "device/lane.c",
        "i < STREAMS && result == CUDA_SUCCESS; i++)\n        result = l->cuda->event_query",
        "i < 1 && result == CUDA_SUCCESS; i++)\n        result = l->cuda->event_query",
    ),
    Mutant(
        "the consumer's stream waits for one stream's copies only",
        "device/lane.c",
        "i < STREAMS && rc == PCOLL_OK && result",
        "i < 1 && rc == PCOLL_OK && result",
    ),
    Mutant(
        "what a failed copy says is forgotten",
        "device/lane.c",
        "l->failure = l->failure == PCOLL_OK ? failed : l->failure;",
        "",
    ),
    Mutant(
        "the context of another device is taken",
        "device/lane.c",
        "d->primary_retain(&l->context, device)",
        "d->primary_retain(&l->context, !device)",
    ),
    Mutant(
        "the caller's context is not given back",
        "device/lane.c",
        "cuda_result result = l->cuda->context_pop(&own);",
        "cuda_result result = CUDA_SUCCESS;",
    ),
    Mutant(
        "copies begin while others are under way",
        "device/lane.c",
        'if (rc == PCOLL_EAGAIN) return fail(PCOLL_ESTATE, "the last copies are not over");',
        "if (rc == PCOLL_EAGAIN)\n        rc = PCOLL_OK;",
    ),
    Mutant(
        "every chunk comes from where the first one does",
        "device/lane.c",
        "copy_to_host(host, p->device + from, bytes, stream)",
        "copy_to_host(host, p->device, bytes, stream)",
    ),
    Mutant(
        "a graph is recorded into",
        "device/lane.c",
        "if (rc == PCOLL_OK && capturing)",
        "if (rc == PCOLL_OK && capturing > 1)",
    ),
    Mutant(
        "a byte behind an allocation belongs to it",
        "device/place.c",
        "return behind <= a.start + a.size",
        "return behind <= a.start + a.size + 1",
    ),
    Mutant(
        "managed memory is where it lies now",
        "device/place.c",
        "a.type == TYPE_DEVICE || a.managed ? a.device : PLACE_HOST",
        "a.type == TYPE_DEVICE ? a.device : PLACE_HOST",
    ),
    Mutant(
        "managed memory that lies on the host has been freed",
        "device/place.c",
        "if (a.type != TYPE_DEVICE && !a.managed)",
        "if (a.type != TYPE_DEVICE)",
    ),
    Mutant(
        "a forked child uses its parent's driver",
        "device/cuda.c",
        "if (owner != getpid())",
        "if (owner == 0)",
    ),
    Mutant(
        "a pull begins while a push reads the host's side",
        "device/mirror.c",
        "int rc = lane_poll(m->to_device);\n"
        "    return rc == PCOLL_OK ? lane_poll(m->to_host) : rc;",
        "return lane_poll(m->to_host);",
    ),
    Mutant(
        "a push does not order the stream that reads",
        "device/mirror.c",
        "return rc == PCOLL_OK ? lane_order(m->to_device, stream) : rc;",
        "return rc;",
    ),
    Mutant(
        "a rank arrives before its copy is over",
        "allreduce/staging.c",
        "int rc = lane_poll(s->to_host);",
        "int rc = PCOLL_OK;",
        program="staging",
    ),
    Mutant(
        "a result goes back to the library while it is being copied",
        "allreduce/staging.c",
        "if (rc == PCOLL_OK)\n        rc = lane_poll(s->to_device);\n    if (rc == PCOLL_OK)"
        "\n        rc = d->ops->deposit",
        "if (rc == PCOLL_OK)\n        rc = d->ops->deposit",
        program="staging",
    ),
    Mutant(
        "two may make a deposit",
        "allreduce/staging.c",
        "return atomic_compare_exchange_strong(&s->state, &copying, HELD);",
        "if (atomic_load(&s->state) == ARRIVED)\n        return false;\n"
        "    nanosleep(&(struct timespec){.tv_nsec = 1000}, NULL); /* as if another came */\n"
        "    atomic_store(&s->state, HELD);\n    return copying;",
        program="staging",
    ),
    Mutant(
        "a failed copy counts as a deposit",
        "allreduce/staging.c",
        "if (rc != PCOLL_OK && rc != PCOLL_EAGAIN)\n        keep_failure(s, rc);",
        "",
        program="staging",
    ),
    Mutant(
        "float16 results are copied as they were reduced",
        "allreduce/staging.c",
        "if (!null && !has_another_form(p))",
        "if (!null)",
        program="staging",
    ),
    Mutant(
        "memory is pinned and never let go",
        "allreduce/staging.c",
        "if (s->registered)\n        (void)lane_unregister(s->to_host, s->registered);",
        "",
        program="staging",
    ),
    Mutant(
        "addresses are believed",
        "allreduce/staging.c",
        "rc = place_check(",
        "rc = 0 * place_check(",
        program="staging",
    ),
    # Recovery: ranks have died, and the others go on.
    Mutant(
        "what was frozen is not taken back",
        "protocol/recovery.c",
        ".older = c->frozen,",
        ".older = NO_SLOT,",
    ),
    Mutant(
        "what is taken back is replaced by what should be added to it",
        "protocol/recovery.c",
        "if (c->frozen != NO_SLOT && c->pending != NO_SLOT && c->late != PCOLL_LATE_CARRY)",
        "if (c->frozen != NO_SLOT && c->pending != NO_SLOT)",
    ),
    Mutant(
        "what is taken back is added to what should replace it",
        "protocol/recovery.c",
        "if (c->frozen != NO_SLOT && c->pending != NO_SLOT && c->late != PCOLL_LATE_CARRY)\n"
        "        d.older = NO_SLOT;",
        "",
    ),
    Mutant(
        "a deposit of the last complete round is taken back",
        "protocol/recovery.c",
        "if (m->complete < complete)\n        contribution_thaw(&m->contribution);",
        "",
    ),
    Mutant(
        "who waits has not arrived when the round begins anew",
        "protocol/recovery.c",
        "m->arrived = m->started && !m->joining && m->wanted > complete;",
        "m->arrived = m->arrived && m->wanted > complete;",
    ),
    Mutant(
        "who has its round has arrived at the next one",
        "protocol/recovery.c",
        "m->arrived = m->started && !m->joining && m->wanted > complete;",
        "m->arrived = !m->joining;",
    ),
    Mutant(
        "a deposit that was taken back is still said to be included",
        "protocol/recovery.c",
        "if (m->taken_in == (int64_t)m->frozen)\n        m->taken_in = NO_ROUND;",
        "",
    ),
    Mutant(
        "a void round counts among those that took a deposit",
        "protocol/recovery.c",
        "m->stats.included--;",
        "",
    ),
    Mutant(
        "a rank that is given a round does not count it",
        "protocol/recovery.c",
        "m->complete = m->stats.rounds = complete;",
        "m->stats.rounds = complete;",
    ),
    Mutant(
        "who has joined is live again",
        "protocol/recovery.c",
        "m->live = bitset_has(live, m->rank);",
        "m->live = !m->left;",
    ),
    Mutant(
        "a join that is over is forgotten",
        "protocol/recovery.c",
        "m->joined_in = m->joining && announced && over ? (int64_t)last->round : NO_ROUND;",
        "m->joined_in = NO_ROUND;",
    ),
    Mutant(
        "a second join is taken for the first",
        "protocol/recovery.c",
        "bool unread = last && m->delivered <= last->round;",
        "bool unread = last;",
    ),
    Mutant(
        "the dead are live",
        "protocol/round.c",
        "[i];\n    bury(live, failed, words);\n    if (!h",
        "[i];\n    if (!h",
        program="crashes",
    ),
    Mutant(
        "all who live have joined, and wait for the dead",
        "protocol/round.c",
        "if (!h || !bitset_empty(live, words))\n        return;",
        "return;",
        program="crashes",
    ),
    Mutant(
        "who has left is back with those who have joined",
        "protocol/round.c",
        "bury(live, round_mask_const(h, ranks, ROUND_LEFT), words);",
        "",
        program="crashes",
    ),
    Mutant(
        "headers do not name the dead",
        "protocol/round.c",
        "for (size_t i = 0; failed && i < bitset_words(ranks); i++) {\n"
        "        round_mask(h, ranks, ROUND_LEFT)",
        "for (size_t i = 0; 0 && i < bitset_words(ranks); i++) {\n"
        "        round_mask(h, ranks, ROUND_LEFT)",
        program="crashes",
    ),
    Mutant(
        "the dead have not left",
        "protocol/round.c",
        "round_mask(h, ranks, ROUND_LEFT)[i] |= failed[i];",
        "",
        program="crashes",
    ),
    Mutant(
        "the round that is under way counts as complete",
        "runtime/census.c",
        "uint64_t complete = s->claim[slot] >> RANK_BITS;",
        "uint64_t complete = (s->claim[slot] >> RANK_BITS) + 1;",
    ),
    Mutant(
        "a round is given by who does not have it",
        "runtime/census.c",
        ".source = MAX_RANK - (uint32_t)(s->claim[slot] & MAX_RANK),",
        ".source = 0 * MAX_RANK,",
    ),
    Mutant(
        "nobody is given the round that it lacks",
        "runtime/census.c",
        ".some_lack = ~s->least[slot] < complete",
        "  .some_lack = false",
    ),
    Mutant(
        "an object that others have ended is rebuilt",
        "runtime/census.c",
        "s->lacking[i] = 1;",
        "s->lacking[i] = 0;",
    ),
    Mutant(
        "who has the number of a dead rank is not live",
        "protocol/round.c",
        "live[i] |= round_mask_const(h, ranks, ROUND_FAILED)[i];",
        "live[i] |= 0;",
        "crashes",
    ),
    Mutant(
        "a newcomer has read the last round",
        "protocol/recovery.c",
        "m->delivered = complete ? complete - 1 : 0;",
        "m->delivered = complete;",
    ),
    Mutant(
        "a newcomer's first call is for the last round",
        "protocol/recovery.c",
        "m->frozen = m->complete = m->call = m->stats.rounds = complete;",
        "m->frozen = m->complete = m->stats.rounds = complete, m->call = complete - 1;",
    ),
    Mutant(
        "a newcomer begins with the first round",
        "domain/recovery.c",
        "member_enter(m, round, last, d->shape->failed, d->shape->ranks);",
        "",
    ),
    Mutant(
        "a newcomer is not given the last result",
        "domain/recovery.c",
        "uint64_t first = round - (round > 0),",
        "uint64_t first = round,",
    ),
    Mutant(
        "what one has not seen is expected of it",
        "domain/recovery.c",
        "if (from->round == r)\n            memcpy",
        "memcpy",
    ),
    Mutant(
        "older results are not copied",
        "domain/recovery.c",
        "for (uint64_t r = first > oldest ? first : oldest;",
        "for (uint64_t r = round ? round - 1 : 0;",
    ),
    Mutant(
        "the last result is not copied",
        "domain/recovery.c",
        "r < round; r++",
        "r + 1 < round; r++",
    ),
    Mutant(
        "one result too few is copied",
        "domain/recovery.c",
        "round > kept ? round - kept : 0;",
        "round >= kept ? round - kept + 1 : 0;",
    ),
    Mutant(
        "the last result is the own one, which may be none",
        "domain/recovery.c",
        "r + 1 == round ? last : old->ops->result(old, r);",
        "old ? old->ops->result(old, r) : last;",
    ),
    Mutant(
        "a deposit stays in the old domain",
        "domain/recovery.c",
        "memcpy(to, part[0], payload_data_bytes(&d->shape->payload));",
        "",
    ),
    Mutant(
        "a deposit moves without what was added to it",
        "domain/recovery.c",
        "if (parts == 2)\n        return payload_reduce(&d->shape->payload, to, part[0], part[1]);",
        "",
    ),
    Mutant(
        "the state is as it was before the rank stopped",
        "domain/recovery.c",
        "old->ops->snapshot(old, m);",
        "d->ops->snapshot(d, m);",
    ),
    Mutant(
        "what a rank owes is forgotten in its new domain",
        "domain/node_recovery.c",
        "n->owes = m.contribution.pending != NO_SLOT && m.taken_in == NO_ROUND;",
        "",
        program="crashes",
    ),
    Mutant(
        "a rank has delivered nothing in its new domain",
        "domain/node_recovery.c",
        "STEP(atomic_store(&line->delivered, m.delivered));\n    node_set_flag",
        "node_set_flag",
        program="crashes",
    ),
    Mutant(
        "all are live in a new domain",
        "domain/node_recovery.c",
        "for (size_t i = 0; i < bitset_words(ranks); i++)\n"
        "        atomic_store(&n->live[i], live[i]);\n    if (last)",
        "if (last)",
        program="crashes",
    ),
    Mutant(
        "a new domain does not know that all have joined",
        "domain/node_recovery.c",
        "if (last)\n        node_note_join(n, round - 1, last);",
        "",
        program="crashes",
    ),
    Mutant(
        "a new domain begins with round 0",
        "domain/node_recovery.c",
        "STEP(atomic_store(&n->shared->control, control_word(round, NODE_OPEN, 0)));",
        "",
        program="crashes",
    ),
    Mutant(
        "what a rank has is not seen in its new domain",
        "domain/node_recovery.c",
        "node_note_arrival_time(n);\n"
        "    STEP(atomic_store(node_own_descriptor(n), descriptor_of(&n->member)));\n"
        "    return rc;",
        "return rc;",
        program="crashes",
    ),
    Mutant(
        "a new domain of shared memory does not name the dead",
        "domain/node_close.c",
        "round_header_bury(h, n->base.shape->ranks, n->base.shape->failed);",
        "",
        program="crashes",
    ),
    Mutant(
        "a new domain of one rank does not name the dead",
        "domain/single.c",
        "round_header_bury(s->null, ranks, d->shape->failed);",
        "",
        program="crashes",
    ),
    Mutant(
        "a dead rank keeps its place",
        "domain/placement.c",
        "if (has_failed(failed, r))\n            continue;",
        "",
        program="crashes",
    ),
    Mutant(
        "domains are cut as if the dead were there",
        "domain/placement.c",
        "hosts[i] == hosts[rank] && !has_failed(failed, i);",
        "hosts[i] == hosts[rank];",
        program="crashes",
    ),
    Mutant(
        "the engine begins with round 0",
        "schedule/engine.c",
        "e->current = round;",
        "",
        program="crashes",
    ),
    Mutant(
        "after a death all are live",
        "allreduce/endpoint_create.c",
        "round_live_now(last, v->shape.ranks, v->shape.failed, v->live);",
        "",
        program="crashes",
    ),
    Mutant(
        "a handle is closed as soon as nothing comes any more",
        "allreduce/endpoint_closing.c",
        "if (!v->confirms)",
        "if (1)",
        program="crashes",
    ),
    # Hosts that vanish: who watches whom, and who is believed.
    Mutant(
        "hosts are numbered with ranks that have died",
        "watch/pairing.c",
        "!(is_first(p, r) && p->hosts[r] == host)",
        "p->hosts[r] != host",
    ),
    Mutant(
        "all connections of a host are of its first rank",
        "watch/pairing.c",
        "if (member(p, own, (b + k) % here) == p->rank)",
        "if (member(p, own, 0) == p->rank)",
    ),
    Mutant(
        "a stranger may come in",
        "watch/entrance.c",
        "bool known = g->said.to == cookie;",
        "bool known = true;",
    ),
    Mutant(
        "a process that ends is a lost host",
        "watch/link.c",
        "return error == ETIMEDOUT",
        "return !error || error == ETIMEDOUT",
    ),
    Mutant(
        "other hosts are not told",
        "watch/watch.c",
        "link_tell(l, host);",
        "(void)l;",
    ),
    Mutant(
        "the processes of a host are not told",
        "watch/watch.c",
        "neighbors_tell(&w->neighbors, &p->cards[r], host);",
        "(void)p;",
    ),
    Mutant(
        "the own host can be lost",
        "watch/watch.c",
        "is_gone(w, host) || is_own(w, host)",
        "is_gone(w, host)",
    ),
    Mutant(
        "who sleeps is not rung",
        "watch/watch.c",
        "doorbell_wake_waiters(w->doorbell);\n    doorbell_wake_agent(w->doorbell);",
        "",
    ),
    # The gate between calls of the application and a recovery.
    Mutant(
        "calls get in whether the gate is closed or not",
        "runtime/gate.c",
        "INTERLEAVE();\n    return !gate_is_closed(g);",
        "INTERLEAVE();\n    return true;",
    ),
    Mutant(
        "who enters looks before it is counted",
        "runtime/gate.c",
        "INTERLEAVE();\n    uint32_t before = atomic_fetch_add(&g->inside, 1);\n"
        "    CHECK(before < UINT32_MAX);\n    (void)before;\n    INTERLEAVE();\n"
        "    return !gate_is_closed(g);",
        "bool closed = gate_is_closed(g);\n    INTERLEAVE();\n"
        "    atomic_fetch_add(&g->inside, 1);\n    return !closed;",
    ),
    Mutant(
        "who steps back stays counted",
        "runtime/gate.c",
        "gate_leave(g);\n    return false;",
        "return false;",
    ),
    Mutant(
        "who steps back wakes nobody",
        "runtime/gate.c",
        "gate_leave(g);\n    return false;",
        "atomic_fetch_sub(&g->inside, 1);\n    return false;",
    ),
    Mutant(
        "who has slept goes in without another look",
        "runtime/gate.c",
        "while (!come_in(g));",
        "while (INTERLEAVE(), atomic_fetch_add(&g->inside, 1), false);",
    ),
    Mutant(
        "who is kept out tries again and again",
        "runtime/gate.c",
        "return !gate_is_closed(arg);",
        "return arg;",
    ),
    Mutant(
        "who leaves looks before it is gone",
        "runtime/gate.c",
        "uint32_t before = atomic_fetch_sub(&g->inside, 1);\n    CHECK(before > 0);\n"
        "    (void)before;\n    INTERLEAVE();\n    if (gate_is_closed(g))",
        "bool closed = gate_is_closed(g);\n    INTERLEAVE();\n"
        "    atomic_fetch_sub(&g->inside, 1);\n    if (closed)",
    ),
    Mutant(
        "who leaves wakes nobody",
        "runtime/gate.c",
        "if (gate_is_closed(g))\n        sleepers_wake(&g->sleepers);",
        "",
    ),
    Mutant(
        "who leaves wakes though nobody sleeps",
        "runtime/gate.c",
        "if (gate_is_closed(g))\n        sleepers_wake(&g->sleepers);",
        "sleepers_wake(&g->sleepers);",
    ),
    Mutant(
        "the last who is inside is not waited for",
        "runtime/gate.c",
        "return atomic_load(&g->inside) == 0;",
        "return atomic_load(&g->inside) <= 1;",
    ),
    Mutant(
        "a closed gate is taken for an empty one",
        "runtime/gate.c",
        "sleepers_await(&g->sleepers, is_empty, g);",
        "(void)is_empty;",
    ),
    Mutant(
        "an opened gate wakes nobody",
        "runtime/gate.c",
        "INTERLEAVE();\n    sleepers_wake(&g->sleepers);",
        "INTERLEAVE();",
    ),
    Mutant(
        "who is kept out is woken before the gate opens",
        "runtime/gate.c",
        "atomic_store(&g->closed, false);\n    INTERLEAVE();\n    sleepers_wake(&g->sleepers);",
        "sleepers_wake(&g->sleepers);\n    INTERLEAVE();\n    atomic_store(&g->closed, false);",
    ),
]
