# SPDX-License-Identifier: Apache-2.0
"""The simulations on the command line."""

from __future__ import annotations

from typing import Any

from ..sim import network
from . import arguments, options

METHODS = (
    "a2cid2",
    "baseline",
    "adpsgd",
    "swarm",
    "swarm-registers",
    "sgp",
    "dpsgd",
    "allreduce",
    "localsgd",
    "slowmo",
    "moshpit",
)
AVERAGERS = ("moshpit", "allreduce", "gossip", "pushsum", "random")


def _skew(commands: Any) -> None:
    skew = commands.add_parser(
        "skew",
        help="bench skew in virtual time, for any number of ranks",
        description="The rows of bench skew, from simulated ranks that run the very same "
        "schedules and protocol. mpi stands for an allreduce of all ranks by recursive doubling.",
    )
    skew.add_argument(
        "--ranks",
        type=arguments.positive_ints,
        default=[1024],
        metavar="P[,P…]",
        help="simulated ranks (default 1024); with several numbers the picture shows the growth",
    )
    options.add_arrivals(skew, iters=10)
    options.add_domain(skew, options.DOMAINS[1:])
    skew.add_argument(
        "--loggp",
        type=arguments.explained(network.parse_loggp),
        default=network.parse_loggp(network.DEFAULT_LOGGP),
        metavar="L,o,g,G",
        help="latency, overhead of a message, gap between two, gap per byte; microseconds, or with "
        f"units (default {network.DEFAULT_LOGGP})",
    )
    skew.add_argument(
        "--latency",
        type=arguments.explained(network.parse_latency),
        default=network.parse_latency("constant"),
        metavar="D",
        help="distribution of the latency around L: constant (default), exponential, uniform:W, "
        "lognormal:S",
    )
    options.add_algorithm(skew, options.ALGORITHMS[1:])
    skew.add_argument(
        "--seed",
        type=arguments.seed,
        default=0,
        help="of latencies and draws (default 0)",
    )
    options.add_output(skew)


def _gossip(commands: Any) -> None:
    gossip = commands.add_parser(
        "gossip",
        help="decentralised training in virtual time, for any number of ranks",
        description="Consensus distance and loss of the processes in partialcoll.processes, the "
        "same code that runs under MPI. Time is counted in gradient steps of an ordinary rank. The "
        "table shows how each run ended; JSON and picture have its course.",
    )
    gossip.add_argument(
        "--ranks", type=arguments.positive_int, default=64, help="simulated ranks (default 64)"
    )
    gossip.add_argument(
        "--topology",
        type=arguments.topologies,
        default=["ring"],
        metavar="T[,T…]",
        help="ring, complete, exponential, torus:8x8 …, see docs/topologies.md (default ring)",
    )
    gossip.add_argument(
        "--methods",
        type=arguments.words(METHODS),
        default=["a2cid2", "baseline", "allreduce"],
        help=f"some of {', '.join(METHODS)} (default a2cid2,baseline,allreduce)",
    )
    gossip.add_argument(
        "--rate",
        type=arguments.rates,
        default=[1.0],
        metavar="R[,R…]",
        help="averagings per gradient step that a rank takes part in (default 1); dpsgd and "
        "allreduce have their own, one exchange per step",
    )
    gossip.add_argument(
        "--local-steps",
        type=arguments.positive_int,
        help="of swarm, localsgd, slowmo and moshpit (default: what the rate comes to, 2/R)",
    )
    gossip.add_argument(
        "--grid",
        default="auto",
        metavar="AxB…",
        help="of moshpit: sides that hold the ranks, as 8x8 (default auto); the topology counts "
        "for nothing",
    )
    gossip.add_argument(
        "--window",
        type=arguments.not_negative,
        default=1.0,
        help="of moshpit: how long a group waits for more members (default 1)",
    )
    gossip.add_argument(
        "--pairing",
        type=arguments.one_of(("random", "bipartite", "hops", "available")),
        default="random",
        help="who averages with whom: random, bipartite, hops, available (default random)",
    )
    gossip.add_argument(
        "--task",
        type=arguments.one_of(("consensus", "quadratic", "logistic")),
        default="consensus",
        help="consensus (agree, nothing else), quadratic, logistic; the data differ between the "
        "ranks (default consensus)",
    )
    gossip.add_argument(
        "--dim", type=arguments.positive_int, default=16, help="parameters (default 16)"
    )
    gossip.add_argument(
        "--learning-rate", type=arguments.not_negative, default=0.05, help="(default 0.05)"
    )
    gossip.add_argument(
        "--noise",
        type=arguments.not_negative,
        default=0.5,
        help="of the gradients, standard deviation per parameter; logistic: 0 for whole batches "
        "(default 0.5)",
    )
    gossip.add_argument(
        "--codec-bits",
        type=arguments.positive_int,
        help="bits per parameter on the way (default: all)",
    )
    gossip.add_argument(
        "--slow",
        type=arguments.not_negative,
        default=1.0,
        metavar="K",
        help="rank 0 takes K times as long for a step (default 1)",
    )
    gossip.add_argument(
        "--step-times",
        type=arguments.one_of(("constant", "exponential")),
        default="constant",
        help="how long a gradient step takes: constant (default), exponential",
    )
    gossip.add_argument(
        "--latency",
        type=arguments.not_negative,
        default=0.02,
        help="mean, in gradient steps (default 0.02)",
    )
    gossip.add_argument(
        "--time", type=arguments.not_negative, default=200.0, help="in gradient steps (default 200)"
    )
    gossip.add_argument(
        "--samples", type=arguments.positive_int, default=50, help="rows for each run (default 50)"
    )
    gossip.add_argument("--seed", type=arguments.seed, default=0, help="the first (default 0)")
    gossip.add_argument(
        "--seeds",
        type=arguments.positive_int,
        default=1,
        help="runs, each with its seed (default 1)",
    )
    options.add_output(gossip)


