# SPDX-License-Identifier: Apache-2.0
"""A job of ranks that the command has started, to its end or to the command's.

Launchers put their ranks into sessions of their own, pass few signals on, and leave ranks behind
when they are killed themselves. So a job is known by a folder of its own whose name all its
processes have in their environment. To end it, its ranks here get the signal that ends the command,
and time to save something; then all that is left is ended process by process, and what it has in
/dev/shm and would have removed itself goes with it. Ranks on other hosts are the launcher's, which
is asked to end them.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Callable

from .. import _signals
from . import ends, processes, streams

FOLDER = "PARTIALCOLL_JOB"  # the variable that has it
_LAST_WORDS = "last words"  # a file in it
LOCK = "lock"  # another one, locked by all processes of the job until they end
_ASKED_SECONDS = 5.0  # to end by oneself
_TIMED_OUT = 124  # the status, as of timeout(1)
_RANK = re.compile(r"rank \d+: ")
# Hydra's status is the bare number of the signal that has ended a rank. It says so in the end.
_BY_SIGNAL = re.compile(rb"EXIT STRING: [^\n]*\(signal (\d+)\)")


class Job:
    """One that `run` starts. ``folder`` is gone when it has ended.

    foreign: a program of somebody else. Its rank 0 has our standard input, and what it says while
    it is ended is passed on. labeled: the launcher does something with what ranks say. silent: the
    launcher does not say which rank has ended without MPI_Finalize, nor by its status that one has.
    """

    def __init__(
        self, *, foreign: bool = False, labeled: bool = False, silent: bool = False
    ) -> None:
        shared = "/dev/shm"
        where = shared if os.access(shared, os.W_OK) else None
        self._lock = threading.Lock()
        self._foreign = foreign
        self._launcher: subprocess.Popen[bytes] | None = None
        self._output = streams.Output(self._unheard)
        self._over = False
        self._segments: set[Path] = set()
        self.folder = Path(tempfile.mkdtemp(prefix="partialcoll-", dir=where))
        self._held = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_SH)
        self._ends: ends.Ends | None = None
        if silent:
            with suppress(OSError):
                self._ends = ends.Ends(self.folder)
        _signals.jobs.append(self)
        if foreign:
            signal.signal(signal.SIGTTIN, signal.SIG_IGN)  # in the background there is no input
            streams.feed(self.folder)
        if foreign and not labeled:
            self._output.open(self.folder)

    def run(
        self, words: list[str], environment: dict[str, str], limit_s: float | None = None
    ) -> int:
        """Start it, pass on what it says, wait; its exit status, 124 if it was ended after limit_s.
        OSError where what it says cannot be passed on: it is ended then."""
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
            preexec_fn=_begin,
        )
        for to, (reader, writer) in enumerate(pipes, 1):
            os.close(writer)
            self._output.add(reader, to)
        return launcher

    def stop(self, signum: int) -> None:
        """End it by this signal."""
        self._over = True
        self._output.silenced |= not self._foreign
        # SIGHUP is taken by UCX, below MPI, which ends nothing.
        self._ask(signal.SIGTERM if signum == signal.SIGHUP else signum)
        self._end()
        _wait(self._output.done)

    def tell(self, signum: int) -> None:
        """To stop and to continue is for all that it has here. Others are for the ranks, which the
        launcher tells."""
        if signum in (signal.SIGSTOP, signal.SIGCONT):
            for process in self._processes():
                processes.send(process, signum)
        elif self._launcher is not None:
            self._launcher.send_signal(signum)

    def _listen(self, launcher: subprocess.Popen[bytes], limit_s: float | None) -> int:
        try:
            status = launcher.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.stop(signal.SIGTERM)
            streams.write(2, f"partialcoll: the job was ended after {limit_s:g} s\n".encode())
            return _TIMED_OUT
        words = self.folder / _LAST_WORDS
        said = _once(words.read_text()) if words.exists() else ""
        self._end()  # a launcher that was killed has left its ranks behind
        self._output.join()
        if self._output.failure is not None:
            raise self._output.failure
        streams.write(2, said.encode())
        told = _BY_SIGNAL.search(self._output.tail())
        by_signal = status < 0 or (told is not None and int(told[1]) == status)
        killed = by_signal and abs(status) == signal.SIGKILL  # perhaps by the launcher
        if (status == 0 or killed) and self._say_who_ended():
            status = status or 1
        return _signals.status(abs(status)) if by_signal else status

    def _say_who_ended(self) -> bool:
        """Has a rank ended without MPI_Finalize, of which the launcher says nothing?"""
        ended = self._ends.finish() if self._ends is not None and not self._over else []
        if ended:
            line = f"rank {ended[0]} has ended without MPI_Finalize, and the job with it"
            streams.write(2, f"partialcoll: {line}\n".encode())
        return bool(ended)

    def _unheard(self) -> None:
        """By another thread: this one has to read on, or the launcher would not end."""
        threading.Thread(target=self.stop, args=(signal.SIGTERM,), daemon=True).start()

    def _ask(self, signum: int) -> None:
        """The programs here to end; a program whose parent was one, once that has ended."""
        asked: set[Path] = set()

        def ended() -> bool:
            left = {process for process in self._processes() if processes.is_program(process)}
            for program in left - asked:
                self._segments |= processes.segments(program)
                processes.wake(program, signum)
            asked.update(left)
            return not left

        _wait(ended)

    def _end(self) -> None:
        """End what is left of it, and wait until that is gone."""
        with self._lock:
            self._end_ranks()
            if self._launcher is not None and self._launcher.poll() is None:
                self._end_launcher(self._launcher)
            # One that is stuck in the kernel stays: a second signal waits for it no longer.
            while not self._nobody_left() and not _signals.again.is_set():
                time.sleep(0.01)
            self._output.finish()
            for path in self._segments:
                path.unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._held >= 0:
                os.close(self._held)
                self._held = -1

    def _nobody_left(self) -> bool:
        """All are killed."""
        left = list(self._processes())
        for process in left:
            processes.send(process, signal.SIGKILL)
        return not left

    def _processes(self) -> Iterator[Path]:
        return processes.marked(FOLDER, str(self.folder))

    def _end_ranks(self) -> None:
        """Stop them, so that nothing new comes, look what they share, kill them."""
        ranks = [process for process in self._processes() if processes.is_rank(process)]
        for rank in ranks:
            processes.send(rank, signal.SIGSTOP)
        for rank in ranks:
            self._segments |= processes.segments(rank)
        for rank in ranks:
            processes.send(rank, signal.SIGKILL)

    def _end_launcher(self, launcher: subprocess.Popen[bytes]) -> None:
        """Ask it to, and end the ranks that it still starts."""
        launcher.terminate()
        self.tell(signal.SIGCONT)

        def ended() -> bool:
            self._end_ranks()
            return launcher.poll() is not None

        _wait(ended)


def _wait(over: Callable[[], bool]) -> None:
    """Until it is, or the time is, or a second signal says that nobody wants to wait."""
    limit = time.monotonic() + _ASKED_SECONDS
    while not over() and time.monotonic() < limit and not _signals.again.is_set():
        time.sleep(0.01)


def _begin() -> None:
    """In the launcher."""
    signal.signal(signal.SIGTTIN, signal.SIG_DFL)
    processes.end_with_parent()


def _once(words: str) -> str:
    """What several ranks have said alike, of the first of them."""
    said: dict[str, str] = {}
    for line in words.splitlines(keepends=True):
        said.setdefault(_RANK.sub("", line), line)
    return "".join(said.values())


def lives(folder: Path) -> bool:
    """Does a process hold the lock of this job's folder, or have the folder in its environment?"""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        lock = os.open(folder / LOCK, flags)
    except FileNotFoundError:
        pass
    else:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
    return any(processes.marked(FOLDER, str(folder)))


def last_words(text: str) -> None:
    """Say it before this rank ends its job: a launcher may drop what it has not passed on by then,
    so in a job of the command, on the host that started it, it takes another way."""
    folder = Path(os.environ.get(FOLDER) or "/nowhere")
    ours = folder.is_dir()
    with open(folder / _LAST_WORDS, "a") if ours else nullcontext(sys.stderr) as out:
        out.write(text)
        out.flush()
