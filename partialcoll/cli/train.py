# SPDX-License-Identifier: Apache-2.0
"""`bench train` on the command line. torch is only loaded when it runs."""

from __future__ import annotations

import argparse
from typing import Any

from ..bench.train_delays import PATTERNS, Pattern
from ..bench.train_strategies import STRATEGIES
from . import arguments, options

TASKS = ("hyperplane", "digits", "sequences")


def _needs(given: argparse.Namespace) -> dict[str, str]:
    """What has to be installed: modules, and the words for pip."""
    modules = {"torch": "torch"}
    if given.task == "digits":
        modules["sklearn"] = "scikit-learn"
    return modules


def add(commands: Any) -> None:
    """The command."""
    train = commands.add_parser(
        "train",
        help="throughput and quality of training, strategies side by side",
        description="Trains with every strategy on the same ranks, one after the other: with the "
        "same seed from the same model, with the same samples and delays. steps_per_s counts a "
        "rank's own gradient steps, the median over ranks; limit is what arithmetic allows of "
        "speedup_vs_allreduce; final_loss and accuracy (0 to 1) are of held-out samples; wait_s is "
        "the mean over ranks; consensus is the distance of the ranks' models from their mean, "
        "root mean square, before the last average; communications are those that a rank had a "
        "part in. With several seeds the last rows are means. The picture has the loss against "
        "time.",
    )
    train.set_defaults(needs=_needs)
    _add_task(train)
    _add_time(train)
    train.add_argument(
        "--strategies",
        type=arguments.words(tuple(STRATEGIES)),
        default=["allreduce", "eager-solo", "eager-majority"],
        help=f"some of {', '.join(STRATEGIES)} (default allreduce,eager-solo,eager-majority)",
    )
    _add_strategies(train)
    train.add_argument(
        "--history",
        type=arguments.positive_int,
        default=16,
        help="rounds that a rank may lag behind with eager (default 16; fewer: more waiting where "
        "delays pile up, but no gradient is that late)",
    )
    train.add_argument(
        "--check-every",
        type=arguments.positive_int,
        default=1,
        metavar="K",
        help="rounds after which the parameters of all ranks are compared (default 1)",
    )
    train.add_argument("--seeds", type=arguments.positive_int, default=3, help="(default 3)")
    train.add_argument("--seed", type=arguments.seed, default=0, help="the first (default 0)")
    options.add_output(train)
    train.add_argument(
        "--plot-consensus",
        metavar="F.png",
        help="draw consensus distance and accuracy against time into a picture, side by side for "
        "each topology",
    )
    options.add_launch(train)


def _add_strategies(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "--topology",
        type=arguments.topologies,
        metavar="T[,T…]",
        help="of adpsgd, dpsgd, swarm and a2cid2, which are run on each: ring, complete, "
        "exponential … (default: ring for dpsgd and a2cid2, complete for adpsgd and swarm)",
    )
    train.add_argument(
        "--rate",
        type=arguments.positive,
        metavar="R",
        help="communications per gradient step that a rank has a part in, adpsgd and a2cid2, or "
        "that it begins, sgp (default 2 for adpsgd, 1 for a2cid2 and sgp)",
    )
    train.add_argument(
        "--local-steps",
        type=arguments.positive_int,
        metavar="H",
        help="from one communication to the next, swarm, localsgd, slowmo and moshpit (default 4, "
        "of moshpit 1)",
    )
    train.add_argument(
        "--grid",
        type=arguments.explained(arguments.grid),
        metavar="AxB…",
        help="of moshpit: sides that hold the ranks, as 2x4 (default auto)",
    )


def _add_task(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "--task",
        type=arguments.one_of(TASKS),
        default=TASKS[0],
        help="hyperplane: linear regression in 8192 dimensions; digits: scikit-learn's images, a "
        "convolutional network; sequences: an LSTM on videos as long as UCF101's (default "
        "hyperplane)",
    )
    train.add_argument(
        "--steps",
        type=arguments.positive_int,
        help="rounds to train for; own steps of each rank where ranks have models of their own "
        "(default: of the task, 128, 200, 200)",
    )
    train.add_argument(
        "--batch",
        type=arguments.positive_int,
        help="samples in a step of all ranks together (default: of the task, 2048, 256, 128)",
    )
    train.add_argument(
        "--size",
        type=arguments.positive_int,
        help="of the model: dimensions, channels, hidden units (default: of the task, 8192, 16, "
        "32)",
    )
    train.add_argument(
        "--learning-rate",
        type=arguments.positive,
        metavar="R",
        help="at first, of all strategies; it goes down to 1 %% of that in a straight line "
        "(default: of the task, 0.05, 0.4, 0.02)",
    )
    train.add_argument(
        "--data",
        type=arguments.one_of(("shared", "sorted")),
        default="shared",
        help="digits: ranks draw from all images, or each from its own part of them, sorted by "
        "digit, so that gradients differ between ranks for good (default shared)",
    )
    train.add_argument(
        "--length-scale",
        type=arguments.positive,
        default=0.1,
        metavar="F",
        help="sequences: so many times the frames of UCF101's videos, 29 to 1776 (default 0.1)",
    )


def _add_time(train: argparse.ArgumentParser) -> None:
    train.add_argument(
        "--compute-ms",
        type=arguments.not_negative,
        default=300.0,
        help="a step computes for at least so long, the rest by sleeping, so that few cores can "
        "stand for many; sequences: a batch of 29 frames, longer ones in proportion (default 300)",
    )
    train.add_argument(
        "--delay-ms",
        type=arguments.not_negative,
        default=400.0,
        help="the longest delay of one-random and all-shifted (default 400)",
    )
    train.add_argument(
        "--pattern",
        type=arguments.explained(Pattern.parse),
        default=Pattern(),
        help=f"who is late: {PATTERNS} (default none). one-random: one rank in each step, by the "
        "delay; all-shifted: rank i in step t by (1 + (i+t) mod P)/P of it; one-slow: rank 0's "
        "steps take K times as long",
    )
