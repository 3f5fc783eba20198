# SPDX-License-Identifier: Apache-2.0
"""The backend "partialcoll" of torch.distributed: its collectives against arithmetic and against
gloo, in order, in groups, and what happens when ranks are missing or differ."""

import copy
import functools
import gc
import os
import subprocess
import sys
import textwrap
import threading
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll.torch import process_group  # noqa: E402
from partialcoll.torch.ops import transfer  # noqa: E402
from partialcoll.torch.ops.call import GroupTimeout  # noqa: E402

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.one_domain,
    pytest.mark.few_ranks,
    pytest.mark.one_mpi,
]

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
COMPLEX = (torch.complex64, torch.complex128)
INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch reduces none of these
DTYPES = (*FLOATS, *COMPLEX, *INTEGERS, torch.bool)
SHORT = timedelta(seconds=1)


@pytest.fixture(scope="module")
def backend():
    dist.init_process_group("partialcoll")
    yield
    dist.destroy_process_group()


@pytest.fixture
def world(comm, backend):
    """The ranks of MPI. The default group uses the backend."""
    return comm


def value(dtype, rank, count, seed=0):
    """Return the same values on every rank; small, so that sums and products are exact."""
    g = torch.Generator().manual_seed(100 * seed + rank)
    whole = torch.randint(0, 3, (count,), generator=g)
    if dtype.is_complex:
        return (whole + 1j * torch.randint(0, 3, (count,), generator=g)).to(dtype)
    return whole.to(dtype)


REDUCTIONS = {
    "SUM": lambda x: x.any(0) if x.dtype == torch.bool else x.sum(0).to(x.dtype),
    "PRODUCT": lambda x: x.all(0) if x.dtype == torch.bool else x.prod(0).to(x.dtype),
    "MIN": lambda x: x.all(0) if x.dtype == torch.bool else x.amin(0),
    "MAX": lambda x: x.any(0) if x.dtype == torch.bool else x.amax(0),
    "BAND": lambda x: fold(torch.bitwise_and, x),
    "BOR": lambda x: fold(torch.bitwise_or, x),
    "BXOR": lambda x: fold(torch.bitwise_xor, x),
    "AVG": lambda x: average(x),
}


def fold(combine, x):
    total = x[0]
    for one in x[1:]:
        total = combine(total, one)
    return total


def average(x):
    if x.is_complex():  # torch passes the parts
        return torch.view_as_complex(average(torch.view_as_real(x)))
    if x.dtype.is_floating_point:
        wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(x.dtype, x.dtype)
        return (x.to(wide).sum(0) / len(x)).to(x.dtype)
    return x.sum(0).div(len(x), rounding_mode="trunc").to(x.dtype)


def defined(op, dtype):
    if dtype == torch.bool:
        return op != "AVG"
    if dtype.is_floating_point:
        return op not in ("BAND", "BOR", "BXOR")
    return not dtype.is_complex or op in ("SUM", "AVG")


# Reductions


@pytest.mark.mpi
@pytest.mark.parametrize("op", REDUCTIONS)
def test_all_reduce(world, op):
    """Every dtype for which the reduction is defined gives exact results. Others are refused."""
    for seed, dtype in enumerate(DTYPES):
        tensor = value(dtype, world.rank, 37, seed)
        if not defined(op, dtype):
            refused = f"op: {op} is not defined for|does not support .* on complex"
            with pytest.raises((TypeError, ValueError), match=refused):
                dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
            continue
        everyones = torch.stack([value(dtype, rank, 37, seed) for rank in range(world.size)])
        dist.all_reduce(tensor, getattr(dist.ReduceOp, op))
        assert torch.equal(tensor, REDUCTIONS[op](everyones)), (op, dtype)


@pytest.mark.mpi
def test_all_reduce_of_any_size(world):
    """No element, one, sizes around those of handles, and more than a chunk."""
    chunk = transfer.CHUNK // 4
    for count in (0, 1, 64, 65, 1000, chunk - 1, chunk, chunk + 1, 2 * chunk + 77):
        tensor = torch.arange(count, dtype=torch.float32).remainder(1000) * (world.rank + 1)
        dist.all_reduce(tensor)
        factor = world.size * (world.size + 1) / 2
        expected = torch.arange(count, dtype=torch.float32).remainder(1000) * factor
        assert torch.equal(tensor, expected), count


def test_sizes_of_handles():
    """A handle is never smaller than the data, at most a quarter larger and never larger than a
    chunk. There are few sizes."""
    sizes = {transfer.rounded_up(count, 1 << 17) for count in range(1, 1 << 17)}
    assert len(sizes) < 50 and max(sizes) == 1 << 17
    for count in [*range(1, 3000), *range(2**17 - 50, 2**17 + 1)]:
        size = transfer.rounded_up(count, 1 << 17)
        assert count <= size and (size <= 64 or size <= 1.25 * count)


@pytest.mark.mpi
def test_memory_has_a_bound(world, monkeypatch):
    """Handles for new kinds of data replace old ones, in the same order on all ranks."""
    monkeypatch.setattr(transfer, "_KEPT", 3)
    group = dist.new_group()
    for again in range(2):
        for count in (20000, 30000, 40000, 50000, 30000, 70000):
            tensor = torch.full((count,), 1 + again, dtype=torch.int32)
            dist.all_reduce(tensor, group=group)
            assert (tensor == (1 + again) * world.size).all()
    kept = [count for _, count, _ in group._queues[0].handles._of]
    assert kept == [57344, 32768, 81920]  # the latest
    dist.destroy_process_group(group)


