# SPDX-License-Identifier: Apache-2.0
"""What the threads of a process came to last, and where it is to die: the file that a core with
checks keeps for each process (struct moments in csrc/base/check.h)."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

_PAGE, _HEAD, _THREAD, _NAME = 4096, 64, 64, 24
_LEFT, _THREADS, _DIED = 48, 52, 56

# Where a rank may die, by what has it come there: shared memory, messages, a recovery, the end.
SHARED = (
    "deposit written",
    "deposit published",
    "result read",
    "closing a round",
    "member frozen",
    "members frozen",
    "chunk taken",
    "sum ready",
    "publishing",
    "published",
)
ALONE = ("deposit written", "deposit published", "result read", "publishing")
MESSAGES = (
    "frozen",
    "activating",
    "sending",
    "reducing",
    "reporting",
    "round over",
    "round published",
)
RECOVERY = (
    "outage begun",
    "revoked",
    "last word",
    "shrunk",
    "census taken",
    "rebuilt",
    "all rebuilt",
    "inherited",
    "all inherited",
    "gone on",
)
GOSSIP = (
    "delta reserved",
    "chunk given",
    "delta given",
    "chunk collected",
    "all collected",
    "slot claimed",
    "message written",
    "version written",
)
GROUPS = ("contributed", "part reduced", "about to vote", "voted", "decided", "group closed")
CLOSING = ("closing begun", "closing entered", "closing counted", "drained", "confirmed")


class Moments:
    """Of one process, which may have ended."""

    def __init__(self, folder: Path, pid: int) -> None:
        with open(folder / f"moments-{pid}", "r+b") as file:
            self._page = mmap.mmap(file.fileno(), _PAGE)

    def aim(self, name: str, passes: int) -> None:
        """It dies when one of its threads comes there for that time from now on. 0: nowhere."""
        struct.pack_into("=i", self._page, _LEFT, 0)
        self._page[:_LEFT] = name.encode().ljust(_LEFT, b"\0")
        struct.pack_into("=i", self._page, _LEFT, passes)

    @property
    def died_ns(self) -> int:
        """When it died where it should; 0: it has not."""
        return int(struct.unpack_from("=q", self._page, _DIED)[0])

    @property
    def aimed(self) -> str:
        """Where it is to die."""
        return self._page[:_LEFT].rstrip(b"\0").decode()

    def last(self) -> list[str]:
        """Of each of its threads."""
        (threads,) = struct.unpack_from("=I", self._page, _THREADS)
        found = []
        for number in range(min(threads, (_PAGE - _HEAD) // _THREAD)):
            at = _HEAD + _THREAD * number
            (which,) = struct.unpack_from("=I", self._page, at)
            if which:
                begin = at + 8 + _NAME * (which - 1)
                found.append(self._page[begin : begin + _NAME].split(b"\0")[0].decode())
        return found


def of_domain(domain: str) -> tuple[str, ...]:
    """Those that ranks come to in a loop."""
    if domain == "rank":
        return ALONE + MESSAGES
    return SHARED + MESSAGES if ":" in domain else (*SHARED, "frozen", "round over")
