# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the growth of handles. The simulated world has its own growth (tests/c/grow.c), so
real ranks must detect these: tests/faults/test_planted_growth.py."""

from .mutant import Mutant

GROWTH = [
    Mutant(
        "what the ranks ask for is not compared",
        "allreduce/handle_recovery.c",
        "rc = handle_growth_compare(g) ?:",
        "(void)handle_growth_compare;\n    rc =",
    ),
    Mutant(
        "a survivor does not say how far it is",
        "allreduce/handle_recovery.c",
        "all.inventory = inventory_of(own, c->transport->rank);",
        "(void)c;",
    ),
    Mutant(
        "no newcomer is given the last round",
        "allreduce/handle_recovery.c",
        "g->plan.some_lack = g->plan.some_lack || all.inventory.lacking;",
        "g->plan.some_lack = false;",
    ),
    Mutant(
        "the new endpoint begins with round 0",
        "allreduce/handle_recovery.c",
        "endpoint_begin_at(gate->successor, old, g->plan.complete, gate->resumes);",
        "",
    ),
    Mutant(
        "survivors do not bring their state",
        "allreduce/handle_recovery.c",
        "endpoint_inherit(gate->successor, g->handle->endpoint, gate->resumes);",
        "endpoint_inherit(gate->successor, NULL, gate->resumes);",
    ),
    Mutant(
        "the new endpoint is not driven",
        "allreduce/handle_recovery.c",
        "rc = communicator_register(c, &gate->successor->base, 0);",
        "",
    ),
    Mutant(
        "what was filled before is not there afterwards",
        "allreduce/handle_recovery.c",
        "handle_copy_slot(h->gate.successor, h->gate.filling ? h->gate.filling : old);",
        "(void)handle_copy_slot;",
    ),
    Mutant(
        "the handle stays on the old communicator",
        "allreduce/handle_recovery.c",
        "user_object_made(&h->base, c, &endpoint->base,",
        "user_object_made(&h->base, h->endpoint ? h->base.communicator : c, &endpoint->base,",
    ),
    Mutant(
        "the handle keeps its old endpoint",
        "allreduce/handle_recovery.c",
        "h->endpoint = endpoint;\n    h->gate.successor = NULL;",
        "if (!h->endpoint) h->endpoint = endpoint;\n    h->gate.successor = NULL;",
    ),
    Mutant(
        "who has been called off stays paused",
        "runtime/recovery.c",
        "progress_add(g->from->progress, &g->from->source);",
        "",
    ),
    Mutant(
        "nobody recovers after a growth",
        "runtime/recovery.c",
        "outage_leave(g->to->outage);",
        "",
    ),
    Mutant(
        "what stays on the old communicator is not begun anew",
        "runtime/recovery.c",
        "outage_begin(from->outage, &(struct failed_ranks){0});",
        "",
    ),
    Mutant(
        "the old communicator stays closed to recoveries",
        "runtime/recovery.c",
        "outage_leave(from->outage);\n}",
        "}",
    ),
    Mutant(
        "the new communicator is not driven",
        "runtime/recovery.c",
        "progress_add(p, &g->to->source);",
        "",
    ),
]
