# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the growth of handles. The simulator has its own code for growth (tests/c/grow.c), so
a job of real ranks must detect these: tests/faults/test_planted_growth.py."""

from .mutant import Mutant

GROWTH = [
    Mutant(
        "the arguments of the ranks are not compared",
        "allreduce/handle_recovery.c",
        "rc = handle_growth_compare(g) ?:",
        "(void)handle_growth_compare;\n    rc =",
    ),
    Mutant(
        "a surviving rank does not report its completed rounds",
        "allreduce/handle_recovery.c",
        "all.inventory = inventory_of(own, c->transport->rank);",
        "(void)c;",
    ),
    Mutant(
        "joining ranks do not receive the last round",
        "allreduce/handle_recovery.c",
        "g->plan.some_lack = g->plan.some_lack || all.inventory.lacking;",
        "g->plan.some_lack = false;",
    ),
    Mutant(
        "the new endpoint begins at round 0",
        "allreduce/handle_recovery.c",
        "endpoint_begin_at(gate->successor, old, g->plan.complete, gate->resumes);",
        "",
    ),
    Mutant(
        "surviving ranks do not copy their state to the new endpoint",
        "allreduce/handle_recovery.c",
        "endpoint_inherit(gate->successor, g->handle->endpoint, gate->resumes);",
        "endpoint_inherit(gate->successor, NULL, gate->resumes);",
    ),
    Mutant(
        "the new endpoint is not registered with the communicator",
        "allreduce/handle_recovery.c",
        "rc = communicator_register(c, &gate->successor->base, 0);",
        "",
    ),
    Mutant(
        "the contents of a library-owned send buffer are not copied",
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
        "a canceled growth leaves the old communicator paused",
        "runtime/recovery.c",
        "progress_add(g->from->progress, &g->from->source);",
        "",
    ),
    Mutant(
        "the new communicator stays closed to recoveries",
        "runtime/recovery.c",
        "outage_leave(g->to->outage);",
        "",
    ),
    Mutant(
        "objects that stay on the old communicator are not recovered",
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
        "the driver does not poll the new communicator",
        "runtime/recovery.c",
        "progress_add(p, &g->to->source);",
        "",
    ),
]
