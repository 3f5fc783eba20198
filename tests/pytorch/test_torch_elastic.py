# SPDX-License-Identifier: Apache-2.0
"""elastic: an error on all ranks brings all back to the last commit, and nothing else does."""

import itertools

import pytest

torch = pytest.importorskip("torch")

from strategies import loss, network  # noqa: E402

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

STEPS = 8


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


def trained(comm, trouble, within=lambda state: None):
    """Return the parameters after training with `trouble(state)` before each step, and `within`
    between its gradient and its update."""
    model = network(seed=comm.rank)  # rank 0's is used
    inner = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    opt = pct.DistributedOptimizer(inner, model.named_parameters())
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    state = pct.elastic.TorchState(model, opt, scheduler=scheduler, step=100 * comm.rank)
    state.resets = []
    state.register_reset_callbacks([lambda: state.resets.append(state.step)])

    @pct.elastic.run
    def train(state, steps):
        while state.step < steps:
            trouble(state)
            opt.zero_grad()
            loss(model, comm.rank, state.step).backward()
            within(state)
            opt.step()
            scheduler.step()
            state.step += 1
            if state.step % 2 == 0:
                state.commit()
        return "done"

    assert train(state, steps=STEPS) == "done" and state.step == STEPS
    opt.close()
    return [p.detach().clone() for p in model.parameters()], state.resets


def once(at, what):
    """Raise an error at these steps, once at each."""
    left = [at] if isinstance(at, int) else list(at)

    def trouble(state):
        if state.step in left:
            left.remove(state.step)
            what(state)

    return trouble


def differ(comm):
    """The ranks make different calls: all get MismatchError."""
    pct.allreduce(torch.ones(2 + comm.rank))
    raise pc.MismatchError("alone")


def test_it_continues_as_if_undisturbed(comm):
    plain, resets = trained(comm, lambda state: None)
    assert resets == []
    found, resets = trained(comm, once((3, 5, 6), lambda state: differ(comm)))
    assert resets == [2, 4, 6]
    assert all(map(torch.equal, found, plain))


@pytest.mark.parametrize("synchronized", (False, True))
def test_a_gradient_that_no_step_took(comm, synchronized):
    def differ_after(state):
        if synchronized:
            state.optimizer.synchronize()
        differ(comm)

    plain, _ = trained(comm, lambda state: None)
    found, resets = trained(comm, lambda state: None, once((3, 6), differ_after))
    assert resets == [2, 6]
    assert all(map(torch.equal, found, plain))


def test_a_round_that_was_refused(comm):
    """The optimizer itself finds that a rank has another learning rate."""
    if comm.size == 1:
        return
    plain, _ = trained(comm, lambda state: None)

    def change(state):
        if comm.rank == 1:
            state.optimizer.param_groups[0]["lr"] = 3.0

    found, resets = trained(comm, once(5, change))
    assert resets == [4]
    assert all(map(torch.equal, found, plain))


def test_errors_that_do_not_restart(comm):
    state = pct.elastic.ObjectState(calls=0, own=comm.rank)

    @pct.elastic.run
    def again(state, error, commits):
        assert state.own == 0  # rank 0's, each time
        state.calls, state.own = state.calls + 1, comm.rank
        if state.calls <= commits:
            state.commit()
        raise error

    with pytest.raises(pc.MismatchError):  # without a commit in between
        again(state, pc.MismatchError("x"), 0)
    assert state.calls == 1  # counted twice, from 0
    for error in (pc.StateError("own"), ValueError("own")):
        with pytest.raises(type(error), match="own"):
            again(state, error, 0)
    with pytest.raises(pc.MismatchError):
        again(state, pc.MismatchError("x"), 4)
    assert state.calls == 5


@pytest.mark.parametrize("skip", (False, True))
def test_an_interrupt_of_the_programs_own(comm, skip):
    state = pct.elastic.TorchState(value=comm.rank)
    seen = []

    @pct.elastic.run
    def train(state):
        seen.append(state.value)
        if len(seen) == 1:
            state.value = 7 + comm.rank
            raise pct.HostsUpdatedInterrupt(skip_sync=skip)

    train(state)
    assert seen == [0, 7 + comm.rank if skip else 7]  # the value of rank 0


def test_a_commit_does_not_change(comm):
    """A commit is independent of later restores and of changes to the original objects."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen = [1]
    state = pct.elastic.TorchState(model, optimizer, seen=seen)

    def step(times):
        for _ in range(times):
            loss(model, 0, 0).backward()
            optimizer.step()
            state.seen.append(0)

    def momenta():
        return [one["momentum_buffer"].clone() for one in optimizer.state.values()]

    step(1)
    state.commit()
    expected = momenta()
    for _ in range(2):
        step(2)
        assert not all(map(torch.equal, momenta(), expected)) and len(state.seen) == 4
        state.restore()
        assert all(map(torch.equal, momenta(), expected)) and state.seen == [1, 0]


def test_synchronized_before_any_commit(comm):
    """All ranks go back to the synchronized state, model and values alike."""
    model = network(seed=comm.rank)
    state = pct.elastic.TorchState(model, step=0)
    with torch.no_grad():  # as from a checkpoint on rank 0 only
        for p in model.parameters():
            p.fill_(1.5 if comm.rank == 0 else -1.0)
    state.step = 40 if comm.rank == 0 else 0
    state.sync()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    state.step = 41
    state.restore()
    assert state.step == 40 and all((p == 1.5).all() for p in model.parameters())


def test_samples_are_shared_out(comm):
    data = range(4 * comm.size + 1)
    sampler = pct.elastic.ElasticSampler(data, seed=3)
    state = pct.elastic.TorchState(sampler=sampler)

    def everybody():
        assert len(list(sampler)) == len(sampler)
        return list(itertools.chain.from_iterable(comm.allgather(list(sampler))))

    assert set(everybody()) == set(data) and len(everybody()) == 5 * comm.size
    first = comm.allgather(list(sampler))
    sampler.record_batch(0, 2)
    state.commit()
    sampler.record_batch(1, 2)
    state.restore()
    done = set(itertools.chain.from_iterable(one[:2] for one in first))
    assert set(everybody()) == set(data) - done and len(sampler) == 3
    sampler.set_epoch(1)
    assert set(everybody()) == set(data) and comm.allgather(list(sampler)) != first
    sampler.record_batch(0, 4)
    sampler.reset()  # one sample is left, for all
    assert len(set(everybody())) == 1
    state.sampler = pct.elastic.ElasticSampler(data, shuffle=False)
    state.sync()
    assert next(iter(state.sampler)) == comm.rank