def _moshpit(commands: Any) -> None:
    moshpit = commands.add_parser(
        "moshpit",
        help="rounds of grouped averaging where peers fail, for any number of peers",
        description="One number from N(0, 1) per peer; each fails a round with probability p and "
        "returns in the next. How many rounds until the squared distance to the true mean is below "
        "1e-9 and 1e-4, averaged over the restarts, and below what is compared with it. On the "
        "same grids as pc.GroupAllreduce_init.",
    )
    moshpit.add_argument(
        "--peers",
        type=arguments.positive_ints,
        default=[1024],
        metavar="N[,N…]",
        help="simulated peers (default 1024)",
    )
    moshpit.add_argument(
        "--p",
        type=arguments.chances,
        default=[0.0, 0.005],
        metavar="P[,P…]",
        help="how likely a peer fails in a round, below 1 (default 0,0.005)",
    )
    moshpit.add_argument(
        "--grid",
        type=arguments.explained(arguments.grids),
        default=["auto"],
        metavar="G[,G…]",
        help="sides, such as 32x32, or auto; random groups are as large as the longest (default "
        "auto)",
    )
    moshpit.add_argument(
        "--restarts",
        type=arguments.positive_int,
        default=100,
        help="runs of each line of the table, from values of their own (default 100)",
    )
    moshpit.add_argument(
        "--methods",
        type=arguments.words(AVERAGERS),
        default=list(AVERAGERS),
        help=f"some of {', '.join(AVERAGERS)} (default all)",
    )
    moshpit.add_argument(
        "--keys",
        type=arguments.words(("static", "dynamic")),
        help="whether peers keep their cells, or move on by their chunk indices (default both)",
    )
    moshpit.add_argument(
        "--losses",
        type=arguments.one_of(("void", "absent")),
        help="void: a peer that fails is lost in mid-round, its group keeps its values; absent: it "
        "does not come, the others average without it (default void)",
    )
    moshpit.add_argument(
        "--rounds",
        type=arguments.positive_int,
        default=50,
        help="after which a run is given up, and counted as so many (default 50)",
    )
    moshpit.add_argument(
        "--until",
        type=arguments.not_negative,
        default=1e-9,
        metavar="E",
        help="error at which a run ends, at most 1e-9 (default 1e-9; less for longer curves)",
    )
    moshpit.add_argument(
        "--paper-compat",
        action="store_true",
        help="as the paper's table was made: variance across peers, a placement drawn at random "
        "that stays, others average without who fails, push-sum without weights",
    )
    moshpit.add_argument("--seed", type=arguments.seed, default=0, help="of all draws (default 0)")
    options.add_output(moshpit)


def add(commands: Any) -> None:
    """All of them."""
    for command in (_skew, _gossip, _moshpit):
        command(commands)
