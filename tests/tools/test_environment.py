# SPDX-License-Identifier: Apache-2.0
"""Invalid environment variables cause one message per job."""

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]


@pytest.mark.parametrize(
    "setting",
    (
        "PROGRESS=magic",
        "TUNE=/nowhere/table",
        "REPLAY=/nowhere",
    ),
)
def test_without_meaning(clean_environment, setting):
    """The library refuses the value on all ranks, and no line is printed twice.

    The file of a record has the number of its rank.
    """
    name, _, value = f"PARTIALCOLL_{setting}".partition("=")
    done = subprocess.run(
        [sys.executable, "-m", "partialcoll", "bench", "skew", "-n", "2", "--iters", "1"],
        env={**clean_environment, name: value},
        capture_output=True,
        text=True,
        timeout=60,
    )
    said = [line for line in done.stderr.splitlines() if value in line]
    assert done.returncode == 1 and said, done.stderr
    assert len(set(said)) == len(said) and (len(said) == 1 or "REPLAY" in name), done.stderr
    assert "Traceback" not in done.stderr


def test_errors_that_only_ranks_can_see(clean_environment, tmp_path):
    """All ranks find the invalid line of a table, and it is reported once."""
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


def test_a_file_on_one_host_only(run):
    """Only the first rank can read the table: another rank reports it, and none waits forever."""
    done = run(
        """
        os.environ["PARTIALCOLL_TUNE"] = "/nowhere/table" if comm.rank else "none"
        from partialcoll.tools.cli import main
        sys.exit(main(["bench", "skew", "--iters", "1"]))
        """,
        ranks=3,
    )
    assert done.returncode != 0
    assert done.stderr.count("/nowhere/table (from PARTIALCOLL_TUNE)") >= 1, done.stderr


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
