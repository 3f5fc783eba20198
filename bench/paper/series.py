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

import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from lib import results
from lib.job import RUN, count

from partialcoll.tools import launcher

Run = tuple[str, str]  # the result's name, and the words

SKEW = "bench skew -n 32"
RINGS = "bench train --task digits --learning-rate 0.1 --compute-ms 100 --steps 120 --seeds 1"
MOSHPIT = "sim moshpit --peers 512,768,900,1024 --p 0,0.001,0.005,0.01 --grid 32x32 --until 1e-14"
MILLION = (
    "sim moshpit --peers 1000000 --grid 1024x1024,32x32x32x32,4x4x4x4x4x4x4x4x4x4 --methods moshpit"
    " --p 0,0.001 --restarts 1 --rounds 100"
)
BALANCED = "bench balanced --collectives mpi,full --iters 9 --link-gbps 1 --sizes 64K:16M"
A2CID2 = "a2cid2,a2cid2-paper,a2cid2-baseline"
OWN_MODELS = f"adpsgd,dpsgd,swarm,swarm-8bit,{A2CID2},moshpit,sgp,localsgd,slowmo"


def figures() -> Iterator[Run]:
    """Skewed arrival and none, in shared memory and by messages only."""
    yield "skew-32", f"{SKEW} --iters 60 --collectives mpi,solo,majority,quorum:0.5,full"
    c = "--interface c --collectives mpi,solo,majority,quorum:0.5"
    yield "skew-32-c", f"{SKEW} --iters 30 {c}"
    quorums = "mpi,quorum:0.25,quorum:0.5,quorum:0.75"
    yield "skew-32-quorums", f"{SKEW} --domain node --collectives {quorums}"
    for n in (2, 4, 8):
        yield f"balanced-{n}", f"bench balanced -n {n} --sizes 8:16M --collectives mpi,full"
    yield "zero-copy-8", "bench balanced -n 8 --sizes 4M:64M --domain node --zero-copy"
    yield "idle-8", "bench idle -n 8"
    yield "busy-neighbors", "busy_neighbors"
    yield "quantize", "bench quantize --sizes 256K,4M,64M --rotate"


def gossip() -> Iterator[Run]:
    """Gossip buffers under MPI, and decentralized training in virtual time."""
    yield "gossip", "bench gossip --sizes 4K,64K,1M,16M,100M --bits 8"
    yield "conserved", "conserved"
    three = "--methods a2cid2,a2cid2-paper,baseline"
    quadratic = f"sim gossip --ranks 64 {three} --task quadratic --time 200 --seeds 5 --samples 10"
    yield "sim-gossip-ring", f"{quadratic} --topology ring --rate 1,2,5"
    yield "sim-gossip-complete", f"{quadratic} --topology complete"
    yield (
        "sim-gossip-consensus",
        f"sim gossip --ranks 64 {three} --task consensus --time 400 --seeds 5 --samples 10",
    )
    on16 = "sim gossip --ranks 16 --topology exponential"
    swarm = f"{on16} --methods swarm --task logistic --dim 64 --time 400 --seeds 3 --samples 2"
    yield "sim-gossip-swarm", swarm
    yield "sim-gossip-swarm-8-bits", f"{swarm} --codec-bits 8"
    slow = "--methods adpsgd,a2cid2,a2cid2-paper,swarm,allreduce --slow 100"
    yield "sim-gossip-slow", f"{on16} {slow} --task quadratic --time 200 --samples 2"
    yield "shortfall", "shortfall"
    yield "a2cid2", "a2cid2"


def groups() -> Iterator[Run]:
    """Averages in groups; with $HIVEMIND, an interpreter that has it, hivemind's beside them; links
    of different speed are emulated (root, iproute2, MPICH)."""
    yield "group", "bench group -n 8 --sizes 4K,64K,1M,4M,64M"
    if os.environ.get("HIVEMIND"):
        yield "hivemind", f"hivemind --hivemind {shlex.quote(os.environ['HIVEMIND'])}"
    if _emulates():
        yield "uneven", "uneven"


def hosts() -> Iterator[Run]:
    """The limit of a link, and the cost of several ranks on a host. Emulated hosts."""
    for several, each, domain in ((4, 1, "rank"), (2, 4, "node,rank")):
        emulated = f"hosts {several} --per-host {each} -- {sys.executable} -m partialcoll"
        yield f"hosts-{several}x{each}", f"{emulated} {BALANCED} --domain {domain}"


def moshpit() -> Iterator[Run]:
    """The paper's table 4, with its ten restarts and a hundred; the squared distance to the true
    mean; its figure 5: three axes, an under-full grid, and a million peers."""
    yield "moshpit-paper-10", f"{MOSHPIT} --paper-compat --restarts 10"
    yield "moshpit-paper", f"{MOSHPIT} --paper-compat"
    yield "moshpit-void", MOSHPIT
    yield "moshpit-absent", f"{MOSHPIT} --losses absent --methods moshpit,random"
    cube = "--p 0,0.001,0.0025,0.0075 --grid 8x8x8 --until 1e-14 --methods moshpit,random"
    yield "moshpit-cube", f"sim moshpit --peers 470,512 {cube}"
    yield "moshpit-million", MILLION
    yield "moshpit-million-absent", f"{MILLION} --losses absent"


