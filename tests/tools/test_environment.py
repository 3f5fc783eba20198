# SPDX-License-Identifier: Apache-2.0
"""Variables of the environment that mean nothing: one sentence, once a job, before there is one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from partialcoll.tools import environment
from partialcoll.tools.cli import main

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

NUMBERS = ("PARTIALCOLL_TIMEOUT", "PARTIALCOLL_STALL_WARN")
CHOICES = ("PROGRESS", "ALGORITHM", "DOMAIN", "QUORUM", "LOG")
BAD = [
    *[(name, value) for name in NUMBERS for value in ("0", "-1", "nan", "inf", "1e400", "soon")],
    *[(f"PARTIALCOLL_{name}", value) for name in CHOICES for value in ("magic", "☃", "-1", ",")],
    ("PARTIALCOLL_DOMAIN", "node:0"),
    ("PARTIALCOLL_QUORUM", "quorum:0"),
    ("PARTIALCOLL_TUNE", "/nowhere/table"),
    ("PARTIALCOLL_TUNE", "/"),
    ("PARTIALCOLL_RECORD", "/nowhere/folder"),
    ("PARTIALCOLL_RECORD", "/dev/null"),
    ("PARTIALCOLL_REPLAY", "/nowhere"),
]
GOOD = [
    ("PARTIALCOLL_TIMEOUT", "1.5"),
    ("PARTIALCOLL_PROGRESS", "spin"),
    ("PARTIALCOLL_DOMAIN", "auto:4"),
    ("PARTIALCOLL_QUORUM", "quorum:0.5,linger=1ms"),
    ("PARTIALCOLL_LOG", "info"),
    ("PARTIALCOLL_TUNE", "none"),
    ("PARTIALCOLL_ALGORITHM", ""),
]


@pytest.fixture
def alone(monkeypatch):
    """Outside of a job, and without variables that whoever runs the tests has set."""
    for name in environment.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("partialcoll.tools.launcher.in_job", lambda: False)
    return monkeypatch


@pytest.mark.parametrize(("name", "value"), BAD)
def test_without_meaning(alone, capsys, name, value):
    alone.setattr("partialcoll.tools.launcher.relaunch", None)
    alone.setenv(name, value)
    with pytest.raises(SystemExit) as refused:
        main(["bench", "skew", "-n", "2"])
    _, sentence = capsys.readouterr().err.splitlines()
    assert refused.value.code == 2
    assert re.search(f"{name}: expected .*, got {value!r}$", sentence), sentence


@pytest.mark.parametrize(("name", "value"), GOOD)
def test_with_meaning(alone, name, value):
    alone.setenv(name, value)
    environment.check_environment()


def test_all_are_looked_at():
    """Those of docs/calls.md but the ones that are on or off."""
    docs = Path(__file__).resolve().parents[2] / "docs/calls.md"
    named = set(re.findall(r"PARTIALCOLL_[A-Z_]+", docs.read_text()))
    assert named - {"PARTIALCOLL_ALL", "PARTIALCOLL_REPORT"} <= set(environment.VARIABLES)


def test_what_only_ranks_can_see(clean_environment, tmp_path):
    """A table with a line that is none: all ranks find it, and it is said once."""
    table = tmp_path / "table"
    table.write_text("2 0 magic\n")
    done = subprocess.run(
        [sys.executable, "-m", "partialcoll", "bench", "skew", "-n", "2", "--iters", "1"],
        env={**clean_environment, "PARTIALCOLL_TUNE": str(table)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if "algorithm table" in line]
    assert done.returncode == 1 and len(said) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_what_only_one_host_has(run):
    """A table that the first rank can read: another rank says it, and none waits for ever."""
    done = run(
        """
        os.environ["PARTIALCOLL_TUNE"] = "/nowhere/table" if comm.rank else "none"
        from partialcoll.tools.cli import main
        sys.exit(main(["bench", "skew", "--iters", "1"]))
        """,
        ranks=3,
    )
    assert done.returncode != 0
    assert done.stderr.count("PARTIALCOLL_TUNE: expected a file that can be read") == 1, done.stderr


def test_a_time_without_meaning_is_said_once(run):
    done = run(
        """
        for _ in range(3):
            with pc.Allreduce_init(comm, np.ones(1), quorum="full") as h:
                h.Start()
                h.Wait()
        """,
        env={"PARTIALCOLL_STALL_WARN": "inf"},
    )
    assert done.returncode == 0
    assert done.stderr.count("PARTIALCOLL_STALL_WARN: expected a number of seconds") == 1
