# SPDX-License-Identifier: Apache-2.0
"""Adasum of tensors, and of the changes that the ranks' optimizers made."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from strategies import loss, network  # noqa: E402

import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


def pair(a, b):
    """The formula of the paper."""
    dot = float(a @ b)
    ca = 1 - dot / (2 * float(a @ a)) if a.any() else 1
    cb = 1 - dot / (2 * float(b @ b)) if b.any() else 1
    return ca * a + cb * b


def expected(vectors):
    """Ranks beyond a power of two send to the first ranks; then pairs combine, then their pairs."""
    vectors = [np.asarray(vector, np.float64).reshape(-1) for vector in vectors]
    most = 1 << (len(vectors).bit_length() - 1)
    for i, extra in enumerate(vectors[most:]):
        vectors[i] = pair(vectors[i], extra)
    vectors = vectors[:most]
    while len(vectors) > 1:
        vectors = [pair(*vectors[i : i + 2]) for i in range(0, len(vectors), 2)]
    return vectors[0]


def of_rank(rank, shape=(6, 7), seed=0):
    """Return the vector of a rank; all of them have a common part."""
    common = np.random.default_rng(seed).standard_normal(shape)
    return common + np.random.default_rng(100 * rank + seed + 1).standard_normal(shape)


TOLERANCE = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_against_the_formula(comm, dtype):
    there = [torch.from_numpy(of_rank(rank)).to(dtype) for rank in range(comm.size)]
    mine, wanted = there[comm.rank], expected([one.double().numpy() for one in there])
    found = pct.allreduce(mine, op=pct.Adasum)
    assert found.dtype == dtype and found.shape == mine.shape and found is not mine
    np.testing.assert_allclose(
        found.double().numpy().reshape(-1), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )
    assert len(set(comm.allgather(found.view(-1).view(torch.uint8).numpy().tobytes()))) == 1
    same = pct.synchronize(pct.allreduce_async(mine.t(), op=pct.Adasum, name="transposed"))
    torch.testing.assert_close(same.t(), found, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_each_tensor_of_a_group_by_itself(comm):
    seeds = (0, 5)
    tensors = [torch.from_numpy(of_rank(comm.rank, (9,), seed)) for seed in seeds]
    tensors.append(torch.zeros(3, 0))
    pct.grouped_allreduce_(tensors, op=pct.Adasum, prescale_factor=2.0, postscale_factor=0.25)
    for tensor, seed in zip(tensors, seeds):
        wanted = expected([of_rank(rank, (9,), seed) for rank in range(comm.size)])
        np.testing.assert_allclose(tensor.numpy(), wanted / 2, rtol=1e-12)


def test_the_two_extremes(comm):
    """Equal vectors count once, orthogonal ones add up, zeros are ignored."""
    same = torch.full((4,), 3.0)
    assert torch.equal(pct.allreduce(same, op=pct.Adasum), same)
    unit = torch.zeros(comm.size + 1)
    unit[comm.rank] = 2.0
    assert pct.allreduce(unit, op=pct.Adasum).tolist() == [2.0] * comm.size + [0.0]
    assert not pct.allreduce(torch.zeros(5), op=pct.Adasum).any()


def test_unsupported_uses_of_adasum(comm):
    with pytest.raises(TypeError, match="Adasum is for floating point, got int64"):
        pct.allreduce(torch.ones(2).long(), op=pct.Adasum)
    with pytest.raises(ValueError, match="quorum: expected 'full' with op=Adasum"):
        pct.allreduce(torch.ones(2), op=pct.Adasum, quorum="solo", name="x")
    with pytest.raises(NotImplementedError, match="whole tensors"):
        pct.reducescatter(torch.ones(2).long(), op=pct.Adasum)
    model = network()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="Adasum is a strategy of its own, expected none, got Ea"):
        pct.DistributedOptimizer(inner, op=pct.Adasum, strategy=pct.Eager())
    with pytest.raises(ValueError, match="Adasum needs all ranks, expected on_failure='raise'"):
        goes_on = pct.Allreduce(on_failure="continue")
        pct.DistributedOptimizer(inner, op=pct.Adasum, strategy=goes_on)
    with pytest.raises(ValueError, match="compression: AdasumStrategy sends no gradients"):
        pct.DistributedOptimizer(inner, op=pct.Adasum, compression=pct.Compression.fp16)


def test_the_changes_of_all_ranks_optimizers(comm):
    """Ranks have different numbers of batches. A joined rank changes nothing."""
    steps = 6
    model = network().double()
    inner = torch.optim.Adam(model.parameters(), lr=0.1)
    opt = pct.DistributedOptimizer(inner, model.named_parameters(), op=pct.Adasum)
    ranks = [network().double() for _ in range(comm.size)]
    plain = [torch.optim.Adam(one.parameters(), lr=0.1) for one in ranks]
    for step in range(steps - comm.rank):
        opt.zero_grad()
        loss(model, comm.rank, step).backward()
        opt.step()
    opt.join()
    for step in range(steps):
        before = [p.detach().clone() for p in ranks[0].parameters()]
        for rank, one in enumerate(ranks):
            if step < steps - rank:
                plain[rank].zero_grad()
                loss(one, rank, step).backward()
                plain[rank].step()
        for i, start in enumerate(before):
            changes = [(list(one.parameters())[i].detach() - start).numpy() for one in ranks]
            combined = torch.from_numpy(expected(changes)).view(start.shape)
            for one in ranks:
                list(one.parameters())[i].data.copy_(start + combined)
    for mine, wanted in zip(model.parameters(), ranks[0].parameters()):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-12)
    bits = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).numpy().tobytes()
    assert len(set(comm.allgather(bits))) == 1
    opt.close()
