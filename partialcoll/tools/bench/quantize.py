# SPDX-License-Identifier: Apache-2.0
"""Measure the speed of the lattice codec on one core, compared with memcpy, and its error."""

from __future__ import annotations

from functools import partial
from itertools import product
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.buffers import Array
from ..._core.mpi import MPI
from ..._core.pure import answer, call, lib
from .. import plots, report
from .turns import by_turns, per_call

_DISTANCE = 0.01  # of the keys; elements are of standard deviation 1
_SAMPLE = 4 << 20  # bytes that one sample works through, in at most 100 calls


# Codec, bits, direction, error, ratio of the payload, and the call.
Task = tuple[str, int, str, float, float, Callable[[], Any]]


def _tasks(x: Array, key: Array, out: Array, options: SimpleNamespace) -> list[Task]:
    """Return what is timed: calls of the core, as of a program that has its memory already. An
    average moves `out` towards x from where the others have left it, near enough for a key."""
    exact, failed = x.astype(np.float64), np.zeros(-(-x.size // pc.Lattice.BLOCK), np.uint8)
    tasks: list[Task] = [("memcpy", 32, "copy", 0.0, 1.0, partial(np.copyto, out, x))]

    def read(function: Any, payload: Array, *arguments: Any) -> None:
        if failures := answer("uint64_t", function, payload, payload.nbytes, *arguments, failed):
            raise pc.Error(f"bench quantize: {failures} blocks do not decode")

    for rotate, bits in product((False, True) if options.rotate else (False,), options.bits):
        codec = pc.Lattice(bits, rotate=rotate, margin=1)
        described = codec._describe(x.size, lib.PCOLL_FLOAT32, None, False)
        payload = np.frombuffer(codec.encode(x, key=key), np.uint8).copy()
        given = described, x, None, codec.distances(x, key), 1.0, payload
        decode = partial(read, lib.pcoll_lattice_decode, payload, key, out)
        average = partial(read, lib.pcoll_lattice_average, payload, 0.5, out)
        decode()
        error = float(np.abs(out - exact).max())
        out[:] = key
        average()
        of_average = float(np.abs(out - 0.5 * (key + exact)).max())
        name, ratio = "lattice, rotated" if rotate else "lattice", payload.nbytes / x.nbytes
        tasks += [
            (name, bits, "encode", error, ratio, partial(call, lib.pcoll_lattice_encode, *given)),
            (name, bits, "decode", error, ratio, decode),
            (name, bits, "decode+average", of_average, ratio, average),
        ]
    return tasks


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    rows: list[report.Row] = []
    for size in options.sizes:
        draw = np.random.default_rng(comm.rank)
        x = draw.standard_normal(max(size // 4, 1), np.float32)
        key = x + draw.uniform(-_DISTANCE, _DISTANCE, x.size).astype(np.float32)
        out = np.zeros_like(x)
        tasks = _tasks(x, key, out, options)
        repeats = min(100, max(1, _SAMPLE // size))
        out[:] = key
        samples = by_turns(
            [partial(per_call, task[-1], repeats) for task in tasks], options.iters, comm=comm
        )
        gbs = [x.nbytes / float(np.median(times)) / 1e9 for times in samples]
        for (codec, bits, direction, error, ratio, _), each in zip(tasks, gbs):
            # Bytes read and written for each byte of the vector: only encode writes a payload.
            moved = {"copy": 2.0, "encode": 1.0 + ratio}.get(direction, 2.0 + ratio)
            rows.append(
                {
                    "codec": codec,
                    "bits": bits,
                    "direction": direction,
                    "bytes": x.nbytes,
                    "gbs": each,
                    "share": each * moved / (2 * gbs[0]),
                    "max_error": error,
                    "ratio": ratio,
                }
            )
    return rows


def plot(rows: list[report.Row], path: str, title: str = "") -> None:
    def label(row: report.Row) -> str:
        if row["codec"] == "memcpy":
            return "memcpy"
        return f"{row['codec']}, {row['bits']} bits, {row['direction']}"

    plots.over_bytes(rows, path, "gbs", "GB/s of float32, one core", label, title=title)