@pytest.mark.mpi
def test_memory_in_any_order(world):
    """Transposed, strided and negated tensors, and tensors that require a gradient."""
    ranks = world.size
    for look in (lambda w: w.t(), lambda w: w[:, ::2], lambda w: w[1:3, 2:4], lambda w: w[0, 0]):
        whole = torch.arange(24.0).view(4, 6) + world.rank
        expected = whole.clone()
        look(expected).sub_(world.rank).mul_(ranks).add_(ranks * (ranks - 1) / 2)
        dist.all_reduce(look(whole))
        assert torch.equal(whole, expected)  # and nothing else was overwritten
    numbers = torch.tensor([1 + 2j, 3 - 1j]) * (world.rank + 1)
    negative = numbers.conj().imag
    assert negative.is_neg()
    dist.all_reduce(negative)
    assert numbers.imag.tolist() == [ranks * (ranks + 1), -ranks * (ranks + 1) / 2]
    parameter = torch.nn.Parameter(torch.ones(3))
    dist.all_reduce(parameter)
    assert torch.equal(parameter.detach(), torch.full((3,), float(ranks)))


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_all_reduce_of_sparse_tensors(world, dtype):
    """Some rows are on all ranks, some on one, and the last on none. One row occurs twice."""
    places = torch.tensor([[0, 0, world.rank + 1]])
    own = torch.sparse_coo_tensor(places, torch.ones(3, 2, dtype=dtype), (world.size + 2, 2))
    dist.all_reduce(own)
    expected = torch.tensor([2 * world.size, *[1] * world.size, 0], dtype=dtype)
    assert torch.equal(own.to_dense(), expected.unsqueeze(1).expand(-1, 2))
    with pytest.raises(TypeError, match="expected sum or avg for a sparse tensor, got max"):
        dist.all_reduce(own, dist.ReduceOp.MAX)


@pytest.mark.mpi
def test_rounded_once(world):
    """16-bit floats are summed in float32. Rounding each addition would lose small values."""
    small = 2.0**-9
    tensor = torch.tensor([1.0 if world.rank == 0 else small], dtype=torch.bfloat16)
    dist.all_reduce(tensor)
    assert tensor.item() == torch.tensor(1 + (world.size - 1) * small).bfloat16().item()


@pytest.mark.mpi
@pytest.mark.usefixtures("operations")
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_reduce_scatter_of_unsigned_integers(world, dtype):
    ops = dist.ReduceOp
    own = (torch.arange(2 * world.size) + world.rank).to(dtype)
    last = world.size - 1
    mine = torch.arange(2 * world.rank, 2 * world.rank + 2)
    total = mine * world.size + last * world.size // 2
    for op, expected in (
        (ops.SUM, total), (ops.AVG, total // world.size), (ops.MIN, mine), (ops.MAX, mine + last),
    ):  # fmt: skip
        output = torch.zeros(2, dtype=dtype)
        dist.reduce_scatter_tensor(output, own, op)
        assert output.tolist() == expected.tolist()


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", (torch.float32, torch.float16))
def test_factor_first(world, dtype):
    """PREMUL_SUM multiplies each rank's values by its factor before they are rounded."""
    make = torch._C._distributed_c10d._make_nccl_premul_sum
    tensor = torch.arange(3.0, dtype=dtype)
    dist.all_reduce(tensor, make(world.rank + 2.0))
    expected = torch.arange(3.0, dtype=dtype) * world.size * (world.size + 3) / 2
    assert torch.equal(tensor, expected)
    dist.reduce_scatter_tensor(tensor, expected.repeat(world.size), make(world.rank / 2 + 1))
    each = expected.double() * world.size * (world.size + 3) / 4
    assert torch.equal(tensor, each.to(dtype))
    with pytest.raises(TypeError, match="PREMUL_SUM is not defined for int32"):
        dist.all_reduce(torch.ones(1, dtype=torch.int32), make(2.0))


@pytest.mark.mpi
def test_reduce_and_several_at_once(world):
    for root in range(world.size):
        tensor = torch.full((3,), float(world.rank + 1))
        dist.reduce(tensor, root)
        if world.rank == root:
            assert (tensor == world.size * (world.size + 1) / 2).all()
        else:
            assert (tensor == world.rank + 1).all()  # unchanged
    tensors = [torch.ones(2), torch.ones(1000), torch.ones(3)]
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    assert all((tensor == world.size).all() for tensor in tensors)
    dist.all_reduce_coalesced(tensors)
    assert all((tensor == world.size**2).all() for tensor in tensors)


@pytest.mark.mpi
@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.usefixtures("operations")
def test_reduce_scatter(world, op):
    """Pieces of one tensor, and a list of pieces, whose sizes may differ."""
    ranks, me = world.size, world.rank
    reduction = getattr(dist.ReduceOp, op)
    for seed, dtype in enumerate(DTYPES):
        if not defined(op, dtype):
            continue
        everyones = torch.stack([value(dtype, rank, 3 * ranks, seed) for rank in range(ranks)])
        expected = REDUCTIONS[op](everyones)
        output = torch.zeros(3, dtype=dtype)
        dist.reduce_scatter_tensor(output, everyones[me], reduction)
        assert torch.equal(output, expected[3 * me : 3 * me + 3]), (op, dtype)
    sizes = [rank + 1 for rank in range(ranks)]
    everyones = torch.stack([value(torch.int64, rank, sum(sizes)) for rank in range(ranks)])
    output = torch.zeros(me + 1, dtype=torch.int64)
    dist.reduce_scatter(output, list(everyones[me].split(sizes)), reduction)
    assert torch.equal(output, REDUCTIONS[op](everyones).split(sizes)[me])
    output = torch.zeros(3, dtype=torch.int64)
    one = torch.ones(1, dtype=torch.int64)  # an input may have stride 0
    dist.reduce_scatter_tensor(output, one.expand(3 * ranks), reduction)
    assert (output == REDUCTIONS[op](one.expand(ranks, 1))).all()


# Movements of data


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", (*DTYPES, torch.float8_e5m2), ids=str)
@pytest.mark.usefixtures("operations")
def test_bits_are_moved(world, dtype):
    """Data arrives bit for bit, whatever the dtype."""
    ranks, me = world.size, world.rank

    def bits(rank, count=4):
        g = torch.Generator().manual_seed(rank)
        raw = torch.randint(0, 256, (count * dtype.itemsize,), generator=g, dtype=torch.uint8)
        return raw if dtype == torch.bool else raw.view(dtype)

    def same(a, b):
        return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))

    if dtype == torch.bool:
        bits = lambda rank, count=4: torch.arange(count) % (rank + 2) == 0  # noqa: E731
    for root in {0, ranks - 1}:
        tensor = bits(me)
        dist.broadcast(tensor, root)
        assert same(tensor, bits(root))
        outputs = [bits(99) for _ in range(ranks)] if me == root else None
        dist.gather(bits(me), outputs, root)
        assert outputs is None or all(same(o, bits(rank)) for rank, o in enumerate(outputs))
        tensor = bits(99)
        dist.scatter(tensor, [bits(rank) for rank in range(ranks)] if me == root else None, root)
        assert same(tensor, bits(me))
    outputs = [bits(99) for _ in range(ranks)]
    dist.all_gather(outputs, bits(me))
    assert all(same(output, bits(rank)) for rank, output in enumerate(outputs))
    output = torch.cat(outputs) if dtype.itemsize > 1 else torch.stack(outputs).view(-1)
    expected, output = output.clone(), torch.zeros_like(output)
    dist.all_gather_into_tensor(output, bits(me))
    assert same(output, expected)
    if dtype != torch.bool:
        mine = output[4 * me : 4 * me + 4]  # a part of the output
        mine.copy_(bits(me))
        dist.all_gather_into_tensor(output, mine)
        assert same(output, expected)
    outputs = [bits(99, 2) for _ in range(ranks)]
    dist.all_to_all(outputs, [bits(ranks * me + rank, 2) for rank in range(ranks)])
    assert all(same(o, bits(ranks * rank + me, 2)) for rank, o in enumerate(outputs))


