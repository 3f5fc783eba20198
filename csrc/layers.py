# SPDX-License-Identifier: Apache-2.0
"""Reads layers.txt: which folders there are, what each is part of, what it may include."""

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent


class Layer(NamedTuple):
    """A folder of csrc."""

    part: str
    may_include: frozenset


def read():
    """The layers by folder, lowest first."""
    layers = {}
    for line in (HERE / "layers.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            folder, part, below = re.fullmatch(r"(\S+) +(\w+):(.*)", line).groups()
            layers[folder] = Layer(part, frozenset(below.split()))
    return layers


def sources(*parts):
    """The C files of these parts of the build, relative to the checkout."""
    folders = [HERE / folder for folder, layer in read().items() if layer.part in parts]
    return [str(p.relative_to(HERE.parent)) for f in folders for p in sorted(f.glob("*.c"))]
