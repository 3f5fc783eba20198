# SPDX-License-Identifier: Apache-2.0
"""``partialcoll run`` runs any program as a job: its input, its output and how it ends."""

import contextlib
import hashlib
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
import textwrap

import click
import pytest
from command_process import (
    COMMAND,
    LIMIT_S,
    as_usual,
    fixture_start,  # noqa: F401
    job_folder,
    state_of,
    wait_until,
)

from partialcoll.tools import launcher
from partialcoll.tools.cli import main, values
from partialcoll.tools.job import Job

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

LABELS = {"openmpi": "--output tag", "mpich": "-prepend-rank"}[launcher.flavor()]
# Writes received signals into a file. May end by itself after it has saved something.
PATIENT = """
import os, signal, sys, time
def say(text):
    with open(sys.argv[1], "a") as file:
        file.write(text + chr(10))
def hear(signum, _):
    say(f"got {signum}")
    if signum != signal.SIGUSR1 and sys.argv[2] == "saves":
        os.write(1, b"saved" + bytes([10]))
        os._exit(0)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(each, hear)
say("ready")
while True:
    time.sleep(0.01)
"""


def script(folder, text):
    path = folder / "program.py"
    path.write_text(textwrap.dedent(text))
    return str(path)


def ended(command, given=None):
    """Return the status and the text of both streams."""
    out, err = command.communicate(given, timeout=LIMIT_S)
    return command.returncode, out, err


def test_ranks_arguments_and_status(start, tmp_path):
    """All words after the program are its own, also those that look like the command's options."""
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
    status, said, errors = ended(start("run", "-n", "3", sys.executable, path, *given))
    assert status == 7, errors
    lines = sorted(json.loads(line) for line in said.splitlines() if line.startswith("["))
    assert lines == [[rank, 3, given] for rank in range(3)]


def test_input_of_the_program(start, tmp_path):
    """Standard input for rank 0 and its end for all; variables; a file of hosts."""
    (tmp_path / "hosts").write_text("# ours\nlocalhost slots=2\n")
    words = ("-n", "2", "--hosts", "hosts", "-x", "FIRST=1 2", "-x", "OMP_NUM_THREADS=3")
    command = ["sh", "-c", 'cat; echo "$FIRST $SECOND $OMP_NUM_THREADS"']
    status, said, errors = ended(
        start("run", *words, *command, stdin=subprocess.PIPE), "some\ninput\n"
    )
    assert status == 0, errors
    assert sorted(said.splitlines()) == ["1 2  3", "1 2  3", "input", "some"]


def test_the_printed_command_is_the_one(start):
    words = ("-n", "2", "-x", "A=x y", "--dry-run", "sh", "-c", 'echo "$A $0"', "'$HOME")
    status, printed, _ = ended(start("run", *words))
    by_hand = start(printed, command=["sh", "-c"], stdin=subprocess.DEVNULL)
    assert status == 0 and ended(by_hand)[1] == "x y '$HOME\n" * 2, printed


def test_all_bytes_come(start, tmp_path):
    """All bytes arrive: without lines, without text, without a final newline, more than a pipe
    holds, and into an existing file."""
    one = "import os; os.write(1, os.urandom(1 << 20) * 5); os.write(1, b'end')"
    other = "import os; os.write(2, b'y' * 99 * 50000)"
    own = f'[ "${{PMI_RANK-$OMPI_COMM_WORLD_RANK}}" = 0 ] && exec {sys.executable} -c "$0" || '
    words = ["sh", "-c", f'{own}exec {sys.executable} -c "$1"', one, other]
    with (tmp_path / "out").open("w+b") as out, (tmp_path / "err").open("w+b") as err:
        out.write(b"before")
        out.flush()
        command = start("run", "-n", "2", *words, stdout=out, stderr=err)
        assert command.wait(LIMIT_S) == 0
    said = (tmp_path / "out").read_bytes()
    random = said[6:][: 1 << 20]
    whole = hashlib.sha256(b"before" + random * 5 + b"end")
    assert hashlib.sha256(said).digest() == whole.digest()
    assert (tmp_path / "err").read_bytes() == b"y" * 99 * 50000


def test_the_launchers_labels(start):
    """With options that make the launcher label output, its output is passed on."""
    status, said, errors = ended(start("run", "-n", "2", "--mpiexec-args", LABELS, "echo", "hi"))
    assert status == 0, errors
    labels = {line.removesuffix("hi") for line in said.splitlines()}
    assert len(labels) == 2 and "" not in labels


def test_a_million_lines(start):
    """Three ranks may be more than there are cores. One write stays in one piece."""
    lines = "import os\nfor _ in range(1000): os.write(1, b'0123456789\\n' * 333)"
    status, said, errors = ended(start("run", "-n", "3", sys.executable, "-c", lines))
    assert status == 0, errors
    assert said == "0123456789\n" * 999000


