# SPDX-License-Identifier: Apache-2.0
"""Policies as objects and as text."""

import shutil
import subprocess
from fractions import Fraction

import numpy as np
import pytest
from mpi4py import MPI

import partialcoll as pc
from partialcoll.policy import as_policy, parse

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

POLICIES = (
    pc.Solo(),
    pc.Majority(),
    pc.Full(deadline=2),
    pc.Quorum(6),
    pc.Quorum(1),
    pc.Quorum(1.0),
    pc.Quorum(0.75, linger=50e-6, deadline=2.5, max_staleness=8),
    pc.FirstOf(2, max_staleness=1),
    pc.LastOf(3, linger=1 / 3),
)


def test_numbers_of_numpy():
    for one, other in (
        (pc.Quorum(np.int64(6)), pc.Quorum(6)),
        (pc.Quorum(np.float64(0.75)), pc.Quorum(0.75)),
        (pc.Quorum(Fraction(3, 4)), pc.Quorum(0.75)),
        (pc.FirstOf(np.int32(2)), pc.FirstOf(2)),
        (pc.LastOf(np.uint8(2)), pc.LastOf(2)),
    ):
        assert one == other and str(one) == str(other) and repr(one) == repr(other)


def test_a_long_text():
    policy = pc.Quorum(1 / 3, linger=1 / 3000, deadline=1 / 300, max_staleness=1000003)
    assert len(str(policy)) > 80 and parse(str(policy)) == policy
    h = pc.Allreduce_init(MPI.COMM_SELF, np.ones(1), quorum=policy)
    h.Start()
    h.Wait()
    h.Free()


@pytest.mark.skipif(shutil.which("localedef") is None, reason="needs localedef")
def test_where_a_comma_stands_before_decimals(run, tmp_path):
    command = ["localedef", "-i", "de_DE", "-f", "UTF-8", str(tmp_path / "de_DE.UTF-8")]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("the sources of locales are not installed")
    done = run(
        """
        import locale
        locale.setlocale(locale.LC_ALL, "de_DE.UTF-8")
        assert locale.localeconv()["decimal_point"] == ","
        policy = pc.Quorum(0.75, linger=50e-6, deadline=2.5)
        say(policy, pc.policy.parse(str(policy)) == policy, pc.Solo(linger=0.5))
        """,
        env={"LOCPATH": str(tmp_path)},
    )
    assert done.stdout.split() == [
        "quorum:0.75,linger=50us,deadline=2.5s", "True", "solo,linger=0.5s",
    ], done.stderr  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_text_and_back(policy):
    assert parse(str(policy)) == policy
    assert as_policy(policy) is policy
    assert as_policy(str(policy)) == policy
    assert len({policy, parse(str(policy))}) == 1


@pytest.mark.parametrize(
    "text", ("", "SOLO", "solo,", "quorum", "full ", "majority:2", "\x00", "quorum:0", "quorum:1.5")
)
def test_unknown(text):
    with pytest.raises(ValueError, match="quorum"):
        parse(text)


def test_wrong_type():
    with pytest.raises(TypeError, match="quorum"):
        as_policy(0.5)


def test_texts_of_policies():
    assert str(POLICIES[6]) == "quorum:0.75,linger=50us,deadline=2.5s,max_staleness=8"
    assert repr(POLICIES[6]) == "Quorum(0.75, linger=5e-05, deadline=2.5, max_staleness=8)"
    assert [str(p) for p in POLICIES[3:6]] == ["quorum:6", "quorum:1", "quorum:1.0"]
    assert len(set(POLICIES)) == len(POLICIES)
    assert pc.Quorum(1) != pc.Quorum(1.0) and pc.Solo() != "solo"
    assert parse("solo,linger=1ms") == pc.Solo(linger=1e-3)


@pytest.mark.parametrize(
    "wrong",
    (
        lambda: pc.Quorum(0),
        lambda: pc.Quorum(-3),
        lambda: pc.Quorum(1.01),
        lambda: pc.Quorum(0.0),
        lambda: pc.Quorum(float("nan")),
        lambda: pc.FirstOf(0),
        lambda: pc.LastOf(1 << 32),
        lambda: pc.Solo(linger=-1),
        lambda: pc.Solo(linger=float("inf")),
        lambda: pc.Full(deadline=1e7),
        lambda: pc.Solo(max_staleness=-1),
    ),
)
def test_impossible(wrong):
    with pytest.raises(ValueError, match=r"(quorum|linger|deadline|max_staleness): expected"):
        wrong()


@pytest.mark.parametrize(
    "wrong",
    (
        lambda: pc.Quorum("6"),
        lambda: pc.Quorum(True),
        lambda: pc.FirstOf(0.5),
        lambda: pc.Solo(linger="1s"),
        lambda: pc.Solo(max_staleness=1.5),
    ),
)
def test_wrong_types(wrong):
    with pytest.raises(TypeError, match="expected"):
        wrong()
