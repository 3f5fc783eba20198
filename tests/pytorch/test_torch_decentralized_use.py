# SPDX-License-Identifier: Apache-2.0
"""Decentralized strategies in typical programs: models of every kind, idioms, and bad input."""

import copy
import gc
from types import SimpleNamespace

import numpy as np
import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")

from strategies import (  # noqa: E402
    CONSERVING,
    OPTIMIZERS,
    STRATEGIES,
    WAIT_FREE,
    Ledger,
    as_plain,
    bits,
    loss,
    network,
    patient,
    same_everywhere,
    train,
    vector,
    without_slow_momentum,
    wrap,
)

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll.torch._local_loop import warn_of_fallbacks  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


@pytest.fixture
def alone():
    """Each rank has its own world."""
    pct.shutdown()
    pct.init(MPI.COMM_SELF)
    yield
    pct.shutdown()


# Models of every kind


class Mixed(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        for dtype in (torch.float64, torch.bfloat16, torch.float32, torch.float16):
            value = torch.full((5,), 4.0 + seed, dtype=dtype)
            setattr(self, f"of_{str(dtype)[6:]}", torch.nn.Parameter(value))
        self.of_complex = torch.nn.Parameter(torch.full((3,), 1j * (1 + seed)))
        self.scalar = torch.nn.Parameter(torch.tensor(1.5 + seed))
        images = torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last)
        self.images = torch.nn.Parameter(images)
        self.transposed = torch.nn.Parameter(torch.randn(3, 4).t())
        self.empty = torch.nn.Parameter(torch.zeros(0, 3))
        self.unused = torch.nn.Parameter(torch.ones(2) + seed)

    def loss(self, factor):
        used = [p for n, p in self.named_parameters() if n != "unused"]
        return sum((p.abs() if p.is_complex() else p * factor).sum().float() for p in used)


@every_strategy
def test_parameters_of_every_kind(comm, name):
    """Several dtypes, memory orders, a scalar, an empty and an unused parameter."""
    model = Mixed(comm.rank)
    first = {n: p.detach().clone() for n, p in model.named_parameters()}
    strides = {n: p.stride() for n, p in model.named_parameters()}
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.5), strategy=STRATEGIES[name])
    for key, value in first.items():
        wide = torch.complex128 if value.is_complex() else torch.float64
        mean = comm.allreduce(value.to(wide)) / comm.size
        torch.testing.assert_close(
            getattr(model, key).detach(), mean.to(value.dtype), rtol=0, atol=0
        )
    for _ in range(4):
        opt.zero_grad()
        model.loss(1.0).backward()
        opt.step()
    opt.join()
    assert same_everywhere(comm, model)
    for key, parameter in model.named_parameters():
        assert parameter.dtype == first[key].dtype and parameter.stride() == strides[key]
        if name in CONSERVING and key not in ("of_complex",):
            change = 0.0 if key == "unused" else -2.0
            expected = comm.allreduce(first[key].double()) / comm.size + change
            got = parameter.detach().double()
            torch.testing.assert_close(got, expected, rtol=0, atol=0.05)
    opt.close()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "a2cid2", "swarm-8bit", "moshpit", "localsgd"])
