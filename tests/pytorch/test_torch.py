# SPDX-License-Identifier: Apache-2.0
"""DistributedOptimizer: what a step guarantees with each strategy, and what is refused."""

import copy
import gc
import hashlib
import pickle
import signal
import time
import warnings
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll._core.attendance import name_ranks  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

STRATEGIES = {
    "allreduce": pct.Allreduce(),
    "overlap": pct.Allreduce(overlap=True, bucket_bytes=200),
    "solo": pct.Eager("solo"),
    "majority": pct.Eager("majority"),
    "quorum": pct.Eager("quorum:0.5", history=2),
    "full": pct.Eager("full"),
}
OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def batch(rank, step, rows=5):
    g = torch.Generator().manual_seed(1000 * rank + step)
    return torch.randn(rows, 6, generator=g), torch.randn(rows, 3, generator=g)


def loss(model, rank, step):
    x, y = batch(rank, step)
    return (model(x) - y).square().mean()


def wrap(model, make="sgd", **options):
    optimizer = OPTIMIZERS[make](model.parameters()) if isinstance(make, str) else make
    return pct.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def bits(model):
    digest = hashlib.blake2b()
    for parameter in model.parameters():
        digest.update(parameter.detach().view(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def train(comm, model, opt, steps, delay=0.0, each=lambda: None):
    rng = np.random.default_rng(comm.rank)
    for step in range(steps):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        if rng.random() < 0.3:
            time.sleep(rng.random() * delay)
        opt.step()
        each()


def step_on(model, opt, gradient):
    """Make a step whose local gradient is the same number everywhere."""
    opt.zero_grad()
    sum((parameter * gradient).sum() for parameter in model.parameters()).backward()
    opt.step()


# Guarantees of a step


@pytest.mark.parametrize("make", OPTIMIZERS)
@pytest.mark.parametrize("name", STRATEGIES)
def test_replicas_are_identical_after_every_step(comm, name, make):
    model, seen = network(), []
    opt = wrap(model, make, strategy=STRATEGIES[name], clip_norm=1.0)
    train(comm, model, opt, 12, delay=4e-3, each=lambda: seen.append((opt.round, bits(model))))
    assert [number for number, _ in seen] == list(range(1, 13))
    assert all(other == seen for other in comm.allgather(seen))
    opt.join()
    assert len(set(comm.allgather((opt.round, bits(model))))) == 1
    assert opt.metrics().included_ratio == 1.0
    opt.close()


@pytest.mark.parametrize("name", ["allreduce", "overlap", "full"])
@pytest.mark.parametrize("make", OPTIMIZERS)
def test_as_if_one_process_had_all_the_data(comm, name, make):
    model, plain = network(), network()
    opt = wrap(model, make, strategy=STRATEGIES[name])
    reference = OPTIMIZERS[make](plain.parameters())
    train(comm, model, opt, 8)
    for step in range(8):
        reference.zero_grad()
        sum(loss(plain, rank, step) for rank in range(comm.size)).div(comm.size).backward()
        reference.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    opt.close()


@pytest.mark.parametrize("name", STRATEGIES)
def test_conservation(comm, name):
    """Whatever was late, in the end every gradient of every rank is in the parameters once."""
    model = torch.nn.Linear(7, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), strategy=STRATEGIES[name])
    rng = np.random.default_rng(comm.rank)
    given = 0
    for step in range(20):
        number = int(rng.integers(1, 1000)) * comm.size
        given += number
        if rng.random() < 0.3:
            time.sleep(rng.random() * 3e-3)
        step_on(model, opt, number)
        assert opt.metrics().steps == step + 1
    opt.join()
    assert (model.weight == -comm.allreduce(given) / comm.size).all()
    opt.close()


def test_solo_does_not_wait(comm):
    """This rank's steps end although no other rank makes one."""
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo", history=16))
    if comm.rank == 0:
        train(comm, model, opt, 10)
    comm.Barrier()
    if comm.rank != 0:
        train(comm, model, opt, 10)
        assert opt.metrics().mean_active <= comm.size
    comm.Barrier()
    opt.join()
    assert len(set(comm.allgather(bits(model)))) == 1
    opt.close()


def test_ranks_with_more_and_less_data(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("majority"))
    for epoch in range(3):
        train(comm, model, opt, 2 + 3 * ((comm.rank + epoch) % comm.size))
        opt.join()
        assert len(set(comm.allgather((opt.round, bits(model))))) == 1
    opt.close()


@pytest.mark.parametrize("name", ["allreduce", "overlap"])
def test_backward_between_synchronize_and_step(comm, name):
    """A backward pass here would add to the average on this rank alone."""
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    opt.zero_grad()
    loss(model, comm.rank, 0).backward()
    opt.synchronize()
    with pytest.raises(pc.StateError, match=r"backward\(\) between synchronize\(\) and step"):
        loss(model, comm.rank, 1).backward()
    with pytest.raises(pc.StateError, match="spoilt"):
        opt.step()
    opt.close()


def test_interrupted_join_of_several(comm):
    """After Ctrl-C while others still train, parameters do not change until join is called
    again."""
    models = [network(0), network(1)]
    opts = [wrap(model, strategy=pct.Allreduce()) for model in models]
    last = comm.size - 1
    if comm.size > 1 and comm.rank == last:
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            pct.join()
        signal.signal(signal.SIGALRM, before)
        then = [bits(model) for model in models]
        comm.Barrier()
        assert then == [bits(model) for model in models]
    elif comm.size > 1:
        comm.Barrier()
        for step in range(3):
            for model, opt in zip(models, opts):
                step_on(model, opt, float(step))
    pct.join()
    for model, opt in zip(models, opts):
        assert len(set(comm.allgather((opt.round, bits(model))))) == 1
        opt.close()


def test_a_slow_rank_skips_ahead(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo", deliver="all", history=512))
    for step, _ in enumerate(opt.until(30)):
        if comm.rank == 0:
            time.sleep(5e-3)
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.step()
    assert opt.round >= 30
    opt.join()
    assert len(set(comm.allgather((opt.round, bits(model))))) == 1
    opt.close()


# The memory of gradients


def test_gradients_lie_in_the_librarys_memory(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("full"))
    for step in range(6):
        opt.zero_grad()
        addresses = [p.grad.data_ptr() for p in model.parameters()]
        assert all(not p.grad.any() for p in model.parameters())
        loss(model, comm.rank, step).backward()
        assert addresses == [p.grad.data_ptr() for p in model.parameters()]
        opt.step()
    assert opt.metrics().copied == 0
    opt.close()
    assert all(p.grad is None for p in model.parameters())


def test_after_a_step_the_applied_gradient_is_seen(comm):
    model = network()
    opt = wrap(model, strategy=pct.Allreduce())
    opt.zero_grad()
    loss(model, comm.rank, 0).backward()
    local = [p.grad.clone() for p in model.parameters()]
    opt.step()
    for own, parameter in zip(local, model.parameters()):
        total = comm.allreduce(own.double().numpy()) / comm.size
        torch.testing.assert_close(parameter.grad.double(), torch.from_numpy(total))
    opt.close()


def test_replaced_gradients_are_copied_once(comm):
    model, plain = network(), network()
    opt = wrap(model, strategy=pct.Allreduce())
    reference = OPTIMIZERS["sgd"](plain.parameters())
    for step in range(4):
        model.zero_grad(set_to_none=True)  # the model's zero_grad, not the optimizer's
        loss(model, 0, step).backward()
        model[0].weight.grad = model[0].weight.grad * 2
        opt.step()
        reference.zero_grad()
        loss(plain, 0, step).backward()
        plain[0].weight.grad *= 2
        reference.step()
    assert opt.metrics().copied == 4 * 4 + 4
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    opt.close()


def test_without_zero_grad_gradients_accumulate_as_in_torch(comm):
    model, plain = network(), network()
    opt = wrap(model, strategy=pct.Allreduce())
    reference = OPTIMIZERS["sgd"](plain.parameters())
    for step in range(3):
        for m, o in ((model, opt), (plain, reference)):
            loss(m, 0, step).backward()
            o.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    opt.close()


def test_several_backward_passes(comm):
    model, plain = network(), network()
    opt = wrap(model, backward_passes_per_step=3)
    reference = OPTIMIZERS["sgd"](plain.parameters())
    for step in range(4):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            for part in range(3):
                loss(m, 0, 3 * step + part).backward()
            o.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    opt.close()


@pytest.mark.parametrize("name", ["allreduce", "solo"])
def test_frozen_and_unused_parameters_and_groups(comm, name):
    model = network()
    model[0].bias.requires_grad_(False)
    extra = torch.nn.Linear(3, 3)
    groups = [
        {"params": model.parameters(), "lr": 0.1},
        {"params": extra.parameters(), "lr": 0.01, "weight_decay": 0.5},
    ]
    named = [*model.named_parameters(), *(("extra." + n, p) for n, p in extra.named_parameters())]
    with torch.no_grad():
        for p in extra.parameters():
            p.fill_(1.0)
    before = model[0].bias.clone()
    opt = pct.DistributedOptimizer(torch.optim.SGD(groups), named, strategy=STRATEGIES[name])
    train(comm, model, opt, 5)
    opt.join()
    assert (model[0].bias == before).all()
    assert (extra.weight == 1.0).all()  # weight decay skips parameters that no rank has used
    assert len(set(comm.allgather(bits(model) + bits(extra)))) == 1
    opt.close()


@pytest.mark.parametrize("name", ["allreduce", "overlap", "majority"])
def test_several_dtypes(comm, name):
    class Mixed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for dtype in (torch.float64, torch.bfloat16, torch.float32, torch.float16):
                value = torch.full((5,), 4.0, dtype=dtype)
                setattr(self, f"of_{str(dtype)[6:]}", torch.nn.Parameter(value))
            self.of_complex = torch.nn.Parameter(torch.full((3,), 1j))

    model = Mixed()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.5), strategy=STRATEGIES[name])
    for _ in range(4):
        opt.zero_grad()
        sum(p.abs().sum().float() for p in model.parameters()).backward()
        opt.step()
    opt.join()
    for n, p in model.named_parameters():
        expected = torch.full_like(p, 4.0 - 2.0) if n != "of_complex" else p
        torch.testing.assert_close(p.data, expected.data, rtol=0, atol=0.05)
    assert model.of_complex.grad.dtype == torch.complex64
    assert len(set(comm.allgather(bits(model)))) == 1
    opt.close()


