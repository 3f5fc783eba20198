# SPDX-License-Identifier: Apache-2.0
"""Ranks that would apply different updates get an error, whichever rank is late when."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll._core.attendance import name_ranks  # noqa: E402
from partialcoll.collectives.fingerprints import Fingerprints  # noqa: E402
from partialcoll.torch.rounds import checksum_tensors  # noqa: E402

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
    """Rank 0 steps alone. Then the others deposit their late and next gradients before any of these
    is sent. Then rank 0 continues, and all join."""
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
    """Round numbers are compared first, because all other comparisons depend on them."""
    model = network()
    opt = wrap(model, strategy=pct.Eager("solo"))
    saved = opt.state_dict()
    saved["partialcoll"]["version"] += 7 * (comm.rank == 1)
    opt.load_state_dict(saved)
    with pytest.raises(pc.MismatchError, match="take this round for different ones"):
        step_with_others_late(comm, model, opt)
    opt.close()


def test_a_hash_that_falls_due_while_others_are_late(comm):
    """Parameters are compared after every seventh round. Late ranks that still have a pending
    deposit with information send their hash after it."""
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
def test_continuing_after_a_difference(comm, strategy):
    """The round is lost. A program that catches the error gets it again, and can start over."""
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


@pytest.mark.parametrize("strategy", (pct.Allreduce(), pct.Allreduce(overlap=True)))
def test_the_message_has_the_values_of_all_ranks(comm, strategy):
    model = network()
    groups = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.2}]
    inner = torch.optim.SGD(groups, lr=0.1)
    opt = pct.DistributedOptimizer(inner, model.named_parameters(), strategy=strategy)
    step(model, opt)
    if comm.rank == 1:
        opt.param_groups[1].update(lr=0.02, nesterov=True, momentum=0.9)
    with pytest.raises(pc.MismatchError) as caught:
        step(model, opt)
    others = name_ranks([rank for rank in range(comm.size) if rank != 1])
    message = str(caught.value)
    assert (
        f"lr of group 1 is 0.2 on {others} and 0.02 on rank 1; "
        f"momentum of group 1 is 0 on {others} and 0.9 on rank 1; "
        f"nesterov of group 1 is False on {others} and True on rank 1. Whatever "
    ) in message
    assert "group 0" not in message
    assert comm.allgather(message) == [message] * comm.size
    opt.close()


def rows_of(values, version=0):
    """Return the rows of a round. `values`: the optimizer's groups and a checksum, by rank."""
    total = 0
    for rank, (groups, checksum) in enumerate(values):
        comm = SimpleNamespace(rank=rank, size=len(values))
        one = Fingerprints(comm, partial(identity, groups), partial(identity, checksum))
        rows = one.outline()
        one.write(rows, 0, version, True)
        total = total + rows
    return one, total


def identity(value):
    return value


def message_of(values, version=0):
    one, rows = rows_of(values, version)
    with pytest.raises(pc.MismatchError) as caught:
        one.check(rows, version)
    return str(caught.value)


def group(**values):
    return tuple(values.items())


def test_messages_of_many_ranks():
    same = (group(lr=0.1, momentum=0.9),)
    other = (group(lr=0.01, momentum=0.9),)
    message = message_of([(other if rank == 3 else same, 1) for rank in range(6)])
    assert "lr is 0.1 on ranks 0-2, 4, 5 and 0.01 on rank 3. Give the optimizers" in message
    assert "momentum" not in message
    message = message_of([((group(lr=0.1 * rank),), 1) for rank in range(3)], version=7)
    assert "lr is 0.0 on rank 0 and 0.1 on rank 1 and 0.2 on rank 2. Whatever" in message
    message = message_of([(same, rank // 2 + 1) for rank in range(4)])
    assert message.endswith(
        "the parameters after 0 rounds differ between ranks 0, 1 and ranks 2, 3. Call "
        "broadcast_parameters(model.state_dict()) before the first step"
    )
    one, rows = rows_of([(same, 1)] * 6)
    one.check(rows, 0)


def test_messages_of_many_values():
    """Only some lines are shown, and long values and descriptions are cut."""
    wide = [tuple(group(lr=i / 7 + rank, text="x" * 999) for i in range(40)) for rank in (0, 1)]
    message = message_of([(wide[rank == 2], 1) for rank in range(128)])
    assert "lr of group 0 is 0.0 on ranks 0, 1, 3-127 and 1.0 on rank 2" in message
    assert len(message) < 1000
    few = [(group(lr=0.1, **{f"v{i}": rank for i in range(9)}),) for rank in (0, 1)]
    assert "v4 is 0 on rank 0 and 1 on rank 1; and 4 more. Give" in message_of(
        [(one, 1) for one in few]
    )
    hidden = [(group(text="x" * 99999 + str(rank)),) for rank in (0, 1)]
    assert "the values do not fit" in message_of([(one, 1) for one in hidden])


def test_texts_that_are_no_descriptions():
    one, rows = rows_of([((group(lr=0.1),), 1), ((group(lr=0.2),), 1)])
    rows[1, 6:] = 256
    with pytest.raises(pc.MismatchError, match="hyperparameters"):
        one.check(rows, 0)


def test_checksums_of_tensors():
    tensors = [torch.arange(3000.0), torch.ones(5, 7, dtype=torch.bfloat16), torch.empty(0)]
    value = checksum_tensors(tensors)
    assert value == checksum_tensors([tensor.clone() for tensor in tensors]) > 0
    assert value != checksum_tensors(tensors[::-1])
    for tensor in tensors[:2]:
        for i in (0, tensor.numel() - 1):
            before = tensor.view(-1)[i].item()
            tensor.view(-1)[i] += 1
            assert checksum_tensors(tensors) != value
            tensor.view(-1)[i] = before
    tensors[0][[0, 1]] = tensors[0][[1, 0]]
    assert checksum_tensors(tensors) != value
    assert np.int64(value) == value
