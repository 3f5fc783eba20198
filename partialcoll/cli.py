# SPDX-License-Identifier: Apache-2.0
"""The console script ``partialcoll``: info, what C users need, the benchmarks, for which it starts
MPI itself, and the simulations, which need none."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from typing import Any, Callable

from . import _clibs, _mpiexec
from ._errors import Error
from .sim import network

COLLECTIVES = ("mpi", "solo", "majority", "full")
DOMAINS = ("node", "rank")
ALGORITHMS = ("auto", "recdbl", "rabenseifner", "ring", "native")


def _positive_int(text: str) -> int:
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number above 0, got {text}")
    return value


def _not_negative(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {text}")
    return value


def _seed(text: str) -> int:
    if not text.isdigit() or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"expected a whole number of 0 to 2^64-1, got {text}")
    return int(text)


def _words(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """A comma-separated list of some of the words."""

    def parse(text: str) -> list[str]:
        words = text.split(",")
        for word in words:
            if word not in allowed:
                raise argparse.ArgumentTypeError(f"expected {', '.join(allowed)}; got {word!r}")
        return words

    return parse


def _one_of(allowed: Sequence[str]) -> Callable[[str], str]:
    """One of the words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise argparse.ArgumentTypeError(f"expected {' or '.join(allowed)}, got {text!r}")
        return text

    return parse


def _collectives(text: str) -> list[str]:
    """A comma-separated list of "mpi" and policies, whose modifiers have commas as well."""
    from .policy import parse

    names: list[str] = []
    for word in text.split(","):
        if "=" in word and names:
            names[-1] += "," + word
        else:
            names.append(word)
    for name in names:
        if name == "mpi":
            continue
        try:
            parse(name)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"expected mpi or a policy; {error}") from None
    return names


def _positive_ints(text: str) -> list[int]:
    return [_positive_int(word) for word in text.split(",")]


