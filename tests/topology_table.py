# SPDX-License-Identifier: Apache-2.0
"""Write the table of docs/topologies.md: python tests/topology_table.py. A test compares it."""

from pathlib import Path

import partialcoll as pc

PAGE = Path(__file__).resolve().parent.parent / "docs" / "topologies.md"
NAMES = (
    "ring",
    "torus",
    "hypercube",
    "random_regular:4,seed=1",
    "exponential",
    "directed_exponential",
    "star",
    "complete",
)
SIZES = (8, 16, 64)
HEAD = "| topology | n | χ₁ | χ₂ | η | α̃ | spectral gap |\n|---|---|---|---|---|---|---|\n"


def row(name, n):
    """Return one line: all values at one averaging per rank and unit of time."""
    t = pc.Topology.make(name, n)
    parameters = t.a2cid2()
    values = (t.chi1(), t.chi2(), parameters.eta, parameters.alpha_tilde, t.spectral_gap())
    return f"| `{name}` | {n} | " + " | ".join(f"{value:.4f}" for value in values) + " |\n"


def table():
    """Return the whole table as text."""
    return HEAD + "".join(row(name, n) for name in NAMES for n in SIZES)


def split(page):
    """Return the page before, in and after its table."""
    begin = page.index(HEAD)
    end = page.index("\n\n", begin) + 1
    return page[:begin], page[begin:end], page[end:]


if __name__ == "__main__":
    before, _, after = split(PAGE.read_text())
    PAGE.write_text(before + table() + after)
