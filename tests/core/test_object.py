# SPDX-License-Identifier: Apache-2.0
"""The life of objects that all ranks create and free together: one contract, five kinds."""

import copy
import gc
import os
import pickle
import warnings

import numpy as np
import pytest

import partialcoll as pc

pytestmark = pytest.mark.mpi


def allreduce(comm):
    return pc.Allreduce_init(comm, np.ones(3), np.zeros(3), quorum="full")


def gossip(comm):
    return pc.GossipBuffer(comm, like=np.ones(3))


def group(comm):
    return pc.GroupAllreduce_init(comm, np.ones(3), np.zeros(3))


def schedule(comm):
    made = pc.Schedule(comm)
    made.nop()
    return made.commit()


def state_exchange(comm):
    return pc.StateExchange(comm)


KINDS = [allreduce, gossip, group, schedule, state_exchange]
USES = {
    allreduce: lambda thing: thing.Start(),
    gossip: lambda thing: thing.publish(np.ones(3)),
    group: lambda thing: thing.Start(),
    schedule: lambda thing: thing.Start(),
    state_exchange: lambda thing: thing.ask(),
}


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request):
    return request.param


def test_free_is_idempotent(comm, kind):
    thing = kind(comm)
    thing.Free()
    thing.Free()
    with pytest.raises(pc.StateError, match="has been freed"):
        USES[kind](thing)


def test_with(comm, kind):
    with kind(comm) as thing:
        pass
    with pytest.raises(pc.StateError, match="has been freed"):
        USES[kind](thing)


def test_an_exception_does_not_free(comm, kind):
    """The other ranks may not come, and freeing could wait forever."""
    with pytest.raises(KeyError), kind(comm) as thing:
        raise KeyError
    thing.Free()


def test_free_within_a_time(comm, kind):
    """The others are late: Free raises TimeoutError, and can be called again."""
    if comm.size == 1:
        pytest.skip("needs another rank to wait for")
    thing = kind(comm)
    with pytest.raises(ValueError, match="timeout: expected"):
        thing.Free(timeout=-1)
    if comm.rank == 0:
        with pytest.raises(TimeoutError, match="not all ranks have freed"):
            thing.Free(timeout=0.02)
        comm.Barrier()
    else:
        comm.Barrier()
    thing.Free()


def test_a_forked_child_neither_warns_nor_communicates(comm, kind, tmp_path):
    thing = kind(comm)
    said = tmp_path / "said"
    child = os.fork()
    if child == 0:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                thing.__del__()
            finally:
                said.write_text(str(len(caught)))
                os._exit(0)
    os.waitpid(child, 0)
    assert said.read_text() == "0"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        thing.__del__()
    assert [w.category for w in caught] == [ResourceWarning]
    assert "was not freed: Free() is collective" in str(caught[0].message)
    thing.Free()


def test_no_copies(comm, kind):
    with kind(comm) as thing:
        for copied in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot be pickled"):
                copied(thing)


def test_refused_arguments_are_freed_already(comm, kind):
    """An object whose creation failed causes no warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(TypeError, match="comm: expected"):
            kind(3)
        gc.collect()
