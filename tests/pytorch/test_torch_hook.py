# SPDX-License-Identifier: Apache-2.0
"""The communication hook of DistributedDataParallel on gloo: guarantees of a step."""

import copy
import gc
import logging
import os
import pickle
import tempfile
import time
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from mpi4py import MPI  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll.torch.rounds import hash_tensors  # noqa: E402

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore:.broadcast_buffers."),
    pytest.mark.one_domain,
    pytest.mark.few_ranks,
    pytest.mark.one_mpi,
]

QUORUMS = ["solo", "majority", "quorum:0.5,linger=1ms", "full"]
SMALL = 1e-4  # MiB: several buckets


@pytest.fixture(scope="module")
def group():
    """DDP's process group. The hook does not use it for data."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # whatever the host name resolves to
    world = MPI.COMM_WORLD
    with tempfile.TemporaryDirectory() as own:
        store = dist.FileStore(f"{world.bcast(own)}/store", world.size)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size)
        del store  # its destructor accesses the file
        yield
        world.Barrier()
        dist.destroy_process_group()
        gc.collect()
        world.Barrier()


@pytest.fixture(autouse=True)
def world(comm, group):
    pct.init()


class Tensors(torch.nn.Module):
    """Parameters of several dtypes, shapes and memory orders. The caller chooses the gradients, so
    that sums are exact."""

    def __init__(self, seed=0):
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        new = torch.nn.Parameter
        self.w = new(torch.randn(20, 30, generator=g))
        self.images = new(
            torch.randn(4, 3, 2, 2, generator=g).to(memory_format=torch.channels_last)
        )
        self.f64 = new(torch.randn(7, 3, generator=g, dtype=torch.float64))
        self.scalar = new(torch.tensor(1.5))
        self.holes = new(torch.randn(6, 8, generator=g)[:, ::2])
        self.bf16 = new(torch.randn(50, generator=g).bfloat16())
        self.frozen = new(torch.randn(5, generator=g), requires_grad=False)

    def forward(self, gradients):
        return sum((p * gradients[n]).double().sum() for n, p in trained(self))


def trained(model):
    return [(name, p) for name, p in model.named_parameters() if p.requires_grad]


def whole_numbers(model, rank, step):
    """Return a gradient of small integers, also in bfloat16."""
    g = torch.Generator().manual_seed(1000 * rank + step)
    return {
        name: torch.randint(-8, 9, p.shape, generator=g).to(p.dtype) for name, p in trained(model)
    }


def mean_over_ranks(comm, model, step):
    total = [whole_numbers(model, rank, step) for rank in range(comm.size)]
    return {name: sum(one[name] for one in total) / comm.size for name in total[0]}


def hooked(model, quorum="full", **options):
    own = {name: options.pop(name) for name in ("average_every", "history") if name in options}
    ddp = DistributedDataParallel(model, **options)
    return ddp, pct.PartialState(ddp, quorum, **own)


def sgd(model, lr=1.0):
    return torch.optim.SGD([p for _, p in trained(model)], lr=lr)


def bits(model):
    return hash_tensors([p for _, p in trained(model)])


class Line(torch.nn.Module):
    """A model whose gradient is the same number everywhere."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(40, dtype=torch.float64))
        self.b = torch.nn.Parameter(torch.zeros(30, dtype=torch.float64))

    def forward(self, number):
        return (self.a.sum() + self.b.sum()) * number


def step_on(ddp, opt, number):
    opt.zero_grad()
    ddp(number).backward()
    opt.step()


def delayed(comm, seed=0):
    """Sleep now and then, each rank at different times."""
    rng = np.random.default_rng(100 * seed + comm.rank)
    return lambda: time.sleep(rng.random() * 4e-3 if rng.random() < 0.3 else 0)


def close_but_rounded(ours, theirs):
    """16-bit sums are rounded at each addition, by gloo and by ours."""
    rounded = ours.dtype in (torch.float16, torch.bfloat16)
    torch.testing.assert_close(ours, theirs, **({"rtol": 0, "atol": 0.25} if rounded else {}))


