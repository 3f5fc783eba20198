# SPDX-License-Identifier: Apache-2.0
"""Mistakes in rounds: a rank's counts of rounds, policies, headers, one handle."""

from .mutant import Mutant

MUTANTS = [
    # Counts of rounds on a rank.
    Mutant(
        "a late deposit counts as an arrival",
        "protocol/member.c",
        "? m->frozen <= m->call",
        "? true",
    ),
    Mutant(
        "lost rounds are not reported",
        "protocol/member.c",
        "uint64_t lost = next - m->delivered;",
        "uint64_t lost = 0;",
    ),
    # Policies and headers.
    Mutant(
        "the initiator is drawn with the number of the next round",
        "protocol/policy.c",
        "policy_draw_ranks(round, stream, d->round,",
        "policy_draw_ranks(round, stream, d->round + 1,",
    ),
    Mutant(
        "a rank that is not live can be drawn",
        "protocol/policy.c",
        "if (bitset_has(round->live, rank) && !bitset_has(round->drawn, rank)) {",
        "if (!bitset_has(round->drawn, rank)) {",
    ),
    Mutant(
        "the full policy does not wait for rank 3",
        "allreduce/endpoint.c",
        "r->own_count += bitset_has(",
        "r->own_count += p->member[i] != 3 && bitset_has(",
    ),
    Mutant(
        "merging headers ignores the intent of one of them",
        "protocol/round.c",
        "    out->intent |= other->intent;\n",
        "",
        program="protocol",
    ),
    Mutant(
        "a received header loses its intent",
        "protocol/round.c",
        "memcpy((char *)(h + 1) - bytes, wire, bytes);",
        "memcpy((char *)(h + 1) - bytes, wire, bytes), h->intent = 0;",
        program="protocol",
    ),
    Mutant(
        "merging headers loses a bit of a mask",
        "protocol/round.c",
        "own[i] |= more[i];",
        "own[i] |= more[i] & ~(uint64_t)4;",
    ),
    Mutant(
        "merging headers does not keep the lowest initiator",
        "protocol/round.c",
        "    if (other->initiator < out->initiator)\n        out->initiator = other->initiator;\n",
        "",
    ),
    Mutant(
        "a quorum round starts with one rank too few",
        "protocol/policy.c",
        "report->arrived >= policy_needed(policy, round);",
        "report->arrived + (round->live_count > 1) >= policy_needed(policy, round);",
    ),
    Mutant(
        "a quorum is not limited to the number of live ranks",
        "protocol/policy.c",
        "return count < round->live_count ? count : round->live_count;",
        "return count;",
    ),
    Mutant(
        "last_of does not wait for the last drawn rank",
        "protocol/policy.c",
        "return round->drawn_count && report->drawn == round->drawn_count;",
        "return round->drawn_count && report->drawn;",
    ),
    Mutant(
        "a stored deposit counts toward the quorum",
        "protocol/policy.c",
        "uint64_t came = arrived[i] & round->live[i];",
        "uint64_t came = (arrived[i] | deposited[i]) & round->live[i];",
    ),
    Mutant(
        "a round does not wait for overdue ranks",
        "protocol/policy.c",
        "return policy_rule_met(policy, round, report) &&\n"
        "           report->overdue == round->overdue_count;\n}\n\nbool policy_kept",
        "return policy_rule_met(policy, round, report);\n}\n\nbool policy_kept",
    ),
    Mutant(
        "a rank becomes overdue one round late",
        "protocol/policy.c",
        "absences[rank] >= policy->max_staleness",
        "absences[rank] > policy->max_staleness",
    ),
    Mutant(
        "a round below its quorum is not flagged",
        "allreduce/endpoint.c",
        "result->flags |= ROUND_BELOW_QUORUM;",
        "result->flags |= 0;",
    ),
    Mutant(
        "the check of the quorum ignores ranks that join",
        "protocol/round.c",
        "    round_apply(h, ranks, ROUND_JOINED, arrived, true);\n",
        "",
    ),
    Mutant(
        "a deadline expires after half its time",
        "protocol/policy.c",
        "round_trigger_after(state->first_arrival, policy->deadline,",
        "round_trigger_after(state->first_arrival, policy->deadline / 2,",
    ),
    Mutant(
        "an endpoint sets no alarm for a linger or deadline",
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
        "a report for the previous round counts for the next round",
        "allreduce/endpoint.c",
        "if (m->round >= current) vote_count_add",
        "vote_count_add",
    ),
    Mutant(
        "the coordinator adds up reports of an endpoint instead of keeping the largest",
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
        "a null contribution is reduced like data",
        "allreduce/data.c",
        "bool no_a = data_is_null(d, a.header), no_b = data_is_null(d, b.header);",
        "bool no_a = false, no_b = data_is_null(d, b.header);",
    ),
    Mutant(
        "ranks that have left stay live",
        "protocol/round.c",
        "uint64_t gone = round_word(h, ranks, ROUND_LEFT, i);",
        "uint64_t gone = 0;",
    ),
    Mutant(
        "closing does not count the round in progress",
        "allreduce/endpoint.c",
        "endpoint->closing_rounds = endpoint->drives ? begun : 0;",
        "endpoint->closing_rounds = endpoint->drives ? endpoint->engine.current : 0;",
    ),
    Mutant(
        "closing does not wait for the final notifications",
        "allreduce/endpoint.c",
        "(endpoint->last_received != all || missing)",
        "missing",
    ),
    Mutant(
        "closing does not wait for outstanding answers",
        "allreduce/endpoint.c",
        "closing == ENTERING ? endpoint->unanswered > 0",
        "closing == ENTERING ? false",
        program="questions",
    ),
]
