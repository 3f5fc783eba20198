# SPDX-License-Identifier: Apache-2.0
"""The last results, JSON alone: bench/results/EXPERIMENT/MPI.json; "any" where no MPI has a part in
it. Texts and pictures are made from them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "results"


def path(name: str, mpi: str) -> Path:
    """Where a result is kept; its folder is made."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{mpi}.json"


def documents() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Experiment, MPI and document of all that are there."""
    for file in sorted(FOLDER.glob("*/*.json")):
        yield file.parent.name, file.stem, json.loads(file.read_text(encoding="utf-8"))
