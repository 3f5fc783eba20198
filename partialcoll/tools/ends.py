# SPDX-License-Identifier: Apache-2.0
"""Which ranks of a job have ended without MPI_Finalize.

A rank that uses the library connects to a socket in the job's folder, says "begin RANK", says "end"
in MPI_Finalize, and keeps the connection until it ends (csrc/runtime/process.c). The kernel closes the
connection and the rank's connection to the launcher together, and epoll reports connections in the
order in which they were closed. So the first rank whose connection is closed without an "end" has
ended by itself; the launcher may have killed the others for it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from pathlib import Path

_SOCKET = "ranks"


class Ends:
    """Of the ranks of one job on this host. OSError where the folder's name is too long."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / _SOCKET))
        self._listener.listen(4096)
        self._listener.setblocking(False)
        self._ranks: dict[int, tuple[socket.socket, bytes]] = {}  # by descriptor; what they said
        self._left: list[int] = []  # ranks, in the order of their ends
        self._stop, self._stopper = os.pipe()
        self._poll = select.epoll()
        for reader in (self._listener.fileno(), self._stop):
            self._poll.register(reader, select.EPOLLIN)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def finish(self) -> list[int]:
        """All processes of the job have ended: return the ranks that did so without MPI_Finalize,
        in the order of their ends. Idempotent."""
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
        """Has something happened, and is nobody waiting for the end?"""
        ready = [descriptor for descriptor, _ in self._poll.poll(timeout)]
        for descriptor in ready:
            if descriptor in self._ranks:
                self._hear(descriptor)
            elif descriptor == self._listener.fileno():
                self._accept()
        if self._stop in ready:
            self._poll.unregister(self._stop)
            return False
        return bool(ready)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # such as one descriptor too many
            rank = self._listener.accept()[0]
            rank.setblocking(False)
            self._ranks[rank.fileno()] = rank, b""
            self._poll.register(rank.fileno(), select.EPOLLIN)

    def _hear(self, descriptor: int) -> None:
        rank, said = self._ranks[descriptor]
        try:
            piece = rank.recv(4096)
        except BlockingIOError:
            return
        except ConnectionError:
            piece = b""
        if piece:
            self._ranks[descriptor] = rank, (said + piece)[-4096:]
            return
        del self._ranks[descriptor]
        rank.close()
        first, *more = said.split(b"\n")
        number = first.removeprefix(b"begin ")
        if number.isdigit() and b"end" not in more:
            self._left.append(int(number))
