# SPDX-License-Identifier: Apache-2.0
"""Measure which lines of engine, protocol and matchmaking the simulated schedules reach.

Build them with gcc's coverage and run the schedules: simulated ranks, steps of a domain in shared
memory, matchmaking and deaths (and the fuzzing and the tests of policies and parts, for input that
is refused before it runs). Print each file's share and the lines never reached, and fail below
98 %. Needs gcc and gcov.

    python tests/coverage.py [--schedules 2000] [--json F]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from simulation import LIBRARIES, ROOT, archive, sources

FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    f"-I{ROOT / 'csrc'}",
    "-O0",
    "--coverage",
    "-DPCOLL_CHECKS",
    "-DPCOLL_TEST_INTERLEAVE",
    "-DPCOLL_TEST_CHAIN_BYTES=128",
    "-DPCOLL_TEST_PLAIN_RANKS=2",
    "-DPCOLL_TEST_CHUNK_BYTES=128",
]
PROGRAMS = (
    "invariants",
    "crashes",
    "group_crashes",
    "successors",
    "fuzz",
    "schedule",
    "policy",
    "protocol",
    "node_steps",
    "matching",
)
ENOUGH = 98.0


def measured(source: Path) -> bool:
    """Return whether this file must be covered."""
    of_domain = source.parent.name == "domain" and source.name.startswith("node")
    of_group = source.parent.name == "group" and source.stem.startswith("matchmaking")
    return source.parent.name == "protocol" or source.name == "sched.c" or of_domain or of_group


def compile_one(source: Path, folder: Path) -> str:
    """Compile a file to a separate object, as gcov requires. Return the object."""
    target = folder / f"{name_of(source)}.o"
    subprocess.run(["cc", *FLAGS, "-c", str(source), "-o", str(target)], check=True)
    return str(target)


def name_of(source: Path) -> str:
    return "-".join(source.relative_to(ROOT).with_suffix("").parts)


def build(folder: Path) -> list[str]:
    """Build the programs."""
    libraries = []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for what in ("helpers", "core"):
            compiled = pool.map(lambda source: compile_one(source, folder), sources(what))
            libraries.append(archive(folder / f"{what}.a", list(compiled)))
    programs = []
    for name in PROGRAMS:
        programs.append(str(folder / name))
        main = compile_one(ROOT / f"tests/c/test_{name}.c", folder)
        together = ["-Wl,--start-group", *libraries, "-Wl,--end-group"]
        subprocess.run(
            ["cc", "--coverage", main, *together, *LIBRARIES, "-o", programs[-1]], check=True
        )
    return programs


def lines(folder: Path, source: Path) -> dict[int, int]:
    """Return how often each line with code was reached."""
    notes = folder / f"{name_of(source)}.gcda"
    done = subprocess.run(
        ["gcov", "--json-format", "--stdout", str(notes)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    counts: dict[int, int] = {}
    for file in json.loads(done.stdout)["files"]:
        if Path(file["file"]).resolve() == source:
            for line in file["lines"]:
                number = line["line_number"]
                counts[number] = counts.get(number, 0) + line["count"]
    return counts


def main() -> int:
    """Measure. Exit 1 below the required coverage."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=2000)
    parser.add_argument("--json", help="write what was seen to a file")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        env = {
            **os.environ,
            "PARTIALCOLL_SCHEDULES": str(options.schedules),
            "PARTIALCOLL_DEPARTURES": "1",
        }
        programs = build(folder)

        def run(program: str) -> None:
            subprocess.run([program], env=env, check=True, stdout=subprocess.DEVNULL)

        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(run, programs))
        for source in filter(measured, sources("core")):
            counts = lines(folder, source)
            missed = sorted(number for number, count in counts.items() if not count)
            rows.append(
                {
                    "file": str(source.relative_to(ROOT)),
                    "lines": len(counts),
                    "missed": missed,
                    "percent": round(100 * (1 - len(missed) / len(counts)), 1),
                }
            )
    for row in rows:
        print(f"{row['percent']:5.1f} %  {row['file']}  missed: {row['missed'] or 'none'}")
    total = sum(row["lines"] for row in rows)
    percent = 100 * (1 - sum(len(row["missed"]) for row in rows) / total)
    print(f"{percent:5.1f} % of {total} lines, from {options.schedules} simulated schedules")
    if options.json:
        Path(options.json).write_text(
            json.dumps({"schema": 1, "percent": round(percent, 1), "rows": rows}, indent=2) + "\n"
        )
    return 0 if percent >= ENOUGH else 1


if __name__ == "__main__":
    sys.exit(main())
