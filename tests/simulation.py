# SPDX-License-Identifier: Apache-2.0
"""What the programs of seeded schedules are made of, as the Makefile lists it."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def sources(program: str = "simulation") -> list[Path]:
    """The C sources, the test's main included; program: simulation (test_invariants) or steps
    (test_node_steps)."""
    command = ["make", "-s", f"print-{program}"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split()]
