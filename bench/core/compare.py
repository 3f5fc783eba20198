# SPDX-License-Identifier: Apache-2.0
"""Run one benchmark of two installations in alternation, and report what became slower.

The order is before, after, before, repeated; both commands must write rows with --json. A row is
slow if the median of its ratios after/before exceeds 1 by more than --limit plus the difference
between runs of "before", which measures the noise.

    python bench/run.py compare --before "OLD/bin/partialcoll bench" \\
        --after "NEW/bin/partialcoll bench" [--rounds 5] [--json F] balanced -n 2
"""

from __future__ import annotations

import json as text
import shlex
import statistics
import subprocess

import click

from partialcoll.tools import report
from partialcoll.tools.cli import options, values

MEASURES = ("latency_us_p50", "latency_us_avg", "latency_us", "latency_ms_avg", "step_ms", "us")


def measured(command: str, words: tuple[str, ...]) -> list[tuple[str, float]]:
    argv = [*shlex.split(command), *words, "--json", "-"]
    out = subprocess.run(argv, capture_output=True, text=True)
    if out.returncode:
        last = (out.stderr.splitlines() or ["it said nothing"])[-1]
        raise click.UsageError(f"{shlex.join(argv)} failed: {last}")
    found = []
    for row in text.loads(out.stdout)["rows"]:
        measure = next((name for name in MEASURES if name in row), None)
        if measure is None:
            raise click.UsageError(f"no time among the columns {', '.join(row)}")
        name = " ".join(str(value) for value in row.values() if isinstance(value, (str, int)))
        found.append((name, float(row[measure])))
    return found


@click.command(
    "compare",
    help=__doc__,
    short_help="a benchmark of two installations in alternation",
    context_settings={"ignore_unknown_options": True},
)
@options.option("--before", str, None, "the old command, for the words", required=True)
@options.option("--after", str, None, "the new one", required=True)
@options.option("--rounds", values.POSITIVE_INT, 5, "of before, after, before")
@options.option("--limit", values.POSITIVE, 0.03, "so much slower is slow, a fraction")
@options.json
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def command(
    before: str, after: str, words: tuple[str, ...], rounds: int, limit: float, json: str | None
) -> None:
    runs = [measured(each, words) for each in (before, after, before) * rounds]
    rows = []
    for lines in zip(*runs):
        if len({name for name, _ in lines[::3]}) > 1:
            raise click.UsageError(f"rows differ between runs: {lines[0][0]}, {lines[3][0]}")
        first, new, again = ([time for _, time in lines[k::3]] for k in range(3))
        ratio = statistics.median(2 * b / (a + c) for a, b, c in zip(first, new, again))
        spread = statistics.median(abs(a - c) * 2 / (a + c) for a, c in zip(first, again))
        times = {"before": first, "after": new, "again": again}
        medians = {name: statistics.median(some) for name, some in times.items()}
        slow = int(ratio > 1 + limit + spread)
        rows.append({"row": lines[0][0], **medians, "ratio": ratio, "spread": spread, "slow": slow})
    report.write(json, {**report.document("bench compare", 0, rows), "words": " ".join(words)})
