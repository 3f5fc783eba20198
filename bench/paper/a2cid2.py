# SPDX-License-Identifier: Apache-2.0
"""Both variants of A²CiD² beside their baseline without momentum, in virtual time.

The consensus distance after as many averagings, one for each gradient step of a rank: with nothing
but consensus to reach, and under gradients with noise and different data on all ranks (quadratic).
Gradient steps and averagings are Poisson processes, as in the paper. Medians over the seeds, with
the least and the most of them.

    python bench/run.py a2cid2 [--ranks 8,16,32,64] [--seeds 5] [--json F]

Source: Nabli et al., NeurIPS 2023, figure 5b and tables 4 and 5.
"""

from __future__ import annotations

from statistics import median

import click
from lib.job import Rows, count, json_output

from partialcoll.tools import report
from partialcoll.tools.cli import options, values

from .shortfall import METHODS, ends, of_method

TOPOLOGIES = ("ring", "torus", "exponential", "complete")
TASKS = ("consensus", "quadratic")
COLUMNS = ("task", "topology", "ranks", "averagings", *METHODS, "paper_ratio", "bounded_ratio")


def _compared(task: str, topology: str, ranks: int, seeds: int) -> report.Row:
    words = "--rate 1 --time 100 --step-times exponential"
    words += f" --task {task} --topology {topology} --ranks {ranks} --seeds {seeds}"
    rows = ends(words)
    apart = {method: of_method(rows, method, "consensus") for method in METHODS}
    least = median(apart["baseline"])
    return {
        "task": task,
        "topology": topology,
        "ranks": ranks,
        "averagings": median(of_method(rows, "baseline", "communications")),
        **{method: median(found) for method, found in apart.items()},
        "paper_ratio": median(apart["a2cid2-paper"]) / least,
        "bounded_ratio": median(apart["a2cid2"]) / least,
        **{f"{method}_least_most": [min(all_of), max(all_of)] for method, all_of in apart.items()},
        "seeds": seeds,
        "command": f"sim gossip --methods {','.join(METHODS)} {words}",
    }


@click.command("a2cid2", help=__doc__, short_help="both variants of A²CiD² and their baseline")
@options.together(
    options.option("--ranks", values.POSITIVE_INTS, "8,16,32,64", "simulated", metavar="P[,P…]"),
    count("--seeds", 5, "runs of each"),
    json_output,
)
def command(ranks: tuple[int, ...], seeds: int, json: str | None) -> None:
    runs = [(task, topology, n) for task in TASKS for topology in TOPOLOGIES for n in ranks]
    rows: Rows = [_compared(*each, seeds) for each in report.progress(runs, True, "a2cid2")]
    report.write(json, report.document("bench a2cid2", max(ranks), rows), rows, COLUMNS)
