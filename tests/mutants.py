# SPDX-License-Identifier: Apache-2.0
"""Do the invariants catch mistakes? Plants protocol mistakes one at a time and looks.

Each mistake is one small change of a source under csrc/. It has to compile, and running the
simulated schedules with it has to end with a broken invariant: a crash, a hang or a clean run
is a failure of this script. The unchanged sources have to pass first.

    python tests/mutants.py [--jobs 2] [--json F] [NAME ...]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-DPCOLL_TEST_INTERLEAVE"]
SCHEDULES = 20000
PATIENCE = 300  # seconds for one mutant: only a hang takes that long


class Mutant(NamedTuple):
    """A mistake: in a file, this text becomes that one."""

    name: str
    file: str
    old: str
    new: str


MUTANTS = [
    # The engine: readiness, two instances, consumption.
    Mutant(
        "an early message of round t+1 is dropped",
        "schedule/engine.c",
        "if (round > e->current + 1)\n        return ENGINE_IMPOSSIBLE;",
        "if (round > e->current)\n        return ENGINE_DROPPED;",
    ),
    Mutant(
        "a late activation of round t-1 is obeyed",
        "schedule/engine.c",
        "if (round < e->current) {",
        "if (round + 1 < e->current) {",
    ),
    Mutant(
        "a gate opens one predecessor early",
        "schedule/engine.c",
        "++p->done_preds == s->ops[next].need &&",
        "++p->done_preds + (s->ops[next].need > 1) == s->ops[next].need &&",
    ),
    Mutant(
        "a gate opens one predecessor late",
        "schedule/engine.c",
        "++p->done_preds == s->ops[next].need &&",
        "++p->done_preds == s->ops[next].need + (s->ops[next].need == 1) &&",
    ),
    Mutant(
        "an operation fires for every predecessor beyond its gate",
        "schedule/engine.c",
        "++p->done_preds == s->ops[next].need && p->state == OP_WAITING)",
        "++p->done_preds >= s->ops[next].need)",
    ),
    Mutant(
        "a round is over before its sends are",
        "schedule/engine.c",
        "state == OP_DONE && !in->running &&",
        "state == OP_DONE &&",
    ),
    Mutant(
        "the next round is not held",
        "schedule/engine.c",
        "    e->current++;\n    e->released = false;",
        "    e->current++;",
    ),
    # The activation broadcast.
    Mutant(
        "an activation is forwarded on the last edge only",
        "algorithms/activation.c",
        "for (int j = 0; j < k; j++)",
        "for (int j = 0; j < k && k == a->edges - 1; j++)",
    ),
    Mutant(
        "the last in-edge below an out-edge does not fire it",
        "algorithms/activation.c",
        "for (int j = 0; j < k; j++)",
        "for (int j = 0; j < k - 1; j++)",
    ),
    Mutant(
        "one activation edge too few where P is no power of two",
        "algorithms/activation.c",
        "while (((uint64_t)1 << edges) < size)",
        "while (((uint64_t)2 << edges) <= size)",
    ),
    # The data part.
    Mutant(
        "the additions have another order",
        "algorithms/allreduce_recdbl.c",
        "for (uint32_t hop = 1, k = 0; hop < power; hop *= 2, k++) {",
        "for (uint32_t hop = power / 2, k = 0; hop; hop /= 2, k++) {",
    ),
    Mutant(
        "a temporary is received into before it was reduced",
        "algorithms/allreduce_recdbl.c",
        "    c->free_after[which] = reduce;\n",
        "",
    ),
    Mutant(
        "a reduction does not wait for the send from its target",
        "algorithms/allreduce_recdbl.c",
        "if (c->last_send >= 0 && c->value == BUFFER_RESULT)",
        "if (0)",
    ),
    Mutant(
        "a folded rank is forgotten",
        "algorithms/allreduce_recdbl.c",
        "absorb(&c, rank + power, EDGE_FOLD);",
        'sched_after(s, sched_recv(s, "receive", (int)(rank + power), EDGE_FOLD, '
        "BUFFER_TEMP0), active);",
    ),
    # What a rank owes.
    Mutant(
        "a stored deposit is counted twice (a carry races with an activation)",
        "protocol/contribution.c",
        "return plan.carried == NO_SLOT || plan.carried == c->pending;",
        "(void)c;\n    (void)plan;\n    return true;",
    ),
    Mutant(
        "a stored deposit is lost in a carry",
        "protocol/contribution.c",
        "int carried = c->late == PCOLL_LATE_CARRY ? c->pending : NO_SLOT;",
        "int carried = NO_SLOT;",
    ),
    Mutant(
        "a deposit is written over the frozen one",
        "protocol/contribution.c",
        "if (i != c->pending && i != c->frozen && i != c->user)",
        "if (i != c->pending && i != c->user)",
    ),
    Mutant(
        "what a round took is still owed",
        "protocol/contribution.c",
        "    c->frozen = c->pending;\n    c->pending = NO_SLOT;\n",
        "    c->frozen = c->pending;\n",
    ),
    # A rank's view of the rounds.
    Mutant(
        "a late deposit arrives at a round that is over",
        "protocol/member.c",
        "*open = m->frozen <= m->call;",
        "*open = true;",
    ),
    Mutant(
        "back-pressure is off by one",
        "protocol/member.c",
        "round >= m->delivered + m->history;",
        "round > m->delivered + m->history;",
    ),
    Mutant(
        "nobody is told that a rank holds back no longer",
        "protocol/member.c",
        "bool held = m->holds_back;",
        "bool held = false;",
    ),
    Mutant(
        "a stored deposit is not called stored",
        "protocol/member.c",
        "if (!m->arrived)\n            bitset_add(",
        "if (0)\n            bitset_add(",
    ),
    Mutant(
        "an arrival outlives its round",
        "protocol/member.c",
        "    m->arrived = false;\n    m->frozen++;",
        "    m->frozen++;",
    ),
    Mutant(
        "a rank is not told that its deposit was included",
        "protocol/member.c",
        "m->taken_in = (int64_t)m->frozen;",
        "m->taken_in = (int64_t)m->frozen + 1;",
    ),
    Mutant(
        "the round after the last join does not wait for its readers",
        "protocol/member.c",
        "m->holds_back = behind || copying || unaware;",
        "m->holds_back = behind || copying;",
    ),
    Mutant(
        "a result is overwritten while it is read",
        "protocol/member.c",
        "m->holds_back = behind || copying || unaware;",
        "m->holds_back = behind || unaware;",
    ),
    Mutant(
        "a gap is not reported",
        "protocol/member.c",
        "*lost = next - m->delivered;",
        "*lost = 0;",
    ),
    Mutant(
        "one round too old is delivered",
        "protocol/member.c",
        "m->complete > m->history ? m->complete - m->history : 0;",
        "m->complete > m->history + 1 ? m->complete - m->history - 1 : 0;",
    ),
    Mutant(
        "a rank that leaves tells nobody",
        "protocol/member.c",
        "((announces_join(m) || m->left) && m->live)",
        "(announces_join(m) && m->live)",
    ),
    Mutant(
        "ranks that have joined never come back",
        "protocol/member.c",
        "m->live = !gone && (!announced || over);",
        "m->live = !gone && !announced;",
    ),
    # Policies and headers.
    Mutant(
        "an initiator is drawn from the wrong round",
        "allreduce/vertex.c",
        ".round = v->engine.current};\n}\n\nint vertex_awaited",
        ".round = v->engine.current + 1};\n}\n\nint vertex_awaited",
    ),
    Mutant(
        "a rank that has gone can be drawn",
        "protocol/policy.c",
        "if (bitset_has(view->live, rank))\n            return",
        "if (rank == first)\n            return",
    ),
    Mutant(
        "full does not wait for the last rank",
        "protocol/policy.c",
        "if (view->members[i] & view->live[i] & ~view->arrived[i])",
        "if (view->members[i] & view->live[i] & ~view->arrived[i] & ~(1ull << 3))",
    ),
    Mutant(
        "a mask bit is lost",
        "protocol/round.c",
        "out->masks[i] = a->masks[i] | b->masks[i];",
        "out->masks[i] = a->masks[i] | (b->masks[i] & ~(uint64_t)4);",
    ),
    Mutant(
        "the lowest initiator is not agreed on",
        "protocol/round.c",
        "out->initiator = a->initiator < b->initiator ? a->initiator : b->initiator;",
        "out->initiator = a->initiator;",
    ),
    # One handle on one rank.
    Mutant(
        "a null contribution is taken for data",
        "allreduce/vertex.c",
        "bool no_a = round_is_null(a, v->shape.ranks),",
        "bool no_a = false,",
    ),
    Mutant(
        "leavers stay live",
        "allreduce/vertex.c",
        "v->live[i] &= ~(joined[i] | left[i]);",
        "v->live[i] &= ~joined[i];",
    ),
    Mutant(
        "closing forgets the round in progress",
        "allreduce/vertex.c",
        "v->closing_rounds = v->engine.current + v->frozen;",
        "v->closing_rounds = v->engine.current;",
    ),
    Mutant(
        "closing does not wait for the last messages",
        "allreduce/vertex.c",
        "if (v->last_received < v->activation.edges ||",
        "if (",
    ),
    # The domain.
    Mutant(
        "one result slot too few",
        "domain/single.c",
        "s->ring = options->history + 1;",
        "s->ring = options->history;",
    ),
]


def sources() -> list[Path]:
    """What the simulated schedules are made of, as the Makefile lists it."""
    names = subprocess.run(
        ["make", "-s", "print-simulation"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    return [ROOT / name for name in names]


class Builder:
    """Compiles everything once; then a mutant costs one file and a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects: dict[Path, Path] = {}

    def compile(self, source: Path, to: Path, include: Path | None = None) -> None:
        """One file. A changed copy finds its headers beside the original."""
        beside = ["-iquote", str(include)] if include else []
        subprocess.run(
            ["cc", *FLAGS, *beside, "-c", str(source), "-o", str(to)],
            check=True,
            capture_output=True,
            text=True,
        )

    def compile_all(self, jobs: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for i, source in enumerate(sources()):
                self.objects[source] = self.folder / f"{i}-{source.stem}.o"
                pool.submit(self.compile, source, self.objects[source])

    def link(self, name: str, changed: dict[Path, Path]) -> Path:
        program = self.folder / name
        objects = [str(changed.get(s, o)) for s, o in self.objects.items()]
        subprocess.run(
            ["cc", *objects, "-lm", "-lpthread", "-o", str(program)],
            check=True,
            capture_output=True,
            text=True,
        )
        return program

    def plant(self, index: int, mutant: Mutant) -> Path:
        original = ROOT / "csrc" / mutant.file
        text = original.read_text()
        if text.count(mutant.old) != 1:
            raise SystemExit(
                f"{mutant.name}: found {text.count(mutant.old)} times in {mutant.file}, "
                f"expected once:\n{mutant.old}"
            )
        copy = self.folder / f"mutant-{index}.c"
        copy.write_text(text.replace(mutant.old, mutant.new))
        compiled = copy.with_suffix(".o")
        self.compile(copy, compiled, include=original.parent)
        return self.link(f"mutant-{index}", {original: compiled})


def run(program: Path, schedules: int) -> tuple[int | None, str, float]:
    """Exit status (None: it hangs), what it said, seconds."""
    env = {**os.environ, "PARTIALCOLL_SCHEDULES": str(schedules)}
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [str(program)], env=env, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None, "", time.monotonic() - begin
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begin


def verdict(status: int | None, said: str) -> tuple[bool, str]:
    """Was it caught by an invariant, and by which or what happened instead."""
    broken = re.search(r"invariant broken: ([a-z ]+)", said)
    if status == 1 and broken:
        return True, broken.group(1)
    if status is None:
        return False, "HANGS"
    if status == 0:
        return False, "NOT CAUGHT"
    return False, f"CRASH ({status}): " + " ".join(said.split()[:30])


def judge(builder: Builder, index: int, mutant: Mutant) -> dict[str, object]:
    try:
        program = builder.plant(index, mutant)
    except subprocess.CalledProcessError as error:
        return {"mutant": mutant.name, "caught": False, "by": "DOES NOT COMPILE " + error.stderr}
    status, said, seconds = run(program, SCHEDULES)
    caught, by = verdict(status, said)
    seed = re.search(r"PARTIALCOLL_SEED=(\d+)", said)
    return {
        "mutant": mutant.name,
        "file": mutant.file,
        "caught": caught,
        "by": by,
        "seed": int(seed.group(1)) if seed else None,
        "seconds": round(seconds, 1),
    }


def main() -> int:
    """Run them; exit 1 if one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="write what was seen to a file")
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder))
        builder.compile_all(options.jobs)
        status, said, _ = run(builder.link("unchanged", {}), 200)
        if status != 0:
            print(f"the unchanged sources do not pass:\n{said}", file=sys.stderr)
            return 1
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            rows = list(pool.map(lambda pair: judge(builder, *pair), enumerate(chosen)))
    for row in rows:
        seen = f"{row['by']} (seed {row.get('seed')}, {row.get('seconds')} s)"
        print(f"{'caught' if row['caught'] else 'MISSED'}  {row['mutant']}: {seen}")
    caught = sum(bool(row["caught"]) for row in rows)
    print(f"{caught} of {len(rows)} planted mistakes were caught by an invariant")
    if options.json:
        Path(options.json).write_text(json.dumps({"schema": 1, "rows": rows}, indent=2) + "\n")
    return 0 if caught == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
