# SPDX-License-Identifier: Apache-2.0
"""Allreduce(overlap=True): gradients are sent while backward computes others."""

import copy
import time

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from strategies import bits, loss, network, same_everywhere, train, wrap  # noqa: E402

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll.torch.flat import Layout, Views  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]
SMALL = pct.Allreduce(overlap=True, bucket_bytes=1)  # sends each parameter separately
LIMIT_S = 60


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


def gone(opt):
    """Return the buckets that have been sent for the next step."""
    handle = opt._loop.rounds.handle
    return {i for i in range(len(opt._loop.rounds.layout.counts)) if handle._parts[i]._started}


class Meanwhile(torch.autograd.Function):
    """Call a function in the middle of backward."""

    @staticmethod
    def forward(context, x, what):
        context.what = what
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        context.what()
        return gradient, None


def test_buckets_arrive_while_backward_computes(comm):
    """Ranks exchange the last layer's bucket before any has a gradient of the first layer."""
    first, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    model = torch.nn.Sequential(first, last)
    pct.broadcast_parameters(model.state_dict())
    opt = wrap(model, strategy=SMALL)
    handle, met = opt._loop.rounds.handle, []

    def meet():
        assert gone(opt) == {0, 1}
        deadline = time.monotonic() + LIMIT_S
        while handle._parts[0].stats.rounds <= opt.round:
            assert time.monotonic() < deadline, "nothing moves before the step"
            time.sleep(1e-3)
        met.append(opt.round)

    for step in range(5):
        opt.zero_grad()
        last(Meanwhile.apply(first(torch.ones(2, 6) * (step + comm.rank)), meet)).sum().backward()
        assert gone(opt) == {0, 1, 2, 3}
        opt.step()
        assert not gone(opt)
    assert met == list(range(5)) and same_everywhere(comm, model)
    opt.close()


def test_as_without(comm):
    """The average is the same, whatever the size of the buckets."""
    for size in (1, 100, 1000, 2**20):
        models = [network(), network()]
        opts = [
            wrap(models[0], "adam", strategy=pct.Allreduce(clip_norm=0.5)),
            wrap(
                models[1],
                "adam",
                strategy=pct.Allreduce(clip_norm=0.5, overlap=True, bucket_bytes=size),
            ),
        ]
        for model, opt in zip(models, opts):
            train(model, opt, comm.rank, 6)
            assert same_everywhere(comm, model)
        for a, b in zip(*(model.parameters() for model in models)):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
        for opt in opts:
            opt.close()


def test_parameters_without_a_gradient(comm):
    """Its bucket is sent at the step. A parameter that no rank uses has no gradient."""
    model = network()
    unused = torch.nn.Linear(4, 4)
    named = [*model.named_parameters(), *(("unused." + n, p) for n, p in unused.named_parameters())]
    optimizer = torch.optim.SGD([p for _, p in named], lr=0.1)
    opt = pct.DistributedOptimizer(
        optimizer, named, strategy=pct.Allreduce(overlap=True, bucket_bytes=150)
    )
    before = bits(unused)
    for step in range(3):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        everything = set(range(len(opt._loop.rounds.layout.counts)))
        assert gone(opt) and gone(opt) != everything
        opt.step()
        assert all(p.grad is None for p in unused.parameters())
    assert bits(unused) == before and same_everywhere(comm, model)
    opt.close()


def test_several_backward_passes(comm):
    """The buckets are sent in the last pass."""
    model, plain = network(), network()
    opt = wrap(model, strategy=SMALL, backward_passes_per_step=3)
    reference = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    for step in range(2):
        opt.zero_grad()
        reference.zero_grad()
        for i in range(3):
            assert not gone(opt)
            loss(model, comm.rank, 3 * step + i).backward()
        assert len(gone(opt)) == 4
        opt.step()
        total = sum(loss(plain, rank, 3 * step + i) for i in range(3) for rank in range(comm.size))
        total.div(comm.size).backward()
        reference.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    opt.close()


