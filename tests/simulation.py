# SPDX-License-Identifier: Apache-2.0
"""The sources of the programs with seeded schedules, as the Makefile lists them."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Archives of core and helpers need each other: a helper watches the core's calls.
LIBRARIES = ["-lm", "-lpthread"]


def sources(what: str) -> list[Path]:
    """Return the C sources of the `core`, or the `helpers` of the C tests."""
    command = ["make", "-s", "--no-print-directory", f"print-{what}"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in names.split()]


def archive(to: Path, objects: list[str]) -> str:
    """Create an archive, from which a program links what it needs."""
    subprocess.run(["ar", "rcs", str(to), *objects], check=True)
    return str(to)
