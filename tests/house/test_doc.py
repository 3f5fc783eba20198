# SPDX-License-Identifier: Apache-2.0
"""The names that the interface fixes, and the installation extras, are in the docs."""

import importlib
import re
from pathlib import Path

import pytest

import partialcoll as pc

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]


def module_of(name):
    if name == "partialcoll.torch":
        pytest.importorskip("torch")
    return importlib.import_module(name)


HANDLE = """Start Wait Test until join leave Free send_buffer recv_buffer result last_round
    stats schedule memory"""
ROUND = "index results active stored included mask lag lost below_quorum initiator"
SCHEDULE = """send recv reduce copy nop timer after commit Start Wait Test Free to_dot
    to_goal"""
MODULE = (
    "Allreduce Allreduce_init Startall Waitall Waitany Solo Majority Full Quorum FirstOf LastOf "
    "Schedule"
)
TORCH = """init shutdown is_initialized rank size local_rank local_size cross_rank cross_size
    barrier allreduce allreduce_ allreduce_async allreduce_async_ poll synchronize broadcast
    broadcast_ broadcast_async broadcast_async_ broadcast_object allgather_object
    broadcast_parameters broadcast_optimizer_state join Average Sum Compression start_timeline
    stop_timeline DistributedOptimizer Allreduce Eager Strategy"""


def test_horovods_names():
    module = module_of("partialcoll.torch")
    assert not [name for name in TORCH.split() if name not in module.__all__]
    assert not [name for name in module.__all__ if not hasattr(module, name)]


def test_interface_names():
    """The names that the interface fixes."""
    for owner, names in (
        (pc, MODULE),
        (pc.AllreduceHandle, HANDLE),
        (pc.Round, ROUND),
        (pc.Schedule, SCHEDULE),
    ):
        known = {*dir(owner), *owner.__annotations__}
        assert not [name for name in names.split() if name not in known]


def test_the_installation_page_explains_each_extra():
    """README and docs describe installation from source only, which is the only way so far."""
    install = (ROOT / "docs/install.md").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    part = project.split("[project.optional-dependencies]")[1].split("\n\n")[0]
    extras = re.findall(r"^(\w+) = ", part, re.MULTILINE)
    assert {"plot", "train"} <= set(extras)
    rows = " ".join(re.findall(r"^\| (`\[.*?) \|", install, re.MULTILINE))
    assert set(re.findall(r"`\[(\w+)\]`", rows)) == set(extras)
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        assert not re.search(r"\binstall ['\"]?partialcoll\b", page.read_text()), page.name
