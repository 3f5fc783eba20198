# SPDX-License-Identifier: Apache-2.0
"""The type of a planted mistake."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A mistake: in `file`, replace the text `old` by `new`. `program` must detect it; by default
    the one for the file's folder."""

    name: str
    file: str
    old: str
    new: str
    program: str | None = None