def test_autocast(comm):
    model = network()
    opt = wrap(model, "adam", strategy=pct.Eager("majority"))
    for step in range(5):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(model, comm.rank, step)
        value.backward()
        opt.step()
    opt.join()
    assert all(p.dtype == torch.float32 for p in model.parameters())
    assert len(set(comm.allgather(bits(model)))) == 1
    opt.close()


@pytest.mark.parametrize("predivide", [1.0, 4.0])
def test_sum_and_average(comm, predivide):
    model = torch.nn.Linear(3, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    opt = wrap(model, sgd, gradient_predivide_factor=predivide)
    step_on(model, opt, comm.rank + 1.0)
    np.testing.assert_allclose(model.weight.detach(), -(comm.size + 1) / 2, rtol=1e-14)
    opt.close()
    torch.nn.init.zeros_(model.weight)
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=1.0), op=pct.Sum)
    step_on(model, opt, comm.rank + 1.0)
    assert (model.weight == -comm.size * (comm.size + 1) / 2).all()
    opt.close()


# Updates follow the rounds


@pytest.mark.parametrize("where", ["strategy", "optimizer"])
def test_clipping(comm, where):
    model, plain = network(), network()
    options = {"strategy": pct.Eager("full", clip_norm=0.1)}
    if where == "optimizer":
        options = {"strategy": pct.Allreduce(), "clip_norm": 0.1}
    opt = wrap(model, **options)
    reference = OPTIMIZERS["sgd"](plain.parameters())
    for step in range(5):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            loss(m, 0, step).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        opt.step()
        reference.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    opt.close()


