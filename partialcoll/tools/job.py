# SPDX-License-Identifier: Apache-2.0
"""A job of ranks that the command has started, until the job ends or the command does.

Launchers do not do all of this right (measured with MPICH 5.0.2 and Open MPI 5), so the command
does it for them:

- Signals: Open MPI's ends its ranks at once on SIGINT, SIGTERM and SIGHUP, MPICH's on SIGHUP, and a
  launcher that is killed leaves ranks behind. Here the ranks get the signal that ends the command,
  and time to save something. Then what is left of the job is ended process by process, and its
  segments in /dev/shm are removed. The launcher is asked to end ranks on other hosts. Both forward
  SIGUSR1 and SIGUSR2.
- Standard input: neither forwards its end. If rank 0 does not read what came, MPICH's crashes and
  Open MPI's hangs. So ranks on this host read from a FIFO.
- Output: Open MPI's passes on 1 MB/s, and both may drop the last lines of ranks that end together.
  So ranks on this host write to FIFOs, unless the user has told the launcher what to do with
  output.

A job is known by its own folder, whose name all its processes have in their environment.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Callable

from .. import _command, _signals

_SHARED = Path("/dev/shm")
_SEGMENTS = ("mpich_shm_", "Intel_MPI_", "ucx_shm_")  # Open MPI's are put into the job's folder
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def marked(name: str, value: str) -> Iterator[Path]:
    """Yield the processes with this variable in their environment, as folders in /proc."""
    mark = f"{name}={value}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        if mark in _environment(process):
            yield process


def _environment(process: Path) -> list[bytes]:
    with suppress(OSError):
        return (process / "environ").read_bytes().split(b"\0")
    return []


def is_rank(process: Path) -> bool:
    """Return whether a process is a rank of a job, or was started by one."""
    names = {entry.partition(b"=")[0].decode(errors="replace") for entry in _environment(process)}
    return not names.isdisjoint(_command.JOB_VARIABLES)


def send(process: Path, signum: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(int(process.name), signum)


def wake(process: Path, signum: int) -> None:
    send(process, signum)
    send(process, signal.SIGCONT)


def end_with_parent(parent: int) -> None:
    """Ask the kernel, in a child before it runs its program, for SIGTERM when the thread that
    started it ends, even by a signal that cannot be caught. parent: the process that started it."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended already, so no signal will come
        os._exit(128 + signal.SIGTERM)


def shared_files(process: Path) -> Iterator[Path]:
    """Yield what a process has mapped or open in /dev/shm."""
    found: list[str] = []
    with suppress(OSError):
        lines = (process / "maps").read_text(errors="replace").splitlines()
        found += [line.split(maxsplit=5)[-1] for line in lines]
    for entry in (process / "fd").glob("*"):
        with suppress(OSError):
            found.append(os.readlink(entry))
    for path in map(Path, found):
        if _SHARED in path.parents:
            yield path


def segments(process: Path) -> set[Path]:
    return {path for path in shared_files(process) if path.name.startswith(_SEGMENTS)}


_SOCKET = "ranks"


