# SPDX-License-Identifier: Apache-2.0
"""The command as a process: how signals, closed pipes and full disks end it, and what it loads."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

LIMIT_S = 60
COMMAND = [sys.executable, "-m", "partialcoll"]
ENDLESS = ["bench", "skew", "-n", "2", "--iters", "10000000", "--skew-ms", "1"]
SHARED = Path("/dev/shm")
QUICK = (
    ["--help"],
    ["--version"],
    ["bench", "train", "--help"],
    ["config", "--cflags", "--libs"],
    ["preload"],
    ["sim", "skew", "--ranks", "16", "--iters", "1", "--json", "-"],
    ["sim", "gossip", "--ranks", "4", "--time", "3", "--samples", "2", "--codec-bits", "8"],
    ["sim", "moshpit", "--peers", "16", "--restarts", "1", "--rounds", "3"],
)


def as_usual():
    """In the child: no signal is ignored, whatever the tests were started with."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(each, signal.SIG_DFL)


@pytest.fixture
def start(clean_environment, tmp_path):
    """Start the command; all processes that come of it can be found by a variable."""
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

    def start_it(*words, **how):
        how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": tmp_path, **how}
        return subprocess.Popen([*COMMAND, *words], env=env, text=True, preexec_fn=as_usual, **how)

    start_it.processes, start_it.ranks = processes, ranks
    yield start_it
    for left in processes():  # of a test that failed
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(left.name), signal.SIGKILL)


def wait_until(condition):
    limit = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def text_of(path):
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace")
    return ""


def segments(process):
    lines = text_of(process / "maps").splitlines()
    return {Path(line.split()[-1]) for line in lines if f" {SHARED}/" in line}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_the_job(start, name):
    """Launcher and ranks are gone, and their segments, and nobody has said anything."""
    command = start(*ENDLESS)
    wait_until(lambda: len(start.ranks()) == 2 and all(map(segments, start.ranks())))
    mapped = set().union(*map(segments, start.ranks()))
    command.send_signal(getattr(signal, name))
    out, err = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 128 + getattr(signal, name)
    assert (out, err) == ("", "")
    assert not start.processes()
    assert mapped and not [path for path in mapped if path.exists()]


def test_a_signal_ends_a_job_that_begins(start):
    """When the launcher is there and its ranks perhaps not yet."""
    before = set(SHARED.glob("partialcoll-*"))
    command = start(*ENDLESS)
    wait_until(lambda: len(start.processes()) > 1 and set(SHARED.glob("partialcoll-*")) - before)
    command.terminate()
    out, err = command.communicate(timeout=LIMIT_S)
    assert (command.returncode, out, err) == (143, "", "")
    assert not start.processes()


def test_a_signal_ends_a_simulation(start):
    """Which is in C for minutes."""
    command = start("sim", "skew", "--ranks", "65536", "--iters", "1000000")
    maps = Path(f"/proc/{command.pid}/maps")
    wait_until(lambda: "_simulator" in text_of(maps))
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=LIMIT_S)
    assert (command.returncode, out, err) == (130, "", "")


def test_an_ignored_signal_stays_ignored(clean_environment):
    """As nohup has it."""
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "from partialcoll import _signals; _signals.end_quietly()\n"
        "os.kill(os.getpid(), signal.SIGHUP); print('still here')"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[0] = 'partialcoll'\n{code}"],
        env=clean_environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "still here\n", "")


def test_a_launcher_that_was_killed_leaves_no_ranks(start):
    command = start(*ENDLESS)
    wait_until(lambda: len(start.ranks()) == 2)
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    for child in children.read_text().split():
        os.kill(int(child), signal.SIGKILL)
    command.communicate(timeout=LIMIT_S)
    assert command.returncode != 0 and not start.processes()


@pytest.mark.parametrize("words", [*QUICK, [*ENDLESS[:4], "--iters", "1"]], ids=" ".join)
def test_nobody_reads_on(start, words):
    """As in `partialcoll … | true`: quiet, with the status that a shell has for it."""
    reader, writer = os.pipe()
    os.close(reader)
    command = start(*words, stdout=writer)
    os.close(writer)
    _, err = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in err and "ignored" not in err and "Broken" not in err
    assert not start.processes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [*QUICK, [*ENDLESS[:4], "--iters", "1"]], ids=" ".join)
def test_a_full_disk(start, words):
    with open("/dev/full", "w") as full:
        command = start(*words, stdout=full)
        _, err = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 1
    assert err.splitlines()[-1] == "partialcoll: standard output: No space left on device"
    assert "Traceback" not in err and "ignored" not in err and not start.processes()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize(
    "words",
    (
        ["sim", "skew", "--ranks", "4", "--iters", "1", "--json", "/dev/full"],
        ["bench", "skew", "-n", "2", "--iters", "1", "--json", "/dev/full"],
        ["bench", "tune", "-n", "2", "--sizes", "8", "--iters", "1", "--output", "/dev/full"],
    ),
    ids=" ".join,
)
def test_a_full_disk_under_a_file(start, words):
    """One sentence says which, and what was measured has been shown."""
    command = start(*words)
    out, err = command.communicate(timeout=LIMIT_S)
    said = [line for line in err.splitlines() if "No space left" in line]
    assert command.returncode == 1 and len(said) == 1, err
    assert f"{words[-2]}: /dev/full: No space left on device" in said[0]
    assert "Traceback" not in err and "latency_us_avg" in out


@pytest.mark.parametrize("words", [*QUICK, [*ENDLESS[:4], "--iters", "0"]], ids=" ".join)
def test_no_mpi_is_loaded(clean_environment, tmp_path, words):
    """Where it may not start, and for what does not need it."""
    fake = tmp_path / "mpi4py"
    fake.mkdir()
    (fake / "__init__.py").touch()
    (fake / "MPI.py").write_text("raise RuntimeError('MPI was loaded')")
    done = subprocess.run(
        [*COMMAND, *words],
        env={**clean_environment, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    assert done.returncode == (2 if words[-1] == "0" else 0), done.stderr
    assert "MPI was loaded" not in done.stderr


def test_the_parent_of_a_job_loads_no_mpi(start):
    command = start(*ENDLESS)
    wait_until(lambda: len(start.ranks()) == 2)
    maps = Path(f"/proc/{command.pid}/maps").read_text()
    assert "mpi4py" not in maps and "libmpi" not in maps
    command.terminate()
    command.communicate(timeout=LIMIT_S)
