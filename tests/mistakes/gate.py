# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the gate between calls of the application and a recovery."""

from .mutant import Mutant

MUTANTS = [
    # The gate between calls of the application and a recovery.
    Mutant(
        "calls get in whether the gate is closed or not",
        "base/gate.c",
        "INTERLEAVE();\n    return !gate_is_closed(g);",
        "INTERLEAVE();\n    return true;",
    ),
    Mutant(
        "who enters looks before it is counted",
        "base/gate.c",
        "INTERLEAVE();\n    uint32_t before = atomic_fetch_add(&g->inside, 1);\n"
        "    CHECK(before < UINT32_MAX);\n    (void)before;\n    lock_held(g->rank);\n"
        "    INTERLEAVE();\n"
        "    return !gate_is_closed(g);",
        "bool closed = gate_is_closed(g);\n    INTERLEAVE();\n"
        "    atomic_fetch_add(&g->inside, 1);\n    return !closed;",
    ),
    Mutant(
        "who steps back stays counted",
        "base/gate.c",
        "gate_leave(g);\n    return false;",
        "return false;",
    ),
    Mutant(
        "who steps back wakes nobody",
        "base/gate.c",
        "gate_leave(g);\n    return false;",
        "atomic_fetch_sub(&g->inside, 1);\n    return false;",
    ),
    Mutant(
        "who has slept goes in without another look",
        "base/gate.c",
        "while (!gate_count_in(g));",
        "while (INTERLEAVE(), atomic_fetch_add(&g->inside, 1), false);",
    ),
    Mutant(
        "who is kept out tries again and again",
        "base/gate.c",
        "return !gate_is_closed(arg);",
        "return arg;",
    ),
    Mutant(
        "who leaves looks before it is gone",
        "base/gate.c",
        "uint32_t before = atomic_fetch_sub(&g->inside, 1);\n    CHECK(before > 0);\n"
        "    (void)before;\n    lock_released(g->rank);\n    INTERLEAVE();\n"
        "    if (gate_is_closed(g))",
        "bool closed = gate_is_closed(g);\n    INTERLEAVE();\n"
        "    atomic_fetch_sub(&g->inside, 1);\n    if (closed)",
    ),
    Mutant(
        "who leaves wakes nobody",
        "base/gate.c",
        "if (gate_is_closed(g))\n        sleepers_wake(&g->sleepers);",
        "",
    ),
    Mutant(
        "who leaves wakes though nobody sleeps",
        "base/gate.c",
        "if (gate_is_closed(g))\n        sleepers_wake(&g->sleepers);",
        "sleepers_wake(&g->sleepers);",
    ),
    Mutant(
        "the last who is inside is not waited for",
        "base/gate.c",
        "return atomic_load(&g->inside) == 0;",
        "return atomic_load(&g->inside) <= 1;",
    ),
    Mutant(
        "a closed gate is taken for an empty one",
        "base/gate.c",
        "sleepers_await(&g->sleepers, gate_is_empty, g);",
        "(void)gate_is_empty;",
    ),
    Mutant(
        "an opened gate wakes nobody",
        "base/gate.c",
        "INTERLEAVE();\n    sleepers_wake(&g->sleepers);",
        "INTERLEAVE();",
    ),
    Mutant(
        "who is kept out is woken before the gate opens",
        "base/gate.c",
        "atomic_store(&g->closed, false);\n    INTERLEAVE();\n    sleepers_wake(&g->sleepers);",
        "sleepers_wake(&g->sleepers);\n    INTERLEAVE();\n    atomic_store(&g->closed, false);",
    ),
]