# Guarantees of a step


@pytest.mark.parametrize("options", [{}, {"gradient_as_bucket_view": True}, {"static_graph": True}])
@pytest.mark.parametrize("cap", [25, SMALL])
def test_full_is_allreduce(comm, monkeypatch, options, cap):
    """The mean is exact before and after the buckets are rebuilt, and equals that of plain DDP."""
    seen, take = [], pct.PartialState._take

    def took(state, bucket):
        order = tuple(map(id, bucket.parameters()))
        seen.append((bucket.index(), bucket.is_last(), order))
        return take(state, bucket)

    monkeypatch.setattr(pct.PartialState, "_take", took)
    ddp, state = hooked(Tensors(), bucket_cap_mb=cap, **options)
    plain = DistributedDataParallel(Tensors(), bucket_cap_mb=cap, **options)
    ours, theirs = sgd(ddp.module), sgd(plain.module)
    for step in range(5):
        gradients = whole_numbers(ddp.module, comm.rank, step)
        for model, opt in ((ddp, ours), (plain, theirs)):
            opt.zero_grad()
            model(gradients).backward()
        mean = mean_over_ranks(comm, ddp.module, step)
        other = dict(trained(plain.module))
        for name, p in trained(ddp.module):
            assert torch.equal(p.grad, mean[name]), name
            close_but_rounded(p.grad, other[name].grad)
        assert state.round == step + 1 and state.last_round.active == comm.size
    orders = {order for _, _, order in seen}
    assert sum(last for _, last, _ in seen) == (4 if "static_graph" in options else 5)
    assert len(orders) > (3 if cap == SMALL else 0)
    if not options:
        assert ddp._has_rebuilt_buckets
    assert len(ddp.module.frozen) and ddp.module.frozen.grad is None
    state.close()


@pytest.mark.parametrize("name", QUORUMS)
def test_replicas_are_identical_after_every_step(comm, name):
    torch.manual_seed(comm.rank)  # DDP makes them the same
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    ddp, state = hooked(model, name, bucket_cap_mb=SMALL)
    opt, delay, seen = torch.optim.AdamW(model.parameters(), lr=0.01), delayed(comm), {}

    def step():
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        seen[len(seen)] = bits(model)

    for _ in range(10 + comm.rank % 3):
        delay()
        opt.zero_grad()
        (ddp(torch.randn(5, 6)) - 1).square().mean().backward()
        step()
    state.join(step)  # a rank that joins early sees as many steps
    assert all(other == seen for other in comm.allgather(seen))
    assert state.metrics().rounds == len(seen)
    assert state.metrics().included_ratio == 1.0
    assert len(set(comm.allgather(state.round))) == 1
    state.close()


@pytest.mark.parametrize("name", QUORUMS)
def test_nothing_is_lost(comm, name):
    """Applied and pending gradients together are the ranks' deposits, exactly for integers."""
    ddp, state = hooked(Line(), name, bucket_cap_mb=SMALL)
    opt, delay = sgd(ddp), delayed(comm, seed=1)
    rng = np.random.default_rng(comm.rank)
    given = 0
    for _ in range(20):
        number = int(rng.integers(1, 1000)) * comm.size
        given += number
        delay()
        step_on(ddp, opt, number)
    pending = state.state_dict()["pending"]
    late = 0 if pending is None else float(pending["float64"][0])
    total = comm.allreduce(given)
    assert (ddp.module.a * comm.size == comm.allreduce(late) - total).all()
    assert comm.allreduce(late) == 0 or name != "full"
    state.join(opt)
    for p in ddp.parameters():
        assert (p * comm.size == -total).all()
    assert state.metrics().steps == 20 == state.metrics().included
    assert state.metrics() is not state.metrics()
    state.close()


