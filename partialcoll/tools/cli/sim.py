# SPDX-License-Identifier: Apache-2.0
"""The simulations on the command line."""

from __future__ import annotations

from typing import Any

import click

from ..._core import settings
from ..bench.train.strategies import SIMULATED
from ..sim import network
from . import options, values
from .options import option
from .start import here

METHODS = tuple(SIMULATED)
AVERAGERS = ("moshpit", "allreduce", "gossip", "pushsum", "random")


@click.group(no_args_is_help=False)
def commands() -> None:
    """The same code in virtual time."""


def _add(name: str, short: str, text: str, *own: Any) -> None:
    """Add a command; the module in tools/sim has its name."""
    decorate = options.together(*own, options.outputs)
    commands.add_command(click.command(name, short_help=short, help=text)(decorate(here(name))))


_add(
    "skew",
    "bench skew in virtual time, for any number of ranks",
    "The rows of bench skew, from simulated ranks that run the very same schedules and protocol. "
    "mpi stands for an allreduce of all ranks by recursive doubling.",
    option(
        "--ranks",
        values.POSITIVE_INTS,
        "1024",
        "simulated ranks; with several numbers the picture shows the growth",
        metavar="P[,P…]",
    ),
    options.arrivals(10),
    options.domain(options.DOMAINS[1:]),
    option(
        "--loggp",
        values.Parsed(network.parse_loggp),
        network.DEFAULT_LOGGP,
        "latency, overhead of a message, gap between two, gap per byte; microseconds, or with "
        "units",
        metavar="L,o,g,G",
    ),
    option(
        "--latency",
        values.Parsed(network.parse_latency),
        "constant",
        "distribution of the latency around L: constant, exponential, uniform:W, lognormal:S",
        metavar="D",
    ),
    options.algorithm(settings.ALGORITHMS[1:]),
    options.seed("of latencies and draws"),
)

_add(
    "gossip",
    "decentralized training in virtual time, for any number of ranks",
    "Consensus distance and loss of the processes in partialcoll.decentralized, the same code that "
    "runs under MPI. Time is counted in gradient steps of an ordinary rank. The table shows how "
    "each run ended; JSON and picture have its course.",
    option("--ranks", values.RANKS, 64, "simulated ranks"),
    options.topology("ring", "ring, complete, exponential, torus:8x8 …, see docs/topologies.md"),
    option(
        "--methods",
        values.some_of(METHODS),
        "a2cid2,baseline,allreduce",
        f"some of {', '.join(METHODS)}",
    ),
    option(
        "--rate",
        values.RATES,
        "1",
        "averagings per gradient step that a rank takes part in; synchronous methods have their "
        "own, one exchange per step",
        metavar="R[,R…]",
    ),
    option(
        "--local-steps",
        values.POSITIVE_INT,
        None,
        "of swarm, localsgd, slowmo and moshpit (default: what the rate comes to, 2/R)",
    ),
    option(
        "--grid",
        values.GRID,
        "auto",
        "of moshpit: sides that hold the ranks, as 8x8; the topology counts for nothing",
        metavar="AxB…",
    ),
    option("--window", values.STEPS, 1.0, "of moshpit: how long a group waits for more members"),
    option(
        "--pairing",
        click.Choice(("random", "bipartite", "hops", "available")),
        "random",
        "who averages with whom: random, bipartite, hops, available",
    ),
    option(
        "--task",
        click.Choice(("consensus", "quadratic", "logistic")),
        "consensus",
        "consensus (agree, nothing else), quadratic, logistic; the data differ between the ranks",
    ),
    option("--dim", values.POSITIVE_INT, 16, "parameters"),
    option("--learning-rate", values.NOT_NEGATIVE, 0.05, "of the gradient steps"),
    option(
        "--noise",
        values.NOT_NEGATIVE,
        0.5,
        "of the gradients, standard deviation per parameter; logistic: 0 for whole batches",
    ),
    option("--codec-bits", values.BITS, None, "bits per parameter on the way (default: all)"),
    option(
        "--codec-margin",
        values.NOT_NEGATIVE,
        None,
        "how many times the distance seen lately keys may be away (default: that of pc.Lattice)",
    ),
    option("--slow", values.SLOWNESS, 1.0, "rank 0 takes K times as long for a step", metavar="K"),
    option(
        "--stopped",
        values.STEPS,
        0.0,
        "rank 0 stands still for so long, from a third of the time on",
    ),
    option(
        "--achieved",
        values.PARTS,
        "1",
        "which part of the averagings asked for happens, above 0; several, one after the other, "
        "share the time. Latencies, which keep a rank busy, have the same effect",
        metavar="F[,F…]",
    ),
    option(
        "--step-times",
        click.Choice(("constant", "exponential")),
        "constant",
        "how long a gradient step takes: constant, exponential",
    ),
    option("--latency", values.STEPS, 0.02, "mean, in gradient steps"),
    option("--time", values.STEPS, 200.0, "in gradient steps"),
    option("--samples", values.POSITIVE_INT, 50, "rows for each run"),
    options.seed("the first"),
    option("--seeds", values.POSITIVE_INT, 1, "runs, each with its seed"),
)

_add(
    "moshpit",
    "rounds of grouped averaging where peers fail, for any number of peers",
    "One number from N(0, 1) per peer; each fails a round with probability p and returns in the "
    "next. How many rounds until the squared distance to the true mean is below 1e-9 and 1e-4, "
    "averaged over the restarts, and below what is compared with it. On the same grids as "
    "pc.GroupAllreduce_init; vectorized arithmetic of the rounds, no protocol.",
    option("--peers", values.POSITIVE_INTS, "1024", "simulated peers", metavar="N[,N…]"),
    option(
        "--p",
        values.CHANCES,
        "0,0.005",
        "how likely a peer fails in a round, below 1",
        metavar="P[,P…]",
    ),
    option(
        "--grid",
        values.GRIDS,
        "auto",
        "sides, such as 32x32, or auto; random groups are as large as the longest",
        metavar="G[,G…]",
    ),
    option(
        "--restarts",
        values.POSITIVE_INT,
        100,
        "runs of each line of the table, from values of their own",
    ),
    option(
        "--methods",
        values.some_of(AVERAGERS),
        ",".join(AVERAGERS),
        f"some of {', '.join(AVERAGERS)}",
    ),
    option(
        "--keys",
        values.some_of(("static", "dynamic")),
        None,
        "whether peers keep their cells, or move on by their chunk indices (default both)",
    ),
    option(
        "--losses",
        click.Choice(("void", "absent")),
        None,
        "void: a peer that fails is lost in mid-round, its group keeps its values; absent: it does "
        "not come, the others average without it (default void)",
    ),
    option(
        "--rounds", values.POSITIVE_INT, 50, "after which a run is given up, and counted as so many"
    ),
    option(
        "--until",
        values.NOT_NEGATIVE,
        1e-9,
        "error at which a run ends, at most 1e-9; less for longer curves",
        metavar="E",
    ),
    options.flag(
        "--paper-compat",
        "as the paper's table was made: variance across peers, a placement drawn at random that "
        "stays, others average without who fails, push-sum without weights",
    ),
    options.seed("of all draws"),
)