def test_bfloat16_learns_small_steps(comm, name):
    """A step of half a unit in the last place is lost, exactly as in plain torch."""
    model = torch.nn.Linear(4, 1, bias=False).bfloat16()
    plain = torch.nn.Linear(4, 1, bias=False).bfloat16()
    for m in (model, plain):
        torch.nn.init.ones_(m.weight)
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=2.0**-6), strategy=STRATEGIES[name])
    reference = torch.optim.SGD(plain.parameters(), lr=2.0**-6)
    for _ in range(8):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            m.weight.sum().backward()
            o.step()
    opt.join()
    torch.testing.assert_close(model.weight, plain.weight, rtol=0, atol=2.0**-6)
    opt.close()


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "a2cid2", "swarm", "moshpit", "localsgd"])
def test_tied_weights_and_groups_and_frozen_ones(comm, name):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(4, 4)
            self.b = torch.nn.Linear(4, 4, bias=False)
            self.b.weight = self.a.weight
            self.c = torch.nn.Linear(4, 2)
            self.c.bias.requires_grad_(False)

    torch.manual_seed(0)
    model = Tied()
    groups = [
        {"params": [*model.a.parameters()], "lr": 0.1},
        {"params": [*model.c.parameters()], "lr": 0.01, "weight_decay": 0.5},
    ]
    frozen, inside = model.c.bias.clone(), model.c.weight.abs().sum().item()
    opt = wrap(model, torch.optim.SGD(groups), strategy=STRATEGIES[name])
    for step in range(6):
        opt.zero_grad()
        torch.manual_seed(step + 10 * comm.rank)
        model.b(model.a(torch.randn(3, 4))).square().sum().backward()
        opt.step()
    opt.join()
    assert model.b.weight is model.a.weight
    assert torch.equal(model.c.bias, frozen)
    assert abs(model.c.weight.abs().sum().item() - inside) < 1e-5  # unused, so it stays
    assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "swarm", "localsgd"])
def test_fused_optimizers_with_channels_last(alone, name, make):
    """Fused optimizers use memory order, whatever the strides of parameter and gradient."""

    def trained(wrapped):
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        opt = make(conv.parameters(), lr=0.1, fused=True)
        if wrapped:
            opt = wrap(conv, opt, strategy=STRATEGIES[name])
        for step in range(3):
            torch.manual_seed(step)
            opt.zero_grad()
            conv(torch.randn(2, 3, 8, 8)).square().mean().backward()
            opt.step()
        if wrapped:
            opt.close()
        return conv

    for a, b in zip(trained(True).parameters(), trained(False).parameters()):
        torch.testing.assert_close(a, b)


# Habits of programs


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "swarm", "a2cid2", "localsgd"])
@pytest.mark.parametrize("how", ["in place", "data", "load_state_dict", "to"])
def test_parameters_that_the_program_changes(comm, name, how):
    """A change between two steps counts like the optimizer's own change."""
    torch.manual_seed(comm.rank)
    model = torch.nn.Conv2d(2, 3, 3).double()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy=STRATEGIES[name])
    ledger = Ledger(model, opt)

    def some(steps):
        for step in range(steps):
            opt.zero_grad()
            torch.manual_seed(comm.rank + 100 * step)
            model(torch.randn(2, 2, 6, 6).double()).square().mean().backward()
            opt.step()

    some(4)
    with ledger.change(), torch.no_grad():
        if how == "in place":
            model.weight.clamp_(-0.05, 0.05)
        elif how == "data":
            model.weight.data = model.weight.data * 0.5
        elif how == "load_state_dict":
            model.load_state_dict({key: v * 0 + 1 for key, v in model.state_dict().items()})
        else:
            model.to(memory_format=torch.channels_last)
    if how in ("in place", "data"):
        some(1)
        assert model.weight.abs().max() < 0.6
    some(4)
    opt.join()
    assert same_everywhere(comm, model)
    np.testing.assert_allclose(vector(model), ledger.expected(comm), rtol=0, atol=1e-11)
    with ledger.change(), torch.no_grad():
        model.bias.add_(1.0)
    opt.join()  # right after the change, without a step between
    np.testing.assert_allclose(vector(model), ledger.expected(comm), rtol=0, atol=1e-11)
    opt.close()
    np.testing.assert_allclose(vector(model), ledger.expected(comm), rtol=0, atol=1e-11)


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "localsgd"])
def test_a_model_of_another_dtype(comm, name):
    """The shared memory keeps the dtype with which it was created."""
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    train(model, opt, comm.rank, 2)
    model.double()
    with pytest.raises((pc.StateError, TypeError), match=r"0\.weight|float64|dtype|wrap it anew"):
        opt.zero_grad()
        sum(p.sum() for p in model.parameters()).backward()
        opt.step()
    model.float()
    opt.close()