def _explained(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """A parser whose ValueError is shown to the user."""

    def explain(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return explain


def _add_launch(parser: argparse.ArgumentParser, ranks: int = 8) -> None:
    group = parser.add_argument_group(
        "starting the job (inside a running job it is joined instead)"
    )
    group.add_argument(
        "-n", type=_positive_int, default=ranks, metavar="RANKS", help=f"ranks (default {ranks})"
    )
    group.add_argument("--hosts", help="hosts, as the launcher takes them")
    group.add_argument(
        "--mpiexec-args", metavar="ARGS", help="more arguments for the launcher, one string"
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", metavar="F", help="write the rows as JSON to a file; - for standard output"
    )
    parser.add_argument("--plot", metavar="F.png", help="draw them into a picture")


def _add_algorithm(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """The first name is the default."""
    parser.add_argument(
        "--algorithm",
        type=_one_of(names),
        default=names[0],
        help=f"{', '.join(names)} (default {names[0]})",
    )


def _add_domain(parser: argparse.ArgumentParser, allowed: Sequence[str] = DOMAINS) -> None:
    parser.add_argument(
        "--domain",
        type=_words(allowed),
        default=list(allowed),
        help="ranks of a node in shared memory, messages only, or side by side (default "
        + ",".join(allowed)
        + ")",
    )


def _add_arrivals(skew: argparse.ArgumentParser, iters: int) -> None:
    """What the measured and the simulated skew have in common."""
    skew.add_argument(
        "--count", type=_positive_int, default=1024, help="float32 elements (default 1024)"
    )
    skew.add_argument(
        "--skew-ms", type=_not_negative, default=1.0, help="between two ranks (default 1)"
    )
    skew.add_argument(
        "--iters",
        type=_positive_int,
        default=iters,
        help=f"iterations measured (default {iters})",
    )
    skew.add_argument(
        "--collectives",
        type=_collectives,
        default=list(COLLECTIVES),
        help="mpi and policies (default " + ",".join(COLLECTIVES) + "); quorum:0.5, for instance",
    )
    skew.add_argument(
        "--late",
        choices=("carry", "latest", "drop"),
        default="drop",
        help="what becomes of late deposits; with drop, as in the paper, active counts who came "
        "in time",
    )


def _add_skew(commands: Any) -> None:
    skew = commands.add_parser(
        "skew",
        help="what skewed arrival costs, and what a quorum saves",
        description="Rank i arrives i times the skew late. Latency is from entering Start to "
        "leaving Wait, the mean over ranks and rounds, each collective in turn in every iteration.",
    )
    _add_arrivals(skew, iters=30)
    _add_domain(skew)
    skew.add_argument("--warmup", type=int, default=3, help="iterations before that (default 3)")
    skew.add_argument(
        "--interface",
        type=_words(("python", "c")),
        default=["python"],
        help="calls of Python, timed there, or of C; or both (default python)",
    )
    _add_algorithm(skew, ALGORITHMS)
    _add_output(skew)
    _add_launch(skew)


def _add_sim_skew(commands: Any) -> None:
    skew = commands.add_parser(
        "skew",
        help="bench skew in virtual time, for any number of ranks",
        description="The rows of bench skew, from simulated ranks that run the very same "
        "schedules and protocol. mpi stands for an allreduce of all ranks by recursive doubling.",
    )
    skew.add_argument(
        "--ranks",
        type=_positive_ints,
        default=[1024],
        metavar="P[,P…]",
        help="simulated ranks (default 1024); with several numbers the picture shows the growth",
    )
    _add_arrivals(skew, iters=10)
    _add_domain(skew, DOMAINS[1:])
    skew.add_argument(
        "--loggp",
        type=_explained(network.parse_loggp),
        default=network.parse_loggp(network.DEFAULT_LOGGP),
        metavar="L,o,g,G",
        help="latency, overhead of a message, gap between two, gap per byte; microseconds, or with "
        f"units (default {network.DEFAULT_LOGGP})",
    )
    skew.add_argument(
        "--latency",
        type=_explained(network.parse_latency),
        default=network.parse_latency("constant"),
        metavar="D",
        help="distribution of the latency around L: constant (default), exponential, uniform:W, "
        "lognormal:S",
    )
    _add_algorithm(skew, ALGORITHMS[1:])
    skew.add_argument(
        "--seed",
        type=_seed,
        default=0,
        help="of latencies and draws (default 0)",
    )
    _add_output(skew)


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
)


def _topologies(text: str) -> list[str]:
    """A comma-separated list of topologies, whose arguments have commas as well."""
    from .topology import Topology

    names: list[str] = []
    for word in text.split(","):
        if "=" in word and names:
            names[-1] += "," + word
        else:
            names.append(word)
    for name in names:
        try:
            Topology.make(name, 16)
        except ValueError as error:
            if "expected one of ring" in str(error):
                raise argparse.ArgumentTypeError(str(error)) from None
    return names


def _rates(text: str) -> list[float]:
    rates = [_not_negative(word) for word in text.split(",")]
    if 0 in rates:
        raise argparse.ArgumentTypeError(f"expected numbers above 0, got {text}")
    return rates


def _add_sim_gossip(commands: Any) -> None:
    gossip = commands.add_parser(
        "gossip",
        help="decentralised training in virtual time, for any number of ranks",
        description="Consensus distance and loss of the processes in partialcoll.processes, the "
        "same code that runs under MPI. Time is counted in gradient steps of an ordinary rank. The "
        "table shows how each run ended; JSON and picture have its course.",
    )
    gossip.add_argument(
        "--ranks", type=_positive_int, default=64, help="simulated ranks (default 64)"
    )
    gossip.add_argument(
        "--topology",
        type=_topologies,
        default=["ring"],
        metavar="T[,T…]",
        help="ring, complete, exponential, torus:8x8 …, see docs/topologies.md (default ring)",
    )
    gossip.add_argument(
        "--methods",
        type=_words(METHODS),
        default=["a2cid2", "baseline", "allreduce"],
        help=f"some of {', '.join(METHODS)} (default a2cid2,baseline,allreduce)",
    )
    gossip.add_argument(
        "--rate",
        type=_rates,
        default=[1.0],
        metavar="R[,R…]",
        help="averagings per gradient step that a rank takes part in (default 1); dpsgd and "
        "allreduce have their own, one exchange per step",
    )
    gossip.add_argument(
        "--local-steps",
        type=_positive_int,
        help="of swarm, localsgd and slowmo (default: what the rate comes to, 2/R)",
    )
    gossip.add_argument(
        "--pairing",
        type=_one_of(("random", "bipartite", "hops", "available")),
        default="random",
        help="who averages with whom: random, bipartite, hops, available (default random)",
    )
    gossip.add_argument(
        "--task",
        type=_one_of(("consensus", "quadratic", "logistic")),
        default="consensus",
        help="consensus (agree, nothing else), quadratic, logistic; the data differ between the "
        "ranks (default consensus)",
    )
    gossip.add_argument("--dim", type=_positive_int, default=16, help="parameters (default 16)")
    gossip.add_argument("--learning-rate", type=_not_negative, default=0.05, help="(default 0.05)")
    gossip.add_argument(
        "--noise",
        type=_not_negative,
        default=0.5,
        help="of the gradients, standard deviation per parameter; logistic: 0 for whole batches "
        "(default 0.5)",
    )
    gossip.add_argument(
        "--codec-bits", type=_positive_int, help="bits per parameter on the way (default: all)"
    )
    gossip.add_argument(
        "--slow",
        type=_not_negative,
        default=1.0,
        metavar="K",
        help="rank 0 takes K times as long for a step (default 1)",
    )
    gossip.add_argument(
        "--step-times",
        type=_one_of(("constant", "exponential")),
        default="constant",
        help="how long a gradient step takes: constant (default), exponential",
    )
    gossip.add_argument(
        "--latency", type=_not_negative, default=0.02, help="mean, in gradient steps (default 0.02)"
    )
    gossip.add_argument(
        "--time", type=_not_negative, default=200.0, help="in gradient steps (default 200)"
    )
    gossip.add_argument(
        "--samples", type=_positive_int, default=50, help="rows for each run (default 50)"
    )
    gossip.add_argument("--seed", type=_seed, default=0, help="the first (default 0)")
    gossip.add_argument(
        "--seeds", type=_positive_int, default=1, help="runs, each with its seed (default 1)"
    )
    _add_output(gossip)


_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdigit() or unit not in _SIZE_UNITS or not 0 < int(number) < 1 << 40:
        raise argparse.ArgumentTypeError(f"expected bytes such as 8, 4K or 64M, got {text!r}")
    return int(number) * _SIZE_UNITS[unit]


def _sizes(text: str) -> list[int]:
    """`8:64M`: doubling from one to the other; `8,4K,1M`: these."""
    if ":" not in text:
        return [_size(word) for word in text.split(",")]
    first, _, last = text.partition(":")
    sizes = [_size(first)]
    while 2 * sizes[-1] <= _size(last):
        sizes.append(2 * sizes[-1])
    return sizes


def _add_balanced(commands: Any) -> None:
    balanced = commands.add_parser(
        "balanced",
        help="latency and bandwidth when all ranks are there",
        description="Calls back to back without skew, over the message size; the collectives take "
        "turns, and the slowest rank of each batch counts. Every element is checked.",
    )
    balanced.add_argument(
        "--sizes",
        type=_sizes,
        default=_sizes("8:64M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 8:64M)",
    )
    balanced.add_argument(
        "--collectives",
        type=_collectives,
        default=["mpi", "full"],
        help="mpi and policies (default mpi,full)",
    )
    _add_domain(balanced)
    balanced.add_argument(
        "--zero-copy",
        action="store_true",
        help="no copies in or out: deposits and results stay in the library's memory (mpi has "
        "no such way)",
    )
    _add_algorithm(balanced, ALGORITHMS)
    balanced.add_argument(
        "--link-gbps",
        type=_not_negative,
        metavar="G",
        help="what each host can send, gigabits per second: gives limit_us, for 2 S (H-1)/H bytes",
    )
    balanced.add_argument(
        "--iters", type=_positive_int, default=15, help="batches of each (default 15)"
    )
    _add_output(balanced)
    _add_launch(balanced)


def _add_tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="which algorithm is best for how many bytes, here",
        description="Measures all algorithms, without skew, with 2, 4, 8 … ranks up to those of "
        "the job, and writes the table that algorithm=auto reads.",
    )
    tune.add_argument(
        "--sizes",
        type=_sizes,
        default=_sizes("1K:16M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 1K:16M)",
    )
    tune.add_argument("--iters", type=_positive_int, default=9, help="batches of each (default 9)")
    tune.add_argument(
        "--output",
        metavar="F",
        help="the table; - for standard output (default: the file that auto reads, "
        "$PARTIALCOLL_TUNE or partialcoll/tune.txt in your configuration)",
    )
    _add_output(tune)
    _add_launch(tune)


def _add_idle(commands: Any) -> None:
    idle = commands.add_parser(
        "idle",
        help="CPU used while nothing happens, and while somebody waits",
        description="CPU time of each process over wall time, with a handle that nobody uses, and "
        "with all ranks but the last waiting for it.",
    )
    idle.add_argument(
        "--seconds", type=_not_negative, default=5.0, help="of each state (default 5)"
    )
    _add_domain(idle)
    _add_output(idle)
    _add_launch(idle)


def _add_overhead(commands: Any) -> None:
    overhead = commands.add_parser(
        "overhead",
        help="what Python adds to a call",
        description="Microseconds of a call with 8 bytes, from Python and from C, by turns; the "
        "medians. One rank is enough: what Python adds does not depend on the others.",
    )
    overhead.add_argument(
        "--iters", type=_positive_int, default=31, help="batches of each (default 31)"
    )
    _add_output(overhead)
    _add_launch(overhead, ranks=1)


def _bit_widths(text: str) -> list[int]:
    widths = _positive_ints(text)
    for bits in widths:
        if not 2 <= bits <= 16:
            raise argparse.ArgumentTypeError(f"expected bits of 2 to 16, got {bits}")
    return widths


def _add_quantize(commands: Any) -> None:
    quantize = commands.add_parser(
        "quantize",
        help="how fast the lattice codec is, beside memcpy, and what it loses",
        description="Encodes and decodes vectors of standard deviation 1 with keys within 0.01 of "
        "them. gbs counts the bytes of float32 that went through one core; max_error is the "
        "largest of all elements; ratio compares the payload with the vector. All take turns, "
        "medians; with several ranks the slowest counts.",
    )
    quantize.add_argument(
        "--sizes",
        type=_sizes,
        default=_sizes("64K,1M,16M,64M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 64K,1M,16M,64M)",
    )
    quantize.add_argument(
        "--bits",
        type=_bit_widths,
        default=[4, 8, 16],
        metavar="B[,B…]",
        help="of an element, 2 to 16 (default 4,8,16)",
    )
    quantize.add_argument("--rotate", action="store_true", help="with rotated blocks as well")
    quantize.add_argument(
        "--iters", type=_positive_int, default=21, help="samples of each (default 21)"
    )
    _add_output(quantize)
    _add_launch(quantize, ranks=1)


def _add_gossip(commands: Any) -> None:
    gossip = commands.add_parser(
        "gossip",
        help="what the operations of a gossip buffer cost, beside memcpy and MPI_Sendrecv",
        description="Rank 0 publishes, reads, averages, collects, pushes and drains, while the "
        "others sleep (only sendrecv needs rank 1). gbs counts models that are moved: averaging "
        "reads one and writes one. All take turns, medians. sum_error is the relative change of "
        "the sum over all ranks.",
    )
    gossip.add_argument(
        "--sizes",
        type=_sizes,
        default=_sizes("4K,64K,1M,16M,100M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 4K,64K,1M,16M,100M)",
    )
    gossip.add_argument(
        "--bits",
        type=_bit_widths,
        default=[],
        metavar="B[,B…]",
        help="with the lattice codec as well, so many bits of an element",
    )
    gossip.add_argument(
        "--iters", type=_positive_int, default=15, help="samples of each (default 15)"
    )
    _add_output(gossip)
    _add_launch(gossip, ranks=2)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="partialcoll", description="MPI collectives for ranks that do not arrive together."
    )
    commands = top.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="versions, MPI library, thread level, build")
    info.add_argument("--json", action="store_true", help="as JSON")
    config = commands.add_parser(
        "config",
        help="flags to compile and link a C program with",
        description="mpicc prog.c $(partialcoll config --cflags --libs)",
    )
    config.add_argument("--cflags", action="store_true", help="for the compiler")
    config.add_argument("--libs", action="store_true", help="for the linker")
    commands.add_parser(
        "preload",
        help="path of the interposer for programs as they are",
        description="LD_PRELOAD=$(partialcoll preload) PARTIALCOLL_QUORUM=... mpiexec ...",
    )
    bench = commands.add_parser("bench", help="benchmarks").add_subparsers(
        dest="bench", required=True
    )
    _add_skew(bench)
    _add_balanced(bench)
    _add_tune(bench)
    _add_idle(bench)
    _add_overhead(bench)
    _add_quantize(bench)
    _add_gossip(bench)
    sim = commands.add_parser("sim", help="the same code in virtual time").add_subparsers(
        dest="sim", required=True
    )
    _add_sim_skew(sim)
    _add_sim_gossip(sim)
    return top


def _run(options: argparse.Namespace, arguments: list[str]) -> int:
    if options.command == "info":
        from ._info import show

        show(as_json=options.json)
        return 0
    if options.command == "config":
        if not (options.cflags or options.libs):
            parser().error("config: expected --cflags, --libs or both")
        words = [_clibs.cflags()] if options.cflags else []
        print(*words, *([_clibs.libs()] if options.libs else []))
        return 0
    if options.command == "preload":
        print(_clibs.preload())
        return 0
    if options.command == "sim":
        if options.sim == "gossip":
            from .sim.gossip import main
        else:
            from .sim.skew import main
        main(options)
        return 0
    if not _mpiexec.in_job():
        return _mpiexec.relaunch(arguments, options.n, options.hosts, options.mpiexec_args)
    if options.bench == "skew":
        from .bench.skew import main
    elif options.bench == "balanced":
        from .bench.balanced import main
    elif options.bench == "tune":
        from .bench.tune import main
    elif options.bench == "overhead":
        from .bench.overhead import main
    elif options.bench == "gossip":
        from .bench.gossip import main
    elif options.bench == "quantize":
        from .bench.quantize import main
    else:
        from .bench.idle import main
    main(options)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    try:
        return _run(options, words)
    except (Error, ImportError) as error:
        print(f"partialcoll: {error}", file=sys.stderr)
    except MemoryError as error:
        print(f"partialcoll: out of memory: {error}", file=sys.stderr)
    return 1
