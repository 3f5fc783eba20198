# SPDX-License-Identifier: Apache-2.0
"""SyncBatchNorm gives the results of one process with the batches of all ranks."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


def batches(ranks, shape, dtype):
    """Return batches of different sizes, the second one empty, far from 0."""
    g = torch.Generator().manual_seed(7)
    rows = [0 if rank == 1 else 3 + rank for rank in range(ranks)]
    return [(torch.randn(n, 4, *shape, generator=g) * 3 + 50).to(dtype) for n in rows]


@pytest.mark.parametrize(
    ("shape", "dtype", "options"),
    [
        ((), torch.float64, {}),
        ((5,), torch.float32, {"momentum": None}),
        ((2, 3), torch.float64, {"affine": False}),
        ((2, 3), torch.float32, {"track_running_stats": False}),
        ((5,), torch.bfloat16, {}),
    ],
    ids=str,
)
def test_one_batch_of_all_ranks(comm, shape, dtype, options):
    tolerance = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    torch.manual_seed(1)
    ours, wide = pct.SyncBatchNorm(4, **options), torch.float64
    plain = (torch.nn.BatchNorm1d, torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)[len(shape)](
        4, **options
    ).to(wide)
    if dtype != torch.bfloat16:  # there parameters stay float32, as with autocast
        ours = ours.to(dtype)
    if options.get("affine", True):
        torch.nn.init.normal_(plain.weight)
        torch.nn.init.normal_(plain.bias)
    ours.load_state_dict(plain.state_dict())

    def close(mine, other):
        torch.testing.assert_close(mine.to(wide), other, rtol=tolerance, atol=tolerance)

    for _ in range(2):
        there = batches(comm.size, shape, dtype)
        whole = torch.cat(there).to(wide).requires_grad_()
        mine = there[comm.rank].requires_grad_()
        begin = sum(map(len, there[: comm.rank]))
        own = slice(begin, begin + len(mine))
        weights = torch.randn(whole.shape, generator=torch.Generator().manual_seed(2)).to(wide)
        expected, found = plain(whole), ours(mine)
        assert found.dtype == dtype
        close(found, expected[own])
        (expected * weights).sum().backward()
        (found * weights[own].to(dtype)).sum().backward()
        close(mine.grad, whole.grad[own])
        for name, parameter in ours.named_parameters():
            total = pct.allreduce(parameter.grad, op=pct.Sum)
            torch.testing.assert_close(
                total.to(wide), plain.get_parameter(name).grad, rtol=tolerance, atol=50 * tolerance
            )
    for name, buffer in ours.named_buffers():
        close(buffer, plain.get_buffer(name).to(wide))
    ours.eval()
    if comm.rank == 0:  # without waiting for other ranks
        close(ours(whole.detach().to(dtype)), plain.eval()(whole.detach()))


def test_it_trains_with_an_optimizer(comm):
    """All ranks have the same running statistics without averaging them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), pct.SyncBatchNorm(4), torch.nn.Linear(4, 1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = pct.DistributedOptimizer(inner, model.named_parameters(), model=model)
    for step in range(3):
        g = torch.Generator().manual_seed(10 * comm.rank + step)
        opt.zero_grad()
        model(torch.randn(6, 3, generator=g)).square().mean().backward()
        opt.step()
    state = [value.tolist() for value in model.state_dict().values()]
    assert all(other == state for other in comm.allgather(state))
    opt.close()


@pytest.mark.parametrize("whose", ("all", "global", "own"))
def test_it_is_copied_and_saved(comm, whose):
    """A copy belongs to the same ranks, and a loaded one to those of its world once it has them."""
    if whose == "own" and comm.size == 1:
        pytest.skip("needs several ranks: there is one of rank 0 already")
    own = pct.ProcessSet([0])
    process_set = {"all": None, "global": pct.global_process_set, "own": own}[whose]
    module = torch.nn.Sequential(pct.SyncBatchNorm(3, process_set=process_set))
    twin = copy.deepcopy(module)
    if whose == "own":
        pct.add_process_set(own)  # then it is usable in earlier copies as well
    try:
        if whose != "own" or comm.rank == 0:
            x = torch.arange(6.0).view(2, 3) + comm.rank
            assert torch.equal(twin(x), module(x))
        stored = io.BytesIO()
        torch.save(copy.deepcopy(module), stored)
        stored.seek(0)
        found = torch.load(stored, weights_only=False)[0]
        if whose == "own":
            assert found._process_set.ranks == [0] and found._process_set.size() is None
        else:
            assert found._process_set is process_set
    finally:
        if whose == "own":
            pct.remove_process_set(own)


def test_batch_norm_refusals(comm):
    if comm.size > 1:
        with pytest.raises(ValueError, match="at least 2 dimensions, got 1"):
            pct.SyncBatchNorm(3)(torch.ones(3))
