# SPDX-License-Identifier: Apache-2.0
"""What a check says, and how it is shown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

LEVELS = ("fine", "note", "warning", "stop")  # stop: something does not work at all
_WIDTH = 96


@dataclass(frozen=True)
class Finding:
    """`what` there is; for more than a note `why` it matters and the `mend`."""

    check: str
    level: str
    what: str
    why: str = ""
    mend: str = ""


def fine(check: str, what: str) -> Finding:
    """Nothing to mend."""
    return Finding(check, "fine", what)


def merge(of_ranks: Sequence[Sequence[Finding]]) -> dict[Finding, list[int]]:
    """Each finding once, with the ranks that have it; what is fine in the words of the first."""
    ranks: dict[Finding, list[int]] = {}
    fine: dict[str, Finding] = {}
    for rank, findings in enumerate(of_ranks):
        for finding in findings:
            first = fine.setdefault(finding.check, finding) if finding.level == "fine" else finding
            ranks.setdefault(first, []).append(rank)
    return ranks


def rows(merged: dict[Finding, list[int]]) -> list[dict[str, Any]]:
    """For JSON."""
    return [{**vars(finding), "ranks": ranks} for finding, ranks in merged.items()]


def _some(ranks: list[int], size: int) -> str:
    if len(ranks) == size:
        return ""
    few = ", ".join(map(str, ranks[:8]))
    return f" (rank {few}{', ...' if len(ranks) > 8 else ''})"


def lines(merged: dict[Finding, list[int]], size: int) -> Iterable[str]:
    """As text: what is wrong comes last, where one looks first."""
    for finding in sorted(merged, key=lambda finding: LEVELS.index(finding.level)):
        head = f"{finding.level:8} {finding.check}: "
        what = finding.what + _some(merged[finding], size)
        yield textwrap.fill(head + what, _WIDTH, subsequent_indent=" " * 9)
        for text in filter(None, (finding.why, finding.mend and f"-> {finding.mend}")):
            yield textwrap.fill(text, _WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 9)