@pytest.mark.parametrize("options", ({"op": pct.Sum}, {"gradient_predivide_factor": 4.0}))
def test_options_applied_before_the_sum(comm, options):
    models = [network(), network()]
    for model, strategy in zip(models, (pct.Allreduce(), SMALL)):
        opt = wrap(model, strategy=strategy, **options)
        train(model, opt, comm.rank, 4)
        opt.close()
    for a, b in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_synchronize(comm):
    """Sent buckets stay sent. The average can be changed before the update."""
    model = network()
    opt = wrap(model, strategy=SMALL)
    for step in range(3):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.synchronize()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with opt.skip_synchronize():
            opt.step()
        assert same_everywhere(comm, model)
    opt.close()


def test_join_with_uneven_data(comm):
    model = network()
    opt = wrap(model, strategy=pct.Allreduce(overlap=True, bucket_bytes=150))
    for epoch in range(3):
        steps = 1 + 4 * ((comm.rank + epoch) % comm.size)
        train(model, opt, comm.rank, steps, delay=2e-3)
        opt.join()
        assert same_everywhere(comm, model)
        assert len(set(comm.allgather(opt.round))) == 1
    assert opt.metrics().included_ratio == 1.0
    opt.close()


@pytest.mark.parametrize("saved", (pct.Allreduce(), SMALL), ids=("plain", "overlap"))
@pytest.mark.parametrize("loaded", (pct.Allreduce(), SMALL), ids=("plain", "overlap"))
def test_checkpoint(comm, saved, loaded):
    models = [network(), network()]
    opt = wrap(models[0], strategy=saved)
    train(models[0], opt, comm.rank, 4)
    state, parameters = copy.deepcopy((opt.state_dict(), models[0].state_dict()))
    train(models[0], opt, comm.rank, 3)
    opt.close()
    models[1].load_state_dict(parameters)
    again = wrap(models[1], strategy=loaded)
    again.load_state_dict(state)
    assert again.round == 4
    train(models[1], again, comm.rank, 3)
    for a, b in zip(*(model.parameters() for model in models)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    again.close()


@pytest.mark.parametrize("again", (False, True), ids=("at once", "saved again"))
def test_a_late_gradient_of_a_checkpoint(comm, again):
    """A pending gradient of Eager is added in the first step, in which nothing is sent early."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2))
    parameters = list(model.parameters())
    for parameter in parameters:
        torch.nn.init.zeros_(parameter)
    opt = wrap(model, torch.optim.SGD(parameters, lr=1.0), strategy=pct.Eager("majority"))
    state = opt.state_dict()
    layout = opt._loop.rounds.plain
    pending = layout.new()
    for i, _ in enumerate(parameters):
        layout.part(pending, i).fill_(float(comm.size * (i + 1)))
    state["partialcoll"]["pending"] = {"float32": pending[0]}
    opt.close()
    opt = wrap(model, torch.optim.SGD(parameters, lr=1.0), strategy=SMALL)
    opt.load_state_dict(state)
    if again:
        state = copy.deepcopy(opt.state_dict())
        opt.close()
        opt = wrap(model, torch.optim.SGD(parameters, lr=1.0), strategy=SMALL)
        opt.load_state_dict(state)
        pct.broadcast_optimizer_state(opt)
    for early in (set(), {0, 1, 2}):  # the first parameter, without a gradient, is last
        opt.zero_grad()
        sum((parameter * comm.size).sum() for parameter in parameters[1:]).backward()
        assert gone(opt) == early
        opt.step()
    for i, parameter in enumerate(parameters):
        expected = -comm.size * (i + 1.0) - (0 if i == 0 else 2 * comm.size)
        assert (parameter == expected).all()
    opt.close()


# Sent gradients must not change


@pytest.fixture
def sent(comm):
    """Prepare a step whose gradients have all been sent."""
    pct.shutdown()
    pct.init(comm.Split(comm.rank))  # errors concern one rank only
    model = network()
    opt = wrap(model, strategy=SMALL)
    opt.zero_grad()
    loss(model, 0, 0).backward()
    yield model, opt
    opt.close()
    pct.shutdown()


@pytest.mark.parametrize("how", ("in place", "clipped", "in the buffer", "data", "numpy", "twice"))
def test_changed_after_it_was_sent(sent, how):
    model, opt = sent
    if how == "in place":
        model[0].weight.grad.mul_(2)
    elif how == "clipped":
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    elif how == "in the buffer":
        opt._loop.gradients.flats[1].zero_()
    elif how == "data":  # torch does not count these two; in the first step the bits are compared
        model[0].weight.grad.data.clamp_(-1e-3, 1e-3)
    elif how == "numpy":
        np.clip(model[0].weight.grad.numpy(), -1e-3, 1e-3, out=model[0].weight.grad.numpy())
    else:
        with pytest.raises(pc.StateError, match="came 2 times"):
            loss(model, 0, 1).backward()
    with pytest.raises(pc.StateError, match="changed after it had been sent"):
        opt.step()


@pytest.mark.parametrize("how", ("other", "none", "data"))
def test_replaced_after_it_was_sent(sent, how):
    model, opt = sent
    weight = model[2].weight
    if how == "other":
        weight.grad = torch.zeros_like(weight)
    elif how == "none":
        weight.grad = None
    else:
        weight.grad.data = torch.zeros_like(weight)
    with pytest.raises(pc.StateError, match=r"'2.weight': its gradient was replaced after"):
        opt.step()


def test_zero_grad_after_it_was_sent(sent):
    _, opt = sent
    with pytest.raises(pc.StateError, match="would be lost"):
        opt.zero_grad()


def test_changed_before_it_is_sent(comm):
    """A parameter's hook changes it within backward."""
    model = network()
    model[0].weight.register_hook(lambda gradient: 0 * gradient)
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy=SMALL)
    before = model[0].weight.clone()
    train(model, opt, comm.rank, 2)
    assert (model[0].weight == before).all()
    opt.close()


