# SPDX-License-Identifier: Apache-2.0
"""The benchmarks on the command line. torch is loaded only when `bench train` runs."""

from __future__ import annotations

import importlib
import importlib.util
from functools import partial
from types import SimpleNamespace
from typing import Any

import click

from ..._core.settings import ALGORITHMS
from .. import environment, launcher, report
from ..bench.train.delays import PATTERNS
from ..bench.train.strategies import STRATEGIES, with_option
from . import options, start, values
from .options import flag, option
from .start import on_ranks
from .values import POSITIVE_INT

TASKS = ("hyperplane", "digits", "sequences")


@click.group(no_args_is_help=False)
def commands() -> None:
    """Benchmarks."""


def _add(name: str, about: str, *own: Any, ranks: int = 8, module: str = "", **how: Any) -> None:
    find = partial(importlib.import_module, f"partialcoll.tools.bench.{module or name}")
    run = on_ranks(name, find, **how)
    every = (*own, options.outputs, options.launch(ranks))
    commands.add_command(options.command(name, about, run, *every))


_add(
    "skew",
    """what skewed arrival costs, and what a quorum saves

    Rank i arrives i times the skew late. Latency is from entering Start to leaving Wait, the mean
    over ranks and rounds, each collective in turn in every iteration.

    --warmup: iterations before that
    --interface: calls of Python, timed there, or of C; or both
    """,
    options.arrivals(30),
    options.domain(),
    option("--warmup", values.WHOLE, 3),
    option("--interface", values.some_of(("python", "c")), "python"),
    options.algorithm(ALGORITHMS),
)

_add(
    "balanced",
    """latency and bandwidth when all ranks are there

    Calls back to back without skew, over the message size; the collectives take turns, and the
    slowest rank of each batch counts. Every element is checked.

    --zero-copy: no copies in or out: deposits and results stay in the library's memory (mpi has no
        such way)
    --link-gbps: what each host can send, gigabits per second: gives limit_us, for 2 S (H-1)/H bytes
    """,
    options.sizes("8:64M"),
    options.collectives("mpi", "full"),
    options.domain(),
    flag("--zero-copy"),
    options.algorithm(ALGORITHMS),
    option("--link-gbps", values.NOT_NEGATIVE, None),
    options.iters(15, "batches of each"),
)

_add(
    "tune",
    """which algorithm is best for how many bytes, here

    Measures all algorithms, without skew, with 2, 4, 8 … ranks up to those of the job, and writes
    the table that algorithm=auto reads.

    --output: the table; - for standard output  [default: the file that auto reads,
        $PARTIALCOLL_TUNE or partialcoll/tune.txt in your configuration]
    """,
    options.sizes("1K:16M"),
    options.iters(9, "batches of each"),
    click.option("--output", type=values.TABLE, default=environment.tuning_table),
)

_add(
    "idle",
    """CPU used while nothing happens, and while somebody waits

    CPU time of each process over wall time, with a handle that nobody uses, and with all ranks but
    the last waiting for it.
    """,
    option("--seconds", values.DAY, 5.0, "of each state"),
    options.domain(),
)

_add(
    "overhead",
    """what Python adds to a call

    Microseconds of a call with 8 bytes, from Python and from C in alternation; medians. One rank is
    enough: what Python adds does not depend on the others.
    """,
    options.iters(31, "batches of each"),
    ranks=1,
)

_add(
    "quantize",
    """how fast the lattice codec is, beside memcpy, and what it loses

    Encodes and decodes vectors of standard deviation 1 with keys within 0.01 of them. gbs counts
    the bytes of float32 that went through one core. share is the part of memcpy's speed that is
    reached, by bytes read and written. max_error is the largest of all elements, and ratio compares
    the payload with the vector. All take turns, medians; with several ranks the slowest counts.
    """,
    options.sizes("64K,1M,16M,64M"),
    option("--bits", values.BIT_WIDTHS, "4,8,16", "of an element, 2 to 16"),
    flag("--rotate", "with rotated blocks as well"),
    options.iters(21),
    ranks=1,
)


def _two_ranks(given: SimpleNamespace, ranks: int) -> None:
    if ranks < 2:
        raise click.UsageError(f"-n: expected at least 2 ranks, got {ranks}")


_add(
    "gossip",
    """what the operations of a gossip buffer cost, beside memcpy and MPI_Sendrecv

    Rank 0 publishes, reads, averages, collects, pushes and drains, while the others sleep (only
    sendrecv needs rank 1). gbs counts models that are moved: averaging reads one and writes one.
    All take turns, medians. sum_error is the relative change of the sum over all ranks.

    --bits: with the lattice codec as well, so many bits of an element
    """,
    options.sizes("4K,64K,1M,16M,100M"),
    option("--bits", values.BIT_WIDTHS, ()),
    options.iters(15),
    ranks=2,
    check=_two_ranks,
)