def test_streams_that_are_closed(start):
    """With <&- and >&- there is no input, and standard output is closed."""
    words = " ".join([*COMMAND, "run -n 2 sh -c 'cat; echo out; echo err >&2'"])
    status, said, errors = ended(start(f"{words} <&- >&-", command=["sh", "-c"]))
    assert (status, said) == (0, "") and sorted(errors.splitlines()[:2]) == ["err"] * 2


def test_a_stream_that_does_not_wait(start):
    """Another process may have made the shared standard output non-blocking."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    command = start("run", "-n", "2", "sh", "-c", "yes | head -c 1000000", stdout=writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        assert len(pipe.read()) == 2000000
    assert ended(command)[0] == 0


@pytest.mark.parametrize("status", (0, 7))
def test_how_it_ended(start, status):
    own = f'[ "${{PMI_RANK-$OMPI_COMM_WORLD_RANK}}" = 0 ] || exit {status}'
    assert ended(start("run", "-n", "2", "sh", "-c", own))[0] == status


@pytest.mark.parametrize(
    ("script", "status"),
    (
        ("echo 'THE EXIT STRING: Segmentation fault (signal 11)'; exit 11", 139),
        ("echo 'THE EXIT STRING: Killed (signal 9)'; exit 11", 11),
        ("exit 11", 11),
        ("exit 139", 139),
        ("kill -s KILL $$", 137),
    ),
)
def test_how_launchers_tell_of_a_signal(script, status, clean_environment):
    """MPICH's launcher reports the signal and returns its number as the status."""
    assert Job().run(["sh", "-c", script], clean_environment) == status


def patient(start, tmp_path, how, **more):
    """Start two ranks of it and wait until they are ready. Return the file of received signals."""
    heard = tmp_path / "heard"
    heard.touch()
    words = ("-n", "2", sys.executable, "-c", PATIENT, str(heard), how)
    command = start("run", *words, **more)
    wait_until(lambda: heard.read_text().count("ready") == 2)
    return command, heard


def twice(heard, signum):
    return lambda: heard.read_text().count(f"got {int(signum)}\n") == 2


