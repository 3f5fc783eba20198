# SPDX-License-Identifier: Apache-2.0
"""The timeline: when calls and rounds waited for others and when they moved, in Chrome's trace
format (chrome://tracing, Perfetto). It is written by rank 0, as Horovod's is.

Events come when something has ended, as pairs of asynchronous events (b, e) of one number, since
calls overlap. The file is whole JSON after each.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
import time
from typing import IO, Any

from . import files, settings

_NAME = re.compile(r"name=(['\"])(.*)\1")


class Recorder:
    """Writes one file. marks: also a mark where data begins to move. A file that cannot be written,
    on a full disk for instance, ends with a warning; what is traced goes on."""

    def __init__(self, file: IO[str], marks: bool) -> None:
        self._file, self._marks = file, marks
        self._lock, self._numbers = threading.Lock(), itertools.count(1)
        self._begin = time.monotonic()
        began = {"start_time_since_epoch_in_micros": int(time.time() * 1e6)}
        first = {"name": "process_name", "ph": "M", "pid": 0, "args": began}
        self._file.write(f"[\n{json.dumps(first)}]")
        self._file.flush()

    def call(self, text: str, began: float, agreed: float | None) -> None:
        """Write a call that ends now. text: what the ranks compared; agreed: when, None: never."""
        what, name = text.partition(" of ")[0].removeprefix("asynchronous "), _NAME.search(text)
        phase = what.upper().replace(" ", "_")
        track, now = f"{what}.{name[2] if name else 'noname'}", time.monotonic()
        moves = now if agreed is None else agreed
        self.phases(track, [(f"NEGOTIATE_{phase}", began), (phase, moves)], now, text)

    def phases(
        self, track: str, begins: list[tuple[str, float]], end: float, text: str = ""
    ) -> None:
        """Write consecutive phases, each with its beginning. The data moves in the last one."""
        number, events = next(self._numbers), []

        def event(phase: str, name: str, moment: float, **more: Any) -> None:
            common = {"name": name, "cat": "partialcoll", "id": number, "pid": 0, "tid": 0}
            events.append(
                {**common, "ph": phase, "ts": round((moment - self._begin) * 1e6, 1), **more}
            )

        ends = [moment for _, moment in begins[1:]] + [end]
        event("b", track, begins[0][1], args={"call": text})
        for (name, begin), until in zip(begins, ends):
            event("b", name, begin)
            event("e", name, until)
        event("e", track, end)
        if self._marks:
            event("i", "CYCLE_START", begins[-1][1], s="g")
        said = "".join(f",\n{json.dumps(event)}" for event in events)
        with self._lock:
            if not self._file.closed:
                try:
                    self._file.seek(self._file.tell() - 1)
                    self._file.write(f"{said}]")
                    self._file.flush()
                except OSError as error:
                    self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        text = "timeline: %s: %s. It is incomplete; the run goes on"
        settings.logger.warning(text, self._file.name, error.strerror or error)
        with contextlib.suppress(OSError):  # what is left in the buffer cannot be written either
            self._file.close()

    def close(self) -> None:
        with self._lock:
            try:
                self._file.close()
            except OSError as error:
                self._give_up(error)


recorder: Recorder | None = None
"""The recorder of this process, while it writes a timeline."""


def start(path: Any, marks: bool) -> None:
    global recorder
    fresh = Recorder(files.create_text(path), marks)
    stop()
    recorder = fresh


def stop() -> None:
    global recorder
    ended, recorder = recorder, None
    if ended is not None:
        ended.close()
