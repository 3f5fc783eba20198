# SPDX-License-Identifier: Apache-2.0
"""Agreement compares calls between ranks, and all ranks get the same answer."""

import numpy as np
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
    for text in ("barrier", "another barrier"):
        agreement.start(Intent(text))
        assert agreement.settle()
    said = {rank: Intent(f"call {rank}" * 30 * rank) for rank in range(comm.size)}
    said[comm.size - 1] = Intent("wrong", refused=True)
    agreement.start(said[comm.rank])
    assert agreement.settle() == (comm.size == 1)  # a single rank agrees with itself
    agreement.start_texts(said[comm.rank])
    assert agreement.settle()
    heard = agreement.texts()
    assert heard[0] == said[0] and heard[comm.size - 1] == said[comm.size - 1]
    assert len(heard) == comm.size
    assert all(one.text[:30] == said[rank].text[:30] for rank, one in heard.items())
    assert complaint(heard).endswith(f"rank {comm.size - 1}: wrong (refused)")
    agreement.free()


@pytest.mark.parametrize("dtype", ["float32", "int8", "complex128"])
def test_data(comm, dtype):
    """Calls of several sizes use one handle. After a call on which ranks differ, also in size, the
    next call works."""
    agreement = Agreement(comm, "a test")
    for count in (0, 1, 17, agreement.capacity // np.dtype(dtype).itemsize):
        for mistaken in (False, True, False):
            mine = count // 2 if mistaken and comm.rank == comm.size - 1 else count
            agreement.room(dtype)[:mine] = comm.rank + 1
            agreement.start(Intent(f"sum of {mine}"), (dtype, mine, "SUM"))
            if agreement.settle():
                assert mine == count or comm.size == 1
                total = comm.size * (comm.size + 1) // 2
                assert (agreement.result(dtype)[:mine] == total).all()
            else:
                assert mistaken
                agreement.start_texts(Intent(f"sum of {mine}"))
                agreement.settle()
                assert len({one.text for one in agreement.texts().values()}) == 2
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


def test_message_about_a_difference(comm):
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