_add(
    "gpu",
    """buffers on a device, beside copies by hand around MPI_Allreduce

    A call is over when the device has the result. start_us is how long Start takes; exposed_us what
    is left of a call behind 10 ms of work on the device. All take turns, medians of what the
    slowest rank takes; every element is checked. Needs PyTorch with CUDA.
    """,
    options.sizes("1K,64K,1M,16M,64M,256M"),
    options.iters(15),
    ranks=2,
)


def _grids_fit(given: SimpleNamespace, ranks: int) -> None:
    bandwidth = given.bandwidth
    if isinstance(bandwidth, list) and len(bandwidth) != ranks:
        what = f"{ranks} numbers, one for each rank"
        raise click.UsageError(f"--bandwidth: expected {what}, got {len(bandwidth)}")
    for grid in given.grid:
        values.fit_grid(grid, ranks)


_add(
    "group",
    """averages in groups on a grid, beside the allreduce of all ranks at once

    A turn of a grouped allreduce (one round for each axis: on a full grid the exact average over
    all ranks), one round of it, MPI_Allreduce, and the full allreduce. All take turns, medians of
    what the slowest rank takes; every element is checked. busbw_gbs counts what a link has to
    carry.

    --grid: auto, or sides that hold the ranks, as 2x4
    --keys: whether cells of the grid stay: auto (they do if it is full), static, dynamic
    --bandwidth: of the ranks' links: equal, measured, or a number for each rank, as 1,1,1,0.1; a
        slow one reduces less
    """,
    options.sizes("64K,1M,4M,16M"),
    option("--grid", values.GRIDS, "auto"),
    option("--keys", ("auto", "static", "dynamic"), "auto"),
    option("--bandwidth", values.BANDWIDTH, "equal"),
    options.iters(15),
    check=_grids_fit,
)


def _run_faults(**words: Any) -> int:
    from ..bench.faults import killing

    given = SimpleNamespace(**words)
    killing.check_launcher("bench faults")
    if "mpi" in given.quorum:
        raise click.UsageError("--quorum: expected policies, got mpi, which does not go on")
    start.check_memory(given.n, None)
    rows = killing.run(given)
    document = killing.document("bench faults", given.n, rows)
    report.write(given.json, document, columns=killing.COLUMNS)
    return int(killing.went_wrong(rows))


commands.add_command(
    options.command(
        "faults",
        """what becomes of allreduces when ranks are killed

        Starts jobs of allreduces that go on when a rank dies, and kills their ranks at random
        moments, all but one of each job. Every rank writes down what it deposits and what it is
        given; that is judged by the contract: survived counts jobs whose ranks came to their end,
        hangs ranks that were silent for a second or for ever, lost deposits that are missing or
        counted twice, diverged rounds that differ between ranks. detect_ms is from the kill to a
        rank's knowing, recover_ms from there until its rounds go on (recover_one_ms if nobody else
        died meanwhile or just before), rejoin_s (--respawn) from the kill until rounds go on with
        another one. Exits with 1 if anything was wrong. Needs Open MPI 5.

        --respawn: start another process for each, which takes its number
        """,
        _run_faults,
        option("-n", click.IntRange(2, 64), 8, "ranks of each job"),
        option("--kills", POSITIVE_INT, 100, "for each policy and domain"),
        option("--quorum", values.COLLECTIVES, "solo,majority,full", "policies"),
        options.domain(),
        flag("--respawn"),
        options.seed("of the moments"),
        options.json,
    )
)


def fits(given: SimpleNamespace, ranks: int) -> None:
    """Check what does not fit; where ranks may die, let the job that is started survive that."""
    packages = {"torch": "torch", **({"sklearn": "scikit-learn"} if given.task == "digits" else {})}
    for module, package in packages.items():
        if importlib.util.find_spec(module) is None:
            how = f"pip install 'partialcoll[train]', or pip install {package}"
            raise ImportError(f"bench train needs {package}: {how}")
    for text in given.topology or ():
        values.fit_topology(text, ranks)
    if given.grid is not None:
        values.fit_grid(given.grid, ranks)
    pattern, problem = given.pattern, ""
    known = [name for name, choice in STRATEGIES.items() if choice.survives]
    if given.data != "shared" and given.task != "digits":
        problem = f"--data: expected shared with {given.task}, got {given.data}"
    elif given.respawn and not pattern.kills:
        problem = f"--respawn: expected --pattern kill:S, got {pattern}"
    elif given.respawn and (given.plot or given.plot_consensus):
        problem = "--plot, --plot-consensus: expected none of them with --respawn"
    elif pattern.kills and (given.seeds != 1 or given.strategies not in [[one] for one in known]):
        problem = (
            f"--pattern {pattern}: expected --seeds 1 and one of --strategies {', '.join(known)}: "
            "who has died does not come back for another run"
        )
    elif pattern.kills and (launcher.flavor() != "openmpi" or ranks < 3):
        problem = f"--pattern {pattern}: expected 3 ranks or more, and Open MPI 5"
    if problem:
        raise click.UsageError(problem)
    if pattern.kills:
        given.mpiexec_args = " ".join(filter(None, (given.mpiexec_args, "--with-ft ulfm")))


