# SPDX-License-Identifier: Apache-2.0
"""C programs start with the defaults of Python's signatures, and see the same version."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc
from partialcoll._core.ffi import ffi, lib
from partialcoll.collectives.handle import Arguments

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]


def value(of):
    """Return a struct of the core, or one of its members, as a Python value for comparisons."""
    if isinstance(of, ffi.CData):
        kind = ffi.typeof(of)
        if kind.kind == "pointer":
            return value(of[0])
        if kind.kind == "struct":
            return {name: value(getattr(of, name)) for name, _ in kind.fields}
        if kind.kind == "array":
            return [value(one) for one in of]
    return of


def initialized(kind):
    """Return the initialized options of C programs, in memory with other contents before."""
    options = ffi.new(f"pcoll_{kind} *")
    ffi.buffer(options)[:] = b"\xa5" * ffi.sizeof(options[0])
    getattr(lib, f"pcoll_{kind}_init")(options)
    return value(options)


def chosen(monkeypatch, kind, make):
    """Return the options with which `make` would create an object of this kind."""
    found = {}

    def create(self, comm, create, arguments, refused):
        self._rank, self._size = comm.rank, comm.size
        (options,) = arguments()
        found.update(value(options))
        raise InterruptedError

    monkeypatch.setattr(kind, "_create", create)
    with pytest.raises(InterruptedError):
        make()
    return found


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    """Use Python's defaults, not the environment's."""
    for name in ("PROGRESS", "DOMAIN", "ALGORITHM", "TIMEOUT"):
        monkeypatch.delenv(f"PARTIALCOLL_{name}", raising=False)


NOT_OF_THE_CORE = ("comm", "on_membership", "join")


def test_of_an_allreduce():
    signature = inspect.signature(pc.Allreduce_init).parameters
    defaults = {name: one.default for name, one in signature.items() if name not in NOT_OF_THE_CORE}
    x = np.ones(3)
    given = Arguments(**{**defaults, "sendbuf": x, "recvbuf": x.copy()})
    assert initialized("options") == value(given.options)


def test_of_a_gossip_buffer(monkeypatch):
    """All defaults except the model: elements, dtype, and placeholders for shape and topology."""
    x = np.ones(3, np.float32)
    make = {
        None: lambda: pc.GossipBuffer(MPI.COMM_SELF, like=x),
        8: lambda: pc.GossipBuffer(MPI.COMM_SELF, like=x, codec=pc.Lattice()),
    }
    plain = chosen(monkeypatch, pc.GossipBuffer, make[None])
    coded = chosen(monkeypatch, pc.GossipBuffer, make[8])
    own = {name: plain[name] for name in ("count", "dtype", "shape", "topology")}
    ours = {**initialized("gossip_options"), **own}
    assert {**ours, "margin": 0.0} == plain
    assert {**ours, "bits": pc.Lattice().bits} == coded


def test_of_a_group(monkeypatch):
    x = np.ones(3)
    found = chosen(
        monkeypatch,
        pc.GroupAllreduce,
        lambda: pc.GroupAllreduce_init(MPI.COMM_SELF, MPI.IN_PLACE, x),
    )
    own = {name: found[name] for name in ("count", "dtype")}
    assert {**initialized("group_options"), **own} == found


def test_of_a_lattice():
    described = pc.Lattice()._describe(3, lib.PCOLL_FLOAT64, None, False)
    own = {"count": 3, "dtype": lib.PCOLL_FLOAT64}
    assert {**initialized("lattice"), **own} == value(described)


def test_the_version_is_the_packages():
    header = (ROOT / "csrc" / "include" / "partialcoll.h").read_text()
    found = dict(re.findall(r"^#define PCOLL_VERSION_(\w+) (\d+)$", header, re.MULTILINE))
    parts = [found[name] for name in ("MAJOR", "MINOR", "PATCH")]
    assert ".".join(parts) == pc.__version__
    major, minor, patch = map(int, parts)
    assert lib.pcoll_version() == 10000 * major + 100 * minor + patch
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^version = "(.*)"$', project, re.MULTILINE) == [pc.__version__]
