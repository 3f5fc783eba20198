# SPDX-License-Identifier: Apache-2.0
"""``partialcoll run``: any program on the ranks of a job."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

LIMIT_S = 60


@pytest.fixture
def start(job, clean_environment, tmp_path):
    """Start the command; `job` makes this a test that starts jobs."""

    def start_it(*words):
        return subprocess.Popen(
            [sys.executable, "-m", "partialcoll", "run", *words],
            env=clean_environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )

    return start_it


def script(folder, text):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def test_ranks_arguments_and_status(start, tmp_path):
    """All words after the program are its own, options like the command's as well."""
    path = script(
        tmp_path,
        """
        import json, os, sys
        from mpi4py import MPI
        world = MPI.COMM_WORLD
        line = json.dumps([world.rank, world.size, sys.argv[1:]]) + chr(10)
        os.write(1, line.encode())
        world.Barrier()
        MPI.Finalize()
        sys.exit(7)
        """,
    )
    given = ["-n", "5", "--hosts", "--", "a b", "", "--help"]
    done = start("-n", "3", sys.executable, path, *given)
    said, errors = done.communicate(timeout=LIMIT_S)
    assert done.returncode == 7, errors
    lines = sorted(json.loads(line) for line in said.splitlines() if line.startswith("["))
    assert lines == [[rank, 3, given] for rank in range(3)]


def test_a_program_that_is_none(start):
    done = start("-n", "2", "no-such-program")
    _, errors = done.communicate(timeout=LIMIT_S)
    assert done.returncode == 2
    assert "PROGRAM: expected a program that can be run, got 'no-such-program'" in errors


def test_a_file_that_cannot_be_run(start, tmp_path):
    path = script(tmp_path, "")
    _, errors = start("-n", "2", path).communicate(timeout=LIMIT_S)
    assert f"which cannot be run: python {path}?" in errors


def test_inside_of_a_job(run):
    """It would start jobs by the number of ranks."""
    done = run(
        """
        import subprocess
        words = [sys.executable, "-m", "partialcoll", "run", "-n", "2", "true"]
        inner = subprocess.run(words, capture_output=True, text=True)
        say(inner.returncode, "rank of one already" in inner.stderr)
        """,
        ranks=2,
    )
    assert done.stdout.splitlines() == ["2 True"] * 2, done.stderr


def test_a_signal_ends_the_job(start, tmp_path):
    path = script(
        tmp_path,
        """
        import os, time
        from mpi4py import MPI
        os.write(1, f"{os.getpid()} runs\\n".encode())
        time.sleep(600)
        """,
    )
    command = start("-n", "2", sys.executable, path)
    pids = [int(command.stdout.readline().split()[0]) for _ in range(2)]
    command.send_signal(signal.SIGTERM)
    assert command.wait(LIMIT_S) == 128 + signal.SIGTERM
    command.communicate()
    limit = time.monotonic() + LIMIT_S
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < limit, "a rank goes on"
        time.sleep(0.01)