def training() -> Iterator[Run]:
    """The figures of the paper on partial collectives, one slow rank, and what a step costs."""
    train = "bench train -n 8"
    for delay in (200, 300, 400):  # its figure 10: one rank in each step is late
        late = f"--pattern one-random --delay-ms {delay} --strategies allreduce,eager-solo"
        yield (
            f"train-hyperplane-{delay}",
            f"{train} --task hyperplane --compute-ms 300 {late} --seeds 1",
        )
    three = "--seeds 1 --strategies allreduce,eager-majority,eager-solo"
    shifted = "--compute-ms 100 --pattern all-shifted --delay-ms 400"  # its figure 11
    yield "train-digits", f"{train} --task digits {shifted} {three}"
    yield "train-sequences", f"{train} --task sequences --compute-ms 30 --history 8 {three}"
    slow = f"{train} --task hyperplane --size 1024 --batch 256 --steps 120 --compute-ms 50"
    both = "--seeds 1 --strategies allreduce,eager-solo-all"
    yield "train-slow", f"{slow} --pattern one-slow:100 {both}"
    yield "train-slow-none", f"{slow} {both}"
    for n in (2, 8):
        yield f"train-ddp-{n}", f"train_ddp -n {n}"
    if _emulates():
        yield "overlap", "overlap"


def decentralized() -> Iterator[Run]:
    """A slow rank beside AD-PSGD's own table; accuracy at equal epochs, and for more of them; rings
    with data of their own and shared; courses; what Swarm exposes."""
    train = "bench train --task digits -n 8"
    one = f"{train} --compute-ms 50 --seeds 1 --topology complete"
    for k, steps in ((1, 100), (2, 100), (10, 40), (100, 8)):
        nobody = "--steps 200 --strategies adpsgd,swarm,a2cid2,sgp,eager-solo-all"
        yield f"train-worker-{k}", f"{one} --pattern one-slow:{k} {nobody}"
        waiting = f"--steps {steps} --strategies allreduce,dpsgd"
        yield f"train-worker-allreduce-{k}", f"{one} --pattern one-slow:{k} {waiting}"
    for seed in range(5):
        every = f"allreduce,eager-solo,eager-majority,eager-solo-all,{OWN_MODELS}"
        equal = f"--compute-ms 30 --seeds 1 --seed {seed} --strategies {every}"
        yield f"train-accuracy-{seed}", f"{train} {equal}"
    for times, steps in ((5, 250), (6, 300), (8, 400)):
        longer = f"--compute-ms 30 --seeds 1 --steps {steps} --strategies slowmo,moshpit"
        yield f"train-more-{times}", f"{train} {longer}"
    for n, data in itertools.product((8, 16), ("sorted", "shared")):
        ring = f"--topology ring --strategies {A2CID2}"
        yield f"train-ring-{n}-{data}", f"{RINGS} -n {n} --data {data} {ring}"
    course = f"allreduce,dpsgd,adpsgd,{A2CID2},swarm,sgp,moshpit,localsgd"
    both = f"--topology ring,complete --strategies {course}"
    yield "train-course", f"{train} --compute-ms 40 --seeds 1 {both}"
    yield "train-exposed", "exposed"


def peers() -> Iterator[Run]:
    """Other libraries and programs, and the price of going on after deaths."""
    for n in (2, 4):
        yield f"backend-{n}", f"backend -n {n}"
        yield f"ddp-hook-{n}", f"ddp_hook -n {n}"
    yield "peers", "peers --turns 1"
    yield "interposer", "interposer"
    yield "programs", "programs"
    if launcher.flavor() == "openmpi":  # with ULFM
        yield "ready", "ready"


def verification() -> Iterator[Run]:
    """The long checks of docs/verification.md: about an hour."""
    yield "mutants", "tests/mutants.py"
    yield "coverage", "tests/coverage.py"
    yield "model", "tests/model/check.py"
    yield "soak-8", "soak --schedules 10000 --ranks 8"
    yield "soak", "soak"
    growth = "--ranks 16,64,256,1024,4096 --collectives solo"
    yield "sim-growth", f"sim skew {growth}"
    yield "sim-4096", "sim skew --ranks 4096"


SERIES = {
    each.__name__: each
    for each in (
        figures,
        gossip,
        groups,
        hosts,
        moshpit,
        training,
        decentralized,
        peers,
        verification,
    )
}


def _emulates() -> bool:
    return launcher.flavor() == "mpich" and os.geteuid() == 0 and Path("/sbin/tc").exists()


def _argv(text: str) -> list[str]:
    words = shlex.split(text)
    if words[0].endswith(".py"):
        return [sys.executable, str(RUN.parents[1] / words[0]), *words[1:]]
    ours = words[0] in ("bench", "sim")
    return [sys.executable, *(["-m", "partialcoll"] if ours else [str(RUN)]), *words]


_WITHOUT_MPI = ("tests/", "soak", "shortfall", "a2cid2")


def _kept(result: str, text: str) -> Path:
    """Return the file of a result: by its MPI, or "any" if no MPI takes part."""
    without = text.startswith((*_WITHOUT_MPI, "peers"))  # it runs both
    folder = results.FOLDER / result
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{'any' if without else launcher.flavor()}.json"


def _run(result: str, text: str, repeats: int) -> int:
    """Run the command, `repeats` times if its result is measured, and keep the medians; return the
    exit status."""
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
        document = results.merged([json.loads(file.read_text()) for file in files])
    _kept(result, text).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return 0


@click.command("series", help=__doc__, short_help="runs many, and keeps their rows")
@click.argument("name", type=click.Choice(tuple(SERIES)))
@click.option("--only", metavar="RESULT", help="this one of them")
@click.option("--list", "only_list", is_flag=True, help="say what would be run")
@count("--repeats", 5, "separate runs of what is measured, of which the medians are kept")
def command(name: str, only: str | None, only_list: bool, repeats: int) -> int:
    for result, text in SERIES[name]():
        if only not in (None, result):
            continue
        click.echo(f"{result}: {text}")
        if not only_list and (status := _run(result, text, repeats)):
            return status
    return 0