def test_solo_does_not_wait(comm):
    """This rank's steps end although no other rank makes one."""
    ddp, state = hooked(Line(), "solo")
    opt, number = sgd(ddp), float(comm.size)  # averages of these are exact
    for _ in range(2):  # in the second, all ranks together order DDP's buckets
        step_on(ddp, opt, number)
    comm.Barrier()
    for rank in range(comm.size):
        if comm.rank == rank:
            for _ in range(2):
                step_on(ddp, opt, number)
        comm.Barrier()
    state.join(opt)
    assert (ddp.module.a == -4 * number).all()
    state.close()


def test_pending_of_a_rank_that_lags(comm):
    """The pending gradient includes rounds that the rank has not reached yet: results and
    checkpoint together are its deposits at any time."""
    if comm.size == 1:
        pytest.skip("one rank")
    ddp, state = hooked(Line(), "solo", history=20)
    given = got = 0

    def step(number):
        nonlocal given, got
        ddp.zero_grad()
        ddp(float(number)).backward()
        given += number
        got += ddp.module.b.grad[0].item() * comm.size
        pending = state.state_dict()["pending"]
        late = 0 if pending is None else float(pending["float64"][0])
        assert given == got + late or comm.rank != 1

    for _ in range(2):
        step(0)
    for i, who in enumerate([0, 1, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 0, 1, 1]):
        if comm.rank == who:
            step(comm.rank << i)
        comm.Barrier()
    state.join()
    state.close()


def test_no_sync(comm):
    """Gradients accumulated locally are sent in one round."""
    ddp, state = hooked(Tensors(), bucket_cap_mb=SMALL)
    opt = sgd(ddp.module)
    for step in range(3):
        opt.zero_grad()
        with ddp.no_sync():
            ddp(whole_numbers(ddp.module, comm.rank, 2 * step)).backward()
        assert state.round == step
        ddp(whole_numbers(ddp.module, comm.rank, 2 * step + 1)).backward()
        assert state.round == step + 1
        first, second = (mean_over_ranks(comm, ddp.module, 2 * step + i) for i in (0, 1))
        for name, p in trained(ddp.module):
            close_but_rounded(p.grad, first[name] + second[name])
    state.close()


def test_a_second_backward_in_a_step(comm):
    """Both backward passes synchronize, like with DDP alone."""
    ddp, state = hooked(Line())
    for _ in range(3):
        ddp.zero_grad()
        ddp(2.0 * comm.rank).backward()
        ddp(10.0).backward()
        assert torch.allclose(ddp.module.a.grad, torch.tensor(comm.size + 9.0).double())
    assert state.round == 6
    state.close()


