# SPDX-License-Identifier: Apache-2.0
"""Policies as objects and as text."""

import pytest

import partialcoll as pc
from partialcoll.policy import as_policy, parse


@pytest.mark.parametrize("policy", (pc.Solo(), pc.Majority(), pc.Full()))
def test_text_and_back(policy):
    assert parse(str(policy)) == policy
    assert as_policy(policy) is policy
    assert as_policy(str(policy)) == policy
    assert len({policy, parse(str(policy))}) == 1


@pytest.mark.parametrize("text", ("", "SOLO", "solo,", "quorum", "full ", "majority:2", "\x00"))
def test_unknown(text):
    with pytest.raises(ValueError, match="quorum"):
        parse(text)


def test_wrong_type():
    with pytest.raises(TypeError, match="quorum"):
        as_policy(0.5)