@pytest.mark.parametrize("deliver", ["one", "all"])
def test_schedulers_and_callbacks_follow_the_rounds(comm, deliver):
    model, seen, told = network(), [], []
    opt = wrap(
        model,
        strategy=pct.Eager("solo", deliver=deliver, history=64),
        on_round=lambda result: seen.append((result.index, result.active)),
        on_step=lambda o: told.append(o.round),
    )
    scheduler = torch.optim.lr_scheduler.StepLR(opt, step_size=1, gamma=0.5)
    opt.attach(scheduler, every=4)
    step = 0
    for _ in opt.until(12):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.step()
        assert opt.param_groups[0]["lr"] == 0.05 * 0.5 ** (opt.metrics().rounds // 4)
        step += 1
    # Ranks that have joined may contribute rounds without any gradient, which are no updates.
    assert [index for index, _ in seen[:12]] == list(range(12))
    assert len(seen) == opt.metrics().rounds <= opt.round
    assert all(1 <= active <= comm.size for _, active in seen)
    assert len(told) == step and told[-1] == opt.round
    opt.join()
    assert len(set(comm.allgather((opt.round, bits(model), tuple(seen))))) == 1
    opt.close()


def test_different_hyperparameters_are_found_on_every_rank(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    model = network()
    opt = wrap(model, strategy=pct.Eager("full"))
    train(comm, model, opt, 3)
    if comm.rank == 1:
        opt.param_groups[0]["lr"] = 0.01
    with pytest.raises(pc.MismatchError, match=r"after 3 rounds differ .*attach"):
        train(comm, model, opt, 5)
    opt.close()


@pytest.mark.parametrize("name", STRATEGIES)
def test_different_parameters_are_found_on_every_rank(comm, name):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=STRATEGIES[name], check_every=1)
    with pytest.raises(
        pc.MismatchError, match="broadcast_parameters"
    ):  # in the same step on all ranks
        train(comm, model, opt, 2000, each=comm.Barrier)
    comm.Barrier()
    opt.close()


def test_a_learning_rate_by_hand_is_fine_as_a_function_of_the_round(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo"))

    def decay():
        opt.param_groups[0]["lr"] = 0.05 / (1 + opt.round)

    train(comm, model, opt, 20, delay=3e-3, each=decay)
    opt.join()
    assert len(set(comm.allgather(bits(model)))) == 1
    opt.close()


# Gradients that are not finite


def test_grad_scaler_on_one_rank_is_as_without_us(comm):
    if comm.size > 1:
        pytest.skip("one rank")
    models = [network(), network()]
    for i, model in enumerate(models):
        opt = OPTIMIZERS["sgd"](model.parameters())
        opt = wrap(model, opt) if i else opt
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        for step in range(10):
            opt.zero_grad()
            scaler.scale(loss(model, 0, step)).backward()
            if step == 4:
                model[0].weight.grad.fill_(float("inf"))
            scaler.step(opt)
            scaler.update()
        assert scaler.get_scale() == 2.0**11
    assert bits(models[0]) == bits(models[1])
    assert opt.metrics().skipped == 1
    opt.close()


@pytest.mark.parametrize("name", [name for name in STRATEGIES if name != "overlap"])
def test_an_overflow_on_one_rank_skips_no_round(comm, name):
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8 * (comm.rank + 1))
    for step in range(8):
        opt.zero_grad()
        scaler.scale(loss(model, comm.rank, step)).backward()
        if step == 3 and comm.rank == 0:
            model[2].bias.grad[1] = float("nan")
        scaler.step(opt)
        scaler.update()
        assert opt.round == step + 1
    opt.join()
    assert opt.metrics().skipped == (comm.rank == 0)
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert len(set(comm.allgather(bits(model)))) == 1
    opt.close()


def test_unscale_before_the_step(comm):
    """scaler.unscale_(opt) has already divided."""
    model, plain = network(), network()
    opt, scaler = wrap(model), torch.amp.GradScaler("cpu", init_scale=64.0)
    reference = OPTIMIZERS["sgd"](plain.parameters())
    opt.zero_grad()
    scaler.scale(loss(model, 0, 0)).backward()
    scaler.unscale_(opt)
    scaler.step(opt)
    loss(plain, 0, 0).backward()
    reference.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b)
    opt.close()


