# SPDX-License-Identifier: Apache-2.0
"""torch's own tests of torch.distributed, as a `Suite`: on gloo and on this library. Each test has
a world of its own; see suite_torch_rank.py, which is what runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from lib.suite import Side, Suite

_RANK = Path(__file__).with_name("suite_torch_rank.py")


def make(ranks: int, scratch: Path) -> Suite:
    """The suite of the torch that is installed; scratch: for what the ranks leave."""
    words = [sys.executable, str(_RANK), str(ranks)]
    known = json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    def on(backend: str) -> Side:
        def words(tests: Sequence[str]) -> Sequence[str]:
            return [str(_RANK), backend, *tests]

        return Side(words, scratch, scratch, {})

    return Suite("torch", known["tests"], known["digest"], on("partialcoll"), on("gloo"))
