# SPDX-License-Identifier: Apache-2.0
"""`step(closure)`: the closure computes this step's gradients, as trainers pass it."""

import pytest

torch = pytest.importorskip("torch")

from strategies import loss, network  # noqa: E402

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

# Strategies whose results do not depend on which rank is late.
SAME_BITS = [
    pct.Allreduce(),
    pct.Allreduce(overlap=True, bucket_bytes=200),
    pct.Eager("full"),
    pct.DPSGD(),
    pct.LocalSGD(local_steps=2),
    pct.SlowMo(pct.LocalSGD(local_steps=2), tau=4),
]
OTHERS = [pct.Eager("solo"), pct.Eager("majority"), pct.ADPSGD(), pct.Moshpit()]
NAMES = [type(strategy).__name__ for strategy in (*SAME_BITS, *OTHERS)]


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


def wrap(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return pct.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def closure_of(model, opt, rank, step):
    def closure():
        opt.zero_grad()
        value = loss(model, rank, step)
        value.backward()
        return value

    return closure


def trained(rank, strategy, by_closure):
    """Return the parameters, and the losses that the steps returned."""
    model = network()
    opt = wrap(model, strategy=strategy, clip_norm=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
    losses = []
    for step in range(5):
        closure = closure_of(model, opt, rank, step)
        if by_closure:
            with torch.no_grad():  # as in Lightning
                losses.append(opt.step(closure))
        else:
            losses.append(closure())
            assert opt.step() is None
        scheduler.step()
    assert opt.metrics().steps == 5
    opt.join()
    assert opt.metrics().included_ratio == 1.0
    opt.close()
    return [parameter.detach().clone() for parameter in model.parameters()], losses


@pytest.mark.parametrize("strategy", (*SAME_BITS, *OTHERS), ids=NAMES)
def test_a_closure_equals_a_loop(comm, strategy):
    parameters, losses = trained(comm.rank, strategy, by_closure=True)
    others, plain = trained(comm.rank, strategy, by_closure=False)
    assert torch.equal(losses[0], plain[0]) and len(losses) == 5
    if strategy in SAME_BITS:
        assert all(map(torch.equal, parameters, others))
        assert losses == plain


@pytest.mark.parametrize("strategy", (pct.Allreduce(), pct.DPSGD()), ids=("rounds", "local"))
def test_wrong_closures(comm, strategy):
    model = network()
    opt = wrap(model, strategy=strategy)
    good = closure_of(model, opt, comm.rank, 0)

    def twice():
        good()
        loss(model, comm.rank, 1).backward()

    def steps():
        good()
        opt.step()

    def resets():
        good()
        opt.zero_grad()

    with pytest.raises(pc.StateError, match="without backward"):
        opt.step(lambda: None)
    with pytest.raises(TypeError, match="closure: expected a callable or None, got int"):
        opt.step(3)
    for wrong, match in (
        (twice, "came 2 times before step"),
        (steps, "within the closure of a step"),
        (resets, "between backward"),
    ):
        with pytest.raises(pc.StateError, match=match):
            opt.step(wrong)
        opt.step()  # with the existing gradient
    with pytest.raises(ZeroDivisionError):
        opt.step(lambda: 1 / 0)
    assert opt.metrics().steps == opt.round == 3
    opt.step(good)
    assert opt.round == 4
    opt.close()
    with pytest.raises(pc.StateError, match="is closed"):
        opt.step(good)


def test_synchronize_within_the_closure(comm):
    """Lightning's strategy for Horovod does this."""
    model = network()
    opt = wrap(model)

    def closure():
        opt.zero_grad()
        sum((comm.rank * parameter).sum() for parameter in model.parameters()).backward()
        opt.synchronize()
        return [parameter.grad.clone() for parameter in model.parameters()]

    with opt.skip_synchronize():
        gradients = opt.step(closure)
    mean = sum(range(comm.size)) / comm.size
    assert all((gradient == mean).all() for gradient in gradients)
    opt.close()