@pytest.mark.parametrize("policy", ["propagate", "skip", "raise"])
def test_policies_for_nan(comm, policy):
    model = network()
    opt = wrap(model, strategy=pct.Eager("full"), non_finite=policy)
    raised = False
    for step in range(4):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        if step == 2 and comm.rank == comm.size - 1:
            model[0].bias.grad[0] = float("nan")
        try:
            opt.step()
        except FloatingPointError:
            raised = True
        assert opt.round == step + 1
    last = comm.rank == comm.size - 1
    assert raised == (policy == "raise" and last)
    finite = all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert finite == (policy != "propagate")
    assert opt.metrics().skipped == (policy != "propagate" and last)
    opt.close()


# Horovod's idioms


def test_synchronize_then_clip_then_step(comm):
    model, plain = network(), network()
    opt, reference = wrap(model), OPTIMIZERS["sgd"](plain.parameters())
    for step in range(4):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            loss(m, 0, step).backward()
        opt.synchronize()
        with pytest.raises(pc.StateError, match="twice"):
            opt.synchronize()
        for m in (model, plain):
            torch.nn.utils.clip_grad_norm_(m.parameters(), 0.05)
        with opt.skip_synchronize():
            opt.step()
        reference.step()
        assert opt.round == step + 1
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    opt.close()


def test_changes_by_hand_while_others_have_joined(comm):
    """Joined ranks apply the unchanged average: replicas would diverge silently."""
    if comm.size < 2:
        pytest.skip("needs two ranks")
    model = network()
    opt = wrap(model)
    train(comm, model, opt, 2)
    for step in range(0 if comm.rank == 0 else 3):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.synchronize()
        gradients = [parameter.grad for parameter in model.parameters()]
        before = [gradient.clone() for gradient in gradients]
        with opt.skip_synchronize():
            if step == 1:
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                with pytest.raises(pc.StateError, match=r"ranks have joined.*clip_norm="):
                    opt.step()
                for gradient, one in zip(gradients, before):
                    gradient.copy_(one)
            opt.step()
    opt.join()
    assert len(set(comm.allgather((opt.round, bits(model))))) == 1
    train(comm, model, opt, 2)
    opt.close()


def test_nothing_else_is_in_a_gradient(run):
    """Reused memory contains other data, also between the parameters."""
    done = run(
        """
        import torch
        import partialcoll.torch as pct
        pct.init()
        def norms(wrapped):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 1))
            opt = torch.optim.SGD(model.parameters(), lr=0.1)
            if wrapped:
                opt = pct.DistributedOptimizer(opt, model.named_parameters(), clip_norm=0.5)
            for step in range(6):
                model.zero_grad()
                model(torch.ones(4, 3)).square().sum().backward()
                if not wrapped:
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                opt.step()
            return [p.detach() for p in model.parameters()]
        for a, b in zip(norms(True), norms(False)):
            torch.testing.assert_close(a, b)
        say("as torch")
        """,
        ranks=1,
        env={"MALLOC_PERTURB_": "128"},  # malloc gives 0x7f in each byte: 3.4e38
    )
    assert done.returncode == 0 and "as torch" in done.stdout, done.stderr


def test_synchronize_is_for_allreduce(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("full"))
    with pytest.raises(pc.StateError, match="clip_norm"):
        opt.synchronize()
    with pytest.raises(pc.StateError, match="clip_norm"), opt.skip_synchronize():
        pass
    opt.close()


def test_guards(comm):
    model = network()
    opt = wrap(model)
    with pytest.raises(pc.StateError, match="without backward"):
        opt.step()
    loss(model, 0, 0).backward()
    with pytest.raises(pc.StateError, match="between backward"):
        opt.zero_grad()
    with pytest.raises(pc.StateError, match="between backward"):
        opt.join()
    with pytest.raises(pc.StateError, match=r"came 2 times .*backward_passes_per_step"):
        loss(model, 0, 1).backward()
    with pytest.raises(pc.StateError, match="add_param_group"):
        opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    opt.step()
    opt.close()
    opt = wrap(model, backward_passes_per_step=2, strategy=pct.Eager())
    loss(model, 0, 0).backward()
    with pytest.raises(pc.StateError, match="1 of 2"):
        opt.step()
    opt.close()


