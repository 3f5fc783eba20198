# SPDX-License-Identifier: Apache-2.0
"""Mistakes in rounds: a rank's view of them, policies, one handle."""

from .mutant import Mutant

MUTANTS = [
    # A rank's view of the rounds.
    Mutant(
        "a late deposit arrives at a round that is over",
        "protocol/member.c",
        "? m->frozen <= m->call",
        "? true",
    ),
    Mutant(
        "a gap is not reported",
        "protocol/member.c",
        "uint64_t lost = next - m->delivered;",
        "uint64_t lost = 0;",
    ),
    # Policies and headers.
    Mutant(
        "an initiator is drawn from the wrong round",
        "protocol/policy.c",
        "policy_draw_ranks(round, stream, d->round,",
        "policy_draw_ranks(round, stream, d->round + 1,",
    ),
    Mutant(
        "a rank that has gone can be drawn",
        "protocol/policy.c",
        "if (bitset_has(round->live, rank) && !bitset_has(round->drawn, rank)) {",
        "if (!bitset_has(round->drawn, rank)) {",
    ),
    Mutant(
        "full does not wait for rank 3",
        "allreduce/endpoint.c",
        "r->own_count += bitset_has(",
        "r->own_count += p->member[i] != 3 && bitset_has(",
    ),
    Mutant(
        "intents are not merged",
        "protocol/round.c",
        "    out->intent |= other->intent;\n",
        "",
        program="protocol",
    ),
    Mutant(
        "a message does not carry the intent",
        "protocol/round.c",
        "memcpy((char *)(h + 1) - bytes, wire, bytes);",
        "memcpy((char *)(h + 1) - bytes, wire, bytes), h->intent = 0;",
        program="protocol",
    ),
    Mutant(
        "a mask bit is lost",
        "protocol/round.c",
        "own[i] |= more[i];",
        "own[i] |= more[i] & ~(uint64_t)4;",
    ),
    Mutant(
        "the lowest initiator is not agreed on",
        "protocol/round.c",
        "    if (other->initiator < out->initiator)\n        out->initiator = other->initiator;\n",
        "",
    ),
    Mutant(
        "a quorum is one rank short",
        "protocol/policy.c",
        "report->arrived >= policy_needed(policy, round);",
        "report->arrived + (round->live_count > 1) >= policy_needed(policy, round);",
    ),
    Mutant(
        "a quorum is never adapted to the live ranks",
        "protocol/policy.c",
        "return count < round->live_count ? count : round->live_count;",
        "return count;",
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
        "return policy_rule_met(policy, round, report) &&\n"
        "           report->overdue == round->overdue_count;\n}\n\nbool policy_kept",
        "return policy_rule_met(policy, round, report);\n}\n\nbool policy_kept",
    ),
    Mutant(
        "a rank is overdue one round late",
        "protocol/policy.c",
        "absences[rank] >= policy->max_staleness",
        "absences[rank] > policy->max_staleness",
    ),
    Mutant(
        "a round cut short does not say so",
        "allreduce/endpoint.c",
        "result->flags |= ROUND_BELOW_QUORUM;",
        "result->flags |= 0;",
    ),
    Mutant(
        "a round that was not cut short says so",
        "protocol/round.c",
        "    round_apply(h, ranks, ROUND_JOINED, arrived, true);\n",
        "",
    ),
    Mutant(
        "a deadline passes early",
        "protocol/policy.c",
        "round_trigger_after(state->first_arrival, policy->deadline,",
        "round_trigger_after(state->first_arrival, policy->deadline / 2,",
    ),
    Mutant(
        "nobody is woken for a deadline",
        "allreduce/endpoint.c",
        "        communicator_alarm(endpoint->communicator, &endpoint->base, t->alarm);\n",
        "        (void)0;\n",
    ),
    Mutant(
        "a report for the next round is dropped",
        "allreduce/endpoint.c",
        "if (m->round >= current) vote_count_add",
        "if (m->round == current)\n        vote_count_add",
    ),
    Mutant(
        "a late report counts for the round after the next",
        "allreduce/endpoint.c",
        "if (m->round >= current) vote_count_add",
        "vote_count_add",
    ),
    Mutant(
        "the coordinator adds reports up instead of keeping the largest",
        "protocol/policy.c",
        "uint32_t more = value > *mine ? value - *mine : 0;",
        "uint32_t more = value;",
    ),
    Mutant(
        "the votes of a finished round are not cleared",
        "protocol/policy.c",
        "    count->total = (struct policy_report){0};\n",
        "",
    ),
    Mutant(
        "an overdue rank does not report its stored deposit",
        "allreduce/endpoint.c",
        "(outcome == DEPOSIT_STORED && endpoint->options.policy.max_staleness))",
        "false)",
    ),
    Mutant(
        "closing does not wait for reports",
        "allreduce/endpoint.c",
        "bool missing = s->reports_sent && s->",
        "bool missing = false && s->",
    ),
    # One handle on one rank.
    Mutant(
        "a null contribution is taken for data",
        "allreduce/data.c",
        "bool no_a = data_is_null(d, a.header), no_b = data_is_null(d, b.header);",
        "bool no_a = false, no_b = data_is_null(d, b.header);",
    ),
    Mutant(
        "leavers stay live",
        "protocol/round.c",
        "uint64_t gone = round_word(h, ranks, ROUND_LEFT, i);",
        "uint64_t gone = 0;",
    ),
    Mutant(
        "closing forgets the round in progress",
        "allreduce/endpoint.c",
        "endpoint->closing_rounds = endpoint->drives ? begun : 0;",
        "endpoint->closing_rounds = endpoint->drives ? endpoint->engine.current : 0;",
    ),
    Mutant(
        "closing does not wait for the last messages",
        "allreduce/endpoint.c",
        "(endpoint->last_received != all || missing)",
        "missing",
    ),
    Mutant(
        "closing does not wait for answers",
        "allreduce/endpoint.c",
        "closing == ENTERING ? endpoint->unanswered > 0",
        "closing == ENTERING ? false",
        program="questions",
    ),
]
