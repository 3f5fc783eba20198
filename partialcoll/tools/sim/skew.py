# SPDX-License-Identifier: Apache-2.0
"""Skewed arrival in virtual time: the rows of ``bench skew`` for any number of ranks.

Sources: Li et al., PPoPP 2020, section 6.1 (the microbenchmark); Alexandrov, Ionescu, Schauser,
Scheiman, "LogGP: Incorporating Long Messages into the LogP Model", SPAA 1995 (the network).
"""

from __future__ import annotations

import contextlib
import re
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..._core.pure import simulator
from .. import environment, plots, report, skewed

_UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "": 1e3}
_NAMES = ("L (latency)", "o (overhead)", "g (gap)", "G (gap per byte)")
_LARGEST = (3.6e12, 3.6e12, 3.6e12, 1e6)  # nanoseconds
_LARGEST_SPREAD = {"constant": None, "uniform": 1.0, "exponential": None, "lognormal": 4.0}

DEFAULT_LOGGP = "2us,0.5us,0.5us,0.1ns"


class LogGP(NamedTuple):
    """Latency, processor overhead of a message, gap between two, gap per byte, in nanoseconds."""

    L: float
    o: float
    g: float
    G: float

    def __str__(self) -> str:
        return ",".join(f"{value:g}ns" for value in self)


class Latency(NamedTuple):
    """The distribution of latencies around their mean, L."""

    name: str
    spread: float

    def __str__(self) -> str:
        return self.name if _LARGEST_SPREAD[self.name] is None else f"{self.name}:{self.spread:g}"


def _nanoseconds(text: str, name: str, largest: float) -> float:
    number = r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[-+]?[0-9]+)?"
    match = re.fullmatch(rf"({number})(ns|us|ms|s|)", text.strip())
    value = float(match[1]) * _UNITS[match[2]] if match else float("nan")
    if not 0 <= value <= largest:
        raise ValueError(
            f"{name}: expected a time of 0 to {largest / 1e9:g}s, in ns, us, ms or s "
            f"(us without a unit), got {text!r}"
        )
    return value


def parse_loggp(text: str) -> LogGP:
    """Return the parameters of four times ``L,o,g,G``: microseconds, or with a unit
    (``2us,500ns,0.5us,0.1ns``); G is the time per byte. Raise ValueError with the parameter and its
    range."""
    parts = text.split(",")
    if len(parts) != 4:
        raise ValueError(f"expected four times L,o,g,G, got {text!r}")
    return LogGP(*map(_nanoseconds, parts, _NAMES, _LARGEST))


def parse_latency(text: str) -> Latency:
    """Return a distribution: ``constant``, ``exponential``, ``uniform:W`` (half of the width as a
    part of the mean, 0 to 1) or ``lognormal:S`` (standard deviation of the logarithm, 0 to 4)."""
    name, _, spread = text.partition(":")
    if name not in _LARGEST_SPREAD:
        raise ValueError(f"expected {', '.join(_LARGEST_SPREAD)}; got {text!r}")
    largest = _LARGEST_SPREAD[name]
    if largest is None and spread:
        raise ValueError(f"{name} has no spread, got {text!r}")
    with contextlib.suppress(ValueError):
        value = float(spread or 0.5) if largest else 0.0
        if 0 <= value <= (largest or 0):
            return Latency(name, value)
    raise ValueError(f"{name}: expected a spread of 0 to {largest:g}, got {spread!r}")


ffi, lib, check = simulator.ffi, simulator.lib, simulator.check

COLUMNS = report.columns(
    "collective ranks bytes latency_us_avg latency_us_p50 latency_us_p99 latency_us_max "
    "activation_us active_mean speedup_vs_mpi limit_us speedup_vs_limit wrong"
)
MOST_RANKS = 1 << 20