@every_strategy
def test_horovods_order(comm, name):
    """After wrap and broadcast all ranks have rank 0's model, and train from it."""
    model = network(seed=comm.rank).double()
    theirs = network(seed=77).double()
    opt = wrap(model, strategy=STRATEGIES[name])
    if comm.rank == 0:
        model.load_state_dict(theirs.state_dict())
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
    pct.broadcast_optimizer_state(opt, root_rank=0)
    assert bits(model) == bits(theirs)
    ledger = Ledger(model, opt)
    train(model, opt, comm.rank, 3)
    opt.join()
    assert same_everywhere(comm, model)
    if name in CONSERVING:
        np.testing.assert_allclose(vector(model), ledger.expected(comm), rtol=0, atol=1e-11)
    opt.close()


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "a2cid2", "slowmo"])
def test_gradients_that_the_program_replaces(alone, name):
    model, plain = network(), network()
    strategy = without_slow_momentum(STRATEGIES[name])
    opt, reference = wrap(model, strategy=strategy), OPTIMIZERS["sgd"](plain.parameters())
    for step in range(4):
        model.zero_grad(set_to_none=True)  # the model's zero_grad, not the optimizer's
        loss(model, 0, step).backward()
        model[0].weight.grad = model[0].weight.grad * 2
        model[2].bias.grad.data = model[2].bias.grad.data * 3
        opt.step()
        reference.zero_grad()
        loss(plain, 0, step).backward()
        plain[0].weight.grad *= 2
        plain[2].bias.grad *= 3
        reference.step()
    assert as_plain(name, model, plain)
    opt.close()


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "localsgd"])
def test_gradients_without_backward(alone, name):
    """With torch.autograd.grad the program assigns the gradients."""
    model, plain = network(), network()
    opt, reference = wrap(model, strategy=STRATEGIES[name]), OPTIMIZERS["sgd"](plain.parameters())
    for step in range(3):
        for m, o in ((model, opt), (plain, reference)):
            found = torch.autograd.grad(loss(m, 0, step), list(m.parameters()))
            for parameter, gradient in zip(m.parameters(), found):
                parameter.grad = gradient
            o.step()
    assert bits(model) == bits(plain)
    opt.close()


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "swarm", "moshpit", "localsgd", "slowmo"])
def test_several_backward_passes(alone, name):
    model, plain = network(), network()
    strategy = without_slow_momentum(STRATEGIES[name])
    opt = wrap(model, strategy=strategy, backward_passes_per_step=3)
    reference = OPTIMIZERS["sgd"](plain.parameters())
    for step in range(4):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            for part in range(3):
                loss(m, 0, 3 * step + part).backward()
            o.step()
    assert as_plain(name, model, plain)
    loss(model, 0, 0).backward()
    with pytest.raises(pc.StateError, match="1 of 3"):
        opt.step()
    opt.close()


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "localsgd"])
def test_without_zero_grad_gradients_accumulate_as_in_torch(alone, name):
    model, plain = network(), network()
    opt, reference = wrap(model, strategy=STRATEGIES[name]), OPTIMIZERS["sgd"](plain.parameters())
    for step in range(3):
        for m, o in ((model, opt), (plain, reference)):
            loss(m, 0, step).backward()
            o.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    opt.close()


