# SPDX-License-Identifier: Apache-2.0
"""A²CiD² beside its baseline without momentum, in virtual time: both variants at the rate that was
asked for (a2cid2), and where fewer averagings happen than that (shortfall).

Source: Nabli et al., NeurIPS 2023, figure 5b and tables 4 and 5.
"""

from __future__ import annotations

from statistics import median
from types import SimpleNamespace

import click
from lib.job import Rows, count

from partialcoll.tools import report
from partialcoll.tools.cli import options, values
from partialcoll.tools.cli.sim import commands
from partialcoll.tools.sim import gossip

METHODS = ("a2cid2", "a2cid2-paper", "baseline")
GRAPHS = ("ring", "exponential", "complete")
RATE, AVERAGINGS = 4, 40  # the latter are asked for in all, and happen in the cases below


def _case(part: float, words: str) -> str:
    """Return the options for AVERAGINGS averagings where this part of what is asked happens."""
    return f"--rate {RATE} --time {AVERAGINGS / RATE / part:g} {words}"


CASES = {
    **{f"made {part}": _case(part, f"--achieved {part}") for part in (1, 0.5, 0.1, 0.02)},
    "changing": _case(0.53, "--achieved 1,0.1,0.5"),
    "busy 0.85": _case(0.85, "--latency 0.3"),
    "busy 0.55": _case(0.55, "--latency 1"),
    "busy 0.2": _case(0.2, "--latency 4"),
    "busy 0.02": _case(0.02, "--latency 40"),
    "stopped": _case(0.8, "--stopped 6"),
    "stopped, made 0.1": _case(0.1, "--achieved 0.1 --stopped 50"),
}


def ends(words: str) -> list[report.Row]:
    """Return how each run of ``sim gossip`` with these words ended."""
    command = commands.get_command(None, "gossip")  # type: ignore[arg-type]
    assert command is not None
    fixed = f"--methods {','.join(METHODS)} --samples 1"
    context = command.make_context("gossip", [*fixed.split(), *words.split()])
    return gossip.last(gossip.run(SimpleNamespace(**context.params)))


def of_method(rows: list[report.Row], method: str, field: str) -> list[float]:
    return [row[field] for row in rows if row["method"] == method]


@click.command("shortfall", short_help="A²CiD² where averagings fall short")
@options.together(
    options.option("--ranks", values.POSITIVE_INTS, "4,8,16", "simulated", metavar="P[,P…]"),
    count("--seeds", 5, "runs of each"),
    options.json,
)
def shortfall(ranks: tuple[int, ...], seeds: int, json: str | None) -> None:
    """Measure A²CiD² where fewer averagings happen than its rate says.

    Nothing but consensus to reach, in virtual time: the consensus distance of the bounded variant
    (a2cid2), of the paper's and of the baseline (the same draws, no momentum) after as many
    averagings; medians over the seeds. Averagings fall short in two ways: some events find nobody
    (made), or each takes so long that a rank cannot begin more, and what it reads is out of date by
    then (busy). Then they change on the way, and one rank stands still for a while. ratio: of the
    bounded variant to the baseline.
    """
    runs = [(topology, n, case) for topology in GRAPHS for n in ranks for case in CASES]
    rows: Rows = []
    for topology, n, case in report.progress(runs, True, "shortfall"):
        found = ends(f"--ranks {n} --topology {topology} --seeds {seeds} {CASES[case]}")
        apart = {method: median(of_method(found, method, "consensus")) for method in METHODS}
        made, asked = (median(of_method(found, "a2cid2", f)) for f in ("achieved", "asked"))
        averagings = median(of_method(found, "a2cid2", "communications"))
        row = {"topology": topology, "ranks": n, "case": case, "averagings": averagings}
        row.update(part=made / asked, **apart, ratio=apart["a2cid2"] / apart["baseline"])
        rows.append({**row, "seeds": seeds})
    report.write(json, report.document("bench shortfall", max(ranks), rows))


TOPOLOGIES = ("ring", "torus", "exponential", "complete")
TASKS = ("consensus", "quadratic")
COLUMNS = ("task", "topology", "ranks", "averagings", *METHODS, "paper_ratio", "bounded_ratio")


@click.command("a2cid2", short_help="both variants of A²CiD² and their baseline")
@options.together(
    options.option("--ranks", values.POSITIVE_INTS, "8,16,32,64", "simulated", metavar="P[,P…]"),
    count("--seeds", 5, "runs of each"),
    options.json,
)
def command(ranks: tuple[int, ...], seeds: int, json: str | None) -> None:
    """Compare both variants of A²CiD² with their baseline without momentum, in virtual time.

    The consensus distance after as many averagings, one for each gradient step of a rank: with
    nothing but consensus to reach, and under gradients with noise and different data on all ranks
    (quadratic). Gradient steps and averagings are Poisson processes, as in the paper. Medians over
    the seeds, with the least and the greatest of them.
    """
    runs = [(task, topology, n) for task in TASKS for topology in TOPOLOGIES for n in ranks]
    rows: Rows = []
    for task, topology, n in report.progress(runs, True, "a2cid2"):
        words = "--rate 1 --time 100 --step-times exponential"
        words += f" --task {task} --topology {topology} --ranks {n} --seeds {seeds}"
        found = ends(words)
        apart = {method: of_method(found, method, "consensus") for method in METHODS}
        medians = {method: median(some) for method, some in apart.items()}
        averagings = median(of_method(found, "baseline", "communications"))
        row = {"task": task, "topology": topology, "ranks": n, "averagings": averagings, **medians}
        row["paper_ratio"] = medians["a2cid2-paper"] / medians["baseline"]
        row["bounded_ratio"] = medians["a2cid2"] / medians["baseline"]
        row.update((f"{method}_least_most", [min(s), max(s)]) for method, s in apart.items())
        command = f"sim gossip --methods {','.join(METHODS)} {words}"
        rows.append({**row, "seeds": seeds, "command": command})
    report.write(json, report.document("bench a2cid2", max(ranks), rows), rows, COLUMNS)
