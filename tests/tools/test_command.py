# SPDX-License-Identifier: Apache-2.0
"""The command as a process: how signals, closed pipes and full disks end it; what it loads."""

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from command_process import (
    COMMAND,
    LIMIT_S,
    SIGNALS,
    fixture_start,  # noqa: F401
    job_folder,
    listens,
    text_of,
    wait_until,
)
from test_command_lines import AFTER, COMMANDS

from partialcoll.tools import launcher

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

JOBS = [path for path, command in COMMANDS.items() if any("-n" in p.opts for p in command.params)]
LONG = ["--iters", "100000"]  # if the command has this option
ENDLESS = ["bench", "skew", "-n", "2", "--iters", "10000000", "--skew-ms", "1"]
PROGRAM = ["run", "-n", "2", "yes"]
SHARED = Path("/dev/shm")
QUICK = (
    ["--help"],
    ["--version"],
    ["bench", "train", "--help"],
    ["config", "--cflags", "--libs"],
    ["preload"],
    ["run", "-n", "2", "--dry-run", "true"],
    ["sim", "skew", "--ranks", "16", "--iters", "1", "--json", "-"],
    ["sim", "gossip", "--ranks", "4", "--time", "3", "--samples", "2", "--codec-bits", "8"],
    ["sim", "moshpit", "--peers", "16", "--restarts", "1", "--rounds", "3"],
)


def sessions(process):
    """Return the folders of Open MPI's launcher."""
    names = re.findall("PMIX_SERVER_TMPDIR=([^\0]*)", text_of(process / "environ"))
    return set(map(Path, names))


def segments(process):
    lines = text_of(process / "maps").splitlines()
    return {Path(line.split()[-1]) for line in lines if f" {SHARED}/" in line}


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT"])
def test_a_signal_ends_the_job(start, name):
    """Launcher and ranks end, with their segments and folder, and without any output."""
    command = start(*ENDLESS)
    wait_until(lambda: len(start.ranks()) == 2 and all(map(segments, start.ranks())))
    mapped = set().union(*map(segments, start.ranks()))
    folder = job_folder(start.ranks()[0])
    assert all(folder in path.parents for rank in start.ranks() for path in sessions(rank))
    mapped.add(folder)
    command.send_signal(getattr(signal, name))
    out, err = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 128 + getattr(signal, name)
    assert (out, err) == ("", "")
    assert not start.processes()
    assert len(mapped) > 1 and not [path for path in mapped if path.exists()]


def moments(start, command):
    """Yield conditions from the first where the command handles signals to the one where ranks are
    in MPI."""
    yield lambda: listens(Path(f"/proc/{command.pid}"))
    yield lambda: len(start.processes()) > 1
    yield start.ranks
    yield lambda: len(start.ranks()) == 2 and all(map(segments, start.ranks()))


