# SPDX-License-Identifier: Apache-2.0
"""A progress bar on standard error, where that is a terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")
_SECONDS = 0.2  # between two looks of the bar: it is drawn by the one who measures


def has_bar() -> bool:
    """Is there a terminal for one? A launcher's rank writes to that of who started it."""
    return sys.stderr.isatty() or bool(os.environ.get("PARTIALCOLL_TTY"))


def progress(items: Iterable[T], show: bool, what: str) -> Iterator[T]:
    """The items, with a bar on a terminal."""
    if not (show and has_bar()):
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress

    todo = list(items)
    console = Console(file=sys.stderr, force_terminal=True)
    with Progress(console=console, transient=True, auto_refresh=False) as bar:
        task, shown = bar.add_task(what, total=len(todo)), time.monotonic()
        for done, item in enumerate(todo):
            if time.monotonic() - shown > _SECONDS:
                bar.update(task, completed=done, refresh=True)
                shown = time.monotonic()
            yield item
