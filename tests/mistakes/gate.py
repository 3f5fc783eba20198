# SPDX-License-Identifier: Apache-2.0
"""Of the gate between calls of the application and a recovery."""

from .mutant import Mutant

MUTANTS = [
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
    # The passage into an object that one thread uses at a time.
    Mutant(
        "two threads have a passage",
        "runtime/passage.c",
        "if (!atomic_compare_exchange_strong(&p->state, &state, as))\n        return false;",
        "atomic_store(&p->state, as);",
    ),
    Mutant(
        "who takes a passage gets in whether it is shut or not",
        "runtime/passage.c",
        "if (as == PASSAGE_INSIDE && passage_is_shut(p))\n        wait_until_open(p);",
        "",
    ),
    Mutant(
        "who comes in looks before it is inside",
        "runtime/passage.c",
        "CHECK(atomic_load(&p->state) == PASSAGE_ASIDE);\n    INTERLEAVE();\n"
        "    atomic_store(&p->state, PASSAGE_INSIDE);\n    INTERLEAVE();\n"
        "    if (passage_is_shut(p))",
        "bool shut = passage_is_shut(p);\n    INTERLEAVE();\n"
        "    atomic_store(&p->state, PASSAGE_INSIDE);\n    if (shut)",
    ),
    Mutant(
        "who waits for a passage is still inside",
        "runtime/passage.c",
        "passage_step_aside(p);\n        sleepers_await",
        "sleepers_await",
    ),
    Mutant(
        "who has slept before a passage goes in without another look",
        "runtime/passage.c",
        "} while (passage_is_shut(p));",
        "} while (0);",
    ),
    Mutant(
        "who steps aside looks before it has",
        "runtime/passage.c",
        "atomic_store(&p->state, PASSAGE_ASIDE);\n    INTERLEAVE();\n    if (passage_is_shut(p))",
        "bool shut = passage_is_shut(p);\n    INTERLEAVE();\n"
        "    atomic_store(&p->state, PASSAGE_ASIDE);\n    if (shut)",
    ),
    Mutant(
        "who steps aside wakes nobody",
        "runtime/passage.c",
        "INTERLEAVE();\n    if (passage_is_shut(p))\n        sleepers_wake(p->sleepers);",
        "",
    ),
    Mutant(
        "who gives a passage back wakes nobody",
        "runtime/passage.c",
        "if (p->sleepers &&\n        atomic_load_explicit(&p->state, memory_order_relaxed) == "
        "PASSAGE_INSIDE)\n        passage_step_aside(p);",
        "",
    ),
    Mutant(
        "who is inside of a passage is not waited for",
        "runtime/passage.c",
        "return atomic_load(&p->state) != PASSAGE_INSIDE;",
        "return p;",
    ),
    Mutant(
        "who is aside is waited for",
        "runtime/passage.c",
        "return atomic_load(&p->state) != PASSAGE_INSIDE;",
        "return atomic_load(&p->state) == PASSAGE_FREE;",
    ),
    Mutant(
        "who waits is woken before a passage opens",
        "runtime/passage.c",
        "atomic_store(&p->shut, false);\n    INTERLEAVE();\n    sleepers_wake(p->sleepers);",
        "sleepers_wake(p->sleepers);\n    INTERLEAVE();\n    atomic_store(&p->shut, false);",
    ),
]
