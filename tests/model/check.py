# SPDX-License-Identifier: Apache-2.0
"""Check the Promela model exhaustively with spin: every case, then planted mistakes.

    python tests/model/check.py [--quick] [--json F]

A case is a set of parameters of partial.pml. spin visits every reachable state and reports a
broken assertion or a deadlock. A mistake is a change of the model that must be found, which
shows that the model can fail. Needs spin (`make model` installs it) and a C compiler.
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
from typing import Any

MODEL = Path(__file__).resolve().parent / "partial.pml"
MEMORY_MB = 12000

# All interleavings, or agents that run to completion (see the model).
QUICK = [
    "P=3 POLICY=SOLO ROUNDS=2",
    "P=3 POLICY=MAJORITY ROUNDS=2",
    "P=3 POLICY=FULL ROUNDS=3",
    "P=4 POLICY=SOLO ROUNDS=2 HISTORY=2 CALLERS=3 RUN_TO_COMPLETION",
    "P=4 POLICY=SOLO ROUNDS=2 HISTORY=2 CALLERS=5 RUN_TO_COMPLETION",
    "P=4 POLICY=FULL ROUNDS=3",
    "P=3 POLICY=FULL ROUNDS=2 CRASH",
    "P=3 POLICY=MAJORITY ROUNDS=1 CRASH",
]
LONG = [
    "P=3 POLICY=SOLO ROUNDS=2 DELIVER_ALL",
    "P=3 POLICY=SOLO ROUNDS=2 HISTORY=2 STOPS",
    "P=3 POLICY=MAJORITY ROUNDS=3",
    "P=3 POLICY=SOLO ROUNDS=3 RUN_TO_COMPLETION",
    "P=3 POLICY=SOLO ROUNDS=3 DELIVER_ALL CALLERS=3 RUN_TO_COMPLETION",
    "P=4 POLICY=MAJORITY ROUNDS=2",
    "P=4 POLICY=SOLO ROUNDS=1",
    "P=4 POLICY=SOLO ROUNDS=2 HISTORY=2 CALLERS=7 RUN_TO_COMPLETION",
    "P=4 POLICY=SOLO ROUNDS=3 HISTORY=3 CALLERS=3 RUN_TO_COMPLETION",
    "P=4 POLICY=SOLO ROUNDS=3 HISTORY=3 CALLERS=5 RUN_TO_COMPLETION",
    "P=4 POLICY=SOLO ROUNDS=2 DELIVER_ALL CALLERS=5 RUN_TO_COMPLETION",
    "P=3 POLICY=SOLO ROUNDS=1 CRASH",
    "P=3 POLICY=SOLO ROUNDS=2 HISTORY=2 CALLERS=3 RUN_TO_COMPLETION CRASH",
    "P=4 POLICY=SOLO ROUNDS=1 CALLERS=3 RUN_TO_COMPLETION CRASH",
    "P=4 POLICY=FULL ROUNDS=2 CRASH",
    "P=3 POLICY=SOLO ROUNDS=1 DELIVER_ALL CRASH",
    "P=3 POLICY=MAJORITY ROUNDS=2 RUN_TO_COMPLETION CRASH",
    "P=3 POLICY=SOLO ROUNDS=2 RUN_TO_COMPLETION CRASH",
]

FULL_CRASH, MAJORITY_CRASH = QUICK[6:8]

# Each: a description, a text, its replacement, and the case that fails with the mistake only.
MISTAKES = [
    (
        "a deposit counts twice because its plan is not checked again",
        ":: carried && carried != pending[r] -> goto plan",
        ":: false -> goto plan",
        QUICK[0],
    ),
    (
        "a carried deposit is lost",
        "pending[r] = carried | (1 << call);",
        "pending[r] = 1 << call;",
        QUICK[0],
    ),
    (
        "a late deposit is treated as arrived",
        "open = frozen[r] <= call;",
        "open = true;",
        QUICK[0],
    ),
    (
        "a rank obeys a late activation",
        ":: round < current[r] -> skip ",
        ":: round < current[r] -> from[r] = from[r] | (1 << (k)) ",
        QUICK[0],
    ),
    (
        "an early activation is dropped",
        "early[r] = early[r] | (1 << (k)) /*",
        "skip /*",
        "P=4 POLICY=MAJORITY ROUNDS=2",
    ),
    (
        "an activation is not forwarded",
        "(start[r] || (from[r] & below(k))))",
        "start[r])",
        "P=4 POLICY=MAJORITY ROUNDS=2",
    ),
    (
        "back-pressure is off by one",
        "(current[r] < delivered[r] + HISTORY)",
        "(current[r] <= delivered[r] + HISTORY)",
        QUICK[0],
    ),
    (
        "a round completes before all ranks have entered it",
        "(runs(r) && entered[r] && all_frozen(current[r]) && !ready(r))",
        "(runs(r) && entered[r] && !ready(r))",
        QUICK[0],
    ),
    (
        "a full round does not wait for all ranks",
        "#define met(r) arrived[r]\n#define activates false",
        "#define met(r) (arrived[0] || arrived[r])\n#define activates false",
        QUICK[2],
    ),
    (
        "a stored deposit is not counted as taken",
        "    taken[r] = taken[r] | pending[r];\n",
        "    if\n    :: arrived[r] -> skip\n    :: else -> goto late\n    fi;\n"
        "    taken[r] = taken[r] | pending[r];\nlate:\n",
        QUICK[0],
    ),
    (
        "a rank that was not drawn starts the round",
        "(arrived[r] && draw(current[r]) == (r))",
        "arrived[r]",
        QUICK[1],
    ),
    (
        "a frozen deposit of a void round is not restored",
        "pending[r] = pending[r] | froze[r]\n",
        "skip\n",
        FULL_CRASH,
    ),
    (
        "a frozen deposit counts as taken although its round is void",
        "frozen[r]--;\n        assert((pending[r] & froze[r]) == 0);\n"
        "        taken[r] = taken[r] & ~froze[r];",
        "frozen[r]--;",
        FULL_CRASH,
    ),
    (
        "a rank that lacks the last round does not receive it",
        "    complete[r] = most;\n",
        "",
        FULL_CRASH,
    ),
    (
        "the ranks agree on the round count of one rank instead of the largest",
        "lives(i) && complete[i] > most -> most = complete[i]",
        "lives(i) && i == P - 1 -> most = complete[i]",
        FULL_CRASH,
    ),
    (
        "the mask of a void round is compared with that of its repetition",
        "        seen[most] = false\n",
        "        skip\n",
        FULL_CRASH,
    ),
    (
        "a rank that waits for the void round has not arrived at its repetition",
        "    arrived[r] = awaited[r] > most;\n",
        "",
        FULL_CRASH,
    ),
    (
        "recovery copies the state of a rank in the middle of a deposit",
        "atomic { !gate[r] -> inherit(r) };",
        "atomic { inherit(r) };",
        "P=3 POLICY=SOLO ROUNDS=2 HISTORY=2 CALLERS=3 RUN_TO_COMPLETION CRASH",
    ),
    (
        "a rank continues before all ranks have inherited their state",
        "    all(inherited);\n",
        "",
        FULL_CRASH,
    ),
    (
        "the ranks agree before all of them have stopped",
        "agreed || all(stopped) ->",
        "true ->",
        FULL_CRASH,
    ),
    (
        "messages of the old epoch arrive in the new epoch",
        ":: nempty(edge[i]) -> edge[i]?_\n        :: empty(edge[i]) -> break",
        ":: break",
        MAJORITY_CRASH,
    ),
    (
        "activations of the old epoch count in the new epoch",
        "    from[r] = 0;\n    early[r] = 0;\n    outage",
        "    outage",
        MAJORITY_CRASH,
    ),
    (
        "a round waits for the contribution of the dead rank",
        "(left_out(r) || frozen[r] > (t))",
        "(frozen[r] > (t))",
        FULL_CRASH,
    ),
    (
        "the dead rank stays in the activation broadcast",
        "#define LEFT (agreed -> P - 1 : P)\n"
        "#define number(r) ((agreed && dead < (r)) -> (r) - 1 : (r))\n"
        "#define numbered(n) ((agreed && (n) >= dead) -> (n) + 1 : (n))",
        "#define LEFT P\n#define number(r) (r)\n#define numbered(n) (n)",
        "P=4 POLICY=SOLO ROUNDS=1 CALLERS=3 RUN_TO_COMPLETION CRASH",
    ),
    (
        "the dead rank stays drawn",
        "((agreed && drawn[t] == dead) -> (dead + 1) % P : drawn[t])",
        "drawn[t]",
        MAJORITY_CRASH,
    ),
]


def run(model: str, case: str, folder: Path, optimize: str = "-O2") -> dict[str, Any]:
    """Visit all states of a case, in a separate folder."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    (folder / "model.pml").write_text(model)
    defines = [f"-D{word}" for word in case.split()]
    begin = time.monotonic()
    subprocess.run(
        ["spin", "-a", *defines, "model.pml"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    options = [optimize, "-w", "-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}"]
    subprocess.run(["cc", *options, "-o", "pan", "pan.c"], cwd=folder, check=True)
    done = subprocess.run(
        ["./pan", "-n", "-m2000000", "-w24"], cwd=folder, capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    errors = re.search(r"errors: (\d+)", said)
    states = re.search(r"([\d.e+]+) states, stored", said)
    found = re.search(r"pan:\d+: (.*)", said)
    complete = "not completed" not in said and "max search depth too small" not in said
    return {
        "case": case,
        "errors": int(errors.group(1)) if errors else -1,
        "states": int(float(states.group(1))) if states else 0,
        "found": found.group(1) if found else None,
        "exhaustive": bool(errors) and complete and "reached -DMEMLIM" not in said,
        "seconds": round(time.monotonic() - begin, 1),
    }


def side_by_side(work: list[tuple[str, str]], folder: Path) -> list[dict[str, Any]]:
    """Run small cases, one per core at a time. A mistake is found faster without optimization."""
    good = MODEL.read_text()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(lambda w: run(*w, folder, "-O2" if w[0] == good else "-O0"), work))


def plant(old: str, new: str) -> str:
    """Return the model with a mistake."""
    text = MODEL.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"found {text.count(old)} times in the model, expected once: {old}")
    return text.replace(old, new)


def say(row: dict[str, Any]) -> bool:
    """Print it. Return whether it has the expected result."""
    if "mistake" in row:
        caught = row["errors"] > 0
        print(f"{'found' if caught else 'MISSED'}  {row['mistake']}: {row['found']}")
        return caught
    held = row["errors"] == 0 and row["exhaustive"]
    print(
        f"{'held' if held else 'FAILED'}  {row['case']}: {row['states']} states, "
        f"{row['seconds']} s {row['found'] or ''}"
    )
    return held


def main() -> int:
    """Run all. Exit 1 if a case fails or a mistake is not found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="only what takes seconds")
    parser.add_argument("--json", help="write what was seen to a file")
    options = parser.parse_args()
    assert all(case in QUICK + LONG for *_, case in MISTAKES)
    with tempfile.TemporaryDirectory() as name:
        work = [(MODEL.read_text(), case) for case in QUICK]
        work += [(plant(old, new), case) for _, old, new, case in MISTAKES]
        rows = side_by_side(work, Path(name))
        for case in () if options.quick else LONG:  # one by one, because each needs the memory
            rows.append(run(MODEL.read_text(), case, Path(name)))
    for row, mistake in zip(rows[len(QUICK) :], MISTAKES):
        row["mistake"] = mistake[0]
    good = [say(row) for row in rows]
    if options.json:
        Path(options.json).write_text(json.dumps({"schema": 1, "rows": rows}, indent=2) + "\n")
    print("the model holds, and finds every planted mistake" if all(good) else "FAILED")
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
