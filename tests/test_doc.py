# SPDX-License-Identifier: Apache-2.0
"""Every public name has a docstring."""

import inspect

import pytest

import partialcoll as pc
from partialcoll import processes


@pytest.mark.parametrize("module", (pc, processes), ids=lambda m: m.__name__)
def test_docstrings(module):
    missing = []
    for name in module.__all__:
        thing = getattr(module, name)
        if name == "__version__":
            continue
        if not inspect.getdoc(thing):
            missing.append(name)
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if member.startswith("_") or member in getattr(thing, "__slots__", ()):
                    continue
                if (callable(value) or isinstance(value, property)) and not inspect.getdoc(value):
                    missing.append(f"{name}.{member}")
    assert not missing, missing


HANDLE = """Start Wait Test until join leave Free send_buffer recv_buffer result last_round
    stats schedule memory"""
ROUND = "index results active stored included mask lag lost below_quorum initiator"
SCHEDULE = """send recv reduce copy nop timer after commit Start Wait Test Free to_dot
    to_goal"""
MODULE = (
    "Allreduce Allreduce_init Startall Waitall Waitany Solo Majority Full Quorum FirstOf LastOf "
    "Schedule"
)


def test_interface_names():
    """The names that the interface fixes."""
    for owner, names in (
        (pc, MODULE),
        (pc.AllreduceHandle, HANDLE),
        (pc.Round, ROUND),
        (pc.Schedule, SCHEDULE),
    ):
        assert not [name for name in names.split() if not hasattr(owner, name)]
