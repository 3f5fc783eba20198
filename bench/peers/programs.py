# SPDX-License-Identifier: Apache-2.0
"""Programs of others, unchanged, with the interposer and without: is what they compute the same?

Debian's packages lammps, quantum-espresso, quantum-espresso-data, hpcc, scalapack-mpi-test,
scalapack-test-common and libopenmpi-dev, which are for Debian's own MPI: for that the interposer is
compiled anew. Rounds are full. Each program runs alone, with the interposer as users load it, and
with PARTIALCOLL_ALGORITHM=auto, where the library does every complete round that it can. Compared
are the lines in which a program says what it has computed or that its own checks have passed;
times that it prints are not.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click
from lib.job import count

from partialcoll.errors import Error
from partialcoll.tools import launcher, report
from partialcoll.tools.cli import options

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 120
COUNTS = re.compile(r"on all ranks: (\d+) taken over, (\d+) passed")
# Warnings about networks that are not there, and binding of more ranks than cores.
LAUNCH = "--allow-run-as-root --oversubscribe --bind-to none --mca btl self,vader"
SILICON = """
&control calculation='scf' pseudo_dir='/usr/share/espresso/pseudo' outdir='.' /
&system ibrav=2 celldm(1)=10.2 nat=2 ntyp=1 ecutwfc=12.0 /
&electrons conv_thr=1.0d-8 /
ATOMIC_SPECIES
 Si 28.086 Si.pz-vbc.UPF
ATOMIC_POSITIONS alat
 Si 0.00 0.00 0.00
 Si 0.25 0.25 0.25
K_POINTS automatic
 2 2 2 1 1 1
"""


class Program(NamedTuple):
    """`results`: of the lines that are compared. `output`: where they are, if not on stdout.
    `inputs`: files that it finds in its folder, by name, as text or as the path of another."""

    name: str
    package: str
    words: list[str]
    results: str
    inputs: dict[str, str]
    output: str = ""


def _scalapack(tester: str, data: str) -> Program:
    found = glob.glob(f"/usr/lib/*/scalapack/openmpi-tests/{tester}")
    shared = f"/usr/share/scalapack/{data}"
    results = r"PASSED|FAILED|passed|failed|completed"
    return Program(tester, "scalapack-mpi-test", [*found, ""][:1], results, {data: shared})


PROGRAMS = [
    Program(
        "LAMMPS, melt",
        "lammps",
        ["lmp", "-log", "none", "-in", "in.melt"],
        r"^ +\d+( +-?[\d.]+){5} *$|^(Nlocal|Neighs|Total # of neighbors)",
        {"in.melt": "/usr/share/lammps/examples/melt/in.melt"},
    ),
    Program(
        "Quantum ESPRESSO, silicon",
        "quantum-espresso",
        ["pw.x", "-in", "silicon.in"],
        r"total energy|highest occupied|convergence has been|^ +(-?\d+\.\d{4} *){8}$",
        {"silicon.in": SILICON},
    ),
    Program(
        "HPCC",
        "hpcc",
        ["hpcc"],
        r"PASSED|FAILED|Success=|_Failure|_ErrCount|tests? (passed|failed|completed)",
        {"hpccinf.txt": "/usr/share/doc/hpcc/examples/_hpccinf.txt"},
        "hpccoutf.txt",
    ),
    _scalapack("xdlu", "LU.dat"),
    _scalapack("xdqr", "QR.dat"),
]


def run(program: Program, job: list[str]) -> tuple[str, list[str], float]:
    with tempfile.TemporaryDirectory() as folder:
        for name, source in program.inputs.items():
            text = Path(source).read_text() if source.startswith("/") else source
            (Path(folder) / name).write_text(text)
        begin = time.monotonic()
        done = subprocess.run(
            [*job, *program.words],
            cwd=folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=LIMIT_S,
        )
        seconds = time.monotonic() - begin
        text = (Path(folder) / program.output).read_text() if program.output else done.stdout
    found = []
    for line in (line for line in text.splitlines() if re.search(program.results, line)):
        timed = line.lstrip().startswith(("WALL", "CPU"))  # a row with times, then the result
        found.append(" ".join((re.sub(r"\d+\.\d+", "…", line) if timed else line).split()))
    return done.stdout + done.stderr, found, seconds


def compare(program: Program, job: list[str], preload: Path) -> dict[str, object]:
    def loaded(*settings: str) -> list[str]:
        names = (f"LD_PRELOAD={preload}", *settings)
        return [*job, *(word for setting in names for word in ("-x", setting))]

    _, plain, mpi_s = run(program, job)
    _, default, interposer_s = run(program, loaded())
    text, ours, all_ours_s = run(
        program, loaded("PARTIALCOLL_REPORT=1", "PARTIALCOLL_ALGORITHM=auto")
    )
    counts = COUNTS.search(text)
    differ = sum(
        sum(a != b for a, b in zip(plain, other)) + abs(len(plain) - len(other))
        for other in (default, ours)
    )
    return {
        "program": program.name,
        "version": subprocess.getoutput(f"dpkg-query -W -f '${{Version}}' {program.package}"),
        "taken_over": int(counts[1]) if counts else 0,
        "passed": int(counts[2]) if counts else 0,
        "lines": len(plain),
        "differ": differ,
        "mpi_s": mpi_s,
        "interposer_s": interposer_s,
        "all_ours_s": all_ours_s,
    }


@click.command("programs", help=__doc__, short_help="programs of others, with the interposer")
@count("-n", 4, "ranks")
@options.option("--mpicc", str, "mpicc.openmpi", "of the MPI that the programs use")
@options.option("--mpiexec", str, "mpiexec.openmpi", "of the same")
@options.json
def command(n: int, mpicc: str, mpiexec: str, json: str | None) -> None:
    rows: list[dict[str, object]] = []
    for name in (mpicc, mpiexec):
        if not shutil.which(name):
            raise Error(f"{name} is not installed: apt-get install libopenmpi-dev")
    with tempfile.TemporaryDirectory() as folder:
        build = ["-q", "build_ext", "--build-lib", folder, "--build-temp", f"{folder}/objects"]
        env = {**os.environ, "MPICC": mpicc}
        subprocess.run([sys.executable, "setup.py", *build], check=True, cwd=ROOT, env=env)
        preload = next(Path(folder).glob("partialcoll/lib/libpartialcoll_preload_*.so"))
        for program in PROGRAMS:
            if not shutil.which(program.words[0]):
                click.echo(f"{program.name}: not there, install {program.package}", err=True)
                continue
            rows.append(compare(program, [mpiexec, *LAUNCH.split(), "-n", str(n)], preload))
    document = report.document("bench programs", n, rows)
    about = subprocess.getoutput(f"{mpiexec} --version")
    family = "Open MPI" if launcher.vendor_of(about) == "openmpi" else "MPICH"
    document["env"]["mpi"] = f"{family} ({about.splitlines()[0]})"
    report.write(json, document)
    if any(row["differ"] for row in rows):
        raise SystemExit(1)
