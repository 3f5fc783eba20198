# SPDX-License-Identifier: Apache-2.0
"""Which reduction loops does the compiler vectorize?

Compiles csrc/kernels with the library's flags and asks gcc (-fopt-info-vec), once for each
target that the library has clones for. A row has the bytes of the vectors that a loop uses with
each target (0: element by element).
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from partialcoll.tools import report
from partialcoll.tools.cli import options

ROOT = Path(__file__).resolve().parents[2]
KERNELS = ROOT / "csrc" / "kernels"
FILES = ("reduce", "quantize", "lattice")
TARGETS = {"default": [], "avx2": ["-mavx2"], "avx512f": ["-mavx512f"]}
HOT = "/*hot*/"
CC = os.environ.get("CC", "gcc")


def flags() -> list[str]:
    os.environ["PARTIALCOLL_NO_BUILD"] = "1"
    sys.path.insert(0, str(ROOT / "csrc"))
    import ffibuilder
    import hardening

    return [*ffibuilder.FLAGS, *hardening.flags(CC).compile, f"-I{ROOT / 'csrc'}"]


def widths(source: Path, options: list[str], folder: Path) -> dict[str, int]:
    """Return the bytes of the widest vectors that the loops of each function use; 0: none. The
    preprocessed source is compiled with functions at the beginning of a line. Clones are removed;
    functions that had clones, which are the hot ones, are marked. A function that is always inlined
    into them counts if one of its loops uses vectors: its short inner loops are unrolled."""
    command = [CC, *options, "-E", "-P", str(source)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = re.sub(r"(?=\bstatic \w+ \w+\()", "\n", text)
    text = re.sub(r"(?=\bstatic inline __attribute__)", "\n", text)
    text = re.sub(r"__attribute__\s*\(\(target_clones\([^)]*\)\)\)\s*", "\n" + HOT, text)
    owner, hot, lines, loops = "", None, {}, set()
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"(/\*hot\*/)?static (inline __attr\S+ )?\w+ (\w+)\(", line)
        if found:
            hot, inlined, name = found.groups()
            owner = name if hot or inlined else ""
        lines[number] = owner
        if "for (" in line and hot:
            loops.add(owner)
    copy = folder / source.name
    copy.write_text(text)
    command = [CC, *options, "-w", "-fopt-info-vec-optimized", "-c", str(copy), "-o", os.devnull]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    widest = dict.fromkeys(filter(None, loops), 0)
    for line, width in re.findall(r":(\d+):\d+: optimized: loop vectorized using (\d+)", said):
        name = lines[int(line)]
        if name:
            widest[name] = max(widest.get(name, 0), int(width))
    return widest


@click.command("kernels", help=__doc__, short_help="which reduction loops are vectorized")
@options.json
def command(json: str | None) -> None:
    rows: dict[str, report.Row] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (target, more) in itertools.product(FILES, TARGETS.items()):
            found = widths(next(KERNELS.rglob(f"{name}.c")), [*flags(), *more], Path(folder))
            for function, width in found.items():
                rows.setdefault(function, {"loop": function})[target] = width
    loops = [row for _, row in sorted(rows.items())]
    document = report.document("bench kernels", 1, loops)
    version = subprocess.run([CC, "--version"], capture_output=True, text=True).stdout
    document["env"].update(compiler=version.splitlines()[0], flags=" ".join(flags()))
    report.write(json, document)
    for target in TARGETS:
        scalar = [row["loop"] for row in loops if not row[target]]
        not_these = f"; not: {', '.join(scalar)}" if scalar else ""
        click.echo(f"{target}: {len(loops) - len(scalar)} of {len(loops)}{not_these}", err=True)
