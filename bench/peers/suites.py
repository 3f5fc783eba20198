# SPDX-License-Identifier: Apache-2.0
"""Test suites of others, against this library: Horovod's tests of its PyTorch API.

Each test runs in a job of its own, so that one that hangs or crashes is one row. The suites are
read where they lie, and nothing of them is kept here: of Horovod's repository the folder `test`,
`horovod.torch` is `partialcoll.torch` there. Needs torch, pytest, mock, cloudpickle and packaging.

    python bench/run.py suites --horovod-tests DIR [-n 2] [--only TEXT] [--timeout 60] [--json F]
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
from peers import suite_horovod


@click.command("suites", help=__doc__, short_help="test suites of others against this library")
@click.option(
    "--horovod-tests",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="the folder `test` of its repository",
)
@count("-n", 2, "ranks")
@options.option("--only", str, "", "tests whose names contain this")
@count("--timeout", 60, "seconds of a test")
@json_output
def command(horovod_tests: Path, n: int, only: str, timeout: int, json: str | None) -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="partialcoll-suites-") as scratch:
        suites = [suite_horovod.suite(horovod_tests, Path(scratch))]
        for one in suites:
            rows += suite.run(one, launcher.flavor(), n, only, timeout)
    document = report.document("bench suites", n, rows)
    document["env"]["suites"] = {one.name: one.digest for one in suites}
    shown = [row for row in rows if row["ours"] not in ("passed", "skipped")]
    report.write(json, document, shown or rows, suite.COLUMNS)
    click.echo(", ".join(f"{n} {what}" for what, n in Counter(r["ours"] for r in rows).items()))
