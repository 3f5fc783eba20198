# SPDX-License-Identifier: Apache-2.0
"""Do the invariants catch mistakes? Plants protocol mistakes one at a time and looks.

Each mistake is one small change of a source under csrc/. It has to compile, and running the
simulated schedules with it (for the domain and the gossip buffers: those of their steps; for
matchmaking and groups: those of their peers) has to end with a broken invariant: a crash, a hang or
a clean run is a failure of this script. The unchanged sources have to pass first.

    python tests/mutants.py [--jobs 2] [--json F] [NAME ...]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mistakes import MUTANTS, Mutant
from simulation import ROOT, sources

FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O1",
    "-DPCOLL_TEST_INTERLEAVE",
    "-DPCOLL_TEST_CHAIN_BYTES=128",
    "-DPCOLL_TEST_CHUNK_BYTES=64",
    "-DPCOLL_TEST_CHUNK_BLOCKS=1",
    "-DPCOLL_TEST_TRIES=2",
]
MOST_SCHEDULES = 60000  # two of them need 19782
SCHEDULES = {"group": 3000}  # a schedule is a hundred rounds
PROGRAMS = ("simulation", "steps", "gossip", "matching", "group")
DOMAIN = re.compile(r"domain/node\w*\.[ch]|protocol/descriptor\.h")
MATCHING = re.compile(r"group/(match(_\w+)?|verdict)\.[ch]")
PATIENCE = 900  # seconds for one mutant: only a hang takes that long


def program_of(mutant: Mutant) -> str:
    """Which program has to catch it."""
    if mutant.file.startswith("gossip/"):
        return "gossip"
    if MATCHING.fullmatch(mutant.file):
        return "matching"
    if mutant.file.startswith("group/") or mutant.file.endswith("/butterfly.c"):
        return "group"
    return "steps" if DOMAIN.fullmatch(mutant.file) else "simulation"


class Builder:
    """Compiles everything once; then a mutant costs one file (a header: a few) and a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = {program: sources(program) for program in PROGRAMS}
        self.objects: dict[Path, Path] = {}

    def compile(self, source: Path, to: Path) -> None:
        subprocess.run(
            ["cc", *FLAGS, "-c", str(source), "-o", str(to)],
            check=True,
            capture_output=True,
            text=True,
        )

    def compile_all(self, jobs: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            compiled = []
            every = {source: None for group in self.sources.values() for source in group}
            for i, source in enumerate(every):
                self.objects[source] = self.folder / f"{i}-{source.stem}.o"
                compiled.append(pool.submit(self.compile, source, self.objects[source]))
            for future in compiled:
                future.result()

    def link(self, of: str, name: str, changed: dict[Path, Path]) -> Path:
        program = self.folder / name
        objects = [str(changed.get(s, self.objects[s])) for s in self.sources[of]]
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
        tree = self.folder / f"csrc-{index}"
        shutil.copytree(ROOT / "csrc", tree, ignore=shutil.ignore_patterns("*.so", "*.o"))
        (tree / mutant.file).write_text(text.replace(mutant.old, mutant.new))
        changed = {}
        for source in self.concerned(original):
            changed[source] = tree / f"{source.stem}.o"
            self.compile(tree / source.relative_to(ROOT / "csrc"), changed[source])
        program = self.link(program_of(mutant), f"mutant-{index}", changed)
        shutil.rmtree(tree)
        return program

    def concerned(self, file: Path) -> list[Path]:
        """What has to be compiled again: of a header, the files that may include it."""
        if file.suffix == ".c":
            return [file]
        pattern = "gossip/*.c" if file.parent.name == "gossip" else "domain/node*.c"
        return sorted({*(ROOT / "csrc").glob(pattern)} & {*self.objects})


def run(program: Path, schedules: int) -> tuple[int | None, str, float]:
    """Exit status (None: it hangs), what it said, seconds."""
    env = {
        **os.environ,
        "PARTIALCOLL_SCHEDULES": str(schedules),
        "PARTIALCOLL_DEPARTURES": "1",
    }
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
    status, said, seconds = run(program, SCHEDULES.get(program_of(mutant), MOST_SCHEDULES))
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
    if not chosen:
        parser.error(f"no mutant has any of {options.names} in its name")
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder))
        builder.compile_all(options.jobs)
        for program in PROGRAMS:
            status, said, _ = run(builder.link(program, f"unchanged-{program}", {}), 200)
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