def every_operation(ranks, me, later):
    """Make every operation, with results in fresh memory. `later`: start all, then wait for all."""

    def value(rank, *shape):
        return torch.full(shape, rank + 0.5, dtype=torch.bfloat16)

    works, checks = [], []

    def check(made, is_right):
        works.append(made)
        checks.append(is_right)

    for _ in range(2):
        total = value(me, 2, 3).t()
        check(dist.all_reduce(total, async_op=later), lambda t=total: t == ranks * ranks / 2)
        lists = [[torch.empty(3, dtype=torch.bfloat16) for _ in range(ranks)] for _ in range(2)]
        check(
            dist.all_gather(lists[0], value(me, 3), async_op=later),
            lambda to=lists[0]: torch.stack([o == rank + 0.5 for rank, o in enumerate(to)]),
        )
        sent = [value(me, 3) for _ in range(ranks)]
        check(
            dist.all_to_all(lists[1], sent, async_op=later),
            lambda to=lists[1]: torch.stack([o == rank + 0.5 for rank, o in enumerate(to)]),
        )
        part = torch.empty(3, dtype=torch.bfloat16)
        check(
            dist.reduce_scatter(part, [value(me, 3) for _ in range(ranks)], async_op=later),
            lambda t=part: t == ranks * ranks / 2,
        )
        given = value(me, 2, 3).t()
        check(dist.broadcast(given, ranks - 1, async_op=later), lambda t=given: t == ranks - 0.5)
        come = torch.empty(3, 2).t()
        work = dist.irecv(come, (me - 1) % ranks) if ranks > 1 else None
        if work is not None:
            dist.send(torch.full((2, 3), float(me)), (me + 1) % ranks)
            check(work, lambda t=come: t == (me - 1) % ranks)
    for work in works:
        if work is not None:
            work.wait()
    assert all(bool(is_right().all()) for is_right in checks)


@pytest.mark.mpi
def test_with_a_default_device(world):
    """Host tensors stay on the host, whatever torch.empty creates; meta would lose the data."""
    pct.init()
    torch.set_default_device("meta")
    try:
        objects = [None] * world.size
        with torch.device("cpu"):
            dist.all_gather_object(objects, {"rank": world.rank})
        outputs = [torch.empty(3, device="cpu") for _ in range(world.size)]
        dist.all_gather(outputs, torch.full((3,), float(world.rank), device="cpu"))
        rows = pct.allgather(torch.full((1, 2), float(world.rank), device="cpu"))
        given = torch.full((2, 3), float(world.rank), device="cpu").t()
        dist.broadcast(given, world.size - 1)
    finally:
        torch.set_default_device(None)
    assert objects == [{"rank": rank} for rank in range(world.size)]
    assert all((output == rank).all() for rank, output in enumerate(outputs))
    assert rows[:, 0].tolist() == list(range(world.size))
    assert (given == world.size - 1).all()


@pytest.mark.mpi
@pytest.mark.parametrize("later", (False, True))
def test_in_inference_mode(world, later):
    """It works in any thread that moves the data, and memory kept for later calls works too."""
    pct.init()
    with torch.inference_mode():
        every_operation(world.size, world.rank, later)
    every_operation(world.size, world.rank, later)
    waited = torch.ones(3, 2, dtype=torch.bfloat16).t()
    work = dist.all_reduce(waited, async_op=True)
    rows = pct.allgather_async(torch.ones(1, 2))
    with torch.inference_mode():
        work.wait()
        come = pct.synchronize(rows)
    assert (waited == world.size).all() and not come.is_inference()


@pytest.mark.mpi
@pytest.mark.usefixtures("operations")
def test_pieces_of_several_sizes(world):
    ranks, me = world.size, world.rank
    outputs = [torch.zeros(rank, 2) for rank in range(ranks)]
    dist.all_gather(outputs, torch.full((me, 2), float(me)))
    assert all((output == rank).all() for rank, output in enumerate(outputs))
    # Row i of rank s is for rank d, which gets s + d rows of it.
    sent = torch.cat([torch.full((me + rank, 2), 10.0 * me + rank) for rank in range(ranks)])
    splits = [me + rank for rank in range(ranks)]
    output = torch.zeros(sum(splits), 2)
    dist.all_to_all_single(output, sent, splits, splits)
    come = torch.cat([torch.full((rank + me, 2), 10.0 * rank + me) for rank in range(ranks)])
    assert torch.equal(output, come)
    even = torch.arange(2.0 * ranks).view(ranks, 2) + 100 * me
    output = torch.zeros(2, ranks).t()  # memory in another order
    dist.all_to_all_single(output, even)
    expected = [[2.0 * me + 100 * rank, 2.0 * me + 1 + 100 * rank] for rank in range(ranks)]
    assert output.tolist() == expected


@pytest.mark.mpi
def test_pieces_that_do_not_fit(world):
    """All ranks get the error, and the group continues to work."""
    ranks = world.size
    splits = [1] * ranks
    expected = splits if world.rank < ranks - 1 else [2, *splits[1:]]
    with pytest.raises(pc.MismatchError, match=rf"rank 0 sends 4 bytes to rank {ranks - 1}, .* 8"):
        dist.all_to_all_single(torch.zeros(sum(expected)), torch.zeros(ranks), expected, splits)
    dist.barrier()


