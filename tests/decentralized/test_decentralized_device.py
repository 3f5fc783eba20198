# SPDX-License-Identifier: Apache-2.0
"""Models of processes and global sums with arrays on the fake device of tests/fake_cuda."""

import numpy as np
import pytest

import partialcoll as pc
from partialcoll.decentralized import (
    DPSGDProcess,
    GlobalSum,
    LocalSGDProcess,
    NeighborExchange,
    OnDevice,
    metropolis,
)

pytestmark = [pytest.mark.one_domain, pytest.mark.mpi]
COUNT = 700


def full(comm, like):
    return pc.Allreduce_init(comm, None, None, like=like, quorum="full")


@pytest.mark.parametrize("dtype", (np.float32, np.float64))
def test_global_sums(comm, fake, nothing_left, dtype):
    total = GlobalSum.over(comm)
    x = nothing_left(np.zeros(COUNT, dtype))
    here = np.arange(5.0)
    x.set(comm.rank, late_us=300)
    mean = (comm.size - 1) / 2
    square = COUNT * sum((rank - mean) ** 2 for rank in range(comm.size)) / comm.size
    assert total.distance(x) == pytest.approx(square**0.5)
    assert (total.sum(x) == 2 * mean * comm.size / 2).all()
    total.average([x, here])
    assert (x.get() == mean).all() and (here == np.arange(5)).all()
    total.Free()


@pytest.mark.parametrize("kind", ("DPSGD", "LocalSGD"))
def test_a_model(comm, fake, nothing_left, kind):
    """The bits equal those with gradients on the host."""

    around = [{(r + 1) % comm.size, (r - 1) % comm.size} - {r} for r in range(comm.size)]
    own, weights, made = np.zeros(COUNT), metropolis(around, comm.rank), []

    def make():
        if kind == "LocalSGD":
            made.append(full(comm, own))
            return LocalSGDProcess(own, made[-1], local_steps=2, learning_rate=0.5)
        made.append(NeighborExchange(comm, own, around[comm.rank]))
        return DPSGDProcess(own, made[-1], weights, comm.rank, learning_rate=0.5)

    x, gradient = nothing_left(np.ones(COUNT)), nothing_left(np.zeros(COUNT))
    here, there = make(), OnDevice(make(), x)
    assert there.model is x and not x.get().any()
    for step in range(4):
        values = np.arange(COUNT) * (comm.rank + 1) / 64 - step
        gradient.set(values, late_us=step % 2 * 300)
        there.step(gradient)
        here.step(values)
        assert (x.get() == here.model).all()
    gradient.set(1.0)
    there.apply(gradient)
    here.apply(np.ones(COUNT))
    assert (x.get() == here.model).all() and x.get().any()
    there.process.model[:] = 7
    there.refresh()
    assert (x.get() == 7).all()
    there.free()
    for process in (here, there.process):
        process.complete()
        process.Free()
    for one in made:
        one.Free()


def test_refused(comm, fake, nothing_left):
    handle = full(comm, np.zeros(COUNT))
    process = LocalSGDProcess(np.zeros(COUNT), handle, local_steps=2)
    with pytest.raises(ValueError, match=r"x: expected shape \(700,\) and float64 as the model's"):
        OnDevice(process, nothing_left(np.zeros(COUNT, np.float32)))
    there = OnDevice(process, nothing_left(np.zeros(COUNT)))
    with pytest.raises(ValueError, match="gradient: expected shape"):
        there.step(nothing_left(np.zeros(3)))
    there.free()
    process.Free()
    handle.Free()
