# SPDX-License-Identifier: Apache-2.0
"""Modules under the names that they once had."""

import importlib
import subprocess
import sys
import warnings

import pytest

import partialcoll as pc
from partialcoll._moved import MOVED, RENAMED

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

OLD = [*MOVED, "processes.sgp", "processes.moshpit"]


def in_a_process(code):
    """Standard error of a program; it must succeed."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize("old", OLD)
def test_import_warns_and_gives_the_same_module(old):
    first, _, rest = old.partition(".")
    new = f"partialcoll.{MOVED[first]}" + (f".{rest}" if rest else "")
    said = in_a_process(
        f"import sys, partialcoll.{old}, {new}\n"
        f"assert sys.modules['partialcoll.{old}'] is {new} is partialcoll.{old}"
    )
    assert f"<string>:1: DeprecationWarning: partialcoll.{old} is now {new}" in said


@pytest.mark.parametrize("old", RENAMED)
def test_a_module_of_torch_under_its_old_name(old):
    pytest.importorskip("torch")
    new = f"partialcoll.{RENAMED[old]}"
    said = in_a_process(
        f"import sys, partialcoll.{old}, {new}\n"
        f"assert sys.modules['partialcoll.{old}'] is {new} is partialcoll.{old}"
    )
    assert f"<string>:1: DeprecationWarning: partialcoll.{old} is now {new}" in said


@pytest.mark.parametrize("old", [name for name in MOVED if name != "pairing"])
def test_attribute_warns_once(old):
    said = in_a_process(f"import partialcoll\npartialcoll.{old}\npartialcoll.{old}")
    assert said.count(f"<string>:2: DeprecationWarning: partialcoll.{old} is now") == 1
    assert said.count("DeprecationWarning") == 1


def test_from_import():
    said = in_a_process("from partialcoll import processes\nfrom partialcoll.processes import SGP")
    assert "<string>:1: DeprecationWarning: partialcoll.processes is now" in said


def test_what_did_not_move_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("policy", "grid", "topology", "round", "errors", "decentralized"):
            importlib.import_module(f"partialcoll.{name}")
        assert pc.pairing.make


@pytest.mark.filterwarnings("ignore:partialcoll.processes")
def test_unknown_names():
    with pytest.raises(AttributeError, match="'partialcoll' has no attribute 'nothing'"):
        pc.nothing  # noqa: B018
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("partialcoll.processes.nothing")
