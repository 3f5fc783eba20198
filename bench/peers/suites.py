# SPDX-License-Identifier: Apache-2.0
"""Test suites of others, against this library: Horovod's tests of its PyTorch API.

Each test runs in a job of its own, so that one that hangs or crashes is one row. `horovod.torch` is
`partialcoll.torch` there. The suite is read where it lies: the folder `test` of Horovod's
repository. Needs torch, pytest, mock, cloudpickle and packaging.

    python bench/run.py suites --horovod-tests DIR [-n 2] [--only TEXT] [--timeout 60] [--json F]
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import click
from lib.job import count, json_output

from partialcoll.tools import launcher, report
from partialcoll.tools.cli import options

COLUMNS = ("suite", "mpi", "ranks", "test", "ours", "said")
# What the suite imports of Horovod.
SHIM = {
    "horovod/__init__.py": "",
    # Some tests rely on an earlier one's init().
    "horovod/torch/__init__.py": "from partialcoll.torch import *\n\ninit()\n",
    "horovod/runner/__init__.py": "",
    "horovod/runner/util/__init__.py": "",
    "horovod/runner/util/threads.py": """
import threading


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread
""",
}
_TEST = re.compile(r"^    def (test_\w+)\(self", re.MULTILINE)
_SAID = re.compile(r"^E +(\S.*)$", re.MULTILINE)


def outcome(status: int | None, said: str) -> tuple[str, str]:
    """What became of a test, and its last word. status: None: it was ended."""
    words = _SAID.findall(said)
    last = words[0] if words else ""
    if status is None:
        return "hangs", last
    if status == 0:
        return ("skipped" if " skipped" in said and " passed" not in said else "passed"), ""
    return ("failed" if " failed" in said else "crashed"), last


def run_test(words: list[str], env: dict[str, str], folder: Path, seconds: int) -> tuple[str, str]:
    """One job; its processes are gone when this returns."""
    job = subprocess.Popen(
        words,
        env=env,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = job.communicate(timeout=seconds)
        return outcome(job.returncode, said)
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGTERM)
        try:
            said, _ = job.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            said, _ = job.communicate()
        return outcome(None, said)


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
    suite = horovod_tests / "parallel" / "test_torch.py"
    text = suite.read_text()
    vendor = launcher.flavor()
    start = launcher.command(launcher.find(vendor), vendor, n, None, None)
    pytest = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="partialcoll-suites-") as shim:
        for name, content in SHIM.items():
            path = Path(shim) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        paths = os.pathsep.join(filter(None, (shim, os.environ.get("PYTHONPATH"))))
        env = {**launcher.environment(vendor), "PYTHONPATH": paths}
        for test in report.progress([t for t in _TEST.findall(text) if only in t], True, "suites"):
            words = [*start, *pytest, f"{suite.name}::TorchTests::{test}"]
            ours, said = run_test(words, env, suite.parent, timeout)
            row = {"suite": "horovod", "mpi": vendor, "ranks": n, "test": test}
            rows.append({**row, "ours": ours, "said": said})
    document = report.document("bench suites", n, rows)
    document["env"]["suite"] = hashlib.sha256(text.encode()).hexdigest()
    shown = [row for row in rows if row["ours"] not in ("passed", "skipped")]
    report.write(json, document, shown or rows, COLUMNS)
    click.echo(", ".join(f"{n} {what}" for what, n in Counter(r["ours"] for r in rows).items()))