class Checkpointed(torch.nn.Module):
    """Activations computed again, a layer used twice, and one that is never used."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.unused = (torch.nn.Linear(6, 6) for _ in range(3))

    def forward(self, x):
        x = checkpoint(self.a, x, use_reentrant=False)
        return checkpoint(lambda y: self.b(self.b(y).tanh()), x, use_reentrant=False)


def test_static_graph_with_checkpoints_and_an_unused_layer(comm):
    options = {"static_graph": True, "bucket_cap_mb": SMALL}
    ddp, state = hooked(Checkpointed(), **options)
    plain = DistributedDataParallel(Checkpointed(), **options)
    for step in range(4):
        x = torch.randn(5, 6, generator=torch.Generator().manual_seed(100 * comm.rank + step))
        for model in (ddp, plain):
            model.zero_grad()
            model(x).square().mean().backward()
        for (name, p), q in zip(ddp.module.named_parameters(), plain.module.parameters()):
            if "unused" in name:
                assert p.grad is None or not p.grad.any()
            else:
                torch.testing.assert_close(p.grad, q.grad)
        assert state.round == step + 1
    state.close()


def test_two_models_in_one_loop(comm):
    pairs = [hooked(Line(), quorum) for quorum in ("solo", "majority")]
    opts = [sgd(ddp) for ddp, _ in pairs]
    for _ in range(6):
        for (ddp, _), opt in zip(pairs, opts):
            step_on(ddp, opt, float(comm.size))  # averages of such numbers are exact
    for (ddp, state), opt in zip(pairs, opts):
        state.join(opt)
        assert (ddp.module.b == -6 * comm.size).all()
        state.close()


# Errors


def test_options_that_make_every_step_wait_are_refused(comm):
    """DDP continues without a hook."""
    ddp = DistributedDataParallel(Line(), find_unused_parameters=True)
    with pytest.raises(ValueError, match=r"find_unused_parameters=False.*static_graph=True"):
        pct.PartialState(ddp)
    ddp(3.0 + comm.rank).backward()
    assert (ddp.module.a.grad == 3.0 + (comm.size - 1) / 2).all()
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    with pytest.raises(ValueError, match="broadcast_buffers=False"):
        hooked(model)
    ddp, state = hooked(model, broadcast_buffers=False)
    ddp(torch.randn(4, 3)).sum().backward()
    assert state.round == 1
    state.close()


def test_other_things_are_refused(comm):
    ddp, state = hooked(Line())
    with pytest.raises(TypeError, match="DistributedDataParallel"):
        pct.PartialState(ddp.module)
    with pytest.raises(TypeError, match="sparse"):
        hooked(torch.nn.Embedding(5, 3, sparse=True))
    with pytest.raises(RuntimeError, match="only be called once"):
        pct.PartialState(ddp)
    ddp(1.0).backward()
    assert state.round == 1
    state.close()


def test_ddp_that_joins_is_refused_in_each_step(comm):
    """DDP continues with its local gradient: nothing is left unfinished."""
    ddp, state = hooked(Line())
    for _ in range(2):
        ddp.zero_grad()
        loss = ddp(3.0 + comm.rank)
        ddp._join_config = ddp._join_config._replace(enable=True)  # as within ddp.join()
        with pytest.raises(ValueError, match=r"state\.join\(\)"):
            loss.backward()
        ddp._join_config = ddp._join_config._replace(enable=False)
        assert (ddp.module.a.grad == 3.0 + comm.rank).all()
    state.close()


@pytest.mark.parametrize("state", (None, pct.Eager("solo")))
def test_a_hook_without_its_state(comm, state):
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    model.register_comm_hook(state, pct.partial_allreduce_hook)
    with pytest.raises(TypeError, match="state: expected a PartialState, got"):
        model(torch.ones(1, 2)).sum().backward()


def test_ranks_that_differ(comm):
    """All ranks get the error, and DDP continues without a hook."""
    if comm.size == 1:
        pytest.skip("one rank")
    ddp = DistributedDataParallel(Line())
    with pytest.raises(pc.MismatchError, match=r"quorum.*rank"):
        pct.PartialState(ddp, "solo" if comm.rank else "full")
    with pytest.raises(ValueError if comm.rank else pc.MismatchError, match="clip_norm: expected"):
        pct.PartialState(ddp, "solo", clip_norm=1.0 if comm.rank else None)
    ddp(3.0 + comm.rank).backward()
    assert (ddp.module.a.grad == 3.0 + (comm.size - 1) / 2).all()


def test_bad_arguments(comm, monkeypatch):
    ddp, state = hooked(Line())
    with pytest.raises(ValueError, match="deliver: expected 'one'"):
        pct.PartialState(ddp, "solo", deliver="all")
    with pytest.raises(ValueError, match=r"clip_norm: expected None, got 1\.0"):
        pct.PartialState(ddp, "solo", clip_norm=1.0)
    with pytest.raises(
        ValueError, match="average_every: expected a number of rounds of at least 1, got 0"
    ):
        pct.PartialState(ddp, average_every=0)
    for wrong in (True, 2.5, "3"):
        with pytest.raises(TypeError, match="average_every: expected a number"):
            pct.PartialState(ddp, average_every=wrong)
    with pytest.raises(ValueError, match="quorum"):
        pct.PartialState(ddp, "most")
    with pytest.raises(TypeError, match="step: expected an optimizer"):
        state.join(3)
    for forbidden in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled"):
            forbidden(state)
    state.close()
    ddp = DistributedDataParallel(Line())
    monkeypatch.setattr("partialcoll.torch.world._world", None)
    for error in (pc.StateError, ValueError):  # the second is Horovod's
        with pytest.raises(error, match="init"):
            pct.PartialState(ddp)


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupted_step(comm, monkeypatch, caplog, times):
    """Ctrl-C in a waiting rank is raised by backward(), once. The missed rounds enter the rank's
    next gradient."""
    ddp, state = hooked(Line())
    opt = sgd(ddp)
    step_on(ddp, opt, 1.0)

    wait = state._rounds.wait
    first, waits = comm.rank == 0, []

    def interrupt():
        waits.append(1)
        if len(waits) == 2:  # for the round of the previous step
            return wait()
        monkeypatch.undo()
        raise KeyboardInterrupt

    for i in range(times):
        number = 10.0 ** (i + 1)
        if first:
            monkeypatch.setattr(state._rounds, "wait", interrupt)
        opt.zero_grad()
        with caplog.at_level(logging.ERROR, "partialcoll"):
            if first:
                with pytest.raises(KeyboardInterrupt):
                    ddp(number).backward()
                assert (ddp.module.a.grad == number).all()  # the local one; no step uses it
                assert "KeyboardInterrupt" in caplog.text
            else:
                ddp(number).backward()
                opt.step()
    step_on(ddp, opt, 1000.0)
    total = -1011 if times == 1 else -1111
    assert (ddp.module.a == total).all() and (ddp.module.b == total).all()
    assert state.round == 2 + times
    state.join(opt)
    assert len(set(comm.allgather(bits(ddp.module)))) == 1
    state.close()


def test_interrupted_before_average_and_join(comm, monkeypatch):
    """A rank that missed a round still takes part in the following collective operations."""
    for end in ("average", "join"):
        ddp, state = hooked(Line(), average_every=2)
        opt = sgd(ddp)
        step_on(ddp, opt, 1.0)
        assert not state.average_parameters()
        opt.zero_grad()
        if comm.rank == 0:
            monkeypatch.setattr(state._rounds, "wait", lambda: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                ddp(10.0).backward()
            monkeypatch.undo()
        else:
            ddp(10.0).backward()
            opt.step()
        if end == "average":
            assert state.average_parameters()
            assert torch.allclose(
                ddp.module.a, torch.tensor(-1 - 10 * (1 - 1 / comm.size)).double()
            )
        state.join(opt)
        assert state.round == comm.allreduce(state.round, MPI.MAX)
        state.close()


def test_a_bucket_that_fails(comm, monkeypatch):
    """The other ranks complete their round without this bucket, and none waits forever."""
    ddp, state = hooked(Line(), bucket_cap_mb=SMALL)
    for _ in range(2):
        ddp.zero_grad()
        ddp(4.0).backward()
    ddp.zero_grad()
    if comm.rank == comm.size - 1:
        deposit = state._deposit

        def fail(bucket, buffer):
            if any(p is ddp.module.b for p in bucket.parameters()):
                raise OSError("broken")
            deposit(bucket, buffer)

        monkeypatch.setattr(state, "_deposit", fail)
        with pytest.raises(OSError, match="broken"):
            ddp(4.0).backward()
        monkeypatch.undo()
        assert (ddp.module.b.grad == 4.0).all()
    else:
        ddp(4.0).backward()
        assert torch.allclose(ddp.module.b.grad, torch.tensor(4 - 4 / comm.size).double())
    assert (ddp.module.a.grad == 4.0).all()
    ddp.zero_grad()
    ddp(4.0).backward()
    assert (ddp.module.b.grad == 4.0).all()
    state.close()


def test_an_error_without_backward_is_raised_by_the_next_call(comm, caplog):
    """DDP's join() calls the hook like this, outside of a backward pass."""
    ddp, state = hooked(Line())
    ddp(1.0).backward()
    state.close()
    buckets = ddp.reducer._get_zeros_like_grad_buckets()
    futures = [ddp.reducer._run_comm_hook(bucket) for bucket in buckets]
    assert all(future.done() for future in futures) and "closed" in caplog.text
    with pytest.raises(pc.StateError, match="closed"):
        state.close()
    state.close()  # only once


