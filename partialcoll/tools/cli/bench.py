# SPDX-License-Identifier: Apache-2.0
"""The benchmarks on the command line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click

from ...errors import Error
from .. import environment
from . import options, values
from .faults import faults
from .options import option
from .start import on_ranks
from .train import train


@click.group(no_args_is_help=False)
def commands() -> None:
    """Benchmarks."""


commands.add_command(train)
commands.add_command(faults)


def _add(name: str, short: str, text: str, *own: Any, ranks: int = 8, **of_ranks: Any) -> None:
    """A command whose module in tools/bench/micro has its name."""
    run = on_ranks(f"micro.{name}", **of_ranks)
    decorate = options.together(*own, options.outputs, options.launch(ranks))
    commands.add_command(click.command(name, short_help=short, help=text)(decorate(run)))


_add(
    "skew",
    "what skewed arrival costs, and what a quorum saves",
    "Rank i arrives i times the skew late. Latency is from entering Start to leaving Wait, the "
    "mean over ranks and rounds, each collective in turn in every iteration.",
    options.arrivals(30),
    options.domain(),
    option("--warmup", values.WHOLE, 3, "iterations before that"),
    option(
        "--interface",
        values.some_of(("python", "c")),
        "python",
        "calls of Python, timed there, or of C; or both",
    ),
    options.algorithm(options.ALGORITHMS),
)

_add(
    "balanced",
    "latency and bandwidth when all ranks are there",
    "Calls back to back without skew, over the message size; the collectives take turns, and the "
    "slowest rank of each batch counts. Every element is checked.",
    options.sizes("8:64M"),
    options.collectives("mpi", "full"),
    options.domain(),
    options.flag(
        "--zero-copy",
        "no copies in or out: deposits and results stay in the library's memory (mpi has no such "
        "way)",
    ),
    options.algorithm(options.ALGORITHMS),
    option(
        "--link-gbps",
        values.NOT_NEGATIVE,
        None,
        "what each host can send, gigabits per second: gives limit_us, for 2 S (H-1)/H bytes",
        metavar="G",
    ),
    options.iters(15, "batches of each"),
)

_add(
    "tune",
    "which algorithm is best for how many bytes, here",
    "Measures all algorithms, without skew, with 2, 4, 8 … ranks up to those of the job, and "
    "writes the table that algorithm=auto reads.",
    options.sizes("1K:16M"),
    options.iters(9, "batches of each"),
    click.option(
        "--output",
        type=values.TABLE,
        default=environment.tuning_table,
        metavar="F",
        help="the table; - for standard output  [default: the file that auto reads, "
        "$PARTIALCOLL_TUNE or partialcoll/tune.txt in your configuration]",
    ),
    writes="PARTIALCOLL_TUNE",
)

_add(
    "idle",
    "CPU used while nothing happens, and while somebody waits",
    "CPU time of each process over wall time, with a handle that nobody uses, and with all ranks "
    "but the last waiting for it.",
    option("--seconds", values.DAY, 5.0, "of each state"),
    options.domain(),
)

_add(
    "overhead",
    "what Python adds to a call",
    "Microseconds of a call with 8 bytes, from Python and from C, by turns; the medians. One rank "
    "is enough: what Python adds does not depend on the others.",
    options.iters(31, "batches of each"),
    ranks=1,
)

_add(
    "quantize",
    "how fast the lattice codec is, beside memcpy, and what it loses",
    "Encodes and decodes vectors of standard deviation 1 with keys within 0.01 of them. gbs counts "
    "the bytes of float32 that went through one core. share is the part of memcpy's speed that is "
    "reached, by bytes read and written. max_error is the largest of all elements, and ratio "
    "compares the payload with the vector. All take turns, medians; with several ranks the slowest "
    "counts.",
    options.sizes("64K,1M,16M,64M"),
    option("--bits", values.BIT_WIDTHS, "4,8,16", "of an element, 2 to 16", metavar="B[,B…]"),
    options.flag("--rotate", "with rotated blocks as well"),
    options.iters(21),
    ranks=1,
)


def _two_ranks(given: SimpleNamespace, ranks: int) -> None:
    if ranks < 2:
        raise Error(f"-n: expected at least 2 ranks, got {ranks}")


_add(
    "gossip",
    "what the operations of a gossip buffer cost, beside memcpy and MPI_Sendrecv",
    "Rank 0 publishes, reads, averages, collects, pushes and drains, while the others sleep (only "
    "sendrecv needs rank 1). gbs counts models that are moved: averaging reads one and writes one. "
    "All take turns, medians. sum_error is the relative change of the sum over all ranks.",
    options.sizes("4K,64K,1M,16M,100M"),
    option(
        "--bits",
        values.BIT_WIDTHS,
        (),
        "with the lattice codec as well, so many bits of an element",
        metavar="B[,B…]",
    ),
    options.iters(15),
    ranks=2,
    check=_two_ranks,
)


_add(
    "gpu",
    "buffers on a device, beside copies by hand around MPI_Allreduce",
    "A call is over when the device has the result. start_us is how long Start takes; exposed_us "
    "what is left of a call behind 10 ms of work on the device. All take turns, medians of what "
    "the slowest rank takes; every element is checked. Needs PyTorch with CUDA.",
    options.sizes("1K,64K,1M,16M,64M,256M"),
    options.iters(15),
    ranks=2,
)


def _grids_fit(given: SimpleNamespace, ranks: int) -> None:
    bandwidth = given.bandwidth
    if isinstance(bandwidth, list) and len(bandwidth) != ranks:
        what = f"{ranks} numbers, one for each rank"
        raise Error(f"--bandwidth: expected {what}, got {len(bandwidth)}")
    for grid in given.grid:
        values.fit_grid(grid, ranks)


_add(
    "group",
    "averages in groups on a grid, beside the allreduce of all ranks at once",
    "A turn of a grouped allreduce (one round for each axis: on a full grid the exact average over "
    "all ranks), one round of it, MPI_Allreduce, and the full allreduce. All take turns, medians "
    "of what the slowest rank takes; every element is checked. busbw_gbs counts what a link has "
    "to carry.",
    options.sizes("64K,1M,4M,16M"),
    option(
        "--grid",
        values.GRIDS,
        "auto",
        "auto, or sides that hold the ranks, as 2x4",
        metavar="G[,G…]",
    ),
    option(
        "--keys",
        values.one_of(("auto", "static", "dynamic")),
        "auto",
        "whether cells of the grid stay: auto (they do if it is full), static, dynamic",
    ),
    option(
        "--bandwidth",
        values.Bandwidth(),
        "equal",
        "of the ranks' links: equal, measured, or a number for each rank, as 1,1,1,0.1; a slow one "
        "reduces less",
        metavar="B",
    ),
    options.iters(15),
    check=_grids_fit,
)