@pytest.mark.in_turns
@pytest.mark.parametrize("path", JOBS, ids=" ".join)
def test_a_signal_at_any_moment(start, path):
    """Each command that starts a job ends with it. Ranks that survive a signal to the job are ended
    as well. Each commit tries some kill points; all together try each signal."""
    if " ".join(path) == "bench faults" and launcher.flavor() != "openmpi":
        pytest.skip("it starts no job with an MPI that ends one when a rank dies")
    all_of_them = "PARTIALCOLL_TEST_PARTS" not in os.environ
    long = LONG if any("--iters" in p.opts for p in COMMANDS[path].params) else []
    for number in range(len(SIGNALS) if all_of_them else 2):
        which = number + JOBS.index(path)
        signum = SIGNALS[which % len(SIGNALS)]
        after = AFTER.get(path, []) and ["sleep", "1000"]
        command = start(*path, "-n", "2", *long, *after)
        brief = after or path == ("bench", "gpu")  # no segments: a sleep, or no device
        last = 1 + (which // 2) % (3 if brief else 4)
        for moment, _ in zip(moments(start, command), range(last)):
            wait_until(lambda: moment() or command.poll() is not None)  # noqa: B023
        assert command.poll() is None, command.communicate()
        command.send_signal(signum)
        if signum in (signal.SIGUSR1, signal.SIGUSR2):
            command.terminate()
        _, err = command.communicate(timeout=LIMIT_S)
        assert command.returncode > 128, err
        assert "Traceback" not in err
        wait_until(lambda: not start.processes())  # mpiexec may still print its version


@pytest.mark.parametrize(
    "words", (["partialcoll", "doctor"], ["partialcoll.tour", "skew"]), ids=" ".join
)
def test_a_signal_ends_other_commands_with_children(start, tmp_path, words):
    if words == ["partialcoll", "doctor"]:  # it asks a process that loads MPI
        (tmp_path / "mpi4py").mkdir()
        (tmp_path / "mpi4py/__init__.py").write_text("rc = type('rc', (), {})\n")
        (tmp_path / "mpi4py/MPI.py").write_text("import time; time.sleep(1000)")
        start.environment["PYTHONPATH"] = str(tmp_path)
    command = start(*words, command=[sys.executable, "-m"])
    wait_until(lambda: len(start.processes()) > 1 and listens(Path(f"/proc/{command.pid}")))
    command.terminate()
    out, _ = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 143 and "ended with" not in out
    wait_until(lambda: not start.processes())


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_a_simulation(start, signum):
    """A simulation runs in C for minutes."""
    command = start("sim", "skew", "--ranks", "8192", "--iters", "10000000")
    maps = Path(f"/proc/{command.pid}/maps")
    wait_until(lambda: "_simulator" in text_of(maps))
    command.send_signal(signum)
    out, err = command.communicate(timeout=LIMIT_S)
    assert (command.returncode, out, err) == (128 + signum, "", "")


def test_an_ignored_signal_stays_ignored(clean_environment):
    """With nohup the signal is ignored."""
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


@pytest.mark.parametrize("words", [*QUICK, [*ENDLESS[:4], "--iters", "1"], PROGRAM], ids=" ".join)
def test_closed_pipe(start, words):
    """As in `partialcoll … | true`: no output, with the status that a shell has for it."""
    reader, writer = os.pipe()
    os.close(reader)
    command = start(*words, stdout=writer)
    os.close(writer)
    _, err = command.communicate(timeout=LIMIT_S)
    assert command.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in err and "ignored" not in err and "Broken" not in err
    assert not start.processes()


@pytest.mark.parametrize("closed", ("<&-", ">&-", "2>&-", "<&- >&- 2>&-"))
@pytest.mark.parametrize("words", [QUICK[0], QUICK[6], ["nonsense"]], ids=" ".join)
def test_streams_that_are_closed(start, words, closed):
    command = start(f"{shlex.join([*COMMAND, *words])} {closed}", command=["sh", "-c"])
    out, err = command.communicate(timeout=LIMIT_S)
    assert command.returncode == (2 if words == ["nonsense"] else 0), err
    assert "Traceback" not in out + err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [*QUICK, [*ENDLESS[:4], "--iters", "1"], PROGRAM], ids=" ".join)
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
    """One message names the file, and the measured results have been printed."""
    command = start(*words)
    out, err = command.communicate(timeout=LIMIT_S)
    said = [line for line in err.splitlines() if "No space left" in line]
    assert command.returncode == 1 and len(said) == 1, err
    assert f"{words[-2]}: /dev/full: No space left on device" in said[0]
    assert "Traceback" not in err and "latency_us_avg" in out


@pytest.mark.parametrize("words", [*QUICK, [*ENDLESS[:4], "--iters", "0"]], ids=" ".join)
def test_no_mpi_is_loaded(clean_environment, tmp_path, words):
    """Neither before a job may start, nor for commands that do not need MPI."""
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
