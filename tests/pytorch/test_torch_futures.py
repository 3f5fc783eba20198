# SPDX-License-Identifier: Apache-2.0
"""Futures of the backend: what is chained to one may wait for further collectives of the group."""

import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import partialcoll.torch  # noqa: E402, F401

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.mpi,
    pytest.mark.one_domain,
    pytest.mark.few_ranks,
    pytest.mark.one_mpi,
]


@pytest.fixture(scope="module")
def backend():
    dist.init_process_group("partialcoll")
    yield
    dist.destroy_process_group()


@pytest.fixture
def group(comm, backend):
    """A group of all ranks."""
    made = dist.new_group()
    yield made
    dist.destroy_process_group(made)


def total(group, value=1.0):
    """The future of an all_reduce."""
    return dist.all_reduce(torch.tensor([value]), group=group, async_op=True).get_future()


def test_a_callback_waits_for_a_further_collective(comm, group):
    def then(future):
        return future.value()[0] + total(group).wait()[0]

    for _ in range(3):
        assert total(group).then(then).wait() == 2 * comm.size


def test_a_callback_waits_for_one_that_had_begun(comm, group):
    """Nobody but the group's own threads carries that out."""
    if comm.rank:
        comm.Barrier()
    first, second = total(group), total(group)
    chained = first.then(lambda future: future.value()[0] + second.wait()[0])
    if not comm.rank:  # whose callback the main thread has not run
        comm.Barrier()
    assert chained.wait() == 2 * comm.size


def test_callbacks_within_callbacks(comm, group):
    """Deeper than there are threads to begin with."""

    def deeper(left):
        def then(future):
            come = future.value()[0]
            return come + total(group).then(deeper(left - 1)).wait() if left else come

        return then

    assert total(group).then(deeper(5)).wait() == 6 * comm.size


def test_messages_in_a_callback(comm, group):
    ahead, behind = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    come = torch.zeros(1)

    def then(future):
        sent = dist.isend(torch.tensor([float(comm.rank)]), ahead, group=group)
        dist.irecv(come, behind, group=group).get_future().wait()
        sent.get_future().wait()
        return come

    received = torch.zeros(1)
    sent = dist.isend(torch.ones(1), ahead, group=group)
    chained = dist.irecv(received, behind, group=group).get_future().then(then)
    assert chained.wait() == behind and received == 1
    sent.wait()


def test_the_time_limit_holds_in_a_callback(comm, group):
    if comm.size < 2:
        pytest.skip("nobody is missing")
    group.set_timeout(timedelta(seconds=2))

    def then(future):
        if comm.rank:  # rank 0 makes no such call
            return total(group).wait()

    chained = total(group).then(then)
    if comm.rank:
        with pytest.raises(RuntimeError, match="was not over after 2 s"):
            chained.wait()
    else:
        chained.wait()
    comm.Barrier()


def test_a_group_that_is_destroyed_while_a_callback_waits(comm, backend):
    """What it waits for fails, and no thread is left."""
    if comm.size < 2:
        pytest.skip("nobody is missing")
    group = dist.new_group()
    waits = threading.Event()

    def then(future):
        if comm.rank:  # rank 0 makes no such call
            further = total(group)
            waits.set()
            further.wait()

    chained = total(group).then(then)
    if comm.rank:
        waits.wait()
    else:
        chained.wait()
    dist.destroy_process_group(group)
    if comm.rank:
        with pytest.raises(RuntimeError, match=r"ended while|destroyed before"):
            chained.wait()
    names = [thread.name for thread in threading.enumerate()]
    assert f"partialcoll group {group._name}" not in names
    comm.Barrier()


def test_power_sgd(comm, backend):
    """Torch's own hook, which waits within callbacks from its second step on."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32) for _ in range(2)]
    model = DDP(torch.nn.Sequential(*layers))
    state = power_sgd.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    model.register_comm_hook(state, power_sgd.powerSGD_hook)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(8, 32, generator=torch.Generator().manual_seed(comm.rank))
    losses = []
    for _ in range(6):
        opt.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    weights = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    assert len(set(comm.allgather(weights.numpy().tobytes()))) == 1
    assert losses[-1] < losses[0]
