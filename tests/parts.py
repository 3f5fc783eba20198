# SPDX-License-Identifier: Apache-2.0
"""Run all tests, in parts that can be resumed: `make test-all`.

    python tests/parts.py [--restart] [--jobs 2] [--json F] [PART ...]

Each part is one make command with its own log, build/test-all/PART.log. A passed part is not run
again, whatever has changed since, except those that install; --restart forgets passed parts. --jobs
parts run at a time, and parts that need the whole machine run by themselves. The results, with the
commit of each part, go to bench/results/test-all/any.json, where other parts stay unchanged.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LOGS = ROOT / "build/test-all"
RESULT = ROOT / "bench/results/test-all/any.json"
MPIS = ("mpich", "openmpi")
RANKS = ("alone", 8, 5, 4, 3, 2, 1)
# Many ranks take long on few cores: each domain runs with one MPI.
ONE_MPI = {
    ("node", 8): "mpich",
    ("rank", 8): "openmpi",
    ("node", 5): "openmpi",
    ("rank", 5): "mpich",
}
# run.py runs PyTorch's tests on the numbers of ranks in its FEW_RANKS. Each MPI skips one of them.
WITHOUT_PYTORCH = {"mpich": 4, "openmpi": 2}
TRAINERS = {"mpich": "lightning", "openmpi": "accelerate"}  # the latter is Transformers', too
CLOSING = re.compile(
    r"\d+ (?:passed|failed|error)|of \d+ planted|% of \d+ lines|the model holds|\bheld\b|: fine"
)


class Part(NamedTuple):
    """A name and a make command. `alone` needs the whole machine, its cores or its memory. `again`:
    also if it has passed, because other parts would do it concurrently in one folder."""

    name: str
    command: list[str]
    alone: bool = False
    again: bool = False


def parts() -> list[Part]:
    """Return the parts in the order in which they start: installation first."""
    ready = [Part(f"ready-{mpi}", ["ready", f"MPI={mpi}"], alone=True, again=True) for mpi in MPIS]
    # Tests without a launcher are long; under Open MPI half of the time are deaths of ranks. Tests
    # independent of MPI run with the first MPI only.
    more = {(mpi, "node-alone"): ["TESTS=. --ignore=faults"] for mpi in MPIS}
    more[MPIS[1], "node-alone"] += ["PARTIALCOLL_TEST_OTHER_MPI=1"]
    for mpi, ranks in WITHOUT_PYTORCH.items():
        more[mpi, f"node-{ranks}"] = ["TESTS=. --ignore=pytorch"]
    on_ranks = [
        Part(f"{mpi}-{job}", ["test-mpi", f"MPI={mpi}", f"JOB={job}", *more.get((mpi, job), ())])
        for domain in ("node", "rank")
        for ranks in RANKS
        for mpi in MPIS
        if mpi == ONE_MPI.get((domain, ranks), mpi)
        for job in [f"{domain}-{ranks}"]
    ]
    faults = [
        Part(f"{mpi}-faults", ["test-mpi", f"MPI={mpi}", "JOB=node-alone", "TESTS=faults"])
        for mpi in reversed(MPIS)  # the longer one first
    ]
    of_mpi = [
        Part(f"{what}-{mpi}", [f"test-{what}", f"MPI={mpi}"], alone=what == "large")
        for what in ("examples", "large")
        for mpi in MPIS
    ]
    trainers = [  # they use the wheel from above
        Part(f"trainers-{mpi}", ["test-trainers", f"MPI={mpi}", f"TRAINERS={trainers}"])
        for mpi, trainers in TRAINERS.items()
    ]
    return [
        Part("lint", ["lint"], alone=True),
        Part("lint-packaging", ["lint-packaging"], alone=True),
        *ready,
        Part("check-c", ["check-c"], alone=True),
        Part("mutants", ["mutants"], alone=True),
        Part("coverage", ["coverage"], alone=True),
        Part("demo", ["demo"], alone=True),
        Part("model", ["model"]),  # one core, all the time
        Part("wheel", ["test-wheel"]),
        Part("docs", ["docs"]),
        *faults,
        *on_ranks,
        *trainers,
        *of_mpi,
    ]


def passed(part: Part) -> dict[str, Any] | None:
    """Return the results of a passed part, else None."""
    stamp = LOGS / f"{part.name}.json"
    row: dict[str, Any] = json.loads(stamp.read_text()) if stamp.exists() else {}
    return row if row.get("passed") else None


def run(part: Part) -> dict[str, Any]:
    """Run a part, or print its earlier results."""
    row = None if part.again else passed(part)
    if row is None:
        begin, used = time.monotonic(), cpu_seconds()
        log = LOGS / f"{part.name}.log"
        with log.open("w") as file:
            code = subprocess.call(
                ["make", *part.command],
                cwd=ROOT,
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
            )
        row = {
            "part": part.name,
            "command": " ".join(["make", *part.command]),
            "passed": code == 0,
            "seconds": round(time.monotonic() - begin, 1),
            "closing": closing(log.read_text(errors="replace")),
            "commit": commit(),
        }
        if part.alone:  # otherwise the owner is unknown
            row["cpu_seconds"] = round(cpu_seconds() - used, 1)
        (LOGS / f"{part.name}.json").write_text(json.dumps(row) + "\n")
    state = "passed" if row["passed"] else f"FAILED, see build/test-all/{part.name}.log"
    print(
        f"{part.name:16} {row['seconds']:7.1f} s  {state}  {' | '.join(row['closing'])}", flush=True
    )
    return row


def closing(text: str) -> list[str]:
    """Return the lines with the numbers of passed tests."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # without colors
    return [line.strip("= \n") for line in plain.splitlines() if CLOSING.search(line)][-3:]


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def commit() -> str:
    """Return the commit, with a + if files have changed since."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.strip()


def run_all(chosen: list[Part], jobs: int) -> list[dict[str, Any]]:
    """Run parts with `alone` one by one, and up to `jobs` of the others at a time."""
    rows = []
    while chosen:
        together = [chosen[0]]
        for part in chosen[1:]:
            if chosen[0].alone or part.alone:
                break
            together.append(part)
        chosen = chosen[len(together) :]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            rows += list(pool.map(run, together))
    return rows


def keep(rows: list[dict[str, Any]], file: Path) -> None:
    """Replace the earlier results of these parts."""
    seen = json.loads(file.read_text())["rows"] if file.exists() else []
    newest = {row["part"]: row for row in (*seen, *rows)}
    kept = [newest[part.name] for part in parts() if part.name in newest]
    document = {"schema": 1, "command": "make test-all", "cores": os.cpu_count(), "rows": kept}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=2) + "\n")


def main() -> int:
    """Run them. Exit 1 if one failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--restart", action="store_true", help="forget what has passed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", default=str(RESULT), help="where to write what was seen")
    parser.add_argument(
        "names",
        nargs="*",
        metavar="PART",
        help="only these; all: " + ", ".join(part.name for part in parts()),
    )
    options = parser.parse_args()
    unknown = {*options.names} - {part.name for part in parts()}
    if unknown:
        parser.error(f"expected names of parts, got {', '.join(sorted(unknown))}")
    chosen = [p for p in parts() if p.name in options.names or p.again or not options.names]
    LOGS.mkdir(parents=True, exist_ok=True)
    for part in chosen if options.restart else []:
        (LOGS / f"{part.name}.json").unlink(missing_ok=True)
    os.environ["CI"] = "true"  # makes hypothesis draw the same in each run
    rows = run_all(chosen, options.jobs)
    failed = [row["part"] for row in rows if not row["passed"]]
    print(f"{len(rows) - len(failed)} of {len(rows)} parts passed; failed: {failed or 'none'}")
    keep(rows, Path(options.json))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
