# SPDX-License-Identifier: Apache-2.0
"""Test suites of others, against this library: torch's tests of torch.distributed, on the backend
and on gloo; and Horovod's tests of its PyTorch API, where --horovod-tests says where they are.

A test that hangs or crashes is one row. The suites are read where they lie, and nothing of them is
kept here: torch's are in its wheel; of Horovod's repository the folder `test`, `horovod.torch` is
`partialcoll.torch` there. Needs torch and expecttest; pytest, mock, cloudpickle and packaging.

    python bench/run.py suites [--horovod-tests DIR] [--suite torch] [-n 2] [--only TEXT]
        [--timeout 60] [--json F]
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click
from lib import suite
from lib.job import count, json_output

from partialcoll.tools import launcher, report
from partialcoll.tools.cli import options
from peers import suite_horovod, suite_torch


@click.command("suites", help=__doc__, short_help="test suites of others against this library")
@click.option(
    "--horovod-tests",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="DIR",
    help="the folder `test` of its repository",
)
@click.option("--suite", "chosen", type=click.Choice(["torch", "horovod"]), help="this one alone")
@count("-n", 2, "ranks")
@options.option("--only", str, "", "tests whose names contain this")
@count("--timeout", 60, "seconds of a test")
@json_output
def command(
    horovod_tests: Path | None,
    chosen: str | None,
    n: int,
    only: str,
    timeout: int,
    json: str | None,
) -> None:
    if chosen == "horovod" and horovod_tests is None:
        raise click.UsageError("--suite horovod: expected --horovod-tests as well")
    rows: list[dict[str, Any]] = []
    digests = {}
    with tempfile.TemporaryDirectory(prefix="partialcoll-suites-") as scratch:
        suites = []
        if chosen != "horovod":
            suites.append(suite_torch.make(n, Path(scratch)))
        if horovod_tests is not None and chosen != "torch":
            suites.append(suite_horovod.make(horovod_tests, Path(scratch)))
        for one in suites:
            rows += suite.run(one, launcher.flavor(), n, only, timeout)
            digests[one.name] = one.digest
    document = report.document("bench suites", n, rows)
    document["env"]["suites"] = digests
    shown = [row for row in rows if row["ours"] not in ("passed", "skipped")]
    report.write(json, document, shown or rows, suite.COLUMNS)
    for side in ("gloo", "ours"):
        counted = Counter(row[side] for row in rows if side in row)
        click.echo(f"{side}: " + ", ".join(f"{n} {what}" for what, n in counted.items()))