def test_it_is_the_optimizer_that_it_was(comm):
    model = network()
    raw = OPTIMIZERS["adam"](model.parameters())
    opt = wrap(model, raw)
    assert isinstance(opt, torch.optim.Adam) and type(opt).__name__ == "Adam"
    calls = []
    opt.register_step_post_hook(lambda *_: calls.append(1))
    train(comm, model, opt, 3)
    assert calls == [1, 1, 1]
    assert opt.state is raw.state and opt.param_groups is raw.param_groups
    opt.close()


# Habits of programs


@pytest.mark.parametrize("name", ["allreduce", "overlap"])
def test_fewer_passes_at_the_end_of_an_epoch(comm, name):
    """Like in Horovod's example that splits batches: an epoch's last batch may be shorter."""
    model, expected = network(), network()
    make = OPTIMIZERS["sgd"]
    opt = wrap(
        model, make(model.parameters()), strategy=STRATEGIES[name], backward_passes_per_step=2
    )
    inner = make(expected.parameters())
    last = comm.size - 1
    for passes in (lambda rank: 2, lambda rank: 1 + (rank < last), lambda rank: 2):
        opt.zero_grad()
        for i in range(passes(comm.rank)):
            loss(model, comm.rank, i).backward()
        opt.step()
        inner.zero_grad()
        for rank in range(comm.size):
            for i in range(passes(rank)):
                (loss(expected, rank, i) / comm.size).backward()
        inner.step()
    assert_close(model, expected)
    opt.close()


def test_no_update_of_a_bad_average(comm):
    """Like with Horovod, a program may decide to step after it has seen the average."""
    model, expected = network(), network()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step, factor in ((0, 1.0), (1, float("inf"))):
        opt.zero_grad()
        (loss(model, comm.rank, step) * factor).backward()
        opt.synchronize()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e6)
        if torch.isfinite(norm):
            with opt.skip_synchronize():
                opt.step()
    opt.zero_grad()
    with pytest.raises(pc.StateError, match="without backward"):
        opt.step()
    on_their_own(comm, expected, torch.optim.SGD(expected.parameters(), lr=0.1), 1)
    assert_close(model, expected)
    loss(model, comm.rank, 2).backward()
    opt.step()
    assert (opt.round, opt.metrics().rounds, opt.metrics().skipped) == (3, 2, 0)
    assert len(set(comm.allgather(bits(model)))) == 1
    opt.close()


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_scaled_gradients_are_rounded_as_what_they_are(comm, compression):
    """65536 times a gradient of 1 is finite in float32, so the scaler steps, but not in float16."""
    model = torch.nn.Linear(4, 1, bias=False)
    torch.nn.init.ones_(model.weight)
    inner = torch.optim.SGD(model.parameters(), lr=0.5)
    opt = wrap(model, inner, compression=getattr(pct.Compression, compression))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    opt.zero_grad()
    scaler.scale(model(torch.full((1, 4), 3.0)).sum()).backward()
    scaler.step(opt)
    scaler.update()
    assert model.weight.tolist() == [[1 - 1.5] * 4]
    opt.close()


def test_layers_that_are_called_sparse(comm):
    """An attention layer may have a `sparse` attribute although its gradients are dense."""

    class Attention(torch.nn.Module):
        def __init__(self, sparse):
            super().__init__()
            self.sparse, self.weight = sparse, torch.nn.Parameter(torch.ones(3))

    for sparse in (True, torch.ones(2)):
        for strategy in (pct.Allreduce(), pct.Eager()):
            model = Attention(sparse)
            inner = OPTIMIZERS["adamw"](model.parameters())
            opt = pct.DistributedOptimizer(inner, model=model, strategy=strategy)
            model.weight.sum().backward()
            opt.step()
            opt.close()


def test_a_scheduler_for_each_stage(comm):
    """After a close and a new wrap, the first stage's scheduler controls the new object."""
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    for stage in range(3):
        opt = wrap(model, inner)
        scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
        train(comm, model, opt, 1, each=scheduler.step)
        assert opt.param_groups[0]["lr"] == 0.5 ** (stage + 1)
        opt.close()
        del opt, scheduler
        gc.collect()


@pytest.mark.parametrize("strategy", (pct.Allreduce(), pct.Eager("solo"), pct.DPSGD()))
def test_an_optimizer_that_the_program_drops(comm, strategy):
    """A dropped optimizer leaves the parameters alone, is not joined, and can be replaced."""
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = wrap(model, inner, strategy=strategy)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1)
    train(comm, model, opt, 1)
    opt.zero_grad()
    there = weakref.ref(opt)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del opt, scheduler
        gc.collect()
    assert there() is None and not pct.world.world().optimizers
    assert all(not p._post_accumulate_grad_hooks and p.grad is None for p in model.parameters())
    loss(model, 0, 0).backward()  # the gradient is the program's own
    inner.zero_grad()
    pct.join()
    pct.broadcast_parameters(model.state_dict())  # with DPSGD the ranks' parameters differ
    opt = wrap(model, inner)
    train(comm, model, opt, 2)
    pct.join()
    assert opt.round >= 2
    opt.close()


