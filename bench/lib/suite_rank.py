# SPDX-License-Identifier: Apache-2.0
"""What a rank that runs tests tells the process that has started it: see suite.py."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple

FOLDER = "PARTIALCOLL_SUITE_FOLDER"  # in the environment: where outcomes are left
RANKS = "PARTIALCOLL_SUITE_RANKS"  # likewise: that leave them


class Outcome(NamedTuple):
    """what: passed, skipped, failed, crashed or hangs. said: its last word."""

    what: str
    said: str = ""


READY = ""  # in place of a test: it can begin


def folder(test: str) -> Path:
    """Of a test; it is there."""
    return Path(os.environ[FOLDER], test)


def leave(test: str, rank: int, outcome: Outcome) -> None:
    """Whoever finds the file finds all of it. Then the rank waits for the others: if it went on and
    crashed in the next test, those that the launcher ends would not have left this one. After a
    test that failed it waits to be ended: others may be in the middle of it."""
    fresh = folder(test) / f".{rank}"
    fresh.write_text(json.dumps(outcome))
    fresh.rename(folder(test) / f"rank-{rank}")
    while outcome.what == "failed":
        time.sleep(1)
    while len(list(folder(test).glob("rank-*"))) < int(os.environ[RANKS]):
        time.sleep(0.005)