class Ends:
    """Find which ranks of a job on this host end without MPI_Finalize.

    A rank that uses the library connects to a socket in the job's folder, says "begin RANK", says
    "end" in MPI_Finalize, and keeps the connection until it ends (csrc/runtime/process.c). The
    kernel closes this connection together with the one to the launcher, and epoll reports
    connections in the order in which they were closed. So the first rank whose connection closes
    without an "end" has ended by itself; the launcher may have killed the others because of it.
    Raises OSError if the name of the folder is too long.
    """

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._ranks: dict[int, socket.socket] = {}  # by descriptor
        self._left: list[int] = []  # ranks, in the order of their ends
        self._stop, self._stopper = os.pipe()
        self._poll = select.epoll()
        for reader in (self._listener.fileno(), self._stop):
            self._poll.register(reader, select.EPOLLIN)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def finish(self) -> list[int]:
        """Return the ranks that ended without MPI_Finalize, in the order of their ends. All
        processes of the job must have ended. Idempotent."""
        if self._stopper >= 0:
            os.close(self._stopper)
            self._stopper = -1
            self._thread.join()
            while self._step(0):
                pass
            self._listener.close()
            os.close(self._stop)
            self._poll.close()
        return self._left

    def _follow(self) -> None:
        while self._step(-1):
            pass

    def _step(self, timeout: float) -> bool:
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout)]
        for descriptor in ready:
            if descriptor in self._ranks:
                with suppress(ConnectionError), self._ranks.pop(descriptor) as rank:
                    first, *more = rank.recv(4096).split(b"\n")
                    number = first.removeprefix(b"begin ")
                    if number.isdigit() and b"end" not in more:
                        self._left.append(int(number))
            elif descriptor == self._listener.fileno():
                with suppress(OSError):  # such as one descriptor too many
                    rank = self._listener.accept()[0]
                    self._ranks[rank.fileno()] = rank
                    self._poll.register(rank.fileno(), select.EPOLLRDHUP)
        if self._stop in ready:
            self._poll.unregister(self._stop)
            return False
        return bool(ready)


_INPUT = "input"
_OUTPUTS = {"output": 1, "errors": 2}
_PIECE = 1 << 16
_TAIL = 4096


class Output:
    """The output of the ranks, passed on by a thread for each source. If that fails, `failure` has
    the error, one of the threads calls `broken`, and further output is read and dropped, as when
    `silenced`."""

    def __init__(self, broken: Callable[[], None]) -> None:
        self.failure: OSError | None = None
        self.tails: dict[int, bytes] = {}
        self.silenced = False
        self._broken = broken
        self._threads: list[threading.Thread] = []
        self._last, *self._more = os.pipe()  # ends with `finish`

    def open(self, folder: Path) -> None:
        for name, to in _OUTPUTS.items():
            os.mkfifo(folder / name)
            self.add(os.open(folder / name, os.O_RDWR), to)  # so it never ends: ranks come and go

    def add(self, source: int, to: int) -> None:
        self.tails[source] = b""
        self._threads.append(threading.Thread(target=self._pass_on, args=(source, to), daemon=True))
        self._threads[-1].start()

    def finish(self) -> None:
        while self._more:
            os.close(self._more.pop())

    def join(self) -> None:
        """Wait until everything has been passed on, however slowly it is read."""
        for thread in self._threads:
            thread.join()

    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _pass_on(self, source: int, to: int) -> None:
        while source in select.select([source, self._last], [], [])[0]:
            piece = os.read(source, _PIECE)
            if not piece:
                return
            if self.silenced:
                continue
            self.tails[source] = (self.tails[source] + piece)[-_TAIL:]
            try:
                write(to, piece)
            except OSError as error:
                self.failure, self.silenced = self.failure or error, True
                self._broken()


def write(to: int, piece: bytes) -> None:
    """Write all bytes, even if another process has made the descriptor non-blocking."""
    while piece:
        try:
            piece = piece[os.write(to, piece) :]
        except BlockingIOError:
            select.select([], [to], [])


_RANK = "${PMI_RANK-$OMPI_COMM_WORLD_RANK}"
_SCRIPT = f"""[ "{_RANK}" = 0 ] && [ -p "$1/{_INPUT}" ] && exec < "$1/{_INPUT}" || exec < /dev/null
[ -p "$1/errors" ] && exec > "$1/output" 2> "$1/errors"
shift
exec "$@"
"""


def with_streams(program: Iterable[str], folder: Path) -> list[str]:
    return ["/bin/sh", "-c", _SCRIPT, "sh", str(folder), *program]


def feed(folder: Path) -> None:
    """Pass on standard input, until it ends or is no longer read."""
    os.mkfifo(folder / _INPUT)

    def pass_on() -> None:
        with suppress(OSError), (folder / _INPUT).open("wb", buffering=0) as to:
            while select.select([0], [], []) and (piece := os.read(0, _PIECE)):
                write(to.fileno(), piece)

    threading.Thread(target=pass_on, daemon=True).start()


