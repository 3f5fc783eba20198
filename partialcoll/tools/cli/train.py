# SPDX-License-Identifier: Apache-2.0
"""`bench train` on the command line. torch is only loaded when it runs."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import click

from ...errors import Error
from .. import launcher
from ..bench.train.delays import PATTERNS
from ..bench.train.strategies import STRATEGIES
from . import options, values
from .options import option
from .start import on_ranks

TASKS = ("hyperplane", "digits", "sequences")


def _installed(given: SimpleNamespace) -> None:
    """Say what the benchmark lacks before a job is started for it."""
    needed = {"torch": "torch", **({"sklearn": "scikit-learn"} if given.task == "digits" else {})}
    for module, package in needed.items():
        if importlib.util.find_spec(module) is None:
            raise ImportError(
                f"bench train needs {package}: pip install 'partialcoll[train]', or pip install "
                f"{package}"
            )


def fits(given: SimpleNamespace, ranks: int) -> None:
    """Raises Error for what does not fit the ranks."""
    _installed(given)
    for text in given.topology or ():
        values.fit_topology(text, ranks)
    if given.data != "shared" and given.task != "digits":
        raise Error(f"--data: expected shared with {given.task}, got {given.data}")
    if given.grid is not None:
        values.fit_grid(given.grid, ranks)
    if given.respawn and not given.pattern.kills:
        raise Error(f"--respawn: expected --pattern kill:S, got {given.pattern}")
    if given.respawn and (given.plot or given.plot_consensus):
        raise Error("--plot, --plot-consensus: expected none of them with --respawn")
    if given.pattern.kills:
        _fits_kills(given, ranks)


def _fits_kills(given: SimpleNamespace, ranks: int) -> None:
    """One run, in which ranks may die; of the job that is started they may."""
    known = [name for name, choice in STRATEGIES.items() if choice.survives]
    if given.seeds != 1 or len(given.strategies) != 1 or given.strategies[0] not in known:
        raise Error(
            f"--pattern {given.pattern}: expected --seeds 1 and one of --strategies "
            f"{', '.join(known)}: who has died does not come back for another run"
        )
    if launcher.flavor() != "openmpi" or ranks < 3:
        raise Error(f"--pattern {given.pattern}: expected 3 ranks or more, and Open MPI 5")
    given.mpiexec_args = " ".join(filter(None, (given.mpiexec_args, "--with-ft ulfm")))


_task = options.together(
    option(
        "--task",
        values.one_of(TASKS),
        TASKS[0],
        "hyperplane: linear regression in 8192 dimensions; digits: scikit-learn's images, a "
        "convolutional network; sequences: an LSTM on videos as long as UCF101's",
    ),
    option(
        "--steps",
        values.POSITIVE_INT,
        None,
        "rounds to train for; own steps of each rank where ranks have models of their own "
        "(default: of the task, 128, 200, 200)",
    ),
    option(
        "--batch",
        values.POSITIVE_INT,
        None,
        "samples in a step of all ranks together (default: of the task, 2048, 256, 128)",
    ),
    option(
        "--size",
        values.POSITIVE_INT,
        None,
        "of the model: dimensions, channels, hidden units (default: of the task, 8192, 16, 32)",
    ),
    option(
        "--learning-rate",
        values.POSITIVE,
        None,
        "at first, of all strategies; it goes down to 1 % of that in a straight line (default: of "
        "the task, 0.05, 0.4, 0.02)",
        metavar="R",
    ),
    option(
        "--data",
        values.one_of(("shared", "sorted")),
        "shared",
        "digits: ranks draw from all images, or each from its own part of them, sorted by digit, "
        "so that gradients differ between ranks for good",
    ),
    option(
        "--length-scale",
        values.POSITIVE,
        0.1,
        "sequences: so many times the frames of UCF101's videos, 29 to 1776",
        metavar="F",
    ),
)

_time = options.together(
    option(
        "--compute-ms",
        values.HOUR,
        300.0,
        "a step computes for at least so long, the rest by sleeping, so that few cores can stand "
        "for many; sequences: a batch of 29 frames, longer ones in proportion",
    ),
    option("--delay-ms", values.HOUR, 400.0, "the longest delay of one-random and all-shifted"),
    option(
        "--pattern",
        values.PATTERN,
        "none",
        f"who is late: {PATTERNS}. one-random: one rank in each step, by the delay; all-shifted: "
        "rank i in step t by (1 + (i+t) mod P)/P of it; one-slow: rank 0's steps take K times as "
        "long; kill: one more rank is killed each S seconds, and the others go on",
    ),
    options.flag(
        "--respawn",
        "with kill, allreduce or one of eager: another process takes the place of each; trains "
        "twice as long, at first without kills, for comparison",
    ),
)

_strategies = options.together(
    option(
        "--strategies",
        values.some_of(tuple(STRATEGIES)),
        "allreduce,eager-solo,eager-majority",
        f"some of {', '.join(STRATEGIES)}",
    ),
    options.topology(
        None,
        "of adpsgd, dpsgd, swarm and a2cid2, which are run on each: ring, complete, exponential … "
        "(default: ring for dpsgd and a2cid2, complete for adpsgd and swarm)",
    ),
    option(
        "--rate",
        values.POSITIVE,
        None,
        "communications per gradient step that a rank has a part in, adpsgd and a2cid2, or that it "
        "begins, sgp (default 2 for adpsgd, 1 for a2cid2 and sgp)",
        metavar="R",
    ),
    option(
        "--local-steps",
        values.POSITIVE_INT,
        None,
        "from one communication to the next, swarm, localsgd, slowmo and moshpit (default 4, of "
        "moshpit 1)",
        metavar="H",
    ),
    option(
        "--grid",
        values.GRID,
        None,
        "of moshpit: sides that hold the ranks, as 2x4 (default auto)",
        metavar="AxB…",
    ),
    option(
        "--history",
        values.POSITIVE_INT,
        16,
        "rounds that a rank may lag behind with eager; fewer: more waiting where delays pile up, "
        "but no gradient is that late",
    ),
)

train = click.command(
    "train",
    short_help="throughput and quality of training, strategies side by side",
    help="Trains with every strategy on the same ranks, one after the other: with the same seed "
    "from the same model, with the same samples and delays. steps_per_s counts a rank's own "
    "gradient steps, the median over ranks; limit is what arithmetic allows of "
    "speedup_vs_allreduce; final_loss and accuracy (0 to 1) are of held-out samples; wait_s is the "
    "mean over ranks; consensus is the distance of the ranks' models from their mean, root mean "
    "square, before the last average; communications are those that a rank had a part in. With "
    "several seeds the last rows are means. The picture has the loss against time.",
)(
    options.together(
        _task,
        _time,
        _strategies,
        option(
            "--check-every",
            values.POSITIVE_INT,
            1,
            "rounds after which the parameters of all ranks are compared",
            metavar="K",
        ),
        option("--seeds", values.POSITIVE_INT, 3, "how many"),
        options.seed("the first"),
        options.outputs,
        option(
            "--plot-consensus",
            values.PICTURE,
            None,
            "draw consensus distance and accuracy against time into a picture, side by side for "
            "each topology",
            metavar="F.png",
        ),
        options.launch(),
    )(on_ranks("train.run", fits))
)