def test_after_close(comm):
    ddp, state = hooked(Line())
    ddp(1.0).backward()
    state.close()
    state.close()
    for _ in range(2):
        ddp.zero_grad()
        with pytest.raises(pc.StateError, match="closed"):
            ddp(5.0).backward()
        assert (ddp.module.a.grad == 5.0).all()
    for call in (state.join, state.average_parameters, state.state_dict):
        with pytest.raises(pc.StateError, match="closed"):
            call()


# Averages of the parameters, and the end


def test_average_parameters(comm):
    ddp, state = hooked(Tensors(), "solo", average_every=3)
    opt, did = sgd(ddp.module, lr=0.0), []
    drift = comm.rank * 4.0
    for step in range(7):
        opt.zero_grad()
        ddp(whole_numbers(ddp.module, comm.rank, step)).backward()
        opt.step()
        if step == 1:
            with torch.no_grad():
                for _, p in trained(ddp.module):
                    p.fill_(drift)
        did.append(state.average_parameters())
        if step == 2:
            mean = 4.0 * (comm.size - 1) / 2
            assert all((p == mean).all() for _, p in trained(ddp.module))
    assert did == [False, False, True] * 2 + [False]
    state.close()


def test_average_at_each_call_and_batchnorm(comm):
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    ddp, state = hooked(model, broadcast_buffers=False)
    for rounds in range(3):
        assert state.average_parameters()
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(comm.rank + 10 * rounds))
        ddp(x).sum().backward()
    mean = torch.from_numpy(comm.allreduce(model[1].running_mean.numpy())) / comm.size
    assert state.average_parameters()
    torch.testing.assert_close(model[1].running_mean, mean)
    state.close()


