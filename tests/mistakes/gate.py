# SPDX-License-Identifier: Apache-2.0
"""Mistakes in the gate between calls of the application and a recovery."""

from .mutant import Mutant

MUTANTS = [
    # The gate between calls of the application and a recovery.
    Mutant(
        "a call enters even if the gate is closed",
        "base/gate.c",
        "INTERLEAVE();\n    return !gate_is_closed(g);",
        "INTERLEAVE();\n    return true;",
    ),
    Mutant(
        "an entering call checks the gate before it is counted as inside",
        "base/gate.c",
        "INTERLEAVE();\n    uint32_t before = atomic_fetch_add(&g->inside, 1);\n"
        "    CHECK(before < UINT32_MAX);\n    (void)before;\n    lock_held(g->rank);\n"
        "    INTERLEAVE();\n"
        "    return !gate_is_closed(g);",
        "bool closed = gate_is_closed(g);\n    INTERLEAVE();\n"
        "    atomic_fetch_add(&g->inside, 1);\n    return !closed;",
    ),
    Mutant(
        "a refused call stays counted as inside",
        "base/gate.c",
        "gate_leave(g);\n    return false;",
        "return false;",
    ),
    Mutant(
        "a refused call leaves the gate without waking sleepers",
        "base/gate.c",
        "gate_leave(g);\n    return false;",
        "atomic_fetch_sub(&g->inside, 1);\n    return false;",
    ),
    Mutant(
        "a woken call enters without checking the gate again",
        "base/gate.c",
        "while (!gate_count_in(g));",
        "while (INTERLEAVE(), atomic_fetch_add(&g->inside, 1), false);",
    ),
    Mutant(
        "a waiting call retries in a loop instead of sleeping",
        "base/gate.c",
        "return !gate_is_closed(arg);",
        "return arg;",
    ),
    Mutant(
        "a leaving call checks the gate before it stops being counted",
        "base/gate.c",
        "uint32_t before = atomic_fetch_sub(&g->inside, 1);\n    CHECK(before > 0);\n"
        "    (void)before;\n    lock_released(g->rank);\n    INTERLEAVE();\n"
        "    if (gate_is_closed(g))",
        "bool closed = gate_is_closed(g);\n    INTERLEAVE();\n"
        "    atomic_fetch_sub(&g->inside, 1);\n    if (closed)",
    ),
    Mutant(
        "a leaving call wakes no sleeper",
        "base/gate.c",
        "if (gate_is_closed(g))\n        sleepers_wake(&g->sleepers);",
        "",
    ),
    Mutant(
        "a leaving call wakes sleepers even if the gate is open",
        "base/gate.c",
        "if (gate_is_closed(g))\n        sleepers_wake(&g->sleepers);",
        "sleepers_wake(&g->sleepers);",
    ),
    Mutant(
        "the closer does not wait for the last call inside",
        "base/gate.c",
        "return atomic_load(&g->inside) == 0;",
        "return atomic_load(&g->inside) <= 1;",
    ),
    Mutant(
        "the closer does not wait until the gate is empty",
        "base/gate.c",
        "sleepers_await(&g->sleepers, gate_is_empty, g);",
        "(void)gate_is_empty;",
    ),
    Mutant(
        "opening the gate wakes no sleeper",
        "base/gate.c",
        "INTERLEAVE();\n    sleepers_wake(&g->sleepers);",
        "INTERLEAVE();",
    ),
    Mutant(
        "opening the gate wakes sleepers before it clears the closed flag",
        "base/gate.c",
        "atomic_store(&g->closed, false);\n    INTERLEAVE();\n    sleepers_wake(&g->sleepers);",
        "sleepers_wake(&g->sleepers);\n    INTERLEAVE();\n    atomic_store(&g->closed, false);",
    ),
]