@pytest.mark.mpi
def test_as_gloo_does(world):
    """The same calls on both backends."""
    gloo, ranks, me = dist.new_group(backend="gloo"), world.size, world.rank

    def calls(group):
        g = torch.Generator().manual_seed(me)
        tensor = torch.randn(7, 3, generator=g).t()
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=group)
        yield tensor
        tensor = torch.randint(0, 1000, (7, 3), generator=g)
        dist.all_reduce(tensor, group=group)
        yield tensor
        dist.broadcast(tensor[::2], ranks - 1, group=group)
        yield tensor
        outputs = [torch.zeros(7, 3, dtype=torch.int64) for _ in range(ranks)]
        dist.all_gather(outputs, tensor + me, group=group)
        yield torch.stack(outputs)
        objects = [None] * ranks
        dist.all_gather_object(objects, {"rank": me, "text": "x" * me}, group=group)
        yield torch.tensor([len(one["text"]) for one in objects])
        objects = [{"a": 1}, "b"] if me == 0 else [None, None]
        dist.broadcast_object_list(objects, 0, group=group)
        assert objects == [{"a": 1}, "b"]
        out = [None]
        dist.scatter_object_list(out, [[k] for k in range(ranks)] if me == 0 else None, group=group)
        assert out == [[me]]
        gathered = [None] * ranks if me == 0 else None
        dist.gather_object((me,), gathered, group=group)
        assert gathered is None or gathered == [(rank,) for rank in range(ranks)]

    for ours, theirs in zip(calls(None), calls(gloo)):
        assert torch.equal(ours, theirs)
    dist.destroy_process_group(gloo)


# Messages


