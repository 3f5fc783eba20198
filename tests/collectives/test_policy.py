# SPDX-License-Identifier: Apache-2.0
"""Policies as objects and as text."""

import pytest

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
