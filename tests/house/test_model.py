# SPDX-License-Identifier: Apache-2.0
"""The Promela model uses the same states as the C code: a renamed one is detected."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
MODEL = (ROOT / "tests/model/partial.pml").read_text()

# A name in the model -> the file of the C code that has it, and its declaration.
NAMES = {
    "current": ("schedule/sched.h", r"uint64_t current;"),
    "released": ("schedule/sched.h", r"bool released;"),
    "ENGINE_TAKEN": ("schedule/sched.h", r"ENGINE_TAKEN,"),
    "ENGINE_KEPT": ("schedule/sched.h", r"ENGINE_KEPT,"),
    "ENGINE_DROPPED": ("schedule/sched.h", r"ENGINE_DROPPED,"),
    "ENGINE_IMPOSSIBLE": ("schedule/sched.h", r"ENGINE_IMPOSSIBLE"),
    "engine_complete": ("schedule/sched.h", r"engine_complete\("),
    "engine_advance": ("schedule/sched.h", r"engine_advance\("),
    "start": ("algorithms/algorithms.h", r"int start;"),
    "activation.active": ("algorithms/algorithms.h", r"int active;"),
    "from": ("algorithms/algorithms.h", r"int from;"),
    "frozen": ("protocol/member.h", r"uint64_t frozen, complete, delivered;"),
    "complete": ("protocol/member.h", r"uint64_t frozen, complete, delivered;"),
    "delivered": ("protocol/member.h", r"uint64_t frozen, complete, delivered;"),
    "arrived": ("protocol/member.h", r"bool arrived;"),
    "call": ("protocol/member.h", r"uint64_t call;"),
    "wanted": ("protocol/member.h", r"uint64_t wanted;"),
    "node_admits": ("domain/node_round.c", r"static bool node_admits\("),
    "node_freeze_all": ("domain/node_round.c", r"static uint32_t node_freeze_all\("),
    "member_publish": ("protocol/member.h", r"member_publish\("),
    "pending": ("protocol/member.h", r"int pending, frozen, user;"),
    "carried": ("protocol/member.h", r"int carried;"),
    "finish_round": ("allreduce/endpoint.c", r"static void endpoint_finish_round\("),
    "round_trigger_evaluate": ("protocol/policy.h", r"round_trigger_evaluate\("),
}

# The important decisions, in the model and in C.
CHOICES = [
    ("open = frozen[r] <= call;", "protocol/member.c", "? m->frozen <= m->call"),
    (
        "wanted = call + 1;",
        "protocol/member.c",
        "m->wanted = (m->deliver == PCOLL_DELIVER_ONE ? m->call : m->delivered) + 1;",
    ),
    ("wanted = delivered[r] + 1;", "protocol/member.c", "m->wanted = m->delivered + 1;"),
    (
        "current[r] < delivered[r] + HISTORY",
        "domain/node_round.c",
        "round < n->history + STEP(atomic_load(&line->delivered))",
    ),
    ("round == current[r] + 1", "schedule/sched.c", "round > e->current + 1"),
]


@pytest.mark.parametrize("name", NAMES)
def test_names(name):
    file, pattern = NAMES[name]
    assert re.search(rf"\b{re.escape(name)}\b", MODEL), f"{name} is not in the model any more"
    assert re.search(pattern, (ROOT / "csrc" / file).read_text()), f"{name} is not in {file}"


@pytest.mark.parametrize(("model", "file", "code"), CHOICES)
def test_choices(model, file, code):
    assert model in MODEL
    assert code in (ROOT / "csrc" / file).read_text(), "change the model as well"