@pytest.mark.parametrize("signum", (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
def test_a_signal_is_for_the_ranks(start, tmp_path, signum):
    """A rank that is told to end may save something and report it. Other signals are passed on."""
    command, heard = patient(start, tmp_path, "saves")
    command.send_signal(signal.SIGUSR1)
    wait_until(twice(heard, signal.SIGUSR1))
    command.send_signal(signum)
    status, said, errors = ended(command)
    assert status == 128 + signum, errors
    assert said.count("saved\n") >= 1  # a launcher may end the others when the first has ended
    assert twice(heard, signal.SIGTERM if signum == signal.SIGHUP else signum)() or "saved" in said
    assert not start.processes()


def test_a_rank_that_does_not_end_is_killed(start, tmp_path):
    """Ranks that do not end are killed, also if the launcher has been stopped."""
    command, heard = patient(start, tmp_path, "goes on")
    for process in start.processes():
        if process not in start.ranks() and process.name != str(command.pid):
            os.kill(int(process.name), signal.SIGSTOP)
    command.terminate()
    wait_until(twice(heard, signal.SIGTERM))
    assert ended(command)[0] == 143 and not start.processes()


def test_a_second_signal_ends_the_wait(start, tmp_path):
    """Send signals until the command has ended."""
    command, _ = patient(start, tmp_path, "goes on")
    wait_until(lambda: command.send_signal(signal.SIGINT) or command.poll() is not None)
    assert command.returncode == 130 and not start.processes()


def test_the_command_is_killed(start, tmp_path):
    """Only the system is left to end the job: it notifies the launcher."""
    command, _ = patient(start, tmp_path, "saves")
    folder = job_folder(start.ranks()[0])
    command.kill()
    command.wait(LIMIT_S)
    wait_until(lambda: not start.processes())
    shutil.rmtree(folder)  # the folder remains


def test_a_signal_that_is_ignored(start, tmp_path):
    """With nohup, or & in a script, the signal is ignored."""

    def ignoring():
        as_usual()
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    command, heard = patient(start, tmp_path, "saves", before=ignoring)
    command.send_signal(signal.SIGINT)
    command.send_signal(signal.SIGUSR1)
    wait_until(twice(heard, signal.SIGUSR1))
    assert command.poll() is None
    command.terminate()
    assert ended(command)[0] == 143


def test_a_terminal(start, tmp_path):
    """Ctrl-Z stops all processes, the shell's fg continues them, Ctrl-C ends them."""
    ours, theirs = pty.openpty()

    def at_terminal():
        as_usual()
        os.setsid()
        os.close(os.open(os.ttyname(0), os.O_RDWR))  # makes it the session's

    command, heard = patient(
        start, tmp_path, "saves", before=at_terminal, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    os.write(ours, b"\x1a")
    wait_until(lambda: all(state_of(process) == ["T"] for process in start.processes()))
    os.kill(command.pid, signal.SIGCONT)
    wait_until(lambda: all(state_of(process) != ["T"] for process in start.processes()))
    os.write(ours, b"\x03")
    assert command.wait(LIMIT_S) == 130
    with contextlib.suppress(OSError):  # the error of a terminal without processes
        said = b""
        while piece := os.read(ours, 1 << 16):
            said += piece
    os.close(ours)
    assert b"saved" in said and f"got {int(signal.SIGINT)}" in heard.read_text()
    assert not start.processes()


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_ends_in_mid_job(start, tmp_path, ranks):
    """A rank ends with status 0 without MPI_Finalize. MPICH kills the others, often with status 0
    and without a message."""
    path = script(
        tmp_path,
        """
        import os, numpy as np, partialcoll as pc
        from mpi4py import MPI
        comm = MPI.COMM_WORLD
        h = pc.Allreduce_init(comm, np.ones(9), np.zeros(9), quorum="full")
        h.Start()
        h.Wait()
        if comm.rank == 1:
            os._exit(0)
        h.Start()
        h.Wait()
        print("has its result")
        """,
    )
    status, said, errors = ended(start("run", "-n", str(ranks), sys.executable, path))
    assert status != 0 and "has its result" not in said
    if launcher.flavor() == "mpich":
        assert "partialcoll: rank 1 has ended without MPI_Finalize" in errors
    else:
        assert "rank 1 with PID" in errors and "exiting" in errors


def test_ranks_that_finalize_are_not_reported(start, tmp_path):
    """They finalize themselves, or at the end of the program."""
    path = script(
        tmp_path,
        """
        import os, numpy as np, partialcoll as pc
        from mpi4py import MPI
        rank = MPI.COMM_WORLD.rank
        pc.Allreduce_init(MPI.COMM_WORLD, np.ones(9), np.zeros(9)).Free()
        if rank == 0:
            MPI.Finalize()
        os.write(1, b"ended" + bytes([10]))
        """,
    )
    status, said, errors = ended(start("run", "-n", "3", sys.executable, path))
    assert (status, said, errors) == (0, "ended\n" * 3, "")


def test_a_time_limit(start):
    status, _, errors = ended(start("run", "-n", "2", "--timeout", "0.5", "sleep", "1000"))
    assert status == 124 and "ended after 0.5 s" in errors
    assert not start.processes()


@pytest.mark.parametrize(
    ("words", "expected"),
    (
        (["-n", "2"], "Missing argument 'PROGRAM...'"),
        (["true"], "Missing option '-n'"),
        (["-n", "2", "not-there"], "PROGRAM: expected a program that can be run, got 'not-there'"),
        (["-n", "2", __file__], f"which cannot be run: python {__file__}?"),
        (["-n", "2", "-x", "NOT_SET_HERE", "true"], "-x or --env: expected NAME=VALUE, or the NAM"),
        (["-n", "2", "--hosts", "/not/there", "true"], "--hosts: expected hosts such as a:2,b:2"),
        (["-n", "2", "--hosts", __file__, "true"], "--hosts: expected names of hosts, got "),
    ),
)
def test_refusals(words, expected, capsys, monkeypatch):
    monkeypatch.setattr(launcher, "in_job", lambda: False)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(SystemExit) as refused:
        main(["run", *words])
    usage, sentence = capsys.readouterr().err.splitlines()
    assert refused.value.code == 2 and usage.startswith("usage: partialcoll run")
    assert expected in sentence


def test_inside_of_a_job(run):
    """Each rank would start its own job."""
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


def test_no_launcher(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(launcher, "in_job", lambda: False)
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", "-n", "2", "/bin/true"]) == 1
    assert "no mpiexec found" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "hosts"), (("a\nb:2\n", "a,b:2"), ("# all\n\na slots=3 # big\n", "a:3"))
)
def test_files_of_hosts(tmp_path, text, hosts):
    (tmp_path / "hosts").write_text(text)
    assert values.HOSTS.convert(str(tmp_path / "hosts"), None, None) == hosts


@pytest.mark.parametrize("host", ["-oProxyCommand=x", "-l", "me@-oProxyCommand=x", " -x"])
def test_hosts_that_ssh_takes_for_options(tmp_path, host):
    """ssh would run programs named in a list of hosts or in a file."""
    (tmp_path / "hosts").write_text(f"a\n{host}:2\n")
    for text in (f"{host}:2", f"a,{host}", str(tmp_path / "hosts")):
        with pytest.raises(click.UsageError, match=r"names of hosts, got .*-.* ssh may take it"):
            values.HOSTS.convert(text, None, None)
