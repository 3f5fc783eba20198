# SPDX-License-Identifier: Apache-2.0
"""Whether all ranks do the same: what they hear of each other, on all of them alike."""

import pytest

import partialcoll as pc
from partialcoll.collectives.agreement import (
    Agreement,
    Intent,
    check_agreement,
    complaint,
    first_difference,
    together,
)

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain]


def test_intents(comm):
    agreement = Agreement(comm, "a test")
    for text in ("sum of 3", "barrier"):
        agreement.announce(Intent(text))
        assert agreement.settle() == {}
    said = {rank: Intent(f"call {rank}", ("float32", 64, "sum")) for rank in range(comm.size)}
    said[comm.size - 1] = Intent("wrong", refused=True)
    agreement.announce(said[comm.rank])
    assert agreement.settle() == (said if comm.size > 1 else {})  # alone it agrees with itself
    assert complaint(said).endswith(f"rank {comm.size - 1}: wrong (refused)")
    agreement.free()


def test_together(comm):
    def check():
        if comm.rank == comm.size - 1:
            raise KeyError("here")
        return comm.rank

    assert together(comm, lambda: comm.rank) == comm.rank
    last = comm.size - 1
    expected = (KeyError, "here") if comm.rank == last else (pc.MismatchError, f"rank {last} was")
    with pytest.raises(expected[0], match=expected[1]):
        together(comm, check)


def test_what_differs(comm):
    same = [("a", "1"), ("b", "2")]
    check_agreement(comm, same)
    more = [*same, ("c", "3")] if comm.rank == 0 else same
    if comm.size == 1:
        check_agreement(comm, more)
        return
    with pytest.raises(pc.MismatchError, match="'c': 3 on rank 0; nothing more on rank"):
        check_agreement(comm, more)


def test_the_first_difference():
    assert first_difference([[1, 2], [1, 2]], 0) == {}
    assert first_difference([[1, 2], [1, 3], [1, 2]], 0) == {2: [0, 2], 3: [1]}
    assert first_difference([[1, 2], [1]], 0) == {2: [0], 0: [1]}
