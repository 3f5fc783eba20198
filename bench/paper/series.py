# SPDX-License-Identifier: Apache-2.0
"""Series of measurements, whose rows are kept in bench/results: what README and docs quote.

Once per MPI, on a machine that does nothing else; `training` and `decentralized` take hours.
Those of one rank and the simulations are the same with every MPI.

python bench/run.py series figures|gossip|groups|hosts|moshpit|training|decentralized|peers|
    verification [--repeats 5] [--only RESULT]

What is measured is run --repeats times, each in a job of its own, and medians are kept with their
spread; trainings have another seed in each. What is simulated or counted is the same every time,
and is run once.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import click
from lib.job import RUN, count

from partialcoll.tools import launcher, report

FOLDER = Path(__file__).resolve().parents[1] / "results"
SKEW = "bench skew -n 32"
GOSSIP = "sim gossip --ranks 64 --methods a2cid2,a2cid2-paper,baseline --seeds 5 --samples 10"
QUADRATIC = f"{GOSSIP} --task quadratic --time 200"
ON16 = "sim gossip --ranks 16 --topology exponential"
SWARM = f"{ON16} --methods swarm --task logistic --dim 64 --time 400 --seeds 3 --samples 2"
HOSTS = f"-- {sys.executable} -m partialcoll bench balanced --collectives mpi,full --iters 9"
LINKS = "--link-gbps 1 --sizes 64K:16M --domain"
MOSHPIT = "sim moshpit --peers 512,768,900,1024 --p 0,0.001,0.005,0.01 --grid 32x32 --until 1e-14"
CUBE = "sim moshpit --peers 470,512 --p 0,0.001,0.0025,0.0075 --grid 8x8x8 --until 1e-14"
MILLION = (
    "sim moshpit --peers 1000000 --grid 1024x1024,32x32x32x32,4x4x4x4x4x4x4x4x4x4 --methods moshpit"
    " --p 0,0.001 --restarts 1 --rounds 100"
)
COUNTS = "--counts 1,128,2048,8192,65536,524288,8388608 --runs 1 --seconds 0.3"  # 8 B to 64 MiB
# Up to 512 KiB. Where ranks share cores, one call of MPICH of that size takes two seconds.
FEWER_COUNTS = "--counts 1,128,2048,8192,65536 --runs 1 --seconds 0.3"
TRAIN = "bench train -n 8 --seeds 1"
THREE = "--strategies allreduce,eager-majority,eager-solo"
DIGITS = f"{TRAIN} --task digits"
WORKER = f"{DIGITS} --compute-ms 50 --topology complete"
A2CID2 = "a2cid2,a2cid2-paper,a2cid2-baseline"
EVERY = (
    "allreduce,eager-solo,eager-majority,eager-solo-all,adpsgd,dpsgd,swarm,swarm-8bit,"
    f"{A2CID2},moshpit,sgp,localsgd,slowmo"
)
COURSE = f"allreduce,dpsgd,adpsgd,{A2CID2},swarm,sgp,moshpit,localsgd"

# The words that make each result, by series.
SERIES = {
    # Skewed arrival and none, in shared memory and by messages only.
    "figures": {
        "skew-32": f"{SKEW} --iters 60 --collectives mpi,solo,majority,quorum:0.5,full",
        "skew-32-c": f"{SKEW} --iters 30 --interface c --collectives mpi,solo,majority,quorum:0.5",
        "skew-32-quorums": f"{SKEW} --domain node"
        " --collectives mpi,quorum:0.25,quorum:0.5,quorum:0.75",
        **{
            f"balanced-{n}": f"bench balanced -n {n} --sizes 8:16M --collectives mpi,full"
            for n in (2, 8)
        },
        "idle-8": "bench idle -n 8",
        "busy-neighbors": "busy_neighbors",
        "quantize": "bench quantize --sizes 256K,4M,64M --rotate",
    },
    # Gossip buffers under MPI, and decentralized training in virtual time.
    "gossip": {
        "gossip": "bench gossip --sizes 4K,64K,1M,16M,100M --bits 8",
        "sim-gossip-ring": f"{QUADRATIC} --topology ring --rate 1,2,5",
        "sim-gossip-complete": f"{QUADRATIC} --topology complete",
        "sim-gossip-consensus": f"{GOSSIP} --task consensus --time 400",
        "sim-gossip-swarm": SWARM,
        "sim-gossip-swarm-8-bits": f"{SWARM} --codec-bits 8",
        "sim-gossip-slow": f"{ON16} --methods adpsgd,a2cid2,a2cid2-paper,swarm,allreduce --slow 100"
        " --task quadratic --time 200 --samples 2",
        "shortfall": "shortfall",
        "a2cid2": "a2cid2",
    },
    # Averages in groups; with $HIVEMIND, an interpreter that has it, hivemind's beside them.
    "groups": {
        "group": "bench group -n 8 --sizes 4K,64K,1M,4M,64M",
        "hivemind": f"hivemind --hivemind {shlex.quote(os.environ.get('HIVEMIND', ''))}",
        "uneven": "uneven",
    },
    # The limit of a link, and the cost of several ranks on a host. Emulated hosts.
    "hosts": {
        "hosts-4x1": f"hosts 4 --per-host 1 {HOSTS} {LINKS} rank",
        "hosts-2x4": f"hosts 2 --per-host 4 {HOSTS} {LINKS} node,rank",
    },
    # The paper's table 4, with its ten restarts and a hundred; the squared distance to the true
    # mean; its figure 5: three axes, an under-full grid, and a million peers.
    "moshpit": {
        "moshpit-paper-10": f"{MOSHPIT} --paper-compat --restarts 10",
        "moshpit-paper": f"{MOSHPIT} --paper-compat",
        "moshpit-void": MOSHPIT,
        "moshpit-absent": f"{MOSHPIT} --losses absent --methods moshpit,random",
        "moshpit-cube": f"{CUBE} --methods moshpit,random",
        "moshpit-million": MILLION,
        "moshpit-million-absent": f"{MILLION} --losses absent",
    },
    # Figures 10 and 11 of the paper on partial collectives, and one slow rank.
    "training": {
        **{
            f"train-hyperplane-{delay}": f"{TRAIN} --task hyperplane --compute-ms 300 --pattern"
            f" one-random --delay-ms {delay} --strategies allreduce,eager-solo"
            for delay in (200, 300, 400)
        },
        "train-digits": f"{DIGITS} --compute-ms 100 --pattern all-shifted --delay-ms 400 {THREE}",
        "train-sequences": f"{TRAIN} --task sequences --compute-ms 30 --history 8 {THREE}",
        "overlap": "overlap",
    },
    # A slow rank beside AD-PSGD's own table; accuracy at equal epochs; rings
    # with data of their own and shared; courses; what Swarm exposes.
    "decentralized": {
        **{
            f"train-worker-{who}{k}": f"{WORKER} --pattern one-slow:{k} --steps {steps}"
            f" --strategies {strategies}"
            for k, waiting in ((1, 100), (2, 100), (10, 40), (100, 8))
            for who, steps, strategies in (
                ("", 200, "adpsgd,swarm,a2cid2,sgp,eager-solo-all"),
                ("allreduce-", waiting, "allreduce,dpsgd"),
            )
        },
        **{
            f"train-accuracy-{seed}": f"{DIGITS} --compute-ms 30 --seed {seed} --strategies {EVERY}"
            for seed in range(5)
        },
        **{
            f"train-ring-{n}-{data}": "bench train --task digits --learning-rate 0.1 --seeds 1"
            f" --compute-ms 100 --steps 120 -n {n} --data {data} --topology ring"
            f" --strategies {A2CID2}"
            for n in (8, 16)
            for data in ("sorted", "shared")
        },
        "train-course": f"{DIGITS} --compute-ms 40 --topology ring,complete --strategies {COURSE}",
        "train-exposed": "exposed",
    },
    # Other libraries and programs, and the price of going on after deaths.
    "peers": {
        **{f"backend-{n}": f"backend -n {n}" for n in (2, 4)},
        **{f"ddp-hook-{n}": f"ddp_hook -n {n}" for n in (2, 4)},
        "peers": "peers",
        "interposer-2": f"interposer -n 2 {COUNTS}",
        "interposer-8": f"interposer -n 8 {FEWER_COUNTS}",
        "programs": "programs",
        "ready": "ready",
    },
    # The long checks of docs/verification.md: about an hour.
    "verification": {
        "mutants": "tests/mutants.py",
        "coverage": "tests/coverage.py",
        "model": "tests/model/check.py",
        "sim-growth": "sim skew --ranks 16,64,256,1024,4096 --collectives solo",
        "sim-4096": "sim skew --ranks 4096",
    },
}


def merged(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return one document of several runs of the same command, with medians as numbers; the `runs`
    of trainings, with their courses, are all in it. `spread` of a row holds the least and the
    greatest value of each number that differs."""
    first = runs[0]
    if len(runs) == 1:
        return first
    counts = [len(run["rows"]) for run in runs]
    if len(set(counts)) > 1:
        raise ValueError(f"rows: expected as many in each run, got {counts}")
    rows = []
    for same in zip(*(run["rows"] for run in runs)):
        row, spread = report.combined(same, median)
        rows.append({**row, "spread": spread})
    document = {**first, "repeats": len(runs), "rows": rows}
    if "runs" in first:
        document["runs"] = [each for run in runs for each in run["runs"]]
    return document


