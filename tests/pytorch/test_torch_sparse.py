# SPDX-License-Identifier: Apache-2.0
"""Sparse gradients of embeddings, and gradients that are rounded when they are sent."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

ROWS = 12
WAYS = {
    "sparse": {"strategy": pct.Allreduce()},
    "overlap": {"strategy": pct.Allreduce(overlap=True, bucket_bytes=64)},
    "dense": {"sparse_as_dense": True},
    "unknown": {"model": None},
    "eager": {"strategy": pct.Eager("full"), "sparse_as_dense": True},
}
MAKERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


class Words(torch.nn.Module):
    def __init__(self, sparse=True):
        super().__init__()
        torch.manual_seed(3)
        self.words = torch.nn.Embedding(ROWS, 4, sparse=sparse)
        self.head = torch.nn.Linear(4, 2)

    def forward(self, where):
        return self.head(self.words(where)).square().mean()


def words_of(rank, step):
    """Return words, one of them twice, and some of other ranks."""
    first = (rank + step) % 3
    return torch.tensor([first, first, 3 + rank % 4, 3 + step % 4])


def wrap(words, make, **options):
    optimizer = MAKERS[make](words.parameters())
    options = {"model": words, **options}
    return pct.DistributedOptimizer(optimizer, words.named_parameters(), **options)


def reference(make, ranks, steps):
    """Train as if one process had all the data, with dense gradients."""
    plain = Words(sparse=False)
    inner = MAKERS[make](plain.parameters())
    for step in range(steps):
        inner.zero_grad()
        there = [rank for rank in range(ranks) if step < steps - rank]
        sum(plain(words_of(rank, step)) for rank in there).div(ranks).backward()
        inner.step()
    return plain


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("way", WAYS)
def test_as_if_they_were_dense(comm, way, make):
    """Ranks have different numbers of batches. A joined rank has no rows."""
    model = Words()
    opt = wrap(model, make, **WAYS[way])
    for step in range(5 - comm.rank):
        opt.zero_grad()
        model(words_of(comm.rank, step)).backward()
        assert model.words.weight.grad.is_sparse == (way in ("sparse", "overlap"))
        opt.step()
    opt.join()
    for mine, other in zip(model.parameters(), reference(make, comm.size, 5).parameters()):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
    assert len(set(comm.allgather(model.words.weight.detach().numpy().tobytes()))) == 1
    opt.close()


@pytest.mark.parametrize("dense", (False, True))
@pytest.mark.parametrize("strategy", (pct.Allreduce(), pct.LocalSGD(local_steps=1)), ids=repr)
def test_sparse_adam_changes_the_rows_of_all_ranks(comm, strategy, dense):
    """SparseAdam takes only sparse gradients, and the model has no others. Horovod's call."""
    words = torch.nn.Embedding(ROWS, 3, sparse=True)
    torch.nn.init.ones_(words.weight)
    inner = torch.optim.SparseAdam(list(words.parameters()), lr=0.1)
    if not (dense or strategy.takes_sparse):
        return
    opt = pct.DistributedOptimizer(inner, sparse_as_dense=dense, strategy=strategy)
    for _ in range(2):
        opt.zero_grad()
        words(torch.tensor([0, 0, 1 + comm.rank])).sum().backward()
        opt.step()
    touched = (words.weight != 1).all(dim=1)
    assert touched.tolist() == [row <= comm.size for row in range(ROWS)]
    assert len(set(comm.allgather(words.weight.detach().numpy().tobytes()))) == 1
    opt.close()


def test_sparse_gradients_are_treated_like_dense_ones(comm):
    words = torch.nn.Embedding(ROWS, 2, sparse=True)
    torch.nn.init.zeros_(words.weight)
    inner = torch.optim.SGD(words.parameters(), lr=1.0)
    opt = pct.DistributedOptimizer(
        inner, model=words, non_finite="skip", clip_norm=5.0, backward_passes_per_step=2
    )

    def passes(*factors):
        for factor in factors:
            (factor * words(torch.tensor([comm.rank, ROWS - 1])).sum()).backward()

    passes(1.0)
    with pytest.raises(pc.StateError, match="set_backward_passes_per_step"):
        opt.set_backward_passes_per_step(1)
    passes(3.0)
    opt.synchronize()  # the mean is 4 in a row of all ranks, and 4 / ranks in a row of one
    mean = words.weight.grad.to_dense()
    assert (mean[ROWS - 1] == 4).all() and (mean[comm.rank] == 4 / comm.size).all()
    with opt.skip_synchronize():
        opt.step()
    assert abs(words.weight.detach().norm().item() - 5) < 1e-5
    opt.zero_grad()
    opt.set_backward_passes_per_step(1)
    before = words.weight.detach().clone()
    passes(float("nan") if comm.rank == 0 else 1.0)
    opt.step()
    assert opt.metrics().skipped == (comm.rank == 0)
    change = before - words.weight.detach()
    wanted = torch.full((2,), (comm.size - 1) / comm.size)
    assert not change[0].any()
    torch.testing.assert_close(change[ROWS - 1], wanted, rtol=1e-5, atol=1e-5)
    opt.close()


def test_strategies_for_dense_gradients_name_the_option(comm):
    model = Words()
    for strategy in (pct.Eager("solo"), pct.ADPSGD()):
        with pytest.raises(TypeError, match=r"words \(Embedding\).*sparse_as_dense=True"):
            wrap(model, "sgd", strategy=strategy)
        opt = pct.DistributedOptimizer(MAKERS["sgd"](model.parameters()), strategy=strategy)
        with pytest.raises(TypeError, match=r"gradient is sparse; .* sparse_as_dense=True"):
            model(words_of(0, 0)).backward()
        opt.close()


@pytest.mark.parametrize("overlap", (False, True))
@pytest.mark.parametrize("name", ("fp16", "bf16"))
def test_gradients_are_rounded_on_their_way(comm, name, overlap):
    """The contribution of each rank and the result are rounded, as with Horovod's compression."""
    compression, dtype = getattr(pct.Compression, name), pct.Compression.__dict__[name]._to
    weight = torch.nn.Parameter(torch.zeros(50))
    opt = pct.DistributedOptimizer(
        torch.optim.SGD([weight], lr=1.0),
        compression=compression,
        op=pct.Sum,
        gradient_predivide_factor=4.0,
        strategy=pct.Allreduce(overlap=overlap),
    )

    def gradient(rank):
        return torch.from_numpy(np.random.default_rng(rank).standard_normal(50)).float()

    (weight * gradient(comm.rank)).sum().backward()
    opt.step()
    total = sum(gradient(rank).to(dtype).float() for rank in range(comm.size))
    assert torch.equal(-weight.detach(), total.to(dtype).float())
    opt.close()


def test_compression_that_means_nothing(comm):
    weight = torch.nn.Parameter(torch.zeros(5))
    for options, error, match in (
        ({"compression": "fp16"}, TypeError, "Compression.none, .fp16"),
        ({"compression": pct.Compression.fp16, "strategy": pct.DPSGD()}, ValueError, "DPSGD sends"),
        ({"sparse_as_dense": 1}, TypeError, "sparse_as_dense"),
    ):
        with pytest.raises(error, match=match):
            pct.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), **options)
