# SPDX-License-Identifier: Apache-2.0
"""Check that the invariants catch mistakes: plant protocol mistakes one at a time.

Each mistake is one small change of a source under csrc/. The changed source must compile, and a
test program must then report a broken invariant (program_of chooses the program by the file). A
crash, a hang or a clean run is a failure of this script. The unchanged sources must pass first.

    python tests/mutants.py [--jobs 2] [--json F] [--slice I/N] [NAME ...]

A slice is one fixed mistake of each file, and the I-th of N parts of the others. Each commit must
pass a slice, and the next commit takes the next part. The mistakes in LONG are in no slice.
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
import zlib
from pathlib import Path

from mistakes import MUTANTS, Mutant
from mistakes.growth import GROWTH
from simulation import LIBRARIES, ROOT, archive, sources

FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-DPCOLL_CHECKS",
    "-O1",
    "-DPCOLL_TEST_INTERLEAVE",
    "-DPCOLL_TEST_CHAIN_BYTES=128",
    "-DPCOLL_TEST_PLAIN_RANKS=2",
    "-DPCOLL_TEST_CHUNK_BYTES=128",
    "-DPCOLL_TEST_CHUNK_BLOCKS=1",
    "-DPCOLL_TEST_TRIES=2",
    "-DPCOLL_TEST_COPY_BYTES=8192",
]
FAKE = "build/c/libfake_cuda.so"  # CUDA driver for the programs "device" and "staging"
MAX_SCHEDULES = 60000  # two mistakes need 19782 to be detected
SCHEDULES = {"group": 3000, "simulator": 3000}  # each has a hundred rounds or actions
PROGRAMS = {
    "simulation": "invariants",
    "crashes": "crashes",
    "steps": "node_steps",
    "gossip": "gossip_steps",
    "gossip crashes": "gossip_crashes",
    "group crashes": "group_crashes",
    "matching": "matching",
    "group": "group",
    "simulator": "simulator",
    "device": "device",
    "staging": "staging",
    "watch": "watch",
    "watch fuzz": "watch_fuzz",
    "gate": "gate",
    "protocol": "protocol",
    "successors": "successors",
    "questions": "questions",
}
DOMAIN = re.compile(r"domain/node\w*\.[ch]|protocol/member\.h")
MATCHING = re.compile(r"protocol/group/matchmaking(_\w+)?\.[ch]")
RECOVERY = "runtime/recovery_steps.c"
ALWAYS = 1  # mistakes of each file that every slice contains
# These take a hundred times as long as the others, so no slice contains them.
LONG = {
    "the payload is not padded for the headers of its slices",
    "a follower accepts a list for an attempt that is not its current one",
    "a follower accepts a list from a rank that is not its leader",
    "a rank that sees a rank ahead gives up while candidates remain",
    "members send no heartbeats",
    "missed rounds do not reset the count of consecutive complete rounds",
    "the new domain does not note that all ranks have joined",
    "an incoming connection is accepted without a valid proof",
    "other processes of a host are not notified of a lost host",
    "a rank that has rejoined is expected in rounds before its return",
    "peers on other hosts are not notified of a lost host",
    "a peer is not notified of a host lost before it connected",
    "a connection stays open after a message about an unknown host",
    "sleeping threads are not woken when a host is lost",
}
PATIENCE = 900  # timeout of one program in seconds: only a hang takes that long


def program_of(mutant: Mutant) -> str:
    """Return the name of the program that must detect this mistake."""
    if mutant.program is not None:
        return mutant.program
    if mutant.file.startswith(("gossip/", "device/", "watch/")):
        return mutant.file.split("/")[0]
    if MATCHING.fullmatch(mutant.file):
        return "matching"
    if mutant.file == RECOVERY:
        return "crashes"
    if mutant.file.startswith(("group/", "protocol/group/")) or mutant.file.endswith(
        "/butterfly.c"
    ):
        return "group"
    if mutant.file == "base/gate.c":
        return "gate"
    return "steps" if DOMAIN.fullmatch(mutant.file) else "simulation"


def as_pattern(text: str) -> str:
    """Return a regular expression that matches this text with any spaces and line breaks."""
    words = [re.escape(word) for word in text.split()]
    return r"\s+".join(words)


class Builder:
    """Compiles everything once. A mutant then needs one file (a few for a header) and a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sources = {what: sources(what) for what in ("core", "helpers")}
        self.mains = {p: ROOT / f"tests/c/test_{name}.c" for p, name in PROGRAMS.items()}
        self.objects: dict[Path, Path] = {}
        self.archives: list[str] = []

    def compile(self, source: Path, to: Path, tree: Path = ROOT / "csrc") -> None:
        subprocess.run(
            ["cc", *FLAGS, f"-I{tree}", "-c", str(source), "-o", str(to)],
            check=True,
            capture_output=True,
            text=True,
        )

    def compile_all(self, jobs: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            compiled = []
            every = [*self.mains.values(), *self.sources["helpers"], *self.sources["core"]]
            for i, source in enumerate(every):
                self.objects[source] = self.folder / f"{i}-{source.stem}.o"
                compiled.append(pool.submit(self.compile, source, self.objects[source]))
            for future in compiled:
                future.result()
        for what, files in self.sources.items():
            objects = [str(self.objects[source]) for source in files]
            self.archives.insert(0, archive(self.folder / f"{what}.a", objects))

    def link(self, of: str, name: str, changed: list[Path]) -> Path:
        """Link a program. The changed objects replace the archive members with their names."""
        program = self.folder / name
        archives = list(self.archives)
        if changed:
            archives[-1] = str(self.folder / f"{name}.a")
            shutil.copyfile(self.archives[-1], archives[-1])
            archive(Path(archives[-1]), [str(file) for file in changed])
        together = ["-Wl,--start-group", *archives, "-Wl,--end-group"]
        subprocess.run(
            ["cc", str(self.objects[self.mains[of]]), *together, *LIBRARIES, "-o", str(program)],
            check=True,
            capture_output=True,
            text=True,
        )
        for file in {*archives} - {*self.archives}:
            Path(file).unlink()
        return program

    def sound(self, program: str, seed: int) -> bool:
        """Return whether the unchanged program passes with this seed."""
        return run(self.folder / f"unchanged-{program}", 1, PARTIALCOLL_SEED=str(seed))[0] == 0

    def plant(self, index: int, mutant: Mutant) -> Path:
        original = ROOT / "csrc" / mutant.file
        text = original.read_text()
        begin, end = place_of(mutant)
        tree = self.folder / f"csrc-{index}"
        shutil.copytree(ROOT / "csrc", tree, ignore=shutil.ignore_patterns("*.so", "*.o"))
        (tree / mutant.file).write_text(text[:begin] + mutant.new + text[end:])
        changed = []
        for source in self.concerned(original):
            changed.append(tree / self.objects[source].name)
            self.compile(tree / source.relative_to(ROOT / "csrc"), changed[-1], tree)
        program = self.link(program_of(mutant), f"mutant-{index}", changed)
        shutil.rmtree(tree)
        return program

    def concerned(self, file: Path) -> list[Path]:
        """Return the files to compile again: for a header all files that may include it."""
        if file.suffix == ".c":
            return [file]
        folder = file.parent.name if file.parent.name in ("gossip", "group") else "domain"
        return sorted({*(ROOT / "csrc").glob(f"{folder}/*.c")} & {*self.objects})


def place_of(mutant: Mutant) -> tuple[int, int]:
    """Return the start and the end of the text to replace in its file."""
    found = list(re.finditer(as_pattern(mutant.old), (ROOT / "csrc" / mutant.file).read_text()))
    if len(found) != 1:
        raise SystemExit(
            f"{mutant.name}: found {len(found)} times in {mutant.file}, "
            f"expected once:\n{mutant.old}"
        )
    return found[0].span()


def run(program: Path, schedules: int, **settings: str) -> tuple[int | None, str, float]:
    """Run a program. Return exit status (None: it hangs), output, and run time in seconds."""
    env = {
        **os.environ,
        "PARTIALCOLL_CUDA_LIBRARY": str(ROOT / FAKE),
        "PARTIALCOLL_SCHEDULES": str(schedules),
        "PARTIALCOLL_DEPARTURES": "1",
        **settings,
    }
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [str(program)], env=env, capture_output=True, text=True, timeout=PATIENCE
        )
    except subprocess.TimeoutExpired:
        return None, "", time.monotonic() - begin
    return done.returncode, done.stdout + done.stderr, time.monotonic() - begin


