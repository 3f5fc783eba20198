# SPDX-License-Identifier: Apache-2.0
"""The page of benchmarks, made from the stored results: a table for each."""

import json
import sys
from pathlib import Path
from typing import Any

import click

from partialcoll.tools import cli

ROWS, COLUMNS = 24, 10
HEAD = """# Benchmarks

Every result that is kept, as it was measured: `bench/results/EXPERIMENT/MPI.json`, written by
`partialcoll …` or `bench/run.py`.
[The contract](semantics.md) and the pages of the parts say what the numbers mean; names end in
their units. Measured on few cores: what many ranks do on two cores says something about waiting,
little about bandwidth. Of long tables the first rows are shown, and columns that differ. They are
in the order of the commands that made them, each of which does it again on your machine.

![Average latency of an allreduce with skewed arrival](img/skew-32.png)

![Loss against time with one rank late in each step](img/train-hyperplane-300.png)

"""


def page(root: Path) -> str:
    """Return the page."""
    commands = _Commands(root)
    parts: dict[tuple[int, str, str], dict[str, list[str]]] = {}
    for file in sorted((root / "bench/results").glob("*/*.json")):
        document = json.loads(file.read_text())
        part = parts.setdefault(commands.heading(document.get("command")), {})
        part.setdefault(file.parent.name, []).append(_result(file, document))
    return HEAD + "".join(
        f"## {heading}\n\n{about}" + "".join(f"### {n}\n\n{''.join(part[n])}" for n in part)
        for (_, heading, about), part in sorted(parts.items())
    )


class _Commands:
    """Names and descriptions of the commands that made the results."""

    def __init__(self, root: Path) -> None:
        sys.path.insert(0, str(root / "bench"))
        import run

        self._places = {"partialcoll": cli.commands, "bench/run.py": run.experiments}

    def heading(self, command: str | None) -> tuple[int, str, str]:
        """Return place, name and help for the results of a command; without a command, those of the
        protocol checks."""
        group, _, name = (command or "").replace("neighbours", "neighbors").partition(" ")
        for place, (program, top) in enumerate(self._places.items()):
            words = [group, name] if program == "partialcoll" else [name]
            found = _found(top, words)
            if found is not None:
                return place, f"`{' '.join([program, *words])}`", f"{_first_part(found.help)}\n\n"
        return (
            len(self._places),
            "Checks of the protocol",
            "See [how the protocol is checked](verification.md).\n\n",
        )


def _first_part(text: str | None) -> str:
    return " ".join((text or "").split("\n\n")[0].split()).replace("*", "\\*")


def _found(command: Any, words: list[str]) -> Any:
    """Return the subcommand that the words name, or None."""
    for word in words:
        if not isinstance(command, click.Group):
            return None
        command = command.get_command(click.Context(command), word)
    return command


def _result(file: Path, document: dict[str, Any]) -> str:
    rows = [row for row in document.get("rows", []) if isinstance(row, dict)]
    about = ", ".join(
        f"`{v}`" if k == "arguments" else f"{k} {v}"
        for k, v in document.get("env", {}).items()
        if k != "mpi" and v is not None and _plain(v)
    )
    if "repeats" in document:
        about += f"; medians of {document['repeats']} runs"
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