@every_strategy
def test_guards(comm, name):
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    with pytest.raises(pc.StateError, match="without backward"):
        opt.step()
    loss(model, 0, 0).backward()
    for call in (opt.zero_grad, opt.join):
        with pytest.raises(pc.StateError, match="between backward"):
            call()
    with pytest.raises(pc.StateError, match=r"came 2 times .*backward_passes_per_step"):
        loss(model, 0, 1).backward()
    with pytest.raises(pc.StateError, match="add_param_group"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    with pytest.raises(pc.StateError, match="clip_norm"):
        opt.synchronize()
    opt.step()
    assert opt.round == 1
    opt.close()
    for call in (opt.zero_grad, opt.step, opt.join, opt.consensus_distance, opt.averaged_model):
        with pytest.raises(pc.StateError, match="closed"):
            call()
    opt.close()


@every_strategy
def test_schedulers_follow_the_own_steps(comm, name):
    model, told = network(), []
    opt = wrap(model, strategy=STRATEGIES[name], on_step=lambda o: told.append(o.round))
    opt.attach(torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5), every=3)
    steps = 4 + 2 * (comm.rank % 2) * (name in WAIT_FREE)
    for step in range(steps):
        train(model, opt, comm.rank, 1)
        assert opt.param_groups[0]["lr"] == 0.05 * 0.5 ** ((step + 1) // 3)
    assert told == list(range(1, steps + 1))
    opt.join()
    assert opt.param_groups[0]["lr"] == 0.05 * 0.5 ** (steps // 3)
    opt.close()


@every_strategy
def test_an_overflow_on_one_rank_is_its_own(comm, name):
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8 * (comm.rank + 1))
    for step in range(6):
        opt.zero_grad()
        scaler.scale(loss(model, comm.rank, step)).backward()
        if step == 3 and comm.rank == 0:
            model[2].bias.grad[1] = float("nan")
        scaler.step(opt)
        scaler.update()
        assert opt.round == step + 1
    opt.join()
    assert opt.metrics().skipped == (comm.rank == 0)
    assert np.isfinite(vector(model)).all()
    assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize("policy", ["propagate", "skip", "raise", None])
@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "swarm", "moshpit", "localsgd", "slowmo"])
def test_policies_for_nan(comm, name, policy, caplog):
    """By default NaN is excluded, because averages would spread it."""
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name], non_finite=policy)
    raised, last = False, comm.rank == comm.size - 1
    for step in range(4):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        if step == 2 and last:
            model[0].bias.grad[0] = float("nan")
        try:
            opt.step()
        except FloatingPointError:
            raised = True
        assert opt.round == step + 1
    assert raised == (policy == "raise" and last)
    opt.join()
    assert np.isfinite(vector(model)).all() == (policy != "propagate")
    assert opt.metrics().skipped == (policy != "propagate" and last)
    said = [record for record in caplog.records if "not finite" in record.getMessage()]
    assert len(said) == (policy != "propagate" and last)
    opt.close()


@every_strategy
def test_training_continues_after_close(comm, name):
    """After close the parameters have their own memory, and the optimizer is torch's."""
    model = network()
    raw = OPTIMIZERS["adam"](model.parameters())
    opt = wrap(model, raw, strategy=STRATEGIES[name])
    train(model, opt, comm.rank, 3)
    opt.join()
    opt.close()
    plain = network()
    plain.load_state_dict(model.state_dict())
    reference = OPTIMIZERS["adam"](plain.parameters())
    reference.load_state_dict(copy.deepcopy(raw.state_dict()))
    del opt
    gc.collect()
    pct.shutdown()  # also without a world
    for m, o in ((model, raw), (plain, reference)):
        train(m, o, comm.rank, 3)
    assert bits(model) == bits(plain)
    pct.init()
    opt = wrap(model, raw, strategy=STRATEGIES[name])  # and with a world again
    train(model, opt, comm.rank, 3)
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "moshpit", "localsgd", "slowmo"])
def test_zero_grad_at_the_end_of_the_loop(comm, name):
    """With zero_grad at the end, communication that needs no gradient has already begun."""
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name], model=model)

    def some(steps):
        for step in range(steps):
            loss(model, comm.rank, step).backward()
            opt.step()
            opt.zero_grad()

    some(3)
    opt.join()
    opt.zero_grad()
    state = opt.state_dict()
    if name == "dpsgd" and comm.size > 1:
        with pytest.raises(pc.StateError, match="sent to the neighbors"):
            opt.load_state_dict(state)
        opt.join()
    opt.load_state_dict(state)
    assert same_everywhere(comm, model)
    opt.zero_grad()
    opt.averaged_model()
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
    some(2)
    opt.join()
    assert same_everywhere(comm, model)
    if comm.rank == 0:
        opt.zero_grad()  # on one rank only
    opt.close()


