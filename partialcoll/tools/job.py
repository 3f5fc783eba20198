# SPDX-License-Identifier: Apache-2.0
"""A job of ranks that the command has started, to its end or to the command's.

Launchers put their ranks into sessions of their own, pass few signals on, and leave ranks behind
when they are killed themselves. So a job is known by a folder of its own whose name all its
processes have in their environment, and is ended process by process; what it has in /dev/shm and
would have removed itself goes with it. Ranks on other hosts are the launcher's, which is asked
first.
"""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import Any

from .. import _command, _signals

FOLDER = "PARTIALCOLL_JOB"  # the variable that has it
_LAST_WORDS = "last words"  # a file in it
_SHARED = Path("/dev/shm")
_SEGMENTS = ("mpich_shm_", "Intel_MPI_", "ucx_shm_")  # Open MPI's are put into the folder
_LAUNCHER_SECONDS = 5.0  # to end by itself
_PIECE = 1 << 16
_RANK = re.compile(r"rank \d+: ")


class Job:
    """One that `run` starts. ``folder`` is gone when it has ended."""

    def __init__(self) -> None:
        where = _SHARED if os.access(_SHARED, os.W_OK) else None
        self._lock = threading.Lock()
        self._launcher: subprocess.Popen[bytes] | None = None
        self._silenced = False
        self._failure: OSError | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="partialcoll-", dir=where))
        _signals.undo.append(self.stop)

    def run(self, words: list[str], environment: dict[str, str]) -> int:
        """Start it, pass on what it says, wait; its exit status. OSError where what it says on
        standard output cannot be passed on: it is ended then."""
        try:
            with self._lock:
                if self._silenced:
                    return 1
                self._launcher = subprocess.Popen(
                    words,
                    env={**environment, FOLDER: str(self.folder)},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for the command, which ends the job
                )
            return self._listen(self._launcher)
        finally:
            self._end()
            _signals.undo.remove(self.stop)

    def stop(self) -> None:
        """End it, and nothing more is heard of it."""
        self._silenced = True
        self._end()

    def _listen(self, launcher: subprocess.Popen[bytes]) -> int:
        pipes = ((launcher.stdout, 1), (launcher.stderr, 2))
        threads = [threading.Thread(target=self._pass_on, args=pipe, daemon=True) for pipe in pipes]
        for thread in threads:
            thread.start()
        status = launcher.wait()
        words = self.folder / _LAST_WORDS
        said = _once(words.read_text()) if words.exists() else ""
        self._end()  # a launcher that was killed has left its ranks behind
        for thread in threads:
            thread.join()
        if self._failure is not None:
            raise self._failure
        _write(2, said.encode())
        return status if status >= 0 else _signals.status(-status)

    def _pass_on(self, source: Any, to: int) -> None:
        """All that the job writes, until it is stopped."""
        while piece := os.read(source.fileno(), _PIECE):
            if self._silenced:
                continue
            try:
                _write(to, piece)
            except OSError as error:
                self._failure = self._failure or error
                self.stop()

    def _end(self) -> None:
        """End what is left of it, and wait until that is gone."""
        with self._lock:
            shared = self._end_ranks()
            if self._launcher is not None and self._launcher.poll() is None:
                shared |= self._end_launcher(self._launcher)
            while left := list(self._processes()):
                for process in left:
                    _send(process, signal.SIGKILL)
                time.sleep(0.01)
            for path in shared:
                path.unlink(missing_ok=True)
            shutil.rmtree(self.folder, ignore_errors=True)

    def _processes(self) -> Iterator[Path]:
        """Those of this job on this machine, as folders of /proc."""
        mark = f"{FOLDER}={self.folder}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    yield process

    def _end_ranks(self) -> set[Path]:
        """Stop them, so that nothing new comes, look what they share, kill them."""
        ranks = [process for process in self._processes() if _is_rank(process)]
        for rank in ranks:
            _send(rank, signal.SIGSTOP)
        shared = {p for r in ranks for p in shared_files(r) if p.name.startswith(_SEGMENTS)}
        for rank in ranks:
            _send(rank, signal.SIGKILL)
        return shared

    def _end_launcher(self, launcher: subprocess.Popen[bytes]) -> set[Path]:
        """Ask it to, and end the ranks that it still starts; what they shared."""
        launcher.terminate()
        shared: set[Path] = set()
        limit = time.monotonic() + _LAUNCHER_SECONDS
        while launcher.poll() is None and time.monotonic() < limit:
            shared |= self._end_ranks()
            time.sleep(0.01)
        return shared


def _is_rank(process: Path) -> bool:
    with contextlib.suppress(OSError):
        entries = (process / "environ").read_bytes().split(b"\0")
        names = {entry.partition(b"=")[0].decode(errors="replace") for entry in entries}
        return not names.isdisjoint(_command.JOB_VARIABLES)
    return False


def shared_files(process: Path) -> Iterator[Path]:
    """What a process, a folder of /proc, has mapped or open in /dev/shm."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        lines = (process / "maps").read_text(errors="replace").splitlines()
        found += [line.split(maxsplit=5)[-1] for line in lines]
    for entry in (process / "fd").glob("*"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(entry))
    for path in map(Path, found):
        if _SHARED in path.parents:
            yield path


def _once(words: str) -> str:
    """What several ranks have said alike, of the first of them."""
    said: dict[str, str] = {}
    for line in words.splitlines(keepends=True):
        said.setdefault(_RANK.sub("", line), line)
    return "".join(said.values())


def _send(process: Path, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(process.name), signum)


def _write(to: int, piece: bytes) -> None:
    while piece:
        piece = piece[os.write(to, piece) :]


def last_words(text: str) -> None:
    """Say it before this rank ends its job: a launcher may drop what it has not passed on by then,
    so in a job of the command, on the host that started it, it takes another way."""
    folder = Path(os.environ.get(FOLDER) or "/nowhere")
    ours = folder.is_dir()
    with open(folder / _LAST_WORDS, "a") if ours else contextlib.nullcontext(sys.stderr) as out:
        out.write(text)
        out.flush()
