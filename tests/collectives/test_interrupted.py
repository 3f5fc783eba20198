# SPDX-License-Identifier: Apache-2.0
"""A signal handler raises an exception while a call waits, before or after the core has finished.
The call can be continued, and later calls are not lost."""

import numpy as np
import pytest

import partialcoll as pc
from partialcoll.collectives import allreduce
from partialcoll.collectives.handle import AllreduceHandle
from partialcoll.decentralized import GlobalSum

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain]


class Signal(Exception):
    pass


@pytest.fixture(params=("before", "after"))
def interrupt(request, monkeypatch):
    """End one wait of a handle by an exception, before or after the core has completed it."""
    name = {"before": "Wait", "after": "_take"}[request.param]
    whole = getattr(AllreduceHandle, name)

    def cut(self, *arguments, **named):
        monkeypatch.setattr(AllreduceHandle, name, whole)
        raise Signal

    return lambda: monkeypatch.setattr(AllreduceHandle, name, cut)


@pytest.mark.parametrize("quorum", ("full", "solo"))
@pytest.mark.parametrize("again", ("Wait", "Test", "Waitall", "Waitany", "Free"))
def test_a_round_can_be_waited_for_again(comm, interrupt, quorum, again):
    h = pc.Allreduce_init(comm, np.ones(3), quorum=quorum)
    for call in range(3):
        h.Start()
        if call == 1:
            interrupt()
            with pytest.raises(Signal):
                h.Wait()
            if again == "Free":
                break
        if again == "Waitall":
            (rnd,) = pc.Waitall([h], timeout=60)
        elif again == "Test" and call == 1:
            rnd = None
            while rnd is None:
                rnd = h.Test()
        elif again == "Waitany" and call == 1:
            pytest.skip("looks for rounds that are not taken yet")
        else:
            rnd = h.Wait(timeout=60)
        assert h.last_round is rnd and rnd.index >= call
        if quorum == "full":
            assert rnd.index == call and (h.recv_buffer == comm.size).all()
    h.Free()
    with pytest.raises(pc.StateError, match="freed"):
        h.Start()


def test_the_drop_in_continues(comm, interrupt):
    x, y = np.full(4, float(comm.rank)), np.zeros(4)
    for call in range(6):
        x[:] = call
        if call in (2, 4):
            interrupt()
            with pytest.raises(Signal):
                pc.Allreduce(comm, x, y, quorum="full", name="interrupted")
        else:
            given = y if call < 5 else np.zeros(4)  # other buffers than before
            pc.Allreduce(comm, x, given, quorum="full", name="interrupted")
            assert (given == call * comm.size).all()


def test_sums_over_all_ranks_continue(comm, interrupt):
    total = GlobalSum.over(comm)
    for call in range(4):
        if call == 1:
            interrupt()
            with pytest.raises(Signal):
                total.sum(np.full(3, call))
        else:
            assert (total.sum(np.full(3, call)) == call * comm.size).all()


def test_waitall_can_be_repeated(comm):
    handles = [pc.Allreduce_init(comm, np.ones(2), quorum="full") for _ in range(2)]
    last = comm.rank == comm.size - 1 and comm.size > 1
    handles[0].Start()
    if not last:
        handles[1].Start()
        if comm.size > 1:
            with pytest.raises(TimeoutError):
                pc.Waitall(handles, timeout=0.2)
    comm.Barrier()
    if last:
        handles[1].Start()
    for rnd, h in zip(pc.Waitall(handles, timeout=60), handles):
        assert rnd.index == 0 and (h.recv_buffer == comm.size).all()
        h.Free()


def test_the_same_call_again_needs_no_look(comm):
    """The fast path is used for each dtype, including float64."""
    for dtype in ("float32", "float64", "int64", "complex128"):
        x, y = np.ones(3, dtype), np.zeros(3, dtype)
        for _ in range(3):
            pc.Allreduce(comm, x, y, quorum="full", name=f"short {dtype}")
        assert f"short {dtype}" in allreduce._cache_of(comm).repeats


def test_another_function_each_time_is_the_same_call(comm):
    handles = allreduce._cache_of(comm).handles
    before = len(handles)
    for _ in range(4):
        told = lambda *_: None  # noqa: E731
        pc.Allreduce(
            comm, np.ones(2), np.zeros(2), quorum="majority", name="told", on_membership=told
        )
    assert len(handles) == before + 1
    f, g = (lambda: pc.Allreduce(comm, np.ones(2), np.zeros(2), quorum="majority")), (lambda: pc.Allreduce(comm, np.ones(2), np.zeros(2), quorum="majority"))  # fmt: skip # noqa: E501
    for _ in range(2):
        f(), g()
    assert len(handles) == before + 3
