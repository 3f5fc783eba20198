# SPDX-License-Identifier: Apache-2.0
"""How fast the lattice codec is on one core, beside memcpy, and what it loses."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI
from ..._core.pure import answer, call, lib
from .. import plots, report
from .turns import by_turns, per_call

_DISTANCE = 0.01  # of the keys; elements are of standard deviation 1
_SAMPLE = 4 << 20  # bytes that one sample works through, in at most 100 calls


class _Work:
    """One vector of a size, a key near it, and memory for results."""

    def __init__(self, size: int, seed: int) -> None:
        draw = np.random.default_rng(seed)
        count = max(size // 4, 1)
        self.x = draw.standard_normal(count, np.float32)
        self.key = self.x + draw.uniform(-_DISTANCE, _DISTANCE, count).astype(np.float32)
        self.out = np.zeros_like(self.x)
        self.failed = np.zeros(-(-count // pc.Lattice.BLOCK), np.uint8)


class _Coded:
    """One codec on one vector. The timed functions call the core, as a program does that has its
    memory already."""

    def __init__(self, work: _Work, bits: int, rotate: bool) -> None:
        self.work = work
        codec = pc.Lattice(bits, rotate=rotate, margin=1)
        self.described = codec._describe(work.x.size, lib.PCOLL_FLOAT32, None, False)
        self.payload = np.frombuffer(codec.encode(work.x, key=work.key), np.uint8).copy()
        self.distances = codec.distances(work.x, work.key)

    def encode(self) -> None:
        x, out = self.work.x, self.payload
        call(lib.pcoll_lattice_encode, self.described, x, None, self.distances, 1.0, out)

    def _read(self, function: Any, *arguments: Any) -> None:
        given = (self.payload, self.payload.nbytes, *arguments, self.work.failed)
        if failures := answer("uint64_t", function, *given):
            raise pc.Error(f"bench quantize: {failures} blocks do not decode")

    def decode(self) -> None:
        self._read(lib.pcoll_lattice_decode, self.work.key, self.work.out)

    def average(self) -> None:
        """Average in place. The vector moves towards x from where the other operations have left
        it, which is always near enough for a key."""
        self._read(lib.pcoll_lattice_average, 0.5, self.work.out)

    def errors(self) -> tuple[float, float]:
        """Return the largest errors after decoding, and of an average that begins at the key."""
        x, key, out = self.work.x.astype(np.float64), self.work.key, self.work.out
        self.decode()
        decoded = float(np.abs(out - x).max())
        out[:] = key
        self.average()
        return decoded, float(np.abs(out - 0.5 * (key + x)).max())


# Codec, bits, direction, error, ratio of the payload, and the call.
Task = tuple[str, int, str, float, float, Callable[[], None]]


def _tasks(work: _Work, options: SimpleNamespace) -> list[Task]:
    tasks: list[Task] = [("memcpy", 32, "copy", 0.0, 1.0, lambda: np.copyto(work.out, work.x))]
    for rotate in (False, True) if options.rotate else (False,):
        name = "lattice, rotated" if rotate else "lattice"
        for bits in options.bits:
            coded = _Coded(work, bits, rotate)
            (error, of_average), ratio = coded.errors(), coded.payload.nbytes / work.x.nbytes
            tasks += [
                (name, bits, "encode", error, ratio, coded.encode),
                (name, bits, "decode", error, ratio, coded.decode),
                (name, bits, "decode+average", of_average, ratio, coded.average),
            ]
    return tasks


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    rows: list[report.Row] = []
    for size in options.sizes:
        work = _Work(size, comm.rank)
        tasks = _tasks(work, options)
        repeats = min(100, max(1, _SAMPLE // size))
        work.out[:] = work.key
        samples = by_turns(
            [partial(per_call, task[-1], repeats) for task in tasks], options.iters, comm=comm
        )
        gbs = [work.x.nbytes / float(np.median(times)) / 1e9 for times in samples]
        for (codec, bits, direction, error, ratio, _), each in zip(tasks, gbs):
            # Bytes read and written for each byte of the vector: only encode writes a payload.
            moved = {"copy": 2.0, "encode": 1.0 + ratio}.get(direction, 2.0 + ratio)
            rows.append(
                {
                    "codec": codec,
                    "bits": bits,
                    "direction": direction,
                    "bytes": work.x.nbytes,
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
