# SPDX-License-Identifier: Apache-2.0
"""How fast the lattice codec is on one core, beside memcpy, and what it loses."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, Callable

import numpy as np

import partialcoll as pc

from ..._core.mpi import MPI
from ..._core.pure import check, ffi, lib
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

    def row(self, codec: str, bits: int, direction: str, error: float, ratio: float) -> report.Row:
        return {
            "codec": codec,
            "bits": bits,
            "direction": direction,
            "bytes": self.x.nbytes,
            "gbs": None,
            "share": None,
            "max_error": error,
            "ratio": ratio,
        }


class _Coded:
    """One codec on one vector. The timed functions call the core, as a program does that has its
    memory already."""

    def __init__(self, work: _Work, bits: int, rotate: bool) -> None:
        self.work = work
        codec = pc.Lattice(bits, rotate=rotate, margin=1)
        self.described = codec._describe(work.x.size, lib.PCOLL_FLOAT32, None, False)
        self.payload = np.frombuffer(codec.encode(work.x, key=work.key), np.uint8).copy()
        self.distances = codec.distances(work.x, work.key)
        self.failures = ffi.new("uint64_t *")

    @staticmethod
    def _at(array: Any, kind: str = "void *") -> Any:
        return ffi.cast(kind, array.ctypes.data)

    def encode(self) -> None:
        check(
            lib.pcoll_lattice_encode(
                self.described,
                self._at(self.work.x),
                ffi.NULL,
                self._at(self.distances, "float *"),
                1.0,
                self._at(self.payload),
            )
        )

    def _read(self, function: Any, *arguments: Any) -> None:
        flags = self._at(self.work.failed, "uint8_t *")
        size = self.payload.nbytes
        check(function(self._at(self.payload), size, *arguments, flags, self.failures))
        if self.failures[0]:
            raise pc.Error(f"bench quantize: {self.failures[0]} blocks do not decode")

    def decode(self) -> None:
        work = self.work
        self._read(lib.pcoll_lattice_decode, self._at(work.key), self._at(work.out))

    def average(self) -> None:
        """Average in place. The vector moves towards x from where the other operations have left
        it, which is always near enough for a key."""
        self._read(lib.pcoll_lattice_average, 0.5, self._at(self.work.out))

    def average_error(self) -> float:
        work = self.work
        work.out[:] = work.key
        self.average()
        expected = 0.5 * (work.key.astype(np.float64) + work.x)
        return float(np.abs(work.out - expected).max())

    def decode_error(self) -> float:
        self.decode()
        return float(np.abs(self.work.out.astype(np.float64) - self.work.x).max())

    def ratio(self) -> float:
        return self.payload.nbytes / self.work.x.nbytes


def _moved(row: report.Row) -> float:
    """Return the bytes read and written for each byte of the vector. The vector or the key is read;
    only encode writes a payload; the other operations read it and write a vector."""
    if row["direction"] == "copy":
        return 2.0
    return float(row["ratio"]) + (1.0 if row["direction"] == "encode" else 2.0)


Task = tuple[report.Row, Callable[[], None]]


def _tasks(work: _Work, options: SimpleNamespace) -> list[Task]:
    tasks: list[Task] = [
        (work.row("memcpy", 32, "copy", 0.0, 1.0), lambda: np.copyto(work.out, work.x))
    ]
    for rotate in (False, True) if options.rotate else (False,):
        name = "lattice, rotated" if rotate else "lattice"
        for bits in options.bits:
            coded = _Coded(work, bits, rotate)
            error, ratio = coded.decode_error(), coded.ratio()
            row = work.row(name, bits, "decode+average", coded.average_error(), ratio)
            tasks += [
                (work.row(name, bits, "encode", error, ratio), coded.encode),
                (work.row(name, bits, "decode", error, ratio), coded.decode),
                (row, coded.average),
            ]
    return tasks


def run(options: SimpleNamespace, comm: MPI.Intracomm) -> list[report.Row]:
    rows = []
    for size in options.sizes:
        work = _Work(size, comm.rank)
        tasks = _tasks(work, options)
        repeats = min(100, max(1, _SAMPLE // size))
        work.out[:] = work.key
        measures = [partial(per_call, call, repeats) for _, call in tasks]
        for (row, _), times in zip(tasks, by_turns(measures, options.iters, comm=comm)):
            rows.append({**row, "gbs": work.x.nbytes / float(np.median(times)) / 1e9})
        for row in rows[-len(tasks) :]:
            row["share"] = row["gbs"] * _moved(row) / (2 * rows[-len(tasks)]["gbs"])
    return rows if comm.rank == 0 else []


def plot(rows: list[report.Row], path: str, title: str = "") -> None:
    def label(row: report.Row) -> str:
        if row["codec"] == "memcpy":
            return "memcpy"
        return f"{row['codec']}, {row['bits']} bits, {row['direction']}"

    plots.over_bytes(rows, path, "gbs", "GB/s of float32, one core", label, title=title)