def test_forgotten_average_is_reported(comm):
    ddp, state = hooked(Line(), average_every=2)
    ddp(1.0).backward()
    ddp(1.0).backward()
    with pytest.raises(pc.StateError, match=r"average_parameters\(\) was not called after step 2"):
        ddp(1.0).backward()
    assert state.round == 3
    state.close()


@pytest.mark.parametrize("name", ["solo", "full"])
def test_average_while_a_rank_has_joined(comm, name):
    """Joined ranks take part in the averages of the others."""
    ddp, state = hooked(Line(), name, average_every=2)
    opt, delay = sgd(ddp), delayed(comm, seed=2)
    for _ in range(4 + 3 * (comm.rank % 2)):
        delay()
        step_on(ddp, opt, float(comm.size))
        state.average_parameters()
    state.join(opt)
    steps = sum(4 + 3 * (rank % 2) for rank in range(comm.size))
    assert (ddp.module.a == -steps).all()
    step_on(ddp, opt, float(comm.size))  # continue
    state.join(opt)
    assert (ddp.module.a == -steps - comm.size).all()
    state.close()


@pytest.mark.parametrize("name", ["solo", "full"])
def test_join_without_a_step_takes_the_mean(comm, name):
    """The last rank makes more steps than the others. Then all take the mean of all models."""
    ddp, state = hooked(Line(), name)
    opt = sgd(ddp)
    for _ in range(2 + 2 * (comm.rank == comm.size - 1)):
        step_on(ddp, opt, 1.0)
    own = ddp.module.a[0].item()
    state.join()
    own = comm.allgather(own)
    torch.testing.assert_close(ddp.module.a, torch.full((40,), sum(own) / comm.size).double())
    assert len(set(comm.allgather(bits(ddp.module)))) == 1
    state.close()


