# SPDX-License-Identifier: Apache-2.0
"""The simulations on the command line."""

from __future__ import annotations

from typing import Any

import click

from ..._core.settings import ALGORITHMS
from ..bench.train.strategies import SIMULATED
from ..sim.skew import DEFAULT_LOGGP, parse_latency, parse_loggp
from . import options, values
from .options import flag, option
from .start import here
from .values import POSITIVE_INT

METHODS = tuple(SIMULATED)
AVERAGERS = ("moshpit", "allreduce", "gossip", "pushsum", "random")


@click.group(no_args_is_help=False)
def commands() -> None:
    """The same code in virtual time."""


def _add(name: str, about: str, *own: Any) -> None:
    commands.add_command(options.command(name, about, here(name), *own, options.outputs))


_add(
    "skew",
    """bench skew in virtual time, for any number of ranks

    The rows of bench skew, from simulated ranks that run the very same schedules and protocol. mpi
    stands for an allreduce of all ranks by recursive doubling.

    --ranks: simulated ranks; with several numbers the picture shows the growth
    --loggp: L,o,g,G: latency, overhead of a message, gap between two, gap per byte; microseconds,
        or with units
    --latency: distribution of the latency around L: constant, exponential, uniform:W, lognormal:S
    """,
    option("--ranks", values.POSITIVE_INTS, "1024"),
    options.arrivals(10),
    options.domain(options.DOMAINS[1:]),
    option("--loggp", values.Parsed(parse_loggp), DEFAULT_LOGGP),
    option("--latency", values.Parsed(parse_latency), "constant"),
    options.algorithm(ALGORITHMS[1:]),
    options.seed("of latencies and draws"),
)

_add(
    "gossip",
    f"""decentralized training in virtual time, for any number of ranks

    Consensus distance and loss of the processes in partialcoll.decentralized, the same code that
    runs under MPI. Time is counted in gradient steps of an ordinary rank. The table shows how each
    run ended; JSON and picture have its course.

    --topology: ring, complete, exponential, torus:8x8 …, see docs/topologies.md
    --methods: some of {", ".join(METHODS)}
    --rate: averagings per gradient step that a rank takes part in; synchronous methods have their
        own, one exchange per step
    --local-steps: of swarm, localsgd, slowmo and moshpit (default: what the rate comes to, 2/R)
    --grid: of moshpit: sides that hold the ranks, as 8x8; the topology counts for nothing
    --window: of moshpit: how long a group waits for more members
    --pairing: who averages with whom: random, bipartite, hops, available
    --task: consensus (agree, nothing else), quadratic, logistic; the data differ between the ranks
    --noise: of the gradients, standard deviation per parameter; logistic: 0 for whole batches
    --codec-bits: bits per parameter on the way (default: all)
    --codec-margin: how many times the distance seen lately keys may be away (default: that of
        pc.Lattice)
    --slow: rank 0 takes so many times as long for a step
    --stopped: rank 0 stands still for so long, from a third of the time on
    --achieved: which part of the averagings asked for happens, above 0; several, one after the
        other, share the time. Latencies, which keep a rank busy, have the same effect
    --step-times: how long a gradient step takes: constant, exponential
    """,
    option("--ranks", click.IntRange(1, 1 << 16), 64, "simulated ranks"),
    option("--topology", values.TOPOLOGIES, "ring"),
    option("--methods", values.some_of(METHODS), "a2cid2,baseline,allreduce"),
    option("--rate", values.RATES, "1"),
    option("--local-steps", POSITIVE_INT, None),
    option("--grid", values.GRID, "auto"),
    option("--window", values.STEPS, 1.0),
    option("--pairing", ("random", "bipartite", "hops", "available"), "random"),
    option("--task", ("consensus", "quadratic", "logistic"), "consensus"),
    option("--dim", POSITIVE_INT, 16, "parameters"),
    option("--learning-rate", values.NOT_NEGATIVE, 0.05, "of the gradient steps"),
    option("--noise", values.NOT_NEGATIVE, 0.5),
    option("--codec-bits", values.BITS, None),
    option("--codec-margin", values.NOT_NEGATIVE, None),
    option("--slow", values.SLOWNESS, 1.0),
    option("--stopped", values.STEPS, 0.0),
    option("--achieved", values.PARTS, "1"),
    option("--step-times", ("constant", "exponential"), "constant"),
    option("--latency", values.STEPS, 0.02, "mean, in gradient steps"),
    option("--time", values.STEPS, 200.0, "in gradient steps"),
    option("--samples", POSITIVE_INT, 50, "rows for each run"),
    options.seed("the first"),
    option("--seeds", POSITIVE_INT, 1, "runs, each with its seed"),
)

_add(
    "moshpit",
    f"""rounds of grouped averaging where peers fail, for any number of peers

    One number from N(0, 1) per peer; each fails a round with probability p and returns in the next.
    How many rounds until the squared distance to the true mean is below 1e-9 and 1e-4, averaged
    over the restarts, and below what is compared with it. On the same grids as
    pc.GroupAllreduce_init; vectorized arithmetic of the rounds, no protocol.

    --p: how likely a peer fails in a round, below 1
    --grid: sides, such as 32x32, or auto; random groups are as large as the longest
    --restarts: runs of each line of the table, from values of their own
    --methods: some of {", ".join(AVERAGERS)}
    --keys: whether peers keep their cells, or move on by their chunk indices (default both)
    --losses: void: a peer that fails is lost in mid-round, its group keeps its values; absent: it
        does not come, the others average without it (default void)
    --rounds: after which a run is given up, and counted as so many
    --until: error at which a run ends, at most 1e-9; less for longer curves
    --paper-compat: as the paper's table was made: variance across peers, a placement drawn at
        random that stays, others average without who fails, push-sum without weights
    """,
    option("--peers", values.POSITIVE_INTS, "1024", "simulated peers"),
    option("--p", values.CHANCES, "0,0.005"),
    option("--grid", values.GRIDS, "auto"),
    option("--restarts", POSITIVE_INT, 100),
    option("--methods", values.some_of(AVERAGERS), ",".join(AVERAGERS)),
    option("--keys", values.some_of(("static", "dynamic")), None),
    option("--losses", ("void", "absent"), None),
    option("--rounds", POSITIVE_INT, 50),
    option("--until", values.Number(0, 1e-9, min_open=True), 1e-9),
    flag("--paper-compat"),
    options.seed("of all draws"),
)
