# SPDX-License-Identifier: Apache-2.0
"""What a planted mistake is."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake: in a file, this text becomes that one. `program`: which has to catch it, if not
    the one that the file's folder says."""

    name: str
    file: str
    old: str
    new: str
    program: str | None = None