def _emulates() -> bool:
    return launcher.flavor() == "mpich" and os.geteuid() == 0 and Path("/sbin/tc").exists()


# Experiments that run only where their condition holds.
NEEDS = {
    "hivemind": lambda: "HIVEMIND" in os.environ,
    "overlap": _emulates,
    "uneven": _emulates,
    "ready": lambda: launcher.flavor() == "openmpi",  # with ULFM
}


def _argv(text: str) -> list[str]:
    words = shlex.split(text)
    if words[0].endswith(".py"):
        return [sys.executable, str(RUN.parents[1] / words[0]), *words[1:]]
    ours = words[0] in ("bench", "sim")
    return [sys.executable, *(["-m", "partialcoll"] if ours else [str(RUN)]), *words]


_WITHOUT_MPI = ("tests/", "shortfall", "a2cid2")


def _kept(result: str, text: str) -> Path:
    """Return the file of a result: by its MPI, or "any" if no MPI takes part."""
    without = text.startswith((*_WITHOUT_MPI, "peers"))  # it runs both
    folder = FOLDER / result
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{'any' if without else launcher.flavor()}.json"


def _run(result: str, text: str, repeats: int) -> int:
    """Run the command, `repeats` times if it measures; keep medians; return the exit status."""
    if text.startswith(("sim ", *_WITHOUT_MPI)) or "--seed " in text:
        repeats = 1  # what it says is one run, or a result of its own for each seed
    seeded = text.startswith("bench train ") and "--seed " not in text
    with tempfile.TemporaryDirectory(prefix="partialcoll-series-") as folder:
        files = [Path(folder) / f"{i}.json" for i in range(repeats)]
        for seed, file in enumerate(files):
            words = [*_argv(text), *(["--seed", str(seed)] if seeded else [])]
            # Not in the root of the repository, where `-m partialcoll` would find the sources.
            elsewhere = None if text.startswith("tests/") else folder
            if status := subprocess.call([*words, "--json", str(file)], cwd=elsewhere):
                return status
        document = merged([json.loads(file.read_text()) for file in files])
    _kept(result, text).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


@click.command("series", help=__doc__, short_help="runs many, and keeps their rows")
@click.argument("name", type=click.Choice(tuple(SERIES)))
@click.option("--only", metavar="RESULT", help="this one of them")
@click.option("--list", "only_list", is_flag=True, help="say what would be run")
@count("--repeats", 5, "separate runs of what is measured, of which the medians are kept")
def command(name: str, only: str | None, only_list: bool, repeats: int) -> int:
    for result, text in SERIES[name].items():
        if only not in (None, result) or not NEEDS.get(text.split()[0], lambda: True)():
            continue
        click.echo(f"{result}: {text}")
        if not only_list and (status := _run(result, text, repeats)):
            return status
    return 0