def _parameters(options: SimpleNamespace, policy: str, algorithm: str, ranks: int) -> Any:
    skew = ffi.new("pcoll_skew *")
    skew.ranks = ranks
    skew.count = options.count
    skew.skew = options.skew_ms * 1e6
    skew.seed = options.seed
    network = skew.network
    network.L, network.o, network.g, network.G = options.loggp
    network.latency = getattr(lib, f"PCOLL_LATENCY_{options.latency.name.upper()}")
    network.spread = options.latency.spread
    handle = ffi.new("pcoll_options *")
    check(lib.pcoll_policy_parse(policy.encode(), ffi.addressof(handle, "policy")))
    handle.late = getattr(lib, f"PCOLL_LATE_{options.late.upper()}")
    handle.algorithm = getattr(lib, f"PCOLL_ALGORITHM_{algorithm.upper()}")
    handle.history = 1
    handle.domain = lib.PCOLL_DOMAIN_RANK
    handle.seed = options.seed
    return skew, handle


def _simulate(options: SimpleNamespace, collective: str, ranks: int) -> report.Row:
    # MPI_Allreduce is an allreduce of all ranks by recursive doubling.
    policy, algorithm = collective, options.algorithm
    if collective == "mpi":
        policy, algorithm = "full", "recdbl"
    given = _parameters(options, policy, algorithm, ranks)
    run = simulator.answer("pcoll_skew_run *", lib.pcoll_skew_create, *given)
    run = ffi.gc(run, lambda run: lib.pcoll_skew_free(ffi.new("pcoll_skew_run **", run)))
    latency, results = np.zeros((options.iters, ranks)), []
    for nanoseconds in report.progress(latency, True, f"{collective} {ranks}"):
        results.append(ffi.new("pcoll_skew_result *"))
        simulator.call(lib.pcoll_skew_iterate, run, nanoseconds, results[-1])
    latency = latency.ravel() / 1e3
    row = skewed.row(
        collective,
        ranks,
        options.count,
        latency,
        [r.active for r in results],
        domain="rank",
        algorithm=algorithm,
        limit_us=skewed.limit_us(collective, ranks, options.skew_ms * 1e3),
        wrong=sum(int(r.wrong) for r in results) if options.late == "drop" else None,
    )
    row["latency_us_max"] = float(latency.max())
    activation = float(np.mean([r.activation for r in results])) / 1e3
    row["activation_us"] = activation if policy != "full" else None
    row["messages"] = float(np.mean([r.messages for r in results]))
    row["loggp"], row["latency"] = str(options.loggp), str(options.latency)
    return row


def run(options: SimpleNamespace) -> list[report.Row]:
    bytes_ = ffi.new("uint64_t *")

    def needed(ranks: int) -> int:
        skew, handle = _parameters(options, "full", options.algorithm, ranks)
        check(lib.pcoll_skew_memory(skew, handle, bytes_))
        return int(bytes_[0])

    also = f" with --count {options.count}"
    environment.check_memory("--ranks", options.ranks, needed, MOST_RANKS, also)
    rows = []
    for ranks in options.ranks:
        together = [_simulate(options, name, ranks) for name in options.collectives]
        skewed.compare(together)
        rows += together
    return rows


def plot(rows: list[report.Row], path: str, title: str) -> None:
    """Draw one number of ranks as `bench skew` does; of several the longest latency of each
    collective over the number of ranks."""
    if len({row["ranks"] for row in rows}) == 1:
        skewed.plot(rows, path, title)
        return
    with plots.picture(path, title) as panels:
        axes = panels[0, 0]

        def label(row: report.Row) -> str:
            return str(row["collective"]).replace("mpi", "MPI_Allreduce (simulated)")

        plots.lines(axes, rows, "ranks", "latency_us_max", label)
        axes.set_xscale("log", base=2)
        axes.set(xlabel="ranks", ylabel="latency of the last rank (µs)")
        axes.set_ylim(0)


def title(options: SimpleNamespace, rows: list[report.Row]) -> str:
    ranks = f"{options.ranks[0]} ranks, " if len(options.ranks) == 1 else ""
    return f"{ranks}simulated, {options.skew_ms:g} ms apart, LogGP {options.loggp}"
