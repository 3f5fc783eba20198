# SPDX-License-Identifier: Apache-2.0
"""Mistakes in domains: single ranks, shared memory, and leaders on the fabric."""

from .mutant import Mutant

MUTANTS = [
    # The domain.
    Mutant(
        "one result slot too few",
        "domain/node.c",
        "n->ring = options->history + 1;",
        "n->ring = options->history;",
        program="simulation",
    ),
    # The domain in shared memory.
    Mutant(
        "a deposit is handed in without a swap",
        "domain/node.c",
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
        "domain/node_round.c",
        "    if (m->joined)\n"
        "        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));\n"
        "    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));\n",
        "    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));\n"
        "    if (m->joined)\n"
        "        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));\n",
    ),
    Mutant(
        "who has read a round does not look whether it held the next one back",
        "domain/node_round.c",
        "node_control_round(control) >= before + m->history));",
        "node_control_round(control) > before + m->history));",
    ),
    Mutant(
        "a copy is taken for whole although its slot is being written",
        "domain/node_round.c",
        "uint64_t control = node_control(n), reuse = round + n->ring;",
        "uint64_t control = node_control(n), reuse = round + n->ring + 1;",
    ),
    Mutant(
        "a copy is looked at before it is known to be whole",
        "domain/node_round.c",
        "        joined = m->joining && round_has(",
        "        joined |= m->joining && round_has(",
    ),
    Mutant(
        "a rank is told the wrong round of its deposit",
        "domain/node_round.c",
        "m->taken_in = (int64_t)rounds - 1;",
        "m->taken_in = (int64_t)rounds;",
    ),
    Mutant(
        "the round of a deposit is read before it is written",
        "domain/node_round.c",
        "        uint64_t rounds = m->contribution.frozen != NO_SLOT\n",
        "        uint64_t rounds = false\n",
    ),
    Mutant(
        "an arrival has no time",
        "domain/node.c",
        "        if (*outcome == DEPOSIT_ARRIVED)\n            node_note_arrival_time(n);\n",
        "",
    ),
    Mutant(
        "a round is closed twice",
        "domain/node_round.c",
        "    if (!STEP(atomic_compare_exchange_strong(\n"
        "            &n->shared->control, &open,\n"
        "            node_control_word(round, NODE_CLOSING, n->who))))\n"
        "        return false;\n",
        "    STEP(atomic_store(&n->shared->control,\n"
        "                      node_control_word(round, NODE_CLOSING, n->who)));\n",
    ),
    Mutant(
        "a later round is closed than was counted",
        "domain/node_round.c",
        "if (node_control_round(open) != round || node_control_phase(open) != NODE_OPEN)",
        "if (node_control_phase(open) != NODE_OPEN)",
    ),
    Mutant(
        "a rank is frozen without a swap",
        "domain/node_round.c",
        "        while (!STEP(atomic_compare_exchange_weak(&n->descriptors[j], &word,\n"
        "                                                  descriptor_freeze(word))))\n"
        "            ;\n",
        "        STEP(atomic_store(&n->descriptors[j], descriptor_freeze(word)));\n",
    ),
    Mutant(
        "the list of an earlier round is reduced",
        "domain/node_round.c",
        "    atomic_store_explicit(&n->shared->parts, parts, memory_order_relaxed);\n"
        "    return parts;",
        "    return parts;",
    ),
    Mutant(
        "a chunk of a later round is taken",
        "domain/node_round.c",
        "if (word >> 32 != (uint32_t)round || *chunk >= n->chunks)",
        "if (*chunk >= n->chunks)",
    ),
    Mutant(
        "a chunk is given to two",
        "domain/node_round.c",
        "    } while (!STEP(atomic_compare_exchange_weak(&n->shared->taken, &word, word + 1)));",
        "        STEP(atomic_store(&n->shared->taken, word + 1));\n    } while (0);",
    ),
    Mutant(
        "chunks are finished before they are counted",
        "domain/node_round.c",
        "        STEP(atomic_store(&n->shared->done, 0));\n"
        "        STEP(atomic_store(&n->shared->taken, round << 32));\n"
        "        node_set_control(n, round, NODE_REDUCING);\n",
        "        STEP(atomic_store(&n->shared->taken, round << 32));\n"
        "        node_set_control(n, round, NODE_REDUCING);\n"
        "        STEP(atomic_store(&n->shared->done, 0));\n",
    ),
    Mutant(
        "the next round opens before it is known who is live",
        "domain/node_round.c",
        "    for (size_t i = 0; i < words; i++)\n"
        "        STEP(atomic_store_explicit(&n->live[i], v->live[i], memory_order_release));\n"
        "    node_note_join(n, round, result);\n    node_complete(n, round);\n",
        "    node_complete(n, round);\n"
        "    for (size_t i = 0; i < words; i++)\n"
        "        STEP(atomic_store_explicit(&n->live[i], v->live[i], memory_order_release));\n"
        "    node_note_join(n, round, result);\n",
    ),
    Mutant(
        "who has worked on a round counts as a worker for ever",
        "domain/node_round.c",
        "    STEP(atomic_fetch_sub(&n->shared->workers, 1));\n    if (ended)",
        "    if (ended)",
    ),
    Mutant(
        "the closer does not work where as many as there are cores seem to",
        "domain/node_round.c",
        "            node_count_worker(n);\n            node_work",
        "            if (node_count_worker(n) >= n->hands)\n"
        "                return true;\n            node_work",
    ),
    Mutant(
        "nobody is woken at the end of a round",
        "domain/node_round.c",
        '    MOMENT("published");\n    node_wake_sleepers(n, n->members);\n',
        "",
    ),
    Mutant(
        "sleepers are woken before the round is over",
        "domain/node_round.c",
        '    node_set_control(n, round + 1, NODE_OPEN);\n    MOMENT("published");\n'
        "    node_wake_sleepers(n, n->members);\n",
        "    node_wake_sleepers(n, n->members);\n    node_set_control(n, round + 1, NODE_OPEN);\n",
    ),
    Mutant(
        "a round starts with those who were live before",
        "domain/node_round.c",
        "    if (v->opened == round + 1)\n        return true;",
        "    if (v->opened)\n        return true;",
    ),
    Mutant(
        "who has come out of join counts as arrived",
        "domain/node_round.c",
        "goes = STEP(atomic_load(&n->descriptors[j])) & DESCRIPTOR_JOINING;",
        "goes = true;",
    ),
    Mutant(
        "the round after a join does not wait for its readers",
        "domain/node_round.c",
        "if (node_is_behind(n, j, round) || (joined && node_is_unaware(n, j)))",
        "if (node_is_behind(n, j, round))",
    ),
    Mutant(
        "the round after a join was admitted before",
        "domain/node_round.c",
        "    if (known && !joined)",
        "    if (known)",
    ),
    Mutant(
        "one round too many is admitted",
        "domain/node_round.c",
        "v->admitted = least + n->history;",
        "v->admitted = least + n->history + 1;",
    ),
    Mutant(
        "back-pressure of a node is off by one",
        "domain/node_round.c",
        "round < n->history + STEP(atomic_load(&line->delivered)))",
        "round <= n->history + STEP(atomic_load(&line->delivered)))",
    ),
    Mutant(
        "a rank that is being freed holds the others back",
        "domain/node_round.c",
        "return !away && !STEP(atomic_load(&line->retired));",
        "return !away;",
    ),
    Mutant(
        "a rank that has left holds the others back",
        "domain/node_round.c",
        "return !away && !STEP(",
        "(void)away;\n    return !STEP(",
    ),
    Mutant(
        "ranks that had gone are overdue when they are back",
        "protocol/policy.c",
        "return active || !live ? 0 : before + 1;",
        "(void)live;\n    return active ? 0 : before + 1;",
    ),
    Mutant(
        "nobody is told when a linger is over",
        "protocol/policy.c",
        ".alarm = over ? ROUND_NEVER : due};",
        ".alarm = ROUND_NEVER};",
    ),
    Mutant(
        "a linger begins with that of an earlier round",
        "domain/node_round.c",
        "while ((word & ~mask) != tag) {",
        "while (!word) {",
    ),
    Mutant(
        "a deadline begins with an earlier arrival",
        "domain/node_round.c",
        "if (!bitset_has(v->arrived, rank) || !bitset_has(v->live, rank) || at >= least)",
        "if (at >= least)",
    ),
    Mutant(
        "a frozen slot is free at once",
        "protocol/member.h",
        "return DESCRIPTOR_NO_SLOT | (word & 7) << 3 | gone |",
        "return DESCRIPTOR_NO_SLOT | DESCRIPTOR_NO_SLOT << 3 | gone |",
    ),
    Mutant(
        "a join is announced once",
        "protocol/member.h",
        "uint64_t gone = word & (DESCRIPTOR_JOINING | DESCRIPTOR_LEFT);",
        "uint64_t gone = word & DESCRIPTOR_LEFT;",
    ),
    Mutant(
        "an arrival outlives the round that took it",
        "protocol/member.h",
        "uint64_t gone = word & (DESCRIPTOR_JOINING | DESCRIPTOR_LEFT);",
        "uint64_t gone = word & ((uint64_t)7 << 6);",
    ),
    Mutant(
        "a stored deposit is not announced as stored",
        "protocol/member.h",
        "if (active && !(word & DESCRIPTOR_ARRIVED))",
        "if (false)",
    ),
    Mutant(
        "a sum lies before the fabric without a mark",
        "domain/node_round.c",
        "    if (ended && n->fabric)\n        node_alert(n);",
        "    if (ended && n->fabric)\n"
        "        n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);",
    ),
    Mutant(
        "who asks the leader to look leaves no mark",
        "domain/node_round.c",
        "    STEP(atomic_store(&n->shared->attention, 1));\n",
        "",
    ),
    Mutant(
        "the leader is asked to look before there is a mark",
        "domain/node_round.c",
        "    STEP(atomic_store(&n->shared->attention, 1));\n"
        "    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);",
        "    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);\n"
        "    STEP(atomic_store(&n->shared->attention, 1));",
    ),
    Mutant(
        "a lone deposit is sent with an old header",
        "domain/node_round.c",
        "    round_header_copy(alone, n->gathered, n->shape->ranks);\n",
        "",
    ),
    # Found by a reviewer who tried to get past the checks.
    Mutant(
        "only 64 ranks can have joined",
        "protocol/round.c",
        "gone = h->run[k].end;",
        "gone = h->run[k].end < 64 ? h->run[k].end : 64;",
    ),
    Mutant(
        "only 64 ranks can cease to be live",
        "protocol/round.c",
        "h->run[k].end < ranks ? h->run[k].end : ranks, add",
        "h->run[k].end < 64 ? h->run[k].end : 64, add",
    ),
    Mutant(
        "only 64 ranks count as arrived",
        "protocol/policy.c",
        "for (size_t i = 0; i < round->words; i++) {",
        "for (size_t i = 0; i < 1; i++) {",
    ),
    Mutant(
        "a receive waits for the send to the same rank",
        "algorithms/algorithms.c",
        "    sched_after(c->s, recv, c->free_after[which]);\n",
        "    sched_after(c->s, recv, c->free_after[which]);\n"
        "    sched_after(c->s, recv, c->last_send);\n",
    ),
    Mutant(
        "the highest initiator is reported",
        "protocol/round.c",
        "if (other->initiator < out->initiator)",
        "if (other->initiator + 1 > out->initiator + 1)",
    ),
    Mutant(
        "closings do not queue up",
        "runtime/communicator.c",
        "    return busy ? PCOLL_OK : communicator_vote(c);",
        "    return busy ? p->ops->begin_close(p) : communicator_vote(c);",
    ),
    Mutant(
        "the next closing is never begun",
        "runtime/communicator.c",
        "    return c->closing.taking ? PCOLL_OK : communicator_take_turns(c);",
        "    return PCOLL_OK;",
    ),
    Mutant(
        "more rounds are lost than are older than the history",
        "protocol/member.c",
        "uint64_t next = m->delivered > oldest ? m->delivered : oldest;",
        "uint64_t next = m->delivered >= oldest ? m->delivered : m->complete - 1;",
    ),
    Mutant(
        "what a read lost that came to nothing is told by nobody",
        "protocol/member.c",
        "m->lost += lost;",
        "m->lost = lost;",
        program="protocol",
    ),
    Mutant(
        "an empty round leaves the buffers as they were",
        "domain/node_round.c",
        "payload_identity(&shape->payload, buffers);",
        "(void)0;",
        program="simulation",
    ),
    Mutant(
        "full rounds run free when all have left",
        "protocol/policy.c",
        "return round->live_count && report->arrived == round->own_count;",
        "return report->arrived == round->own_count;",
    ),
    # Two planes: domains in shared memory, their leaders on the fabric.
    Mutant(
        "a member's deposit does not make its leader look",
        "allreduce/endpoint.c",
        "else if (d->members > 1)",
        "else if (d->members > 1 && endpoint->drives)",
    ),
    Mutant(
        "the leader forgets that its round waits for the node's sum",
        "allreduce/endpoint.c",
        "    endpoint->gathering += !*finished;\n",
        "",
    ),
    Mutant(
        "members of a node do not close",
        "allreduce/endpoint.c",
        "return closing == DRAINING ? endpoint_drain(endpoint) : PCOLL_OK;",
        "return PCOLL_OK;",
    ),
    Mutant(
        "a member's timer is forgotten",
        "allreduce/endpoint.c",
        "    if (alarm != INT64_MAX)\n"
        "        communicator_alarm(endpoint->communicator, &endpoint->base, alarm);",
        "    (void)alarm;",
    ),
    Mutant(
        "reports are counted for the rank, not for its node",
        "allreduce/control.c",
        "m->endpoint = placement_domain(p, m->source);",
        "m->endpoint = m->source % p->domains;",
    ),
    Mutant(
        "reports go to the rank with the coordinator's number",
        "allreduce/endpoint.c",
        "t->ops->control(t, placement_leader(&endpoint->placement, coordinator), &message);",
        "t->ops->control(t, coordinator, &message);",
    ),
    Mutant(
        "the last messages go to ranks with the endpoints' numbers",
        "allreduce/endpoint.c",
        "control_send(endpoint, placement_leader(p, peer), CONTROL_LAST, k);",
        "control_send(endpoint, peer, CONTROL_LAST, k);",
    ),
    Mutant(
        "only the leader of a node is one of its members",
        "allreduce/endpoint.c",
        "i < p->members; i++)\n        r->own_count",
        "i < 1; i++)\n        r->own_count",
    ),
    Mutant(
        "the ranks of a node are added up from the last one on",
        "domain/node_round.c",
        "const struct node_frozen *part = &n->list[k];",
        "const struct node_frozen *part = &n->list[n->shared->parts - 1 - k];",
    ),
    Mutant(
        "a member that has caught up does not say so",
        "domain/node_round.c",
        "return node_control_phase(control) == NODE_OPEN &&\n",
        "return false && node_control_phase(control) == NODE_OPEN &&\n",
    ),
    Mutant(
        "a node's back-pressure is off by one",
        "domain/node_round.c",
        "round < n->history + STEP",
        "round <= n->history + STEP",
    ),
    Mutant(
        "a member that frees its handle still holds the others back",
        "domain/node_round.c",
        "return !away && !STEP(atomic_load(&line->retired));",
        "return !away;",
    ),
    Mutant(
        "a result of a node is not looked at again after it was copied",
        "domain/node_round.c",
        "whole = m->deliver == PCOLL_DELIVER_ONE || !node_overwritten(n, index);",
        "whole = true || node_overwritten(n, index);",
    ),
]