@pytest.mark.parametrize("first", (False, True), ids=("step", "unscale"))
def test_grad_scaler_is_refused(sent, first):
    _, opt = sent
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(torch.ones(1))
    if first:  # by a kernel that torch does not count
        scaler.unscale_(opt)
    with pytest.raises(pc.StateError, match="GradScaler"):
        scaler.step(opt)


def test_moved_before_it_is_sent(comm):
    """After wrapping, model.to() replaces a gradient's memory. The new contents are sent."""
    model, plain = (torch.nn.Conv2d(3, 4, 3) for _ in range(2))
    plain.load_state_dict(model.state_dict())
    for other in (model, plain):
        pct.broadcast_parameters(other.state_dict())
    opts = [wrap(model, strategy=SMALL), wrap(plain, strategy=pct.Allreduce())]
    for other in (model, plain):
        other.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(comm.rank))
    for _ in range(3):
        for other, opt in zip((model, plain), opts):
            other(x).square().mean().backward()
            opt.step()
            opt.zero_grad()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    for opt in opts:
        opt.close()


def test_on_round_sees_sums_and_fingerprints(comm):
    """A callback sees all sums and fingerprints."""
    model, seen = network(), []

    def look(result):
        seen.append((result.active, [buffer.size for buffer in result.buffers]))

    opt = wrap(model, strategy=SMALL, on_round=look)
    train(model, opt, comm.rank, 2)
    rounds = opt._loop.rounds
    sizes = [*rounds.layout.counts, rounds._fingerprints.outline().size]
    assert seen == 2 * [(comm.size, sizes)]
    opt.close()


# Interrupts


