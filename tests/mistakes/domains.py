# SPDX-License-Identifier: Apache-2.0
"""Mistakes in domains: single ranks, shared memory, and leaders on the fabric."""

from .mutant import Mutant

MUTANTS = [
    # The domain.
    Mutant(
        "the ring has one result slot too few",
        "domain/node.c",
        "n->ring = options->history + 1;",
        "n->ring = options->history;",
        program="simulation",
    ),
    # The domain in shared memory.
    Mutant(
        "a deposit is published by a store instead of a compare-and-swap",
        "domain/node.c",
        "            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word,\n"
        "                                                descriptor_of(&after)))) {\n"
        "            MOMENT",
        "            (STEP(atomic_store(node_own_descriptor(n), descriptor_of(&after))), true)) {\n"
        "            MOMENT",
    ),
    Mutant(
        "a join or leave is published by a store instead of a compare-and-swap",
        "domain/node.c",
        "            STEP(atomic_compare_exchange_strong(node_own_descriptor(n), &word, next))) {",
        "            (STEP(atomic_store(node_own_descriptor(n), next)), true)) {",
    ),
    Mutant(
        "a rank raises its delivered count before it clears its joining bit",
        "domain/node_round.c",
        "    if (m->joined)\n"
        "        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));\n"
        "    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));\n",
        "    STEP(atomic_store(&node_own_line(n)->delivered, m->delivered));\n"
        "    if (m->joined)\n"
        "        STEP(atomic_fetch_and(node_own_descriptor(n), ~(uint64_t)DESCRIPTOR_JOINING));\n",
    ),
    Mutant(
        "a reader does not check whether it delayed the next round",
        "domain/node_round.c",
        "node_control_round(control) >= before + m->history));",
        "node_control_round(control) > before + m->history));",
    ),
    Mutant(
        "a reader accepts a copy of a result slot that is being rewritten",
        "domain/node_round.c",
        "uint64_t control = node_control(n), reuse = round + n->ring;",
        "uint64_t control = node_control(n), reuse = round + n->ring + 1;",
    ),
    Mutant(
        "a reader uses the header of a copy that it has discarded",
        "domain/node_round.c",
        "        joined = m->joining && round_has(",
        "        joined |= m->joining && round_has(",
    ),
    Mutant(
        "a rank records the round after the one that took its deposit",
        "domain/node_round.c",
        "m->taken_in = (int64_t)rounds - 1;",
        "m->taken_in = (int64_t)rounds;",
    ),
    Mutant(
        "a rank reads the round of its deposit before the closer has written it",
        "domain/node_round.c",
        "        uint64_t rounds = m->contribution.frozen != NO_SLOT\n",
        "        uint64_t rounds = false\n",
    ),
    Mutant(
        "the time of an arrival is not recorded",
        "domain/node.c",
        "        if (*outcome == DEPOSIT_ARRIVED)\n            node_note_arrival_time(n);\n",
        "",
    ),
    Mutant(
        "two members can close the same round",
        "domain/node_round.c",
        "    if (!STEP(atomic_compare_exchange_strong(\n"
        "            &n->shared->control, &open,\n"
        "            node_control_word(round, NODE_CLOSING, n->who))))\n"
        "        return false;\n",
        "    STEP(atomic_store(&n->shared->control,\n"
        "                      node_control_word(round, NODE_CLOSING, n->who)));\n",
    ),
    Mutant(
        "a member closes a later round than the one it evaluated",
        "domain/node_round.c",
        "if (node_control_round(open) != round || node_control_phase(open) != NODE_OPEN)",
        "if (node_control_phase(open) != NODE_OPEN)",
    ),
    Mutant(
        "a descriptor is frozen by a store instead of a compare-and-swap",
        "domain/node_round.c",
        "        while (!STEP(atomic_compare_exchange_weak(&n->descriptors[j], &word,\n"
        "                                                  descriptor_freeze(word))))\n"
        "            ;\n",
        "        STEP(atomic_store(&n->descriptors[j], descriptor_freeze(word)));\n",
    ),
    Mutant(
        "a round uses the deposit count of an earlier round",
        "domain/node_round.c",
        "    atomic_store_explicit(&n->shared->parts, parts, memory_order_relaxed);\n"
        "    return parts;",
        "    return parts;",
    ),
    Mutant(
        "a worker takes a chunk of a later round",
        "domain/node_round.c",
        "if (word >> 32 != (uint32_t)round || *chunk >= n->chunks)",
        "if (*chunk >= n->chunks)",
    ),
    Mutant(
        "two workers can take the same chunk",
        "domain/node_round.c",
        "    } while (!STEP(atomic_compare_exchange_weak(&n->shared->taken, &word, word + 1)));",
        "        STEP(atomic_store(&n->shared->taken, word + 1));\n    } while (0);",
    ),
    Mutant(
        "the count of finished chunks is reset after the reduction starts",
        "domain/node_round.c",
        "        STEP(atomic_store(&n->shared->done, 0));\n"
        "        STEP(atomic_store(&n->shared->taken, round << 32));\n"
        "        node_set_control(n, round, NODE_REDUCING);\n",
        "        STEP(atomic_store(&n->shared->taken, round << 32));\n"
        "        node_set_control(n, round, NODE_REDUCING);\n"
        "        STEP(atomic_store(&n->shared->done, 0));\n",
    ),
    Mutant(
        "the next round opens before its live set is written",
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
        "a worker stays counted after it has finished",
        "domain/node_round.c",
        "    STEP(atomic_fetch_sub(&n->shared->workers, 1));\n    if (ended)",
        "    if (ended)",
    ),
    Mutant(
        "the closer does not reduce if every core seems to have a worker",
        "domain/node_round.c",
        "            node_count_worker(n);\n            node_work",
        "            if (node_count_worker(n) >= n->hands)\n"
        "                return true;\n            node_work",
    ),
    Mutant(
        "sleeping members are not woken at the end of a round",
        "domain/node_round.c",
        '    MOMENT("published");\n    node_wake_sleepers(n, n->members);\n',
        "",
    ),
    Mutant(
        "sleeping members are woken before the next round opens",
        "domain/node_round.c",
        '    node_set_control(n, round + 1, NODE_OPEN);\n    MOMENT("published");\n'
        "    node_wake_sleepers(n, n->members);\n",
        "    node_wake_sleepers(n, n->members);\n    node_set_control(n, round + 1, NODE_OPEN);\n",
    ),
    Mutant(
        "a member evaluates a round with the live set of an earlier round",
        "domain/node_round.c",
        "    if (v->opened == round + 1)\n        return true;",
        "    if (v->opened)\n        return true;",
    ),
    Mutant(
        "a rank whose join has ended counts as arrived",
        "domain/node_round.c",
        "goes = STEP(atomic_load(&n->descriptors[j])) & DESCRIPTOR_JOINING;",
        "goes = true;",
    ),
    Mutant(
        "the round after a completed join does not wait until all have read that join",
        "domain/node_round.c",
        "if (node_is_behind(n, j, round) || (joined && node_is_unaware(n, j)))",
        "if (node_is_behind(n, j, round))",
    ),
    Mutant(
        "the round after a completed join is admitted by an earlier check",
        "domain/node_round.c",
        "    if (known && !joined)",
        "    if (known)",
    ),
    Mutant(
        "one round too many is admitted ahead of the slowest reader",
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
        "a rank whose handle is being freed delays the others",
        "domain/node_round.c",
        "return !away && !STEP(atomic_load(&line->retired));",
        "return !away;",
    ),
    Mutant(
        "a rank that has left delays the others",
        "domain/node_round.c",
        "return !away && !STEP(",
        "(void)away;\n    return !STEP(",
    ),
    Mutant(
        "rounds in which a rank is not live count as absences",
        "protocol/policy.c",
        "return active || !live ? 0 : before + 1;",
        "(void)live;\n    return active ? 0 : before + 1;",
    ),
    Mutant(
        "no alarm is set for the end of a linger or deadline",
        "protocol/policy.c",
        ".alarm = over ? ROUND_NEVER : due};",
        ".alarm = ROUND_NEVER};",
    ),
    Mutant(
        "a linger uses the start time of an earlier round",
        "domain/node_round.c",
        "while ((word & ~mask) != tag) {",
        "while (!word) {",
    ),
    Mutant(
        "a deadline is measured from an arrival at an earlier round",
        "domain/node_round.c",
        "if (!bitset_has(v->arrived, rank) || !bitset_has(v->live, rank) || at >= least)",
        "if (at >= least)",
    ),
    Mutant(
        "a frozen slot is marked free at once",
        "protocol/member.h",
        "return DESCRIPTOR_NO_SLOT | (word & 7) << 3 | gone |",
        "return DESCRIPTOR_NO_SLOT | DESCRIPTOR_NO_SLOT << 3 | gone |",
    ),
    Mutant(
        "freezing a descriptor clears its joining bit",
        "protocol/member.h",
        "uint64_t gone = word & (DESCRIPTOR_JOINING | DESCRIPTOR_LEFT);",
        "uint64_t gone = word & DESCRIPTOR_LEFT;",
    ),
    Mutant(
        "freezing a descriptor keeps its arrived bit",
        "protocol/member.h",
        "uint64_t gone = word & (DESCRIPTOR_JOINING | DESCRIPTOR_LEFT);",
        "uint64_t gone = word & ((uint64_t)7 << 6);",
    ),
    Mutant(
        "a stored deposit is not marked as stored in the header",
        "protocol/member.h",
        "if (active && !(word & DESCRIPTOR_ARRIVED))",
        "if (false)",
    ),
    Mutant(
        "the last worker wakes the leader without setting the attention flag",
        "domain/node_round.c",
        "    if (ended && n->fabric)\n        node_alert(n);",
        "    if (ended && n->fabric)\n"
        "        n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);",
    ),
    Mutant(
        "a member wakes the leader without setting the attention flag",
        "domain/node_round.c",
        "    STEP(atomic_store(&n->shared->attention, 1));\n",
        "",
    ),
    Mutant(
        "a member wakes the leader before it sets the attention flag",
        "domain/node_round.c",
        "    STEP(atomic_store(&n->shared->attention, 1));\n"
        "    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);",
        "    n->hooks.alert(n->hooks.arg, n->hooks.placement->member[0]);\n"
        "    STEP(atomic_store(&n->shared->attention, 1));",
    ),
    Mutant(
        "a single deposit is sent with an old header",
        "domain/node_round.c",
        "    round_header_copy(alone, n->gathered, n->shape->ranks);\n",
        "",
    ),
    # Mistakes that the checks once missed in a review.
    Mutant(
        "only 64 ranks can have joined",
        "protocol/round.c",
        "gone = h->run[k].end;",
        "gone = h->run[k].end < 64 ? h->run[k].end : 64;",
    ),
    Mutant(
        "a run of ranks is applied to the first 64 ranks only",
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
        "the highest initiator is reported instead of the lowest",
        "protocol/round.c",
        "if (other->initiator < out->initiator)",
        "if (other->initiator + 1 > out->initiator + 1)",
    ),
    Mutant(
        "an object closes at once while another closing is in progress",
        "runtime/communicator.c",
        "    return busy ? PCOLL_OK : communicator_vote(c);",
        "    return busy ? p->ops->begin_close(p) : communicator_vote(c);",
    ),
    Mutant(
        "the next closing never starts",
        "runtime/communicator.c",
        "    return c->closing.taking ? PCOLL_OK : communicator_take_turns(c);",
        "    return PCOLL_OK;",
    ),
    Mutant(
        "a late reader also skips rounds that are still in the history",
        "protocol/member.c",
        "uint64_t next = m->delivered > oldest ? m->delivered : oldest;",
        "uint64_t next = m->delivered >= oldest ? m->delivered : m->complete - 1;",
    ),
    Mutant(
        "rounds lost by an abandoned read are not reported",
        "protocol/member.c",
        "m->lost += lost;",
        "m->lost = lost;",
        program="protocol",
    ),
    Mutant(
        "a round without contributions does not overwrite the receive buffers",
        "domain/node_round.c",
        "payload_identity(&shape->payload, buffers);",
        "(void)0;",
        program="simulation",
    ),
    Mutant(
        "full rounds start without arrivals after all ranks have left",
        "protocol/policy.c",
        "return round->live_count && report->arrived == round->own_count;",
        "return report->arrived == round->own_count;",
    ),
    # Domains in shared memory whose leaders exchange messages.
    Mutant(
        "a member's deposit does not alert the leader",
        "allreduce/endpoint.c",
        "else if (d->members > 1)",
        "else if (d->members > 1 && endpoint->drives)",
    ),
    Mutant(
        "the leader does not note that its round waits for the domain's sum",
        "allreduce/endpoint.c",
        "    endpoint->gathering += !*finished;\n",
        "",
    ),
    Mutant(
        "an endpoint that does not drive its rounds never finishes closing",
        "allreduce/endpoint.c",
        "return closing == DRAINING ? endpoint_drain(endpoint) : PCOLL_OK;",
        "return PCOLL_OK;",
    ),
    Mutant(
        "a member does not set its alarm",
        "allreduce/endpoint.c",
        "    if (alarm != INT64_MAX)\n"
        "        communicator_alarm(endpoint->communicator, &endpoint->base, alarm);",
        "    (void)alarm;",
    ),
    Mutant(
        "a report counts for the sender's rank instead of its domain",
        "allreduce/control.c",
        "m->endpoint = placement_domain(p, m->source);",
        "m->endpoint = m->source % p->domains;",
    ),
    Mutant(
        "a report is sent to the rank with the coordinator's domain number",
        "allreduce/endpoint.c",
        "t->ops->control(t, placement_leader(&endpoint->placement, coordinator), &message);",
        "t->ops->control(t, coordinator, &message);",
    ),
    Mutant(
        "final notifications are sent to domain numbers instead of leaders' ranks",
        "allreduce/endpoint.c",
        "control_send(endpoint, placement_leader(p, peer), CONTROL_LAST, k);",
        "control_send(endpoint, peer, CONTROL_LAST, k);",
    ),
    Mutant(
        "an endpoint counts only its first member as live",
        "allreduce/endpoint.c",
        "i < p->members; i++)\n        r->own_count",
        "i < 1; i++)\n        r->own_count",
    ),
    Mutant(
        "the deposits of a domain are reduced in reverse rank order",
        "domain/node_round.c",
        "const struct node_frozen *part = &n->list[k];",
        "const struct node_frozen *part = &n->list[n->shared->parts - 1 - k];",
    ),
    Mutant(
        "a reader never reports that the next round may have waited for it",
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
        "a member that frees its handle still delays the others",
        "domain/node_round.c",
        "return !away && !STEP(atomic_load(&line->retired));",
        "return !away;",
    ),
    Mutant(
        "a reader does not check whether a result was overwritten during the copy",
        "domain/node_round.c",
        "whole = m->deliver == PCOLL_DELIVER_ONE || !node_overwritten(n, index);",
        "whole = true || node_overwritten(n, index);",
    ),
]