@pytest.mark.mpi
@pytest.mark.usefixtures("operations")
def test_messages_around_a_ring(world):
    ranks, me = world.size, world.rank
    if ranks == 1:
        return
    right, left = (me + 1) % ranks, (me - 1) % ranks
    for count in (3, 300_000):
        sent, come = torch.full((count,), float(me)), torch.zeros(count, 2)[:, 0]
        works = [dist.isend(sent, right, tag=7), dist.irecv(come, left, tag=7)]
        for work in works:
            assert work.wait() and work.is_completed()
        assert (come == left).all()
    pairs = [torch.zeros(2, dtype=torch.bfloat16) for _ in range(2)]
    operations = [
        dist.P2POp(dist.isend, torch.full((2,), me, dtype=torch.bfloat16), right),
        dist.P2POp(dist.isend, torch.full((2,), me + 50, dtype=torch.bfloat16), left, tag=1),
        dist.P2POp(dist.irecv, pairs[0], right, tag=1),
        dist.P2POp(dist.irecv, pairs[1], left),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert pairs[0][0] == right + 50 and pairs[1][0] == left


@pytest.mark.mpi
def test_tags_and_any_source(world):
    """Messages of one tag keep their order, and other tags do not wait for them. A receiver that
    names no source learns which rank it was."""
    ranks, me = world.size, world.rank
    if ranks == 1:
        return
    if me:
        for k in range(3):
            dist.send(torch.tensor([me, k]), 0, tag=k % 2)
        return
    last = torch.zeros(2, dtype=torch.int64)
    dist.recv(last, ranks - 1, tag=1)
    assert last.tolist() == [ranks - 1, 1]
    seen = [[] for _ in range(ranks)]
    for _ in range(2 * (ranks - 1)):
        tensor = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(tensor, tag=0)
        assert source == tensor[0]
        seen[source].append(tensor[1].item())
    assert seen[1:] == [[0, 2]] * (ranks - 1)
    for rank in range(1, ranks - 1):
        dist.recv(last, rank, tag=1)


@pytest.mark.mpi
def test_missing_and_wrong_messages(world):
    ranks, me = world.size, world.rank
    group = dist.new_group()
    group.set_timeout(SHORT)
    if ranks > 1 and me == 0:
        work = dist.irecv(torch.zeros(2), 1, group=group, tag=5)
        with pytest.raises(
            TimeoutError, match="recv from rank 1, tag 5 was not over after its timeout of 1 s"
        ):
            work.wait()
        assert work.is_completed() and not work.is_success()
        group.set_timeout(timedelta(seconds=60))
        world.send(None, 1)
        with pytest.raises(pc.Error, match="recv from rank 1, tag 6"):
            dist.recv(torch.zeros(2), 1, group=group, tag=6)
        with pytest.raises(pc.Error, match="expected 12 bytes, got 8"):
            dist.recv(torch.zeros(3), 1, group=group, tag=8)
    elif me == 1:
        world.recv(source=0)
        dist.send(torch.zeros(4), 0, group=group, tag=6)
        dist.send(torch.zeros(2), 0, group=group, tag=8)
    if ranks > 1:
        with pytest.raises(ValueError, match="tag: expected 0 to"):
            dist.send(torch.zeros(1), (me + 1) % ranks, tag=-1)
        with pytest.raises(TypeError, match="expected one with memory, got one on meta"):
            dist.send(torch.zeros(1, device="meta"), (me + 1) % ranks)
    dist.destroy_process_group(group)


# Order


@pytest.mark.mpi
def test_many_under_way(world):
    """More calls than are announced ahead, waited for out of order, with synchronous ones."""
    tensors = [torch.full((1 + 37 * k % 50,), float(world.rank + k)) for k in range(30)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    now = torch.ones(3)
    dist.all_reduce(now)
    assert (now == world.size).all()
    for k in (29, 0, 13):
        assert works[k].wait()
    dist.barrier()
    ranks = world.size
    for k, (tensor, work) in enumerate(zip(tensors, works)):
        assert work.is_completed() and work.is_success() and work.exception() is None
        assert (tensor == ranks * k + ranks * (ranks - 1) / 2).all()
        assert work.result()[0] is tensor


@pytest.mark.mpi
def test_futures(world):
    """Futures complete without a wait. Callbacks may call the group again."""
    first, second = torch.ones(5), torch.ones(2)

    def then(future):
        dist.all_reduce(second)
        return future.value()[0] + second[0]

    chained = dist.all_reduce(first, async_op=True).get_future().then(then)
    assert (chained.wait() == 2 * world.size).all()
    work = dist.barrier(async_op=True)
    work.wait()
    assert work.get_future().wait() == []


@pytest.mark.mpi
def test_wait_with_a_limit(world):
    """After a timeout of wait() the caller may wait again, and nothing is lost."""
    tensor = torch.ones(4)
    if world.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        if world.size > 1:
            assert not work.is_completed()
            with pytest.raises(TimeoutError, match=r"all_reduce of 4 elements .* wait again"):
                work.wait(timedelta(milliseconds=20))
        world.Barrier()
        work.wait(timedelta(seconds=60))
    else:
        world.Barrier()
        dist.all_reduce(tensor)
    assert (tensor == world.size).all()


@pytest.mark.mpi
@pytest.mark.parametrize("contiguous", (True, False))
def test_a_tensor_requires_a_gradient_after_its_call_has_begun(world, contiguous):
    """The result is written nevertheless."""
    tensor = torch.ones(4, 3) if contiguous else torch.ones(3, 4).t()
    if world.rank == 0:
        work = dist.all_reduce(tensor, async_op=True)
        tensor.requires_grad_()
        world.Barrier()
        work.wait()
    else:
        world.Barrier()
        dist.all_reduce(tensor)
    assert (tensor.detach() == world.size).all()


# Groups


@pytest.mark.mpi
def test_groups_side_by_side(world):
    """Each rank is in several groups, and waits for them in its own order."""
    ranks, me = world.size, world.rank
    pairs = [sorted({a, (a + 1) % ranks}) for a in range(ranks)]
    groups = [(pair, dist.new_group(pair)) for pair in pairs]
    mine = [(pair, group) for pair, group in groups if me in pair]
    tensors = {id(group): torch.ones(3) * (me + 1) for _, group in mine}
    order = mine if me % 2 else mine[::-1]
    works = [dist.all_reduce(tensors[id(g)], group=g, async_op=True) for _, g in order]
    for work in works:
        work.wait()
    for pair, group in mine:
        assert dist.get_process_group_ranks(group) == pair
        assert (tensors[id(group)] == sum(rank + 1 for rank in pair)).all()
        objects = [None] * len(pair)
        dist.all_gather_object(objects, me, group=group)
        assert objects == pair
        dist.broadcast(tensors[id(group)], pair[-1], group=group)
    for _, group in mine:
        dist.destroy_process_group(group)
    dist.barrier()


@pytest.mark.mpi
def test_ranks_in_another_order(world):
    order = list(range(world.size))[::-1]
    group = dist.new_group(order, sort_ranks=False)
    assert dist.get_rank(group) == world.size - 1 - world.rank
    outputs = [torch.zeros(1) for _ in order]
    dist.all_gather(outputs, torch.tensor([float(world.rank)]), group=group)
    assert [int(output) for output in outputs] == order


@pytest.mark.mpi
def test_new_group_with_ranks_missing(world):
    """Ranks that come learn in time which rank does not. A later rank gets the error as well."""
    ranks = world.size
    if ranks == 1:
        return
    for late in {1, ranks - 1}:
        expected = rf"new_group.*ranks? [\d, ]*\b{late}\b[\d, ]* of \[0.*\] missing after 1 s"
        if world.rank == late:
            world.Barrier()
        with pytest.raises(TimeoutError, match=expected):
            dist.new_group(timeout=SHORT)
        if world.rank != late:
            world.Barrier()
    dist.barrier()


@pytest.mark.mpi
def test_new_group_of_different_members(world):
    ranks, me = world.size, world.rank
    if ranks < 3:
        return
    members = [0, 1, 2] if me == 2 else [0, 1]
    if me == 2:
        match = r"ranks 0, 1: \[0, 1\]; rank 2: \[0-2\]"
        with pytest.raises(pc.MismatchError, match=match):
            dist.new_group(members)
    else:
        dist.new_group(members)
    dist.barrier()


# Errors


@pytest.mark.mpi
def test_ranks_that_differ(world):
    """All ranks learn which rank calls what, and continue."""
    ranks, last = world.size, world.rank == world.size - 1
    if ranks == 1:
        return
    tensor, outputs = torch.ones(4), [torch.zeros(4) for _ in range(ranks)]
    calls = [
        (lambda: dist.all_reduce(tensor), lambda: dist.all_reduce(tensor[:3])),
        (lambda: dist.all_reduce(tensor), lambda: dist.all_reduce(tensor, dist.ReduceOp.MAX)),
        (lambda: dist.all_reduce(tensor), lambda: dist.broadcast(tensor, 0)),
        (lambda: dist.broadcast(tensor, 0), lambda: dist.broadcast(tensor.int(), 0)),
        (lambda: dist.broadcast(tensor, 0), lambda: dist.broadcast(tensor, 1)),
        (lambda: dist.all_gather(outputs, tensor), dist.barrier),
    ]
    for usual, other in calls:
        with pytest.raises(pc.MismatchError, match=f"the ranks differ.*rank {ranks - 1}: "):
            (other if last else usual)()
    work = dist.all_reduce(tensor[: 2 + last], async_op=True)
    with pytest.raises(RuntimeError, match="the ranks differ"):
        work.get_future().wait()
    assert isinstance(work.exception(), pc.MismatchError)
    assert torch.equal(tensor, torch.ones(4))
    dist.all_reduce(tensor)
    assert (tensor == ranks).all()


@pytest.mark.mpi
def test_operations_after_a_difference(world):
    """Data that left early for an operation on which the ranks differ enters no later operation."""
    ranks = world.size
    if ranks == 1:
        return
    dist.all_reduce(torch.ones(4))  # creates the handle
    for odd in (0, ranks - 1, 0):
        mine = torch.full((4,), 7.0)
        if world.rank == odd:
            first = dist.all_reduce(mine, async_op=True)
        else:
            first = dist.broadcast(mine, 0, async_op=True)
        tensors = [torch.full((4,), float(k + world.rank)) for k in range(5)]
        works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
        with pytest.raises(pc.MismatchError, match=rf"rank {odd}: all_reduce"):
            first.wait()
        for k, (tensor, work) in enumerate(zip(tensors, works)):
            work.wait()
            assert (tensor == ranks * k + ranks * (ranks - 1) / 2).all()
        assert (mine == 7).all()


REFUSED = {
    "sparse": (
        lambda: torch.eye(3).to_sparse_csr(),
        "expected a dense tensor, got torch.sparse_csr",
    ),
    "meta": (lambda: torch.ones(3, device="meta"), "expected one with memory, got one on meta"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
        "got a quantized tensor",
    ),
    "float8": (lambda: torch.ones(3).to(torch.float8_e5m2), "expected one of .*, got float8_e5m2"),
    "expanded": (lambda: torch.ones(1).expand(3), r"got an expanded tensor \(stride 0\)"),
}


@pytest.mark.mpi
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", REFUSED)
def test_refused_tensors(world, kind):
    """The tensor is refused by name. If only one rank passes it, the others get an error too."""
    make, match = REFUSED[kind]
    with pytest.raises((TypeError, ValueError), match=match):
        dist.all_reduce(make())
    if world.rank == 0:
        with pytest.raises((TypeError, ValueError), match=match):
            dist.all_reduce(make())
    else:
        with pytest.raises(pc.MismatchError, match=f"rank 0: .*Error: tensor: .*{match[-5:]}"):
            dist.all_reduce(torch.ones(3))
    dist.barrier()


@pytest.mark.mpi
def test_refused_arguments(world):
    ranks, group = world.size, dist.group.WORLD
    options = dist.AllreduceOptions()
    calls = {
        "tensors: expected one, got 2": lambda: group.allreduce([torch.ones(1)] * 2, options),
        "tensor_list: expected a tensor for each": lambda: dist.all_gather(
            [torch.zeros(1)] * (ranks + 1), torch.zeros(1)
        ),
        "tensor_list: expected 2 elements": lambda: dist.all_gather(
            [torch.zeros(1)] * ranks, torch.zeros(2)
        ),
        f"output: expected {ranks} times 2 elements": lambda: dist.all_gather_into_tensor(
            torch.zeros(2 * ranks + 1), torch.zeros(2)
        ),
        "input_split_sizes: expected": lambda: dist.all_to_all_single(
            torch.zeros(ranks), torch.zeros(ranks), [1] * ranks, [2] * ranks
        ),
    }
    for match, call in calls.items():
        with pytest.raises(ValueError, match=match):
            call()
    dist.barrier()


@pytest.mark.mpi
def test_an_operation_that_takes_too_long(world):
    """The error names the missing ranks. The group has ended, and other groups have not."""
    ranks, last = world.size, world.size - 1
    if ranks == 1:
        return
    group = dist.new_group()
    dist.all_reduce(torch.ones(3), group=group)
    group.set_timeout(timedelta(seconds=5))
    if world.rank != last:
        later = dist.all_reduce(torch.ones(3), group=group, async_op=True)
        behind = dist.barrier(group, async_op=True)
        with pytest.raises(
            TimeoutError, match=rf"all_reduce of 3 .* after its timeout of 5 s: .*\b{last}\b"
        ):
            later.wait()
        with pytest.raises(RuntimeError, match="an earlier operation failed"):
            behind.wait()
        with pytest.raises(pc.StateError, match="has ended with an error: all_reduce"):
            dist.all_reduce(torch.ones(3), group=group)
    world.Barrier()
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == ranks).all()
    dist.destroy_process_group(group)


@pytest.mark.mpi
def test_barriers(world):
    dist.barrier(device_ids=[0])
    dist.group.WORLD.monitored_barrier(timedelta(seconds=60))
    if world.size == 1:
        return
    group = dist.new_group()
    if world.rank == 0:
        with pytest.raises(TimeoutError, match=r"barrier in group .* after its timeout of 0.3 s"):
            group.monitored_barrier(timedelta(seconds=0.3))
    world.Barrier()
    dist.destroy_process_group(group)


@pytest.mark.mpi
def test_a_destroyed_group(world):
    """Operations in progress fail, no thread is left, and the group reports its end."""
    group = dist.new_group()
    work = None
    if world.rank == 0 and world.size > 1:
        work = dist.all_reduce(torch.ones(3), group=group, async_op=True)
    world.Barrier()
    dist.destroy_process_group(group)
    if work is not None:
        with pytest.raises(RuntimeError, match=r"group .* (ended while|destroyed before)"):
            work.wait()
    with pytest.raises((pc.StateError, ValueError)):
        group.barrier().wait()
    names = [thread.name for thread in threading.enumerate()]
    assert f"partialcoll group {group._name}" not in names


@pytest.mark.mpi
def test_a_world_after_another(world):
    """Each world frees the remains of earlier ones. Groups of the same names are new."""
    for again in range(3):
        dist.destroy_process_group()
        assert not dist.is_initialized()
        dist.init_process_group("partialcoll")
        group = dist.new_group([0])
        if world.rank == 0:
            dist.barrier(group)
        tensor = torch.full((5,), float(again))
        dist.all_reduce(tensor)
        assert (tensor == again * world.size).all()
        kept = {name for name, one in process_group.retired.items() if one.usable}
        assert not {name for name in kept if name.startswith("0/")}
    gc.collect()


@pytest.mark.mpi
def test_groups_after_a_world_with_a_group_of_some_ranks(world):
    """It does not matter how often a rank was in a group of that name before."""
    for ranks in ([0], None, [0], None):
        dist.destroy_process_group()
        dist.init_process_group("partialcoll", timeout=timedelta(seconds=20))
        group = dist.new_group(ranks)
        if ranks is None or world.rank == 0:
            tensor = torch.ones(3)
            dist.all_reduce(tensor, group=group)
            assert (tensor == (world.size if ranks is None else 1)).all()


@pytest.mark.mpi
def test_a_users_store_for_several_worlds(world):
    """The remains of one world in the store are not mistaken for those of the next one."""
    dist.destroy_process_group()
    limit = timedelta(seconds=20)
    connect = functools.partial(
        dist.TCPStore, "localhost", timeout=limit, world_size=world.size, wait_for_workers=False
    )
    server = None if world.rank else connect(port=0, is_master=True)
    port = world.bcast(server and server.port)
    store = server or connect(port=port, is_master=False)
    for ranks in ([0], None, [0], None):
        dist.init_process_group(
            "partialcoll", store=store, rank=world.rank, world_size=world.size, timeout=limit
        )
        group = dist.new_group(ranks)
        if ranks is None or world.rank == 0:
            dist.barrier(group)
        world.Barrier()
        dist.destroy_process_group()
    dist.init_process_group("partialcoll")
    world.Barrier()


# DistributedDataParallel


class Network(torch.nn.Module):
    """Layers of several sizes, one of which some inputs do not use."""

    def __init__(self, dtype=torch.float64, norm=False):
        super().__init__()
        torch.manual_seed(3)
        self.first = torch.nn.Linear(6, 20)
        self.side = torch.nn.Linear(20, 20)
        self.norm = torch.nn.BatchNorm1d(20) if norm else torch.nn.Identity()
        self.last = torch.nn.Linear(20, 3)
        self.to(dtype)

    def forward(self, x, side=True):
        x = self.norm(torch.tanh(self.first(x)))
        return self.last(torch.tanh(self.side(x)) if side else x)


def rows(world, dtype, step=0, each=4):
    """Return the whole batch, and this rank's part of it."""
    g = torch.Generator().manual_seed(step)
    x = torch.randn(each * world.size, 6, generator=g).to(dtype)
    y = torch.randn(each * world.size, 3, generator=g).to(dtype)
    mine = slice(each * world.rank, each * (world.rank + 1))
    return x, y, mine


def gradients(model):
    return [None if p.grad is None else p.grad.clone() for p in model.parameters()]


DDP_OPTIONS = {
    "default": {},
    "one bucket for each": {"bucket_cap_mb": 1e-6},
    "two buckets": {"bucket_cap_mb": 0.002},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "unused": {"find_unused_parameters": True},
}


@pytest.mark.mpi
@pytest.mark.parametrize(
    "name, dtype",
    [
        *((name, torch.float64) for name in DDP_OPTIONS),
        ("two buckets", torch.float32),
        ("views", torch.bfloat16),
    ],
    ids=str,
)
def test_ddp_gradients_are_those_of_one_process(world, name, dtype):
    """Gradients equal those of one process on the whole batch, in several steps. Unused parameters
    have none."""
    side = name != "unused"
    alone, model = Network(dtype), DDP(Network(dtype), **DDP_OPTIONS[name])
    tolerance = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2}[dtype]
    for step in range(3):
        x, y, mine = rows(world, dtype, step)
        for net, part in ((alone, slice(None)), (model, mine)):
            net.zero_grad()
            (net(x[part], side=side) - y[part]).square().mean().backward()
        for ours, theirs in zip(gradients(model), gradients(alone)):
            assert (ours is None) == (theirs is None)
            if ours is not None:
                assert torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        everyones = [None] * world.size
        dist.all_gather_object(everyones, [g for g in gradients(model) if g is not None])
        for theirs in everyones:
            assert all(map(torch.equal, everyones[0], theirs))  # bit for bit on all ranks