@every_strategy
def test_close_in_the_middle(comm, name):
    """Close without a join. Ranks that never wait may have made different numbers of steps."""
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    train(model, opt, comm.rank, 2 + comm.rank * (name in WAIT_FREE))
    loss(model, comm.rank, 0).backward()  # also between backward and step
    own = vector(model)
    opt.close()
    if name != "moshpit-overlap":  # which includes the round in progress
        np.testing.assert_array_equal(vector(model), own)
    assert np.isfinite(vector(model)).all()


def test_two_at_once(comm):
    """Two models in one loop, one of which is closed while the other continues."""
    models = [network(comm.rank), network(comm.rank + 1)]
    opts = [
        wrap(models[0], "adam", strategy=pct.A2CiD2()),
        wrap(models[1], strategy=pct.DPSGD()),
    ]
    for step in range(4):
        for model, opt in zip(models, opts):
            opt.zero_grad()
            loss(model, comm.rank, step).backward()
        for opt in opts:
            opt.step()
    opts[1].join()
    opts[1].close()
    train(models[0], opts[0], comm.rank, 4)
    opts[0].join()
    assert all(same_everywhere(comm, model) for model in models)
    opts[0].close()
    opt = wrap(models[1], strategy=pct.Swarm())
    with pytest.raises(ValueError, match="another DistributedOptimizer"):
        wrap(models[1], strategy=pct.ADPSGD())
    comm.Barrier()
    opt.close()


@every_strategy
def test_metrics(comm, name):
    class Bar:
        def set_postfix(self, **what):
            self.what = what

    class Writer:
        said = ()

        def add_scalar(self, name, value, step):
            self.said += ((name, value, step),)

    bar, writer, model = Bar(), Writer(), network()
    tell = [pct.show_in_tqdm(bar, every=2), pct.write_to_tensorboard(writer, every=2)]
    strategy = patient(STRATEGIES[name], comm.size)
    opt = wrap(model, strategy=strategy, on_step=tell)
    train(model, opt, comm.rank, 12, delay=1e-3)
    m = opt.metrics()
    assert (m.steps, m.rounds, m.skipped) == (12, 12, 0)
    assert m.wait_s >= 0 and m.fallbacks >= 0 and m.refused >= 0
    assert not hasattr(m, "mean_active") and not hasattr(m, "lag") and "active" not in repr(m)
    assert ("partialcoll/included_ratio", 1.0, 12) in writer.said
    # A few steps may end before the communication threads have run.
    while comm.size > 1 and not comm.allreduce(opt.metrics().communications):
        train(model, opt, comm.rank, 1)
    opt.join()
    m = opt.metrics()
    communications, received = comm.allreduce(m.communications), comm.allreduce(m.received)
    if comm.size == 1:
        assert m.received == 0
    else:
        assert communications > 0
        assert received > 0 or name in ("localsgd", "slowmo")  # sums have no single source
        if name == "adpsgd":  # one per step; join drops waiting ones
            assert m.asked == m.steps == m.achieved + m.refused + m.given_up and m.backlog == 0
    assert bar.what and any(step == 12 for _, _, step in writer.said)
    assert opt.strategy is strategy
    opt.close()


# Refusals


def refused(comm, kind, match, **options):
    model = network()
    with pytest.raises(kind, match=match):
        wrap(model, **options)
    comm.Barrier()
    wrap(model, strategy=pct.LocalSGD()).close()  # nothing is left behind


