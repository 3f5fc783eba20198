# SPDX-License-Identifier: Apache-2.0
"""Ranks that would apply other updates than the others are told, whoever is late when."""

import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()
    if comm.size < 2:
        pytest.skip("needs two ranks")


def network(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Linear(4, 4)


def wrap(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return pct.DistributedOptimizer(optimizer, model.named_parameters(), **options)


def step(model, opt):
    opt.zero_grad()
    model(torch.ones(2, 4)).square().mean().backward()
    opt.step()


def step_with_others_late(comm, model, opt, rounds=1, each=lambda i: None):
    """Rank 0 steps alone; then the others, who deposit their late gradients and the next ones
    before anything of theirs has left; then rank 0 goes on, and all join."""
    if comm.rank == 0:
        for _ in range(rounds):
            step(model, opt)
    comm.Barrier()
    try:
        if comm.rank:
            for i in range(rounds + 1):
                each(i)
                step(model, opt)
    finally:
        comm.Barrier()
    if comm.rank == 0:
        step(model, opt)
    opt.join()


@pytest.mark.parametrize("deliver", ("one", "all"))
@pytest.mark.parametrize("rounds", (1, 3))
def test_a_forgotten_broadcast_where_the_first_deposits_are_late(comm, deliver, rounds):
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=pct.Eager("solo", deliver=deliver, history=64))
    with pytest.raises(pc.MismatchError, match="parameters after 0 rounds differ"):
        step_with_others_late(comm, model, opt, rounds)
    opt.close()


def norms_only(parameter):
    return parameter.ndim == 1


def test_functions_among_the_hyperparameters(comm):
    model = network()
    group = {"params": list(model.parameters()), "filter": norms_only}
    opt = pct.DistributedOptimizer(torch.optim.SGD([group], lr=0.1), model.named_parameters())
    step(model, opt)
    if comm.rank == 1:
        opt.param_groups[0]["filter"] = step
    with pytest.raises(pc.MismatchError, match="hyperparameters"):
        for _ in range(3):
            step(model, opt)
    opt.close()


def test_hyperparameters_that_differ_where_deposits_are_late(comm):
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo"))
    step(model, opt)
    opt.join()
    rounds = opt.round
    if comm.rank == 1:
        opt.param_groups[0]["lr"] = 0.01
    with pytest.raises(pc.MismatchError, match=f"after {rounds} rounds differ .*attach"):
        step_with_others_late(comm, model, opt)
    opt.close()


def test_checkpoints_of_different_steps_where_deposits_are_late(comm):
    """Round numbers, on which all else that is compared depends."""
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo"))
    saved = opt.state_dict()
    saved["partialcoll"]["version"] += 7 * (comm.rank == 1)
    opt.load_state_dict(saved)
    with pytest.raises(pc.MismatchError, match="take this round for different ones"):
        step_with_others_late(comm, model, opt)
    opt.close()


def test_a_hash_that_falls_due_while_others_are_late(comm):
    """Parameters are compared after every seventh round, when the late ranks still have a deposit
    under way that says something: they tell their hash when that has come."""
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo", history=16), check_every=7)

    def spoil(i):
        if comm.rank and i == 6:
            with torch.no_grad():
                model.bias += 1

    step_with_others_late(comm, model, opt, 7, spoil)
    with pytest.raises(pc.MismatchError, match="parameters after 7 rounds differ"):
        step(model, opt)
        opt.join()
    opt.close()


@pytest.mark.parametrize(
    "strategy", (pct.Allreduce(), pct.Allreduce(overlap=True), pct.Eager("solo"))
)
def test_going_on_after_a_difference(comm, strategy):
    """Its round is gone: whoever catches the error hears of it again, and can begin anew."""
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=strategy)
    with pytest.raises(pc.MismatchError, match="differ between"):
        if strategy.synchronous:
            step(model, opt)
        else:
            step_with_others_late(comm, model, opt)
    for call in (lambda: step(model, opt), opt.join, opt.state_dict):
        with pytest.raises(pc.StateError, match=r"after a MismatchError.*close"):
            call()
        model.zero_grad()
    opt.close()
    pct.broadcast_parameters(model.state_dict())
    opt = wrap(model, strategy=strategy)
    step(model, opt)
    opt.join()
    opt.close()


@pytest.mark.parametrize("deliver", ("one", "all"))
def test_ranks_that_agree_are_left_alone_though_they_are_late(comm, deliver):
    model = network()
    how = pct.Eager("solo", deliver=deliver, history=64)
    opt = wrap(model, strategy=how, check_every=1)
    for _ in range(3):
        step_with_others_late(comm, model, opt, 3)
    opt.close()
