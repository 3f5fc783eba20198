# SPDX-License-Identifier: Apache-2.0
"""The benchmarks on the command line."""

from __future__ import annotations

from typing import Any

from . import arguments, options


def _skew(commands: Any) -> None:
    skew = commands.add_parser(
        "skew",
        help="what skewed arrival costs, and what a quorum saves",
        description="Rank i arrives i times the skew late. Latency is from entering Start to "
        "leaving Wait, the mean over ranks and rounds, each collective in turn in every iteration.",
    )
    options.add_arrivals(skew, iters=30)
    options.add_domain(skew)
    skew.add_argument("--warmup", type=int, default=3, help="iterations before that (default 3)")
    skew.add_argument(
        "--interface",
        type=arguments.words(("python", "c")),
        default=["python"],
        help="calls of Python, timed there, or of C; or both (default python)",
    )
    options.add_algorithm(skew, options.ALGORITHMS)
    options.add_output(skew)
    options.add_launch(skew)


def _balanced(commands: Any) -> None:
    balanced = commands.add_parser(
        "balanced",
        help="latency and bandwidth when all ranks are there",
        description="Calls back to back without skew, over the message size; the collectives take "
        "turns, and the slowest rank of each batch counts. Every element is checked.",
    )
    balanced.add_argument(
        "--sizes",
        type=arguments.sizes,
        default=arguments.sizes("8:64M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 8:64M)",
    )
    balanced.add_argument(
        "--collectives",
        type=arguments.collectives,
        default=["mpi", "full"],
        help="mpi and policies (default mpi,full)",
    )
    options.add_domain(balanced)
    balanced.add_argument(
        "--zero-copy",
        action="store_true",
        help="no copies in or out: deposits and results stay in the library's memory (mpi has "
        "no such way)",
    )
    options.add_algorithm(balanced, options.ALGORITHMS)
    balanced.add_argument(
        "--link-gbps",
        type=arguments.not_negative,
        metavar="G",
        help="what each host can send, gigabits per second: gives limit_us, for 2 S (H-1)/H bytes",
    )
    balanced.add_argument(
        "--iters", type=arguments.positive_int, default=15, help="batches of each (default 15)"
    )
    options.add_output(balanced)
    options.add_launch(balanced)


def _tune(commands: Any) -> None:
    tune = commands.add_parser(
        "tune",
        help="which algorithm is best for how many bytes, here",
        description="Measures all algorithms, without skew, with 2, 4, 8 … ranks up to those of "
        "the job, and writes the table that algorithm=auto reads.",
    )
    tune.add_argument(
        "--sizes",
        type=arguments.sizes,
        default=arguments.sizes("1K:16M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 1K:16M)",
    )
    tune.add_argument(
        "--iters", type=arguments.positive_int, default=9, help="batches of each (default 9)"
    )
    tune.add_argument(
        "--output",
        metavar="F",
        help="the table; - for standard output (default: the file that auto reads, "
        "$PARTIALCOLL_TUNE or partialcoll/tune.txt in your configuration)",
    )
    options.add_output(tune)
    options.add_launch(tune)


def _idle(commands: Any) -> None:
    idle = commands.add_parser(
        "idle",
        help="CPU used while nothing happens, and while somebody waits",
        description="CPU time of each process over wall time, with a handle that nobody uses, and "
        "with all ranks but the last waiting for it.",
    )
    idle.add_argument(
        "--seconds", type=arguments.not_negative, default=5.0, help="of each state (default 5)"
    )
    options.add_domain(idle)
    options.add_output(idle)
    options.add_launch(idle)


def _overhead(commands: Any) -> None:
    overhead = commands.add_parser(
        "overhead",
        help="what Python adds to a call",
        description="Microseconds of a call with 8 bytes, from Python and from C, by turns; the "
        "medians. One rank is enough: what Python adds does not depend on the others.",
    )
    overhead.add_argument(
        "--iters", type=arguments.positive_int, default=31, help="batches of each (default 31)"
    )
    options.add_output(overhead)
    options.add_launch(overhead, ranks=1)


def _quantize(commands: Any) -> None:
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
        type=arguments.sizes,
        default=arguments.sizes("64K,1M,16M,64M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 64K,1M,16M,64M)",
    )
    quantize.add_argument(
        "--bits",
        type=arguments.bit_widths,
        default=[4, 8, 16],
        metavar="B[,B…]",
        help="of an element, 2 to 16 (default 4,8,16)",
    )
    quantize.add_argument("--rotate", action="store_true", help="with rotated blocks as well")
    quantize.add_argument(
        "--iters", type=arguments.positive_int, default=21, help="samples of each (default 21)"
    )
    options.add_output(quantize)
    options.add_launch(quantize, ranks=1)


def _gossip(commands: Any) -> None:
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
        type=arguments.sizes,
        default=arguments.sizes("4K,64K,1M,16M,100M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 4K,64K,1M,16M,100M)",
    )
    gossip.add_argument(
        "--bits",
        type=arguments.bit_widths,
        default=[],
        metavar="B[,B…]",
        help="with the lattice codec as well, so many bits of an element",
    )
    gossip.add_argument(
        "--iters", type=arguments.positive_int, default=15, help="samples of each (default 15)"
    )
    options.add_output(gossip)
    options.add_launch(gossip, ranks=2)


def _group(commands: Any) -> None:
    group = commands.add_parser(
        "group",
        help="averages in groups on a grid, beside the allreduce of all ranks at once",
        description="A turn of a grouped allreduce (one round for each axis: on a full grid the "
        "exact average over all ranks), one round of it, MPI_Allreduce, and the full allreduce. "
        "All take turns, medians of what the slowest rank takes; every element is checked. "
        "busbw_gbs counts what a link has to carry.",
    )
    group.add_argument(
        "--sizes",
        type=arguments.sizes,
        default=arguments.sizes("64K,1M,4M,16M"),
        help="bytes of float32: FROM:TO, doubling, or a list (default 64K,1M,4M,16M)",
    )
    group.add_argument(
        "--grid",
        type=arguments.explained(arguments.grids),
        default=["auto"],
        metavar="G[,G…]",
        help="auto, or sides that hold the ranks, as 2x4 (default auto)",
    )
    group.add_argument(
        "--keys",
        type=arguments.one_of(("auto", "static", "dynamic")),
        default="auto",
        help="whether cells of the grid stay: auto (they do if it is full), static, dynamic",
    )
    group.add_argument(
        "--bandwidth",
        type=arguments.bandwidth,
        metavar="B",
        help="of the ranks' links: equal (default), measured, or a number for each rank, as "
        "1,1,1,0.1; a slow one reduces less",
    )
    group.add_argument(
        "--iters", type=arguments.positive_int, default=15, help="samples of each (default 15)"
    )
    options.add_output(group)
    options.add_launch(group)


def add(commands: Any) -> None:
    """All of them."""
    for command in (_skew, _balanced, _tune, _idle, _overhead, _quantize, _gossip, _group):
        command(commands)
