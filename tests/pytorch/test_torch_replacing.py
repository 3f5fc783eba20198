# SPDX-License-Identifier: Apache-2.0
"""`init(respawn=True)` in one process. With deaths: tests/faults/test_torch_newcomers.py."""

import pytest
from mpi4py import MPI

import partialcoll as pc

pytest.importorskip("torch")

import partialcoll.torch as pct
from partialcoll.torch import world
from partialcoll.torch.world import MOST_TRIES, Replacing


def test_refusals_of_init(monkeypatch):
    monkeypatch.setattr(world, "_world", None)  # from other tests
    for options, word in (
        ({}, "on_failure='continue'"),
        ({"on_failure": "continue", "comm": MPI.COMM_WORLD}, "comm"),
        ({"on_failure": "continue", "process_sets": [[0]]}, "process_sets"),
    ):
        with pytest.raises(ValueError, match=word):
            pct.init(respawn=True, **options)
    with pytest.raises(ValueError, match="respawn: expected one of False, True, 'overlap', got"):
        pct.init(respawn="yes", on_failure="continue")
    with pytest.raises(TypeError, match="respawn: expected True or False"):
        pct.init(respawn=None, on_failure="continue")
    assert not pct.is_initialized()


def test_newcomers_get_the_state_of_survivors():
    newcomer = Replacing(1, lived=False)
    known = [(True, 4, 1), (True, 4, 1), (False, 1, 0)]
    found = newcomer.formed(3, known)
    assert found == Replacing(4, 2, lived=False) and found.wants(3) and not found.wants(4)
    assert newcomer.formed(4, known) == Replacing(4, 0, lived=False)
    with pytest.raises(pc.StateError, match="all who had the state"):
        newcomer.formed(3, [(False, 1, 0)])


def test_number_of_tries_is_limited(caplog):
    state = Replacing(4)
    for _ in range(MOST_TRIES):
        assert state.wants(3) and not caplog.messages
        state = state.formed(3, [(state.lived, state.ranks, state.tries)])
    assert not state.wants(3)
    assert caplog.messages == [
        "3 of 4 ranks are there after 3 tries to replace those that have died: training goes on "
        "with them"
    ]


def test_places_on_nodes():
    names = {0: "a", 1: "b", 2: "a", 3: "b", 4: "b"}
    places = [world._place(rank, names) for rank in names]
    assert places == [(0, 2, 0, 2), (0, 3, 1, 2), (1, 2, 0, 2), (1, 3, 1, 2), (2, 3, 0, 1)]