@pytest.mark.parametrize("part", (0, 3))
def test_interrupted_join_continues(comm, part, monkeypatch):
    """Wherever Ctrl-C occurs, no passing gradient is lost."""
    model = network()
    opt = wrap(model, strategy=SMALL)
    train(model, opt, comm.rank, 1)
    if comm.size > 1 and comm.rank == 0:
        handle = opt._loop.rounds.handle
        wait, waits = handle._parts[part]._next_joined, []

        def interrupt():
            waits.append(1)
            if len(waits) == 2:
                raise KeyboardInterrupt
            return wait()

        monkeypatch.setattr(handle._parts[part], "_next_joined", interrupt)
        with pytest.raises(KeyboardInterrupt):
            opt.join()
        monkeypatch.undo()
    elif comm.size > 1:
        train(model, opt, comm.rank, 4)
    opt.join()
    assert opt.round == (1 if comm.size == 1 else 5) + 1
    assert same_everywhere(comm, model)
    train(model, opt, comm.rank, 1)
    assert same_everywhere(comm, model)
    opt.close()


def test_interrupted_step_is_named(sent, monkeypatch):
    model, opt = sent

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(opt._loop.rounds.handle, "Wait", interrupt)
    with pytest.raises(KeyboardInterrupt):
        opt.step()
    monkeypatch.undo()
    opt.zero_grad()
    with pytest.raises(pc.StateError, match=r"interrupted .* while it waited"):
        loss(model, 0, 1).backward()


# Options


@pytest.mark.parametrize(
    "options, error",
    (
        ({"overlap": 1}, TypeError),
        ({"overlap": True, "bucket_bytes": 0}, ValueError),
        ({"overlap": True, "bucket_bytes": 1.5}, TypeError),
        ({"overlap": True, "bucket_bytes": True}, TypeError),
    ),
)
def test_bad_options(options, error):
    with pytest.raises(error, match=r"overlap|bucket_bytes"):
        pct.Allreduce(**options)


@pytest.mark.parametrize("non_finite", ("skip", "raise"))
def test_non_finite_has_to_propagate(non_finite):
    with pytest.raises(ValueError, match="overlap"):
        wrap(network(), strategy=SMALL, non_finite=non_finite)


def test_a_size_that_is_not_used(comm):
    """Ranks may differ in a size that is not used."""
    opt = wrap(network(), strategy=pct.Allreduce(bucket_bytes=1 + comm.rank))
    opt.close()


def test_ranks_that_differ(comm):
    if comm.size == 1:
        pytest.skip("needs two ranks")
    mine = pct.Allreduce(overlap=True, bucket_bytes=1 + comm.rank)
    with pytest.raises(pc.MismatchError, match="bucket_bytes"):
        wrap(network(), strategy=mine)


def test_layout_of_buckets():
    """Buckets start from the last tensor. None exceeds the size unless a single tensor does."""
    shapes = [(40,), (3, 5), (100,), (7,), (0, 3), ()]
    tensors = [torch.zeros(shape) for shape in shapes]
    tensors.insert(2, torch.zeros(9, dtype=torch.float64))
    layout = Layout(tensors, 256)
    assert [place.buffer for place in layout.places] == [3, 3, 2, 1, 0, 0, 0]
    assert layout.counts == [32, 112, 16, 64]
    assert layout.dtypes == [torch.float32, torch.float32, torch.float64, torch.float32]
    flats = layout.new()
    for flat in flats:
        flat.fill_(-1.0)
    for i, (tensor, view) in enumerate(zip(tensors, Views(layout, flats).tensors)):
        assert view.shape == tensor.shape and view.dtype == tensor.dtype
        view.fill_(float(i + 1))
    for i, tensor in enumerate(tensors):
        part = layout.part(flats, i)
        assert part.numel() == tensor.numel() and (part == i + 1).all()
    layout.clear_gaps(flats)
    for i in range(len(tensors)):
        assert (layout.part(flats, i) == i + 1).all()
    for i in range(len(tensors)):
        layout.part(flats, i).zero_()
    assert not any(flat.any() for flat in flats)