@pytest.mark.parametrize("name", ["adpsgd", "localsgd", "slowmo"])
def test_options_for_sums_of_gradients_are_refused(comm, name):
    strategy = STRATEGIES[name]
    refused(comm, ValueError, "on_step", strategy=strategy, on_round=lambda result: None)
    refused(comm, ValueError, "op", strategy=strategy, op=pct.Sum)
    refused(
        comm,
        ValueError,
        "gradient_predivide_factor",
        strategy=strategy,
        gradient_predivide_factor=2,
    )
    refused(comm, ValueError, "non_finite", strategy=strategy, non_finite="ignore")


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda: pct.ADPSGD(rate=-1.0), "rate"),
        (lambda: pct.ADPSGD(rate=float("nan")), "rate"),
        (lambda: pct.ADPSGD(rate="fast"), "rate"),
        (lambda: pct.ADPSGD(pairing="nearest"), "pairing"),
        (lambda: pct.ADPSGD(max_uncollected=0), "max_uncollected"),
        (lambda: pct.ADPSGD(progress="sometimes"), "progress"),
        (lambda: pct.ADPSGD(seed="a"), "seed"),
        (lambda: pct.ADPSGD(clip_norm=0), "clip_norm"),
        (lambda: pct.ADPSGD(topology="spiral"), "topology"),
        (lambda: pct.ADPSGD(topology=7), "topology"),
        (lambda: pct.DPSGD(topology="spiral"), "topology"),
        (lambda: pct.DPSGD(topology="directed_exponential"), "topology|directed"),
        (lambda: pct.DPSGD(clip_norm=-1), "clip_norm"),
        (lambda: pct.Swarm(local_steps=0), "local_steps"),
        (lambda: pct.Swarm(local_steps=1.5), "local_steps"),
        (lambda: pct.Swarm(variant="stack"), "variant"),
        (lambda: pct.Swarm(codec=8), "codec"),
        (lambda: pct.A2CiD2(rate=-0.5), "rate"),
        (lambda: pct.A2CiD2(unit=0), "unit"),
        (lambda: pct.A2CiD2(variant="printed"), "variant"),
        (lambda: pct.A2CiD2(momentum=True), "momentum"),
        (lambda: pct.A2CiD2(topology="directed_exponential"), "topology|directed"),
        (lambda: pct.A2CiD2(pairing="nearest"), "pairing"),
        (lambda: pct.Moshpit(local_steps=0), "local_steps"),
        (lambda: pct.Moshpit(average="medians"), "average"),
        (lambda: pct.Moshpit(rounds=0), "rounds"),
        (lambda: pct.Moshpit(rounds=2, overlap=True), "rounds"),
        (lambda: pct.Moshpit(outer_momentum=0.5), "outer"),
        (lambda: pct.Moshpit(timeout=0), "timeout"),
        (lambda: pct.Moshpit(grid=(0, 4)), "grid"),
        (lambda: pct.Moshpit(bandwidth=-1.0), "bandwidth"),
        (lambda: pct.SGP(rate=-1.0), "rate"),
        (lambda: pct.LocalSGD(local_steps=0), "local_steps"),
        (lambda: pct.LocalSGD(local_steps=True), "local_steps"),
        (lambda: pct.SlowMo(3), "inner"),
        (lambda: pct.SlowMo(pct.Allreduce()), "inner"),
        (lambda: pct.SlowMo(pct.SlowMo(pct.LocalSGD())), "inner"),
        (lambda: pct.SlowMo(pct.ADPSGD(on_failure="continue")), "inner: expected on_failure"),
        (lambda: pct.SlowMo(pct.LocalSGD(), tau=0), "tau"),
        (lambda: pct.SlowMo(pct.LocalSGD(), beta=1.5), "beta"),
        (lambda: pct.SlowMo(pct.LocalSGD(), alpha=-1.0), "alpha"),
    ],
)
def test_bad_options(comm, make, match):
    """An option is refused at once or when the optimizer is wrapped, by its name."""
    model = network()
    with pytest.raises((TypeError, ValueError), match=match):
        wrap(model, strategy=make())
    comm.Barrier()
    wrap(model, strategy=pct.LocalSGD()).close()


