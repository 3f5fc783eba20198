# SPDX-License-Identifier: Apache-2.0
"""Decentralized strategies with unusual orders of calls: optimizers that allocate new memory,
checkpoints before wrapping, skipped steps, ranks that save late."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from strategies import (  # noqa: E402
    STRATEGIES,
    bits,
    loss,
    network,
    patient,
    same_everywhere,
    vector,
    wrap,
)

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


class NewMemory(torch.optim.SGD):
    """Like some optimizers, replace the parameter's tensor in each step."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = p.data - group["lr"] * p.grad


@pytest.mark.parametrize("name", ("localsgd", "dpsgd", "moshpit", "slowmo"))
def test_an_optimizer_that_makes_new_memory(comm, name):
    """The parameters still receive the averages."""
    models = []
    for make in (torch.optim.SGD, NewMemory):
        model = network()
        strategy = patient(STRATEGIES[name], comm.size)
        opt = wrap(model, make(model.parameters(), lr=0.1), strategy=strategy)
        for step in range(6):
            opt.zero_grad()
            loss(model, comm.rank, step).backward()
            opt.step()
        models.append(vector(model))
        opt.close()
    np.testing.assert_allclose(models[1], models[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", STRATEGIES)
def test_rank_0s_state_before_wrapping_is_broadcast(comm, name):
    """Horovod's order: one rank loads a checkpoint, then come wrapping and broadcasts."""
    model = network(seed=comm.rank)
    first = comm.bcast(bits(model))
    opt = wrap(model, strategy=STRATEGIES[name])
    if comm.size > 1:
        assert bits(model) != first
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
    assert bits(model) == first
    expected = vector(model)
    opt.join()
    np.testing.assert_allclose(vector(model), expected, rtol=1e-5)  # SGP's shares are rounded
    opt.close()


def test_a_state_loaded_after_wrapping_is_broadcast(comm):
    """The broadcast sends the loaded values, not earlier ones."""
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=pct.ADPSGD())
    if comm.rank == 0:
        model.load_state_dict(network(seed=77).state_dict())
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
    assert bits(model) == bits(network(seed=77))
    opt.close()


def test_a_part_of_the_parameters_is_broadcast(comm):
    """The parameters that are not broadcast become the average again."""
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=pct.LocalSGD())
    average = model[2].weight.detach().clone()
    pct.broadcast_parameters(model[0].state_dict(), root_rank=0)
    torch.testing.assert_close(model[0].weight, network(seed=0)[0].weight, rtol=0, atol=0)
    torch.testing.assert_close(model[2].weight.detach(), average)
    assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_skipped_step_keeps_changes_of_the_program(comm, name):
    """Changes to parameters of a dtype with separate memory survive a skipped step."""
    model = torch.nn.Linear(4, 4, bias=False).bfloat16()
    opt = wrap(model, strategy=STRATEGIES[name], non_finite="skip")
    with torch.no_grad():
        model.weight.fill_(3.0)
    (model.weight.sum() * float("nan")).backward()
    opt.step()
    assert opt.metrics().skipped == 1
    opt.join()
    assert (model.weight == 3).all()
    opt.close()


def test_slow_momentum_with_learning_rates_that_have_parted(comm):
    """The outer step is the same on all ranks."""
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1 / (1 + comm.rank))
    opt = wrap(model, inner, strategy=pct.SlowMo(pct.LocalSGD(local_steps=1), tau=2))
    for step in range(6):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.step()
    assert same_everywhere(comm, model)
    opt.close()


def test_slowmo_does_not_leave(comm):
    opt = wrap(network(), strategy=pct.SlowMo(pct.Moshpit()))
    with pytest.raises(pc.StateError, match="leave: not with SlowMo"):
        opt.leave()
    opt.close()


@pytest.mark.parametrize("name", ("adpsgd", "a2cid2", "sgp", "swarm", "slowmo-sgp"))
def test_a_rank_that_saves_late(comm, name):
    """The state does not contain data that others have sent since the join."""
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=STRATEGIES[name])
    for step in range(5):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.step()
    opt.join()
    joined = bits(model)
    saved = opt.state_dict() if comm.rank else None
    if comm.rank and "slowmo" not in name:
        for step in range(20):
            opt.zero_grad()
            loss(model, comm.rank, step).backward()
            opt.step()
    comm.Barrier()
    if comm.rank == 0:
        saved = opt.state_dict()
    opt.load_state_dict(saved)
    assert bits(model) == joined
    opt.join()
    assert bits(model) == joined or "slowmo" in name or "8bit" in name
    opt.close()


def test_no_rest_for_the_thread(comm):
    """A communication thread that never pauses lets other threads run."""
    model = network()
    opt = wrap(model, strategy=pct.ADPSGD(rate=None))
    for step in range(20):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.step()
        opt.consensus_distance()
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()


def test_closing_after_a_change_of_dtype(comm):
    """Close after a change of dtype, as the error message requests."""
    model = network()
    opt = wrap(model, strategy=pct.LocalSGD())
    loss(model, comm.rank, 0).backward()
    model.half()
    with pytest.raises(pc.StateError, match="close"):
        opt.step()
    opt.close()
    assert model[0].weight.dtype == torch.float16


def test_memory_that_is_shared_after_wrapping(comm):
    """`share_memory()` moves parameters. Averages still reach them."""
    model = network()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), strategy=pct.LocalSGD(2))
    model.share_memory()
    for step in range(4):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.step()
    assert same_everywhere(comm, model)
    opt.close()
