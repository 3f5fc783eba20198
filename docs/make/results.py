# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks, made of the results that are kept: a table for each of them."""

import json
from pathlib import Path
from typing import Any

ROWS, COLUMNS = 24, 10
HEAD = """# Benchmarks

Every result that is kept, as it was measured: `bench/results/EXPERIMENT/MPI.json`, written by
`partialcoll …` or `bench/run.py`, which also make pictures of them (`bench/run.py figures`).
[semantics.md](semantics.md) and the pages of the parts say what the numbers mean; names end in
their units. Measured on few cores: what many ranks do on two cores says something about waiting,
little about bandwidth. Of long tables the first rows are shown, and columns that differ.

![Average latency of an allreduce with skewed arrival](img/skew-32.png)

![Loss against time with one rank late in each step](img/train-hyperplane-300.png)

"""


def page(root: Path) -> str:
    """The page."""
    by_name: dict[str, list[Path]] = {}
    for file in sorted((root / "bench/results").glob("*/*.json")):
        by_name.setdefault(file.parent.name, []).append(file)
    return HEAD + "".join(
        f"## {name}\n\n" + "".join(map(_result, files)) for name, files in by_name.items()
    )


def _result(file: Path) -> str:
    document = json.loads(file.read_text())
    rows = [row for row in document.get("rows", []) if isinstance(row, dict)]
    about = ", ".join(
        f"`{v}`" if k == "arguments" else f"{k} {v}"
        for k, v in document.get("env", {}).items()
        if k != "mpi" and v is not None and _plain(v)
    )
    command = f"`{document.get('command', '')}`"
    return f"**{file.stem}**: {command}; {about or 'any machine'}\n\n{_table(rows)}\n"


def _plain(value: Any) -> bool:
    return not isinstance(value, (list, dict))


def _table(rows: list[dict[str, Any]]) -> str:
    names = dict.fromkeys(n for row in rows for n in row if _plain(row[n]))
    differ = [n for n in names if len({str(row.get(n)) for row in rows}) > 1 or len(rows) == 1]
    columns = differ[:COLUMNS]
    if not columns:
        return ""
    lines = [
        columns,
        ["---"] * len(columns),
        *([_cell(row.get(n)) for n in columns] for row in rows[:ROWS]),
    ]
    more = f"\n… {len(rows) - ROWS} more\n" if len(rows) > ROWS else ""
    return "".join(f"| {' | '.join(line)} |\n" for line in lines) + more


def _cell(value: Any) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")[:60]