FOLDER = "PARTIALCOLL_JOB"  # the variable that has it
_LAST_WORDS = "last words"  # a file in it
LOCK = "lock"  # another one, locked by all processes of the job until they end
_ASKED_SECONDS = 5.0  # to end by oneself
_TIMED_OUT = 124  # the status, as of timeout(1)
_RANK_PREFIX = re.compile(r"rank \d+: ")
# Hydra's status is the bare number of the signal that has ended a rank. It says so in the end.
_BY_SIGNAL = re.compile(rb"EXIT STRING: [^\n]*\(signal (\d+)\)")


class Job:
    """A job that `run` starts. ``folder`` is removed when the job has ended. foreign: the program
    is not ours; its rank 0 has our standard input, and what it prints while it is being ended is
    passed on. labeled: the launcher changes what ranks print. silent: the launcher does not tell
    which rank has ended without MPI_Finalize, neither by a message nor by its status."""

    def __init__(
        self, *, foreign: bool = False, labeled: bool = False, silent: bool = False
    ) -> None:
        shared = "/dev/shm"
        where = shared if os.access(shared, os.W_OK) else None
        self._lock = threading.Lock()
        self._foreign = foreign
        self._launcher: subprocess.Popen[bytes] | None = None
        self._output = Output(self._unheard)
        self._over = False
        self._segments: set[Path] = set()
        self.folder = Path(tempfile.mkdtemp(prefix="partialcoll-", dir=where))
        self._held = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_SH)
        self._ends: Ends | None = None
        if silent:
            with suppress(OSError):
                self._ends = Ends(self.folder)
        _signals.jobs.append(self)
        if foreign:
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # in the background there is no input
            feed(self.folder)
        if foreign and not labeled:
            self._output.open(self.folder)

    def run(
        self, words: list[str], environment: dict[str, str], limit_s: float | None = None
    ) -> int:
        """Start the job, pass on what it prints, and wait. Return its exit status, 124 if it was
        ended after limit_s. If its output cannot be passed on, end it and raise OSError."""
        try:
            with self._lock:
                if self._over:
                    return 1
                self._launcher = self._start(words, environment)
            return self._listen(self._launcher, limit_s)
        finally:
            self._end()
            if self._ends is not None:
                self._ends.finish()
            _signals.jobs.remove(self)

    def _start(self, words: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        pipes = [os.pipe(), os.pipe()]
        launcher = subprocess.Popen(
            words,
            env={**environment, FOLDER: str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=pipes[0][1],
            stderr=pipes[1][1],
            # Or Open MPI's would end by SIGPIPE, before its ranks, when the command is killed.
            pass_fds=[self._held, *(reader for reader, _ in pipes)],
            start_new_session=True,  # Ctrl-C is for the command, which ends the job
            preexec_fn=partial(_begin, os.getpid()),
        )
        for to, (reader, writer) in enumerate(pipes, 1):
            os.close(writer)
            self._output.add(reader, to)
        return launcher

    def stop(self, signum: int) -> None:
        self._over = True
        self._output.silenced |= not self._foreign
        # SIGHUP is taken by UCX, below MPI, which ends nothing.
        self._ask(signal.SIGTERM if signum == signal.SIGHUP else signum)
        self._end()
        _wait(self._output.done)

    def tell(self, signum: int) -> None:
        """Forward a signal. SIGSTOP and SIGCONT go to all processes of the job on this host, others
        to the launcher, which forwards them to the ranks."""
        if signum in (signal.SIGSTOP, signal.SIGCONT):
            for process in self._processes():
                send(process, signum)
        elif self._launcher is not None:
            self._launcher.send_signal(signum)

    def _listen(self, launcher: subprocess.Popen[bytes], limit_s: float | None) -> int:
        try:
            status = launcher.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGTERM)
            write(2, f"partialcoll: the job was ended after {limit_s:g} s\n".encode())
            return _TIMED_OUT
        words, said = self.folder / _LAST_WORDS, dict[str, str]()
        for line in words.read_text().splitlines(keepends=True) if words.exists() else ():
            said.setdefault(_RANK_PREFIX.sub("", line), line)  # once, though all ranks say it
        self._end()  # a launcher that was killed has left its ranks behind
        self._output.join()
        if self._output.failure is not None:
            raise self._output.failure
        write(2, "".join(said.values()).encode())
        told = _BY_SIGNAL.search(b"".join(self._output.tails.values()))
        by_signal = status < 0 or (told is not None and int(told[1]) == status)
        killed = by_signal and abs(status) == signal.SIGKILL  # perhaps by the launcher
        quiet = (status == 0 or killed) and not self._over  # it has not said which rank has ended
        if quiet and self._ends is not None and (ended := self._ends.finish()):
            line = f"rank {ended[0]} has ended without MPI_Finalize, and the job with it"
            write(2, f"partialcoll: {line}\n".encode())
            status = status or 1
        return _signals.status(abs(status)) if by_signal else status

    def _unheard(self) -> None:
        """End the job in another thread: the calling one must read on, or nothing would end."""
        threading.Thread(target=self.stop, args=(signal.SIGTERM,), daemon=True).start()

    def _ask(self, signum: int) -> None:
        """Signal the programs on this host; one that another has started when that has ended."""
        asked: set[Path] = set()

        def starts_program(rank: Path) -> bool:
            with suppress(OSError):
                after_name = (rank / "stat").read_text(errors="replace").rpartition(")")[2]
                return not is_rank(rank.parent / after_name.split()[1])  # its parent
            return True

        def ended() -> bool:
            left = set(filter(starts_program, filter(is_rank, self._processes())))
            for program in left - asked:
                self._segments |= segments(program)
                wake(program, signum)
            asked.update(left)
            return not left

        _wait(ended)

    def _end(self) -> None:
        """Kill what is left of the job, and wait until it is gone."""
        with self._lock:
            self._end_ranks()
            if self._launcher is not None and self._launcher.poll() is None:
                self._launcher.terminate()
                self.tell(signal.SIGCONT)
                _wait(self._has_ended)  # ranks that it still starts are killed
            # One that is stuck in the kernel stays: a second signal waits for it no longer.
            while left := list(self._processes()):
                for process in left:
                    send(process, signal.SIGKILL)
                if _signals.again.is_set():
                    break
                time.sleep(0.01)
            self._output.finish()
            for path in self._segments:
                path.unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._held >= 0:
                os.close(self._held)
                self._held = -1

    def _processes(self) -> Iterator[Path]:
        return marked(FOLDER, str(self.folder))

    def _end_ranks(self) -> None:
        """Stop the ranks, so that nothing new appears, collect their segments, and kill them."""
        ranks = [process for process in self._processes() if is_rank(process)]
        for rank in ranks:
            send(rank, signal.SIGSTOP)
        for rank in ranks:
            self._segments |= segments(rank)
        for rank in ranks:
            send(rank, signal.SIGKILL)

    def _has_ended(self) -> bool:
        self._end_ranks()
        return self._launcher is None or self._launcher.poll() is not None


def _wait(over: Callable[[], bool]) -> None:
    """Wait until `over` returns True, a limit of time passes, or a second signal ends the wait."""
    limit = time.monotonic() + _ASKED_SECONDS
    while not over() and time.monotonic() < limit and not _signals.again.is_set():
        time.sleep(0.01)


def _begin(parent: int) -> None:
    signal.signal(signal.SIGTTIN, signal.SIG_DFL)
    end_with_parent(parent)


def lives(folder: Path) -> bool:
    """Return whether a process holds the folder's lock, or has the folder in its environment."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with suppress(FileNotFoundError):
        lock = os.open(folder / LOCK, flags)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return any(marked(FOLDER, str(folder)))


def last_words(text: str) -> None:
    """Print a text before this rank ends its job. A launcher may drop output that it has not passed
    on by then, so in a job of the command, on the host that started it, the text goes to a file."""
    folder = Path(os.environ.get(FOLDER) or "/nowhere")
    ours = folder.is_dir()
    with open(folder / _LAST_WORDS, "a") if ours else nullcontext(sys.stderr) as out:
        out.write(text)
        out.flush()
