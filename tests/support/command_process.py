# SPDX-License-Identifier: Apache-2.0
"""The command as a process, and all its child processes."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

LIMIT_S = 60
COMMAND = [sys.executable, "-m", "partialcoll"]
SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
CAUGHT = 1 << (signal.SIGQUIT - 1)


def as_usual():
    """Reset ignored signals in the child, whatever the tests were started with."""
    for each in (*SIGNALS, signal.SIGPIPE, signal.SIGTSTP):
        signal.signal(each, signal.SIG_DFL)


def text_of(path):
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def state_of(process):
    """Return ["T"] for a stopped process."""
    return text_of(process / "stat").rpartition(")")[2].split()[:1]


def job_folder(process):
    """Return the folder of the process's job."""
    return Path(re.search("PARTIALCOLL_JOB=([^\0]*)", text_of(process / "environ"))[1])


def listens(process):
    """Return whether the process handles signals itself, not through Python."""
    found = text_of(process / "status").partition("SigCgt:")[2].split()[:1]
    return bool(found) and bool(int(found[0], 16) & CAUGHT)


@pytest.fixture(name="start")
def fixture_start(job, clean_environment, tmp_path):
    """Start the command. All its processes can be found by a variable. `job` marks this as a test
    that starts jobs."""
    mark = f"TEST_MARK={tmp_path}"
    env = {**clean_environment, "TEST_MARK": str(tmp_path)}

    def processes():
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                entries = (folder / "environ").read_text(errors="replace").split("\0")
                if mark in entries:
                    found[folder] = {entry.partition("=")[0] for entry in entries}
        return found

    def ranks():
        names = {"PMI_RANK", "PMIX_RANK"}
        return [folder for folder, variables in processes().items() if names & variables]

    def start_it(*words, before=as_usual, command=COMMAND, **how):
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path, **how}
        return subprocess.Popen([*command, *words], env=env, text=True, preexec_fn=before, **how)

    start_it.processes, start_it.ranks, start_it.environment = processes, ranks, env
    yield start_it
    for left in processes():  # left by a failed test
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(left.name), signal.SIGKILL)


def wait_until(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)