def decision(status: int | None, said: str) -> tuple[bool, str]:
    """Return whether an invariant detected the mistake, and its name or what happened instead."""
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
    status, said, seconds = run(program, SCHEDULES.get(program_of(mutant), MAX_SCHEDULES))
    caught, by = decision(status, said)
    seed = re.search(r"PARTIALCOLL_SEED=(\d+)", said)
    if caught and seed and not builder.sound(program_of(mutant), int(seed.group(1))):
        caught, by = False, "FALSE ALARM: the unchanged sources do not pass either"
    return {
        "mutant": mutant.name,
        "file": mutant.file,
        "caught": caught,
        "by": by,
        "seed": int(seed.group(1)) if seed else None,
        "seconds": round(seconds, 1),
    }


def drawn(mutant: Mutant) -> int:
    """Return a number that depends only on the name of the mutant."""
    return zlib.crc32(mutant.name.encode())


def part(mutants: list[Mutant], text: str) -> list[Mutant]:
    """Return the mutants of the slice "I/N". I is taken modulo N."""
    index, parts = (int(word) for word in text.split("/"))
    short = [m for m in mutants if m.name not in LONG]
    always = set()
    for file in {m.file for m in short}:
        always |= set(sorted((m for m in short if m.file == file), key=drawn)[:ALWAYS])
    return [m for m in short if m in always or drawn(m) % parts == index % parts]


def main() -> int:
    """Plant the chosen mistakes. Return 1 if one is not detected by an invariant."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", help="write the results to a file")
    parser.add_argument("names", nargs="*", help="only mutants whose name contains one of these")
    parser.add_argument("--slice", metavar="I/N", help="one of each file and a part of the others")
    options = parser.parse_args()
    chosen = [m for m in MUTANTS if not options.names or any(n in m.name for n in options.names)]
    if options.slice:
        chosen = part(chosen, options.slice)
    if not chosen:
        parser.error(f"no mutant has any of {options.names} in its name")
    for mutant in (*MUTANTS, *GROWTH):  # find outdated quotes, also of mistakes not chosen
        place_of(mutant)
    with tempfile.TemporaryDirectory() as folder:
        builder = Builder(Path(folder))
        builder.compile_all(options.jobs)
        subprocess.run(["make", "-s", FAKE], cwd=ROOT, check=True)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            unchanged = [builder.link(program, f"unchanged-{program}", []) for program in PROGRAMS]
            for status, said, _ in pool.map(lambda program: run(program, 200), unchanged):
                if status != 0:
                    print(f"the unchanged sources do not pass:\n{said}", file=sys.stderr)
                    return 1
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
