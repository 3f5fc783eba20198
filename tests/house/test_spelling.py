# SPDX-License-Identifier: Apache-2.0
"""American spelling, as numpy, mpi4py and torch write; what was spelled otherwise still works."""

import re
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc
from partialcoll import decentralized

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
ALIASES = [
    "neighbours",
    "in_neighbours",
    "out_neighbours",
    "synchronise",
    "NeighbourExchange",
    "Neighbours",
    "decentralised",
]
MAY_NAME_THEM = {
    "topology.py",
    "averages.py",
    "dpsgd.py",
    "neighbors.py",
    "_moved.py",
    "CHANGELOG.md",
}
MAY_NAME_THEM |= {"decentralized/__init__.py"}
# Names of files and tests that are cited.
CITED = re.compile(r"\w*test_\w+|busy[-_]neighbours\w*|\w*decentralised_(?:tables|training)\w*")


def left(text, may_name_them):
    found = {m.group() for m in BRITISH.finditer(CITED.sub("", text))}
    return sorted(found - set(ALIASES if may_name_them else ()))


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_american(path):
    name = str(path.relative_to(ROOT))
    text = path.read_text()
    if path.name == "glossary.md":
        text = text.replace("decentralised", "")
    assert not left(path.name + text, any(name.endswith(n) for n in MAY_NAME_THEM))


def test_it_finds_them():
    text = "the neighbours' Behaviour is resynchronised; test_decentralised; noise, advise, raise"
    assert left(text, False) == ["Behaviour", "neighbours", "resynchronised"]
    assert left(text, True) == ["Behaviour", "resynchronised"]


def test_topology_under_old_names():
    ring = pc.Topology.ring(5)
    for old in ("neighbours", "in_neighbours", "out_neighbours"):
        with pytest.warns(DeprecationWarning, match=f"{old} is now {old.replace('our', 'or')}"):
            assert getattr(ring, old)(0) == (1, 4)


def test_classes_under_old_names():
    with pytest.warns(DeprecationWarning, match="NeighbourExchange is now NeighborExchange"):
        assert decentralized.NeighbourExchange is decentralized.NeighborExchange
    with pytest.warns(DeprecationWarning, match="Neighbours is now Neighbors"):
        assert decentralized.Neighbours is decentralized.Neighbors
    with pytest.warns(DeprecationWarning, match="Total is now GlobalSum"):
        assert decentralized.Total is decentralized.GlobalSum
    with pytest.raises(AttributeError, match=r"partialcoll.decentralized.*'nothing'"):
        decentralized.nothing  # noqa: B018


def test_arguments_under_old_names():
    with pytest.warns(DeprecationWarning, match="neighbours= is now neighbors="):
        weights = decentralized.metropolis(neighbours=[[1], [0]], rank=0)
    assert weights == decentralized.metropolis([[1], [0]], 0)
    with pytest.warns(DeprecationWarning, match="neighbours= is now neighbors="):
        decentralized.NeighborExchange(MPI.COMM_SELF, np.zeros(1), neighbours=[]).Free()


def test_synchronise():
    total = decentralized.GlobalSum.over(MPI.COMM_SELF)
    with decentralized.Alone(np.arange(2.0), total=total) as p:
        with pytest.warns(DeprecationWarning, match="synchronise is now average_models"):
            p.synchronise()
        assert p.model.tolist() == [0, 1]
    total.Free()