def test_join_with_memory_in_any_order(comm):
    """A rank whose data ends early applies the other ranks' rounds like they do. (Two steps each:
    before its second, DDP itself waits for all ranks.)"""
    ddp, state = hooked(Tensors(), "solo", gradient_as_bucket_view=True)
    opt = torch.optim.SGD([p for _, p in trained(ddp.module)], lr=0.1, momentum=0.9)
    for step in range(2 + 3 * (comm.rank > 0)):
        opt.zero_grad()
        ddp(whole_numbers(ddp.module, comm.rank, step)).backward()
        opt.step()
    state.join(opt)
    assert all(p.grad is None for _, p in trained(ddp.module)) or comm.rank or comm.size == 1
    assert len(set(comm.allgather(bits(ddp.module)))) == 1
    assert hash_tensors([Tensors().w]) != hash_tensors([ddp.module.w])
    state.close()


def test_join_in_different_ways(comm):
    if comm.size == 1:
        pytest.skip("one rank")
    ddp, state = hooked(Line())
    opt = sgd(ddp)
    step_on(ddp, opt, 1.0)
    with pytest.raises(pc.MismatchError, match="without step on rank 0"):
        state.join(None if comm.rank == 0 else opt)
    state.close()


# Checkpoints


@pytest.mark.parametrize("name", ["solo", "full"])
def test_checkpoint(comm, name):
    """A checkpoint in the middle, loaded into another process group of the same size with other
    buckets: the pending gradients are applied once."""
    ddp, state = hooked(Line(), name)
    opt, delay, given = sgd(ddp), delayed(comm, seed=3), 0
    for step in range(8):
        delay()
        step_on(ddp, opt, float(step * comm.size))
        given += step
    saved = pickle.loads(pickle.dumps((ddp.module.state_dict(), state.state_dict())))
    step_on(ddp, opt, 1e6)  # not in the checkpoint
    state.join(opt)
    state.close()
    ddp, state = hooked(Line(), name, bucket_cap_mb=SMALL)
    ddp.module.load_state_dict(saved[0])
    state.load_state_dict(saved[1])
    assert state.round == 8 and state.state_dict()["version"] == 8
    opt = sgd(ddp)
    step_on(ddp, opt, float(comm.size))
    assert state.round == 9
    state.join(opt)
    assert (ddp.module.a == -comm.size * (given + 1)).all()
    assert (ddp.module.b == ddp.module.a[0]).all()
    state.load_state_dict(state.state_dict())  # right after join
    state.close()


def test_wrong_checkpoints(comm):
    ddp, state = hooked(Line(), "solo")
    saved = state.state_dict()
    with pytest.raises(ValueError, match="expected one of rank"):
        state.load_state_dict({**saved, "size": comm.size + 1})
    with pytest.raises(ValueError, match="none that state_dict"):
        state.load_state_dict({"version": 3})
    wrong = {**saved, "pending": {"float64": torch.zeros(7)}, "layout": "other"}
    with pytest.raises(ValueError, match="pending gradient"):
        state.load_state_dict(wrong)
    state.load_state_dict(saved)
    ddp(1.0).backward()
    with pytest.raises(pc.StateError, match="between rounds"):
        state.load_state_dict(saved)
    state.close()


def test_checkpoints_of_different_steps(comm):
    if comm.size == 1:
        pytest.skip("one rank")
    ddp, state = hooked(Line())
    state.load_state_dict({**state.state_dict(), "version": 3 + comm.rank})
    with pytest.raises(pc.MismatchError, match="checkpoints of the same step"):
        ddp(1.0).backward()
    state.close()


@pytest.mark.parametrize("wrapped", (True, False))
def test_an_optimizer_that_averages_again_after_ddp(comm, wrapped):
    """A trainer may wrap the model itself: one warning, and the same updates."""
    torch.manual_seed(0)
    line = torch.nn.Linear(3, 1)
    model = DistributedDataParallel(line) if wrapped else line
    opt = pct.DistributedOptimizer(sgd(line), line.named_parameters(), strategy=pct.Eager("full"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(2):
            opt.zero_grad()
            model(torch.full((2, 3), comm.rank + step + 1.0)).sum().backward()
            opt.step()
    said = [str(warning.message) for warning in caught]
    assert sum("is in a DistributedDataParallel" in text for text in said) == wrapped, said
    assert torch.allclose(line.weight.grad, torch.full((1, 3), comm.size + 3.0))
    opt.close()