@pytest.mark.mpi
def test_ddp_without_synchronization(world):
    """The next step sends the gradients added up under no_sync."""
    alone, model = Network(), DDP(Network())
    for step in range(2):
        x, y, mine = rows(world, torch.float64, step)
        (alone(x) - y).square().mean().backward()
        if step == 0:
            with model.no_sync():
                (model(x[mine]) - y[mine]).square().mean().backward()
        else:
            (model(x[mine]) - y[mine]).square().mean().backward()
    for ours, theirs in zip(gradients(model), gradients(alone)):
        assert ours is theirs or torch.allclose(ours, theirs, atol=1e-12)


def trained(world, group, steps=4, **options):
    """Return parameters and buffers after some steps of DDP on a group."""
    model = DDP(Network(norm=True), process_group=group, **options)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        x, y, mine = rows(world, torch.float64, step)
        optimizer.zero_grad()
        (model(x[mine]) - y[mine]).square().mean().backward()
        optimizer.step()
    return copy.deepcopy(model.module.state_dict())


@pytest.mark.mpi
def test_ddp_trains_as_with_gloo(world):
    """Parameters, and with BatchNorm buffers, are the same as with gloo in one job."""
    gloo = dist.new_group(backend="gloo")
    ours = trained(world, None, bucket_cap_mb=0.001)
    theirs = trained(world, gloo, bucket_cap_mb=0.001)
    for name, one in ours.items():
        assert torch.allclose(one.double(), theirs[name].double(), rtol=1e-9, atol=1e-12), name
    dist.destroy_process_group(gloo)


