# SPDX-License-Identifier: Apache-2.0
"""Which reduction loops does the compiler vectorise, and how fast is one of them?

Compiles csrc/kernels with the library's flags and asks gcc (-fopt-info-vec), once for each
target that the library has clones for; then times the sum of float32 against memcpy.

    python bench/kernels.py [--output bench/results/kernels.txt]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "csrc" / "kernels"
FILES = (
    "floats",
    "complex",
    "integers",
    "logical",
    "halves",
    "planes",
    "rotate",
    "quantise",
    "lattice",
)
TARGETS = {"default": [], "avx2": ["-mavx2"], "avx512f": ["-mavx512f"]}
HOT = "/*hot*/"
CC = os.environ.get("CC", "gcc")


def flags() -> list[str]:
    """Those of the library."""
    os.environ["PARTIALCOLL_NO_BUILD"] = "1"
    sys.path.insert(0, str(ROOT / "csrc"))
    import ffibuilder

    return list(ffibuilder.FLAGS)


def one_function_a_line(source: Path, options: list[str]) -> str:
    """Preprocessed, so that a line of the report is one function. Clones are taken off, and those
    that had some, which are the hot ones, are marked."""
    command = [CC, *options, "-E", "-P", str(source)]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    text = re.sub(r"(?=\bstatic \w+ \w+\()", "\n", text)
    return re.sub(r"__attribute__\s*\(\(target_clones\([^)]*\)\)\)\s*", "\n" + HOT, text)


def functions(text: str) -> dict[int, str]:
    """Line -> the hot function it belongs to, or nothing."""
    owner, lines = "", {}
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"(/\*hot\*/)?static \w+ (\w+)\(", line)
        if found:
            owner = found.group(2) if found.group(1) else ""
        lines[number] = owner
    return lines


def widths(source: Path, options: list[str], folder: Path) -> dict[str, int]:
    """Function -> bytes of the widest vectors its loop uses; 0: none."""
    text = one_function_a_line(source, options)
    lines = functions(text)
    copy = folder / source.name
    copy.write_text(text)
    command = [CC, *options, "-w", "-fopt-info-vec-optimized", "-c", str(copy), "-o", os.devnull]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = dict.fromkeys((name for name in lines.values() if name), 0)
    for line, width in re.findall(r":(\d+):\d+: optimized: loop vectorized using (\d+)", report):
        name = lines[int(line)]
        if name:
            found[name] = max(found[name], int(width))
    return found


def table() -> dict[str, dict[str, int]]:
    """Function -> target -> bytes."""
    rows: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in FILES:
            for target, more in TARGETS.items():
                found = widths(KERNELS / f"{name}.c", [*flags(), *more], Path(folder))
                for function, width in found.items():
                    rows.setdefault(function, {})[target] = width
    return rows


def speed() -> list[tuple[int, int, int]]:
    """(bytes, ns of the sum, ns of memcpy), each."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "speed"
        sources = [*KERNELS.glob("*.c"), ROOT / "csrc/base/error.c", ROOT / "bench/kernels_speed.c"]
        command = [CC, *flags(), *map(str, sources), "-lm", "-lpthread", "-o", str(program)]
        subprocess.run(command, check=True)
        text = subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout
    return [(int(a), int(b), int(c)) for a, b, c in (line.split() for line in text.splitlines())]


def report() -> str:
    """Both, as text."""
    version = subprocess.run([CC, "--version"], capture_output=True, text=True).stdout
    lines = [
        f"Compiler: {version.splitlines()[0]}",
        f"Flags: {' '.join(flags())}",
        "",
        "Bytes of the vectors that each loop uses; - means element by element. Integers whose op",
        "does not depend on the sign have one loop for each width (sum_8 is that of int8, uint8).",
        "",
        f"{'loop':24}" + "".join(f"{target:>10}" for target in TARGETS),
    ]
    rows = table()
    for name, row in sorted(rows.items()):
        lines.append(f"{name:24}" + "".join(f"{row[t] or '-':>10}" for t in TARGETS))
    scalar = {t: sorted(n for n, row in rows.items() if not row[t]) for t in TARGETS}
    lines.append("")
    for target, names in scalar.items():
        lines.append(
            f"{target}: {len(rows) - len(names)} of {len(rows)} loops vectorised"
            + (f"; not: {', '.join(names)}" if names else "")
        )
    lines += [
        "",
        "float32 SUM in place against memcpy, in turns, medians. GB/s of bytes read and written:",
        "the sum moves 3 for each byte of a buffer, memcpy 2.",
        "",
        f"{'bytes':>10}{'SUM us':>12}{'memcpy us':>12}{'SUM GB/s':>12}{'memcpy GB/s':>14}",
    ]
    for size, add, copy in speed():
        lines.append(
            f"{size:>10}{add / 1e3:>12.1f}{copy / 1e3:>12.1f}"
            f"{3 * size / add:>12.1f}{2 * size / copy:>14.1f}"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    text = report()
    print(text, end="")
    if arguments.output:
        arguments.output.write_text(text)
