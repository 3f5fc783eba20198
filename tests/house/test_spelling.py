# SPDX-License-Identifier: Apache-2.0
"""American spelling, as numpy, mpi4py and torch write."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
SOURCES = [
    *(ROOT / "partialcoll").rglob("*.py"),
    *(ROOT / "bench").rglob("*.py"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "examples").rglob("*.py"),
    *ROOT.glob("*.md"),
    *(ROOT / "csrc").rglob("*.[ch]"),
    *(path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)),
]
IZE = [
    "normal",
    "serial",
    "initial",
    "final",
    "quant",
    "synchron",
    "decentral",
    "central",
    "optim",
    "organ",
    "recogn",
    "real",
    "general",
    "special",
    "minim",
    "maxim",
    "vector",
    "parallel",
    "random",
    "regular",
    "summar",
    "equal",
]
BRITISH = re.compile(
    rf"\w*(?:(?:{'|'.join(IZE)})is(?:e|ing|ation)|neighbour|behaviour|colour|favour|flavour"
    r"|labour|honour|licence|centre|catalogue|labell|modell|cancell|travell|analyse)\w*",
    re.IGNORECASE,
)
# Cited names of files and tests.
CITED = re.compile(r"\w*test_\w+|busy[-_]neighbours\w*|\w*decentralised_(?:tables|training)\w*")


def british(text):
    return sorted({m.group() for m in BRITISH.finditer(CITED.sub("", text))})


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_american(path):
    text = path.read_text()
    assert not british(path.name + text)


def test_it_finds_them():
    text = "the neighbours' Behaviour is resynchronised; test_decentralised; noise, advise, raise"
    assert british(text) == ["Behaviour", "neighbours", "resynchronised"]