TOPOLOGIES = {
    "adpsgd": pct.ADPSGD,
    "dpsgd": pct.DPSGD,
    "swarm": pct.Swarm,
    "a2cid2": pct.A2CiD2,
}


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_topology_of_another_size(comm, name):
    graph = pc.Topology.ring(comm.size + 1)
    expected = f"of {comm.size} ranks, got .*{comm.size + 1}"
    refused(comm, ValueError, expected, strategy=TOPOLOGIES[name](topology=graph))
    slow = pct.SlowMo(TOPOLOGIES[name](topology=graph))
    refused(comm, ValueError, expected, strategy=slow)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_a_topology_that_is_disconnected(comm, name):
    networkx = pytest.importorskip("networkx")
    if comm.size < 2:
        pytest.skip("one rank is connected")
    graph = networkx.empty_graph(comm.size)
    graph.add_edges_from((i, i + 2) for i in range(comm.size - 2))
    refused(comm, ValueError, "connected", strategy=TOPOLOGIES[name](topology=graph))


def test_a_grid_that_is_too_small(comm):
    if comm.size < 2:
        pytest.skip("one rank fits everywhere")
    refused(comm, ValueError, "grid", strategy=pct.Moshpit(grid=(1, comm.size - 1)))


@pytest.mark.parametrize(
    "mine, theirs",
    [
        (pct.ADPSGD(), pct.A2CiD2()),
        (pct.ADPSGD("ring"), pct.ADPSGD("complete")),
        (pct.Swarm(codec=pc.Lattice(bits=8)), pct.Swarm(codec=pc.Lattice(bits=4))),
        (pct.LocalSGD(4), pct.LocalSGD(5)),
        (pct.SlowMo(pct.DPSGD()), pct.DPSGD()),
        (pct.SlowMo(pct.DPSGD(), tau=4), pct.SlowMo(pct.DPSGD(), tau=5)),
        (pct.Moshpit(), pct.Allreduce()),
    ],
)
def test_strategies_that_differ(comm, mine, theirs):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    strategy = mine if comm.rank else theirs
    refused(comm, pc.MismatchError, "strategy", strategy=strategy)


def test_a_bad_argument_on_one_rank(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    graph = pc.Topology.ring(comm.size + (comm.rank == 0))
    model = network()
    with pytest.raises((ValueError, pc.MismatchError), match=r"topology|strategy"):
        wrap(model, strategy=pct.ADPSGD(graph))
    comm.Barrier()
    wrap(model, strategy=pct.LocalSGD()).close()


@pytest.mark.parametrize("name", ["adpsgd", "moshpit", "localsgd"])
def test_models_that_differ(comm, name):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 8 if comm.rank else 9))
    with pytest.raises(pc.MismatchError, match=r"'1.weight': shape \(9, 8\).* rank 0"):
        wrap(model, strategy=STRATEGIES[name])
    comm.Barrier()


@pytest.mark.parametrize("bits_", [2, 3])
def test_a_codec_that_cannot_hold_the_distances(comm, bits_):
    """Ranks are far apart: a block that cannot be decoded is read again with more bits, and
    counted. Nothing is lost."""
    model = torch.nn.Linear(3000, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    strategy = pct.Swarm(local_steps=1, codec=pc.Lattice(bits=bits_))
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), strategy=strategy)
    rng = np.random.default_rng(comm.rank)
    ledger, fallbacks, step = Ledger(model, opt), 0, 0
    while step < 30 or (fallbacks == 0 and comm.size > 1):  # threads do it when they can
        opt.zero_grad()
        far = torch.from_numpy(rng.standard_normal((1, 3000)) * 10.0 ** (step % 7))
        (model.weight * far).sum().backward()
        opt.step()
        step += 1
        if step % 10 == 0:
            fallbacks = comm.allreduce(opt.metrics().fallbacks)
    opt.join()
    expected = ledger.expected(comm)
    np.testing.assert_allclose(vector(model), expected, rtol=0, atol=1e-6 * abs(expected).max())
    assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize(
    "reads, fallbacks, said", [(32, 48, True), (32, 47, False), (31, 93, False)]
)
def test_too_few_bits_are_said(reads, fallbacks, said, caplog):
    """Warn when half of the blocks, of 1024 elements each, have been read twice."""
    stats = SimpleNamespace(reads=reads, fallbacks=fallbacks)
    assert warn_of_fallbacks(stats, elements=3000) == said
    assert ("too few bits" in caplog.text) == said