# Programs


PROGRAM = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
"""


def test_a_program_with_no_setup(run):
    """The import sets the environment of the ranks, and init_process_group does the rest. The
    program may end with operations in progress and without destroying anything."""
    script = """
    rank, size = str(comm.rank), str(comm.size)
    before = dict(os.environ)
    if comm.rank == 0:  # importing does not wait for others
        import partialcoll.torch
    comm.Barrier()
    import partialcoll.torch
    assert os.environ["RANK"] == rank and os.environ["WORLD_SIZE"] == size
    assert "MASTER_PORT" not in os.environ
    dist.init_process_group("partialcoll")
    assert os.environ["LOCAL_RANK"] == rank  # one node
    assert len(set(comm.allgather(os.environ["MASTER_PORT"]))) == 1
    assert dist.get_backend() == "partialcoll" and dist.get_rank() == comm.rank
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert (tensor == comm.size).all()
    gloo = dist.new_group(backend="gloo")
    dist.all_reduce(tensor, group=gloo)
    assert (tensor == comm.size ** 2).all()
    # A thread of gloo's that still has the tensor when the interpreter ends aborts the program.
    dist.destroy_process_group(gloo)
    del gloo
    if comm.rank == 0:
        left = dist.all_reduce(tensor, async_op=True)
        message = dist.irecv(torch.zeros(2), 1)
        dist.isend(torch.zeros(10), 1)
    say("end")
    """
    done = run(script, 3, before=PROGRAM, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and done.stdout.count("end") == 3, done.stderr


@pytest.mark.parametrize("wrong", ("size", "all", "one", "port"))
def test_an_environment_that_differs_from_mpi(run, wrong):
    """Every rank reports the wrong variable by name. A free port that the user has set is used."""
    script = """
    import contextlib, socket
    wrong = sys.argv[1]
    if wrong == "size":
        os.environ["WORLD_SIZE"] = "7"
    if wrong == "all":
        os.environ["RANK"] = "0"
    if wrong == "one" and comm.rank == 1:
        os.environ["RANK"] = "5"
    if wrong == "port":
        port = None
        if comm.rank == 0:
            with socket.socket() as s:
                for port in range(20000 + os.getpid() % 10000, 32000):  # not assigned automatically
                    with contextlib.suppress(OSError):
                        s.bind(("", port))
                        break
        port = comm.bcast(port)
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
        # torch's ranks in another order than MPI's
        os.environ["RANK"] = str(comm.size - 1 - comm.rank)
    import partialcoll.torch
    try:
        dist.init_process_group("partialcoll")
    except ValueError as error:
        say("refused:", error)
    """
    done = run(script, 2, before=PROGRAM, env={"OMP_NUM_THREADS": "1"}, arguments=[wrong])
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("refused: ")]
    assert len(lines) == 2, done.stdout + done.stderr
    expected = {
        "size": "rank 1: WORLD_SIZE=7 where MPI has 2",
        "all": "rank 1: RANK=0 where MPI has 1",
        "one": "rank 1: RANK=5 where MPI has 1",
        "port": "rank 0 of 2 is MPI's rank 1 of 2",
    }[wrong]
    assert all(expected in line and "expected MPI's numbers" in line for line in lines), lines


def test_processes_of_torchrun(clean_environment, tmp_path):
    """Each process is its own MPI job. This is found by torchrun's variables in the environment,
    and by comparing the ranks: other launchers leave no variables that we know."""
    path = tmp_path / "script.py"
    path.write_text(
        textwrap.dedent(
            """
            import os
            import torch.distributed as dist
            import partialcoll as pc
            import partialcoll.torch as pct

            for call in (pct.init, *2 * [lambda: dist.init_process_group("partialcoll")]):
                try:
                    call()
                except pc.Error as error:
                    os.write(1, f"{type(error).__name__}: {error}\\n".encode())
                if call is not pct.init:
                    os.environ.pop("TORCHELASTIC_RUN_ID", None)
            """
        )
    )
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    env = {**clean_environment, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*words, path], env=env, capture_output=True, text=True, timeout=120)
    said = [line for line in done.stdout.splitlines() if line.startswith("Error: 2 processes were")]
    assert len(said) == 6, done.stdout + done.stderr
    assert sum("by torchrun" in line for line in said) == 4
    assert sum("something else than mpiexec" in line for line in said) == 2
    assert all("partialcoll run -n 2 python" in line for line in said)


def test_a_rank_that_does_not_come(run):
    script = """
    import datetime
    import partialcoll.torch
    limit = datetime.timedelta(seconds=5)
    for missing in (1, 0):
        if comm.rank != missing:
            try:
                dist.init_process_group("partialcoll", timeout=limit)
            except TimeoutError as error:
                say("missing:", error)
        comm.Barrier()
    dist.init_process_group("partialcoll")
    dist.barrier()
    """
    done = run(script, 2, before=PROGRAM, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert "missing: init_process_group: rank 1 of [0, 1] missing after 5 s" in done.stdout
    assert "missing: init_process_group: rank 0 is missing after 5 s" in done.stdout


@pytest.mark.parametrize("whose", ["ours", "the user's"])
def test_a_stranger_decides_nothing(run, whose):
    """Any process may write to the store. A forged verdict under a predictable name has no effect,
    because the names in use contain a secret that the ranks share by MPI."""
    script = """
    import datetime, socket
    import partialcoll.torch
    from partialcoll.torch import rendezvous
    store = None
    if sys.argv[1] == "ours":
        opened = rendezvous._open_store
        def open_store(timeout):
            store, *rest = opened(timeout)
            forge(store)
            return store, *rest
        rendezvous._open_store = open_store
    else:
        connect = lambda port: dist.TCPStore("localhost", port, comm.size, comm.rank == 0,
                                             wait_for_workers=False)
        server = connect(0) if comm.rank == 0 else None
        port = comm.bcast(server and server.port)
        store = server or connect(port)

    def forge(store):
        for name in ("world", "world 0"):
            for turn in (1, 2):
                store.set(f"partialcoll/{name}/turn {turn}/verdict", "forged")

    if store is not None:
        forge(store)
    given = {} if store is None else {"store": store, "rank": comm.rank, "world_size": comm.size}
    dist.init_process_group("partialcoll", timeout=datetime.timedelta(seconds=30), **given)
    secrets = comm.allgather(rendezvous._secret)
    say(len(set(secrets)), len(secrets[0]))
    dist.barrier()
    """
    done = run(script, 3, before=PROGRAM, env={"OMP_NUM_THREADS": "1"}, arguments=[whose])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["1 32"] * 3


def test_without_mpi(run):
    """Importing neither starts nor needs MPI. The backend reports that it needs MPI."""
    script = """
    assert not MPI.Is_initialized()
    import partialcoll.torch
    assert "RANK" not in os.environ
    store = dist.HashStore()
    try:
        dist.init_process_group("partialcoll", store=store, rank=0, world_size=1)
    except pc.StateError as error:
        say(error)
    MPI.Init_thread()
    partialcoll.torch.process_group.register()
    for method in (None, "mpi://", "env://"):
        dist.init_process_group("partialcoll", init_method=method)
        dist.barrier()
        dist.destroy_process_group()
    MPI.Finalize()
    """
    before = PROGRAM + "import mpi4py; mpi4py.rc.initialize = False\n"
    script = script.replace("comm.", "MPI.COMM_WORLD.")
    done = run(script, before=before, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and "the backend needs MPI: initialized" in done.stdout, done.stderr


def test_what_was_set_is_not_inherited():
    """A job that a program starts has its own ranks."""
    from partialcoll.torch import rendezvous

    before = dict(os.environ)
    try:
        os.environ.pop("RANK", None)
        os.environ["WORLD_SIZE"] = "9"
        rendezvous.set_absent({"RANK": "3", "WORLD_SIZE": "4"})
        assert os.environ["RANK"] == "3" and os.environ["WORLD_SIZE"] == "9"
        assert rendezvous.given("RANK") is None and rendezvous.given("WORLD_SIZE") == "9"
        rendezvous.set_absent({"RANK": "5"})
        assert os.environ["RANK"] == "5" and rendezvous.given("RANK") is None
        os.environ["RANK"] = "6"
        assert rendezvous.given("RANK") == "6"
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_timeouts_are_both_errors():
    """A timeout is an error of torch.distributed and of Python."""
    assert issubclass(GroupTimeout, (dist.DistBackendError))
    assert issubclass(GroupTimeout, TimeoutError)