_add(
    "train",
    f"""throughput and quality of training, strategies side by side

    Trains with every strategy on the same ranks, one after the other: with the same seed from the
    same model, with the same samples and delays. steps_per_s counts a rank's own gradient steps,
    the median over ranks; limit is what arithmetic allows of speedup_vs_allreduce; final_loss and
    accuracy (0 to 1) are of held-out samples; wait_s is the mean over ranks; consensus is the
    distance of the ranks' models from their mean, root mean square, before the last average;
    communications are those that a rank had a part in. With several seeds the last rows are means.
    The picture has the loss against time.

    --task: hyperplane: linear regression in 8192 dimensions; digits: scikit-learn's images, a
        convolutional network; sequences: an LSTM on videos as long as UCF101's
    --steps: rounds to train for; own steps of each rank where ranks have models of their own
        (default: of the task, 128, 200, 200)
    --batch: samples in a step of all ranks together (default: of the task, 2048, 256, 128)
    --size: of the model: dimensions, channels, hidden units (default: of the task, 8192, 16, 32)
    --learning-rate: at first, of all strategies; it goes down to 1 % of that in a straight line
        (default: of the task, 0.05, 0.4, 0.02)
    --data: digits: ranks draw from all images, or each from its own part of them, sorted by digit,
        so that gradients differ between ranks for good
    --length-scale: sequences: so many times the frames of UCF101's videos, 29 to 1776
    --compute-ms: a step computes for at least so long, the rest by sleeping, so that few cores can
        stand for many; sequences: a batch of 29 frames, longer ones in proportion
    --delay-ms: the longest delay of one-random and all-shifted
    --pattern: who is late: {PATTERNS}. one-random: one rank in each step, by the delay;
        all-shifted: rank i in step t by (1 + (i+t) mod P)/P of it; one-slow: rank 0's steps take K
        times as long; kill: one more rank is killed each S seconds, and the others go on
    --respawn: with kill, allreduce or one of eager: another process takes the place of each; trains
        twice as long, at first without kills, for comparison
    --strategies: some of {", ".join(STRATEGIES)}
    --topology: of {with_option("topology")}, which are run on each: ring, complete, exponential …
        (default: the strategy's own)
    --rate: communications per gradient step that a rank has a part in, with sgp that it begins:
        {with_option("rate")} (default: the strategy's own)
    --local-steps: from one communication to the next, of {with_option("local_steps")} (default: the
        strategy's own)
    --grid: of moshpit: sides that hold the ranks, as 2x4 (default auto)
    --history: rounds that a rank may lag behind with eager; fewer: more waiting where delays pile
        up, but no gradient is that late
    --check-every: rounds after which the parameters of all ranks are compared
    --plot-consensus: draw consensus distance and accuracy against time into a picture, side by side
        for each topology
    """,
    option("--task", TASKS, TASKS[0]),
    option("--steps", POSITIVE_INT, None),
    option("--batch", POSITIVE_INT, None),
    option("--size", POSITIVE_INT, None),
    option("--learning-rate", values.POSITIVE, None),
    option("--data", ("shared", "sorted"), "shared"),
    option("--length-scale", values.POSITIVE, 0.1),
    option("--compute-ms", values.HOUR, 300.0),
    option("--delay-ms", values.HOUR, 400.0),
    option("--pattern", values.PATTERN, "none"),
    flag("--respawn"),
    option(
        "--strategies", values.some_of(tuple(STRATEGIES)), "allreduce,eager-solo,eager-majority"
    ),
    option("--topology", values.TOPOLOGIES, None),
    option("--rate", values.POSITIVE, None),
    option("--local-steps", POSITIVE_INT, None),
    option("--grid", values.GRID, None),
    option("--history", POSITIVE_INT, 16),
    option("--check-every", POSITIVE_INT, 1),
    option("--seeds", POSITIVE_INT, 3, "how many"),
    options.seed("the first"),
    option("--plot-consensus", values.PICTURE, None),
    module="train.run",
    check=fits,
)