def test_an_optimizer_that_was_closed_is_wrapped_again(comm):
    """This happens when a notebook cell is run again."""
    model = network()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        opt = pct.DistributedOptimizer(opt, model.named_parameters())
        train(comm, model, opt, 2)
        assert opt.round == 2 and "state" in opt.state_dict()
        with pytest.raises(TypeError, match="still open"):
            pct.DistributedOptimizer(opt, model.named_parameters())
        opt.close()


def on_their_own(comm, model, optimizer, steps=3, before_step=lambda m: None):
    """Train without partialcoll, with the mean of all ranks' gradients computed by hand."""
    for step in range(steps):
        optimizer.zero_grad()
        for rank in range(comm.size):
            (loss(model, rank, step) / comm.size).backward()
        before_step(model)
        optimizer.step()


def assert_close(model, expected):
    for a, b in zip(model.parameters(), expected.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_scheduler_of_the_optimizer_inside(comm):
    """A scheduler of the inner optimizer must not replace our step by the inner one."""
    model, expected = network(), network()
    raw = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = wrap(model, raw)
    scheduler = torch.optim.lr_scheduler.StepLR(raw, 1)
    train(comm, model, opt, 3)
    on_their_own(comm, expected, torch.optim.SGD(expected.parameters(), lr=0.1))
    assert opt.round == 3
    assert_close(model, expected)
    scheduler.step()
    assert opt.param_groups[0]["lr"] == pytest.approx(0.01)
    opt.close()


@pytest.mark.parametrize("unscale", [False, True])
def test_synchronize_with_a_grad_scaler(comm, unscale):
    model, expected = network(), network()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    on_their_own(comm, expected, torch.optim.SGD(expected.parameters(), lr=0.1), 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step, factor in ((0, 1.0), (1, float("inf"))):
        opt.zero_grad()
        (scaler.scale(loss(model, comm.rank, step)) * factor).backward()
        opt.synchronize()
        if unscale:
            scaler.unscale_(opt)
        with opt.skip_synchronize():
            scaler.step(opt)
        scaler.update()
        assert_close(model, expected)  # also after the second one, which is skipped
    assert (opt.round, opt.metrics().rounds, opt.metrics().skipped) == (2, 1, 1)
    assert scaler.get_scale() == 512.0
    opt.close()


@pytest.mark.parametrize("make", [torch.optim.SGD, torch.optim.Adam])
def test_fused_optimizers_with_channels_last(comm, make):
    """Fused optimizers use memory order, whatever the strides of parameter and gradient."""

    def trained(wrapped):
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        opt = make(conv.parameters(), lr=0.1, fused=True)
        if wrapped:
            opt = wrap(conv, opt)
        for step in range(3):
            torch.manual_seed(step)
            opt.zero_grad()
            conv(torch.randn(2, 3, 8, 8)).square().mean().backward()
            opt.step()
        if wrapped:
            opt.close()
        return conv

    assert_close(trained(True), trained(False))


def test_gradients_that_are_given_other_memory(comm):
    """p.grad stays the same object, but no longer views our memory."""
    model, expected = network(), network()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def double(of):
        for parameter in of.parameters():
            parameter.grad.data = parameter.grad.data * 2

    for step in range(4):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        double(model)
        opt.step()
        double(model)
    on_their_own(comm, expected, torch.optim.SGD(expected.parameters(), lr=0.1), 4, double)
    assert_close(model, expected)
    opt.close()


def test_gradients_without_backward(comm):
    """With torch.func and torch.autograd.grad the program assigns the gradients."""
    model, expected = network(), network()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    for step in range(3):
        value = loss(model, comm.rank, step)
        found = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
        for parameter, gradient in zip(model.parameters(), found):
            parameter.grad = gradient
        opt.step()
        with pytest.raises(pc.StateError, match="without backward"):
            opt.step()
    on_their_own(comm, expected, torch.optim.SGD(expected.parameters(), lr=0.1))
    assert_close(model, expected)
    opt.close()


def test_create_graph_leaves_no_graph(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo"))
    for step in range(3):
        opt.zero_grad()
        loss(model, comm.rank, step).backward(create_graph=True)
        assert not any(parameter.grad.requires_grad for parameter in model.parameters())
        opt.step()
    opt.close()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_parameters_that_are_given_other_memory(comm):
    """The hash covers the parameters that are trained."""
    torch.manual_seed(comm.rank)
    conv = torch.nn.Conv2d(3, 4, 3)
    opt = wrap(conv, torch.optim.SGD(conv.parameters(), lr=0.1), check_every=1)
    conv.to(memory_format=torch.channels_last)
    pct.broadcast_parameters(conv.state_dict(), root_rank=0)
    for _ in range(3):
        opt.zero_grad()
        conv(torch.randn(2, 3, 8, 8)).square().mean().backward()
        opt.step()
    with torch.no_grad():
        conv.weight[0, 0, 0, 0] = comm.rank
    if comm.size > 1:
        conv(torch.randn(2, 3, 8, 8)).square().mean().backward()
        with pytest.raises(pc.MismatchError, match="parameters"):
            opt.step()
    opt.close()


def test_zero_grad_in_on_round(comm):
    """A step may apply several rounds. A callback's changes must not affect the next one. Each rank
    may start a round by its step and one by its join. With room for fewer rounds, the last rank to
    step would take another rank's state instead of applying the first rounds."""
    if comm.size < 2:
        pytest.skip("one rank misses no rounds")
    model, opt, after = network(), None, {}

    def called(result):
        opt.zero_grad()
        after[result.index] = bits(model)

    how = pct.Eager("solo", deliver="all", history=3 + 2 * comm.size)
    opt = wrap(model, strategy=how, on_round=called)
    if comm.rank == 0:
        train(comm, model, opt, 3)
    comm.Barrier()
    if comm.rank > 0:
        train(comm, model, opt, 1)
    opt.join()
    seen = comm.allgather(after)
    for index in range(3):
        assert len({of_rank[index] for of_rank in seen}) == 1
    opt.close()


def test_an_interrupted_update(comm):
    """The parameters are undefined afterwards, so steps and checkpoints are refused."""

    def called(result):
        if result.index == 1:
            raise KeyboardInterrupt

    model = network()
    opt = wrap(model, on_round=called)
    train(comm, model, opt, 1)
    with pytest.raises(KeyboardInterrupt):
        train(comm, model, opt, 1)
    with pytest.raises(pc.StateError, match="interrupted"):
        opt.state_dict()
    with pytest.raises(pc.StateError, match="interrupted"):
        opt.join()
    with pytest.raises(pc.StateError, match="interrupted"):
        train(comm, model, opt, 1)
    opt.close()


def test_after_close(comm):
    model = network()
    raw = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = wrap(model, raw)
    with pytest.raises(TypeError, match="already"):
        wrap(model, opt)
    with pytest.raises(TypeError, match="already"):
        wrap(model, raw)
    train(comm, model, opt, 1)
    opt.close()
    loss(model, 0, 0).backward()
    for call in (opt.zero_grad, opt.step, opt.join, opt.synchronize):
        with pytest.raises(pc.StateError, match="closed"):
            call()
    opt.close()
    assert all(parameter.grad is not None for parameter in model.parameters())
    raw.step()
    opt = wrap(model, raw)
    opt.close()


def test_one_rank_has_wrapped_it_already(comm):
    """The other ranks get an error, and do not wait."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    again = wrap(model, optimizer)
    other = network()
    with pytest.raises(TypeError if comm.rank == 0 else pc.MismatchError, match="already"):
        if comm.rank == 0:
            wrap(model, again)
        else:
            wrap(other, torch.optim.SGD(other.parameters(), lr=0.1))
    again.close()


def test_it_cannot_be_copied(comm):
    model = network()
    opt = wrap(model)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="state_dict"):
            copied(opt)
    with pytest.raises(TypeError, match="ReduceLROnPlateau"):
        opt.attach(torch.optim.lr_scheduler.ReduceLROnPlateau(opt))
    opt.close()


def test_shutdown_before_the_last_step(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo"))
    pct.shutdown()
    train(comm, model, opt, 4)
    opt.join()
    assert opt.state_dict()["partialcoll"]["size"] == comm.size
    opt.close()


# Refusals


def refused(comm, kind, match, make, **options):
    model = options.pop("of", None) or network()
    named = options.pop("named", model.named_parameters())
    with pytest.raises(kind, match=match):
        pct.DistributedOptimizer(make(model), named, **options)
    comm.Barrier()


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    "options, kind, match",
    [
        ({"strategy": "solo"}, TypeError, "strategy: expected"),
        ({"op": pct.Max}, ValueError, "op: expected"),
        ({"backward_passes_per_step": 0}, ValueError, "backward_passes_per_step"),
        ({"backward_passes_per_step": 1.5}, TypeError, "backward_passes_per_step"),
        ({"gradient_predivide_factor": 0}, ValueError, "gradient_predivide_factor"),
        ({"clip_norm": 0}, ValueError, "clip_norm"),
        ({"clip_norm": "1"}, TypeError, "clip_norm"),
        ({"clip_norm": 1, "strategy": pct.Eager(clip_norm=2)}, ValueError, "clip_norm: 1 here, 2"),
        ({"non_finite": "ignore"}, ValueError, "non_finite"),
        ({"check_every": 0}, ValueError, "check_every"),
        ({"on_round": 3}, TypeError, "on_round|iterable"),
        ({"named": [("a", None), ("a", None)]}, ValueError, "'a' comes twice"),
        ({"named": []}, ValueError, "has no name"),
        ({"named": [1]}, TypeError, "named_parameters"),
        ({"model": 3}, TypeError, "model: expected"),
        ({"model": torch.nn.SyncBatchNorm(3)}, TypeError, "SyncBatchNorm"),
    ],
)
def test_bad_options(comm, options, kind, match):
    refused(comm, kind, match, sgd, **options)


@pytest.mark.parametrize(
    "options", [{"deliver": "some"}, {"quorum": "most"}, {"clip_norm": -1}, {"linger": -1.0}]
)
def test_bad_strategies(comm, options):
    with pytest.raises(ValueError):
        pct.Eager(**options)


def test_strategy_with_modifiers(comm):
    assert str(pct.Eager("majority", linger=1e-3, max_staleness=4).policy) == str(
        pc.Majority(linger=1e-3, max_staleness=4)
    )
    assert pct.Eager("quorum:0.5,deadline=1s", linger=1e-3).policy == pc.Quorum(
        0.5, deadline=1.0, linger=1e-3
    )


def test_optimizers_that_cannot_work(comm):
    refused(
        comm,
        TypeError,
        "LBFGS calls its closure several times",
        lambda m: torch.optim.LBFGS(m.parameters()),
    )
    refused(comm, TypeError, "torch.optim.Optimizer", lambda m: m)

    def scheduled(model):
        optimizer = sgd(model)
        torch.optim.lr_scheduler.StepLR(optimizer, 3)
        return optimizer

    refused(comm, TypeError, "scheduler", scheduled)


def test_a_bad_argument_on_one_rank(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    kind = ValueError if comm.rank == 0 else pc.MismatchError
    refused(comm, kind, "clip_norm", sgd, clip_norm=-1 if comm.rank == 0 else None)


def test_models_that_differ(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    width = 8 if comm.rank else 9
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, width))
    others = name_ranks(range(1, comm.size))
    match = rf"'1.weight': shape \(9, 8\).* rank 0.*shape \(8, 8\).* {others}"
    refused(comm, pc.MismatchError, match, sgd, of=model)
    deeper = [torch.nn.Linear(3, 3) for _ in range(1 + (comm.rank == 1))]
    model = torch.nn.Sequential(*deeper)
    refused(comm, pc.MismatchError, "nothing more", sgd, of=model)


def test_strategies_that_differ(comm):
    if comm.size < 2:
        pytest.skip("needs two ranks")
    strategy = pct.Eager("solo" if comm.rank else "majority")
    refused(comm, pc.MismatchError, "strategy.*majority.*rank 0", sgd, strategy=strategy)
    passes = 1 if comm.rank == 0 else 2
    match = "'backward_passes_per_step': 1 on rank 0; 'backward_passes_per_step': 2 on ranks? 1"
    refused(comm, pc.MismatchError, match, sgd, backward_passes_per_step=passes)


def test_a_parameter_in_two_open_optimizers(comm):
    model = network()
    opt = wrap(model)
    refused(comm, ValueError, r"'0.weight': it is in another", sgd, of=model)
    opt.close()
    wrap(model).close()


def test_a_step_that_fails_leaves_the_scaler_well(comm):
    model, scaler = network(), torch.amp.GradScaler("cpu", init_scale=4.0)
    opt = wrap(model)
    loss(model, 0, 0).backward()
    scaler.scale(torch.zeros(()))
    opt._loop.rounds._updating = True  # as if an update had been interrupted
    with pytest.raises(pc.StateError):
        scaler.step(opt)
    opt._loop.rounds._updating = False
    scaler.update()
    assert "grad_scale" not in opt.__dict__ and "found_inf" not in opt.__dict__
    scaler.step(opt)
    opt.close()


def test_a_frozen_parameter_that_thaws(comm):
    model = network()
    model[0].bias.requires_grad_(False)
    opt = wrap(model)
    train(comm, model, opt, 1)
    model[0].bias.requires_grad_(True)
    opt.zero_grad()
    loss(model, 0, 0).backward()
    with pytest.raises(pc.StateError, match="wrap it anew"):
        opt.step()
    model[0].bias.grad = None
    opt.step()
    opt.close()


def test_metrics_are_shown(comm):
    class Bar:
        def set_postfix(self, **what):
            self.what = what

    class Writer:
        said = ()

        def add_scalar(self, name, value, step):
            self.said += ((name, value, step),)

    bar, writer, model = Bar(), Writer(), network()
    tell = [pct.show_in_tqdm(bar, every=2), pct.write_to_tensorboard(writer, every=2)]
    opt = wrap(model, on_step=tell)
    train(comm, model, opt, 4)
    assert bar.what["included"] == "1.000"
    assert ("partialcoll/mean_active", float(comm.size), 4) in writer.said
    m = opt.metrics()
    assert (m.steps, m.rounds, m.included, m.lost) == (4, 4, 4, 0) and m.wait_s > 0
    assert f"included_ratio=1.0, mean_active={float(comm.size)}" in repr(m)
    assert not hasattr(m, "communications") and "communications" not in repr(m)
    train(comm, model, opt, 1)
    assert (m.steps, opt.metrics().steps) == (4, 5), "the returned metrics keep counting"
    opt.close()
