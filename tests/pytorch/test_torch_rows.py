# SPDX-License-Identifier: Apache-2.0
"""Horovod's collectives along the first dimension, grouped calls, and process sets."""

import threading

import numpy as np
import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [
    pytest.mark.skipif(MPI.COMM_WORLD.size > 4, reason="up to 4 ranks, for time"),
    pytest.mark.one_domain,
    pytest.mark.few_ranks,
    pytest.mark.one_mpi,
    pytest.mark.mpi,
]
several = pytest.mark.skipif(MPI.COMM_WORLD.size == 1, reason="needs several ranks")
DTYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8, torch.complex64)


@pytest.fixture
def world(comm):
    """A world for this test. Return its communicator."""
    torch.set_num_threads(1)
    pct.shutdown()
    pct.init(comm)
    yield pct.comm()
    pct.shutdown()


def rows(rank, count=None, dtype=torch.float32, width=3):
    """Return `count` rows that differ by rank, each filled with one number."""
    count = rank if count is None else count
    return (torch.arange(count) + 10 * rank).to(dtype).view(-1, 1).expand(-1, width).clone()


# Allgather


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("operations")
def test_allgather(world, dtype):
    """Ranks have different numbers of rows, one of them none."""
    expected = torch.cat([rows(r, None, dtype) for r in range(world.size)])
    assert torch.equal(pct.allgather(rows(world.rank, None, dtype)), expected)
    flat = pct.allgather(torch.tensor([world.rank], dtype=dtype))
    assert flat.tolist() == torch.arange(world.size).to(dtype).tolist()
    strided = rows(world.rank, 4, dtype, 6)[::2, ::2]
    there = torch.cat([rows(r, 4, dtype, 6)[::2, ::2] for r in range(world.size)])
    assert torch.equal(pct.allgather(strided), there)


def test_grouped_and_later(world):
    """Grouped in one call, and several in flight, synchronized in another order than started."""
    own = [rows(world.rank, n) for n in (1, 5, 0)]
    expected = [torch.cat([rows(r, n) for r in range(world.size)]) for n in (1, 5, 0)]
    found = pct.grouped_allgather(own)
    assert isinstance(found, list) and all(map(torch.equal, found, expected))
    begun = [pct.allgather_async(own[i % 3], name=f"gather {i}") for i in range(9)]
    begun.append(pct.grouped_allgather_async(own))
    assert all(map(torch.equal, pct.synchronize(begun.pop()), expected))
    for i in reversed(range(9)):
        assert torch.equal(pct.synchronize(begun[i]), expected[i % 3])
        assert pct.poll(begun[i])


def test_allgather_gradient(world):
    x = rows(world.rank, world.rank + 1).requires_grad_()
    y = pct.allgather(x)
    (y * (world.rank + torch.arange(len(y)).view(-1, 1))).sum().backward()
    begin = sum(range(1, world.rank + 1))
    mean = (world.size - 1) / 2 + torch.arange(begin, begin + world.rank + 1)
    assert torch.equal(x.grad, mean.view(-1, 1).expand(-1, 3))


# Alltoall


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.usefixtures("operations")
def test_alltoall(world, dtype):
    """Rank r sends s + 1 rows to rank s."""
    size, rank = world.size, world.rank
    count = size * (size + 1) // 2
    x, splits = rows(rank, count, dtype), torch.arange(1, size + 1)
    begin = sum(range(1, rank + 1))
    expected = torch.cat([rows(r, count, dtype)[begin : begin + rank + 1] for r in range(size)])
    for given in (splits, splits.int(), splits.tolist()):
        found, come = pct.alltoall(x, given)
        assert torch.equal(found, expected) and come.tolist() == [rank + 1] * size
        assert come.dtype == (torch.int64 if given is splits else torch.int32)
    even = pct.alltoall(rows(rank, 2 * size, dtype))
    there = [rows(r, 2 * size, dtype)[2 * rank : 2 * rank + 2] for r in range(size)]
    assert torch.equal(even, torch.cat(there))
    later = pct.alltoall_async(x, splits)
    found, come = pct.synchronize(later)
    assert torch.equal(found, expected) and come.tolist() == [rank + 1] * size


def test_alltoall_gradient(world):
    x = torch.ones(world.size, 2, requires_grad=True)
    (pct.alltoall(x) * (world.rank + 1)).sum().backward()
    assert torch.equal(x.grad[:, 0], torch.arange(1.0, world.size + 1))


@several
def test_alltoall_refused(world):
    x = rows(world.rank, 2 * world.size + 1)
    for splits, error, words in (
        (None, ValueError, "splits: expected sizes for"),
        ([1] * world.size, ValueError, f"with the sum {len(x)}"),
        ([len(x)] * (world.size + 1), ValueError, f"expected {world.size} numbers of rows"),
        ([-1, *[0] * (world.size - 2), len(x) + 1], ValueError, "numbers of rows"),
        (torch.ones(world.size), ValueError, "splits: expected integers, got float32"),
    ):
        with pytest.raises(error, match=words):
            pct.alltoall(x, splits)
    own = [0] * world.size if world.rank else "three"
    with pytest.raises((ValueError, pc.MismatchError)):
        pct.alltoall(x[:0], own)
    assert len(pct.alltoall(x[:0])) == 0


# Reducescatter


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("more", (0, 1))
@pytest.mark.usefixtures("operations")
def test_reducescatter(world, dtype, more):
    """The first ranks have one row more."""
    size, rank = world.size, world.rank
    count = 2 * size + more
    whole = sum(rows(r, count, dtype) for r in range(size))
    own = whole.tensor_split(size)[rank]
    assert torch.equal(pct.reducescatter(rows(rank, count, dtype), op=pct.Sum), own)
    if not dtype.is_complex:
        most = pct.reducescatter(rows(rank, count, dtype), op=pct.Max)
        assert torch.equal(most, rows(size - 1, count, dtype).tensor_split(size)[rank])
    if not dtype.is_complex:
        halved = pct.reducescatter(rows(rank, count, dtype), op=pct.Max, prescale_factor=0.5)
        most = rows(size - 1, count, dtype).double() / 2
        assert torch.equal(halved, most.to(dtype).tensor_split(size)[rank])
    if dtype.is_floating_point:
        x = rows(rank, count, dtype)
        scaled = pct.reducescatter(x, op=pct.Sum, prescale_factor=0.5, postscale_factor=4)
        assert torch.equal(scaled, own * 2)
        mean = pct.reducescatter(x)
        torch.testing.assert_close(mean, (own.double() / size).to(dtype))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16), ids=str)
def test_scaled_before_it_is_rounded(world, dtype):
    """Like in an allreduce, factors may leave the range of the dtype in between."""
    for value, before, after in ((40000, 2, 0.25), (6e-6, 1 / 1024, 1024)):
        x = torch.full((world.size, 1), value, dtype=dtype)
        factors = {"prescale_factor": before, "postscale_factor": after / world.size}
        expected = pct.allreduce(x, op=pct.Sum, **factors)[0]
        assert expected.isfinite().all() and expected.any()
        assert torch.equal(pct.reducescatter(x, op=pct.Sum, **factors), expected[None])


def test_reducescatter_gradient(world):
    """Like in Horovod, the gradient of a sum is that of a mean times the number of ranks."""
    for op, factor in ((pct.Average, 1), (pct.Sum, world.size)):
        x = torch.ones(2 * world.size, 3, requires_grad=True)
        (pct.reducescatter(x, op=op) * (world.rank + 1)).sum().backward()
        expected = torch.arange(1, world.size + 1).repeat_interleave(2) * factor
        assert torch.equal(x.grad[:, 1], expected.float())
    found = pct.grouped_reducescatter([x.detach(), x.detach()[: world.size]], op=pct.Sum)
    assert [len(one) for one in found] == [2, 1] and (found[1] == world.size).all()
    x = torch.full((2 * world.size,), 1 / 3)
    small = pct.reducescatter(x, compression=pct.Compression.fp16)
    assert small.dtype == torch.float32 and torch.equal(small, x[:2].half().float())


@several
def test_they_differ(world):
    """All ranks get the error, and continue."""
    for call, words in (
        (lambda: pct.allgather(torch.ones(2, 3 + world.rank)), r"rows of float32 \(3,\)"),
        (lambda: pct.allgather(torch.ones(2, dtype=DTYPES[world.rank])), "rows of float16"),
        (lambda: pct.allgather(torch.ones(2), name=f"a{world.rank}"), "name='a0'"),
        (lambda: pct.reducescatter(torch.ones(2 + world.rank)), r"float32 \(2,\)"),
        (
            lambda: (
                pct.allgather(torch.ones(2)) if world.rank else pct.alltoall(torch.ones(world.size))
            ),
            "allgather",
        ),
    ):
        with pytest.raises(pc.MismatchError, match=words):
            call()
    with pytest.raises(ValueError, match="expected a first dimension, got a scalar"):
        pct.allgather(torch.tensor(1.0))
    with pytest.raises(TypeError, match=r"expected a .*Tensor, got list"):
        pct.allgather([torch.ones(2)])
    assert len(pct.allgather(torch.ones(1))) == world.size


# Several tensors


def test_grouped_allreduce(world):
    size = world.size
    tensors = [
        torch.full((n,), float(world.rank), dtype=d) for n, d in ((3, DTYPES[0]), (900, DTYPES[2]))
    ]
    total = size * (size - 1) / 2
    for found in (
        pct.grouped_allreduce(tensors, op=pct.Sum),
        pct.synchronize(pct.grouped_allreduce_async(tensors, op=pct.Sum)),
        pct.synchronize(pct.grouped_allreduce_async(tensors, op=pct.Sum, name="some")),
    ):
        assert [one.dtype for one in found] == [DTYPES[0], DTYPES[2]]
        assert all((one == total).all() for one in found)
    assert pct.grouped_allreduce_(tensors)[1] is tensors[1]
    assert all((one == (size - 1) / 2).all() for one in tensors)
    pct.synchronize(pct.grouped_allreduce_async_(tensors, op=pct.Sum))
    assert all((one == size * (size - 1) / 2).all() for one in tensors)
    x = [torch.ones(2, requires_grad=True), torch.ones(3)]
    y = pct.grouped_allreduce(x, op=pct.Sum, compression=pct.Compression.fp16)
    (y[0] * (world.rank + 1)).sum().backward()
    assert x[0].grad.tolist() == [size * (size + 1) / 2] * 2
    with pytest.raises(ValueError, match="expected at least one, got none"):
        pct.grouped_allreduce([])
    for _ in range(8):  # the first tensor has a handle, the second a new one
        pct.synchronize(pct.grouped_allreduce_async([torch.ones(10)]))
    begun = [
        pct.grouped_allreduce_async([torch.ones(10), torch.full((1000,), k)]) for k in (1.0, 9.0)
    ]
    for i in (0, 1) if world.rank else (1, 0):  # waited for in another order
        assert (pct.synchronize(begun[i])[1] == (1, 9)[i]).all()


@pytest.mark.usefixtures("operations")
def test_sparse(world):
    """The result has an entry for each rank's entry. Those at one place add up when coalesced."""
    place = torch.tensor([[0, world.rank + 1]])
    own = torch.sparse_coo_tensor(place, torch.ones(2, 4), (world.size + 1, 4))
    for op, factor in ((pct.Sum, 1), (pct.Average, 1 / world.size)):
        dense = pct.sparse_allreduce_async(own, "sparse", op)().to_dense()
        expected = torch.tensor([world.size, *[1] * world.size]) * factor
        torch.testing.assert_close(dense, expected.view(-1, 1).expand(-1, 4).float())
    with pytest.raises(ValueError, match="op: expected Average or Sum"):
        pct.sparse_allreduce_async(own, op=pct.Max)


class Half(pct.Compressor):
    """Sends a view with another dtype and half of the elements."""

    @staticmethod
    def compress(tensor):
        return tensor[: len(tensor) // 2], len(tensor)

    @staticmethod
    def decompress(tensor, ctx):
        return torch.cat([tensor, torch.full((ctx - len(tensor),), -1.0)])


def test_a_users_compressor(world):
    """decompress is called for each result, whatever was sent. The input may be changed at once."""
    expected = [world.size, world.size, -1, -1]
    for _ in range(2):
        given = torch.ones(4)
        call = pct.allreduce_async(given, op=pct.Sum, name="half", compression=Half)
        given.fill_(9)
        assert pct.synchronize(call).tolist() == expected
        assert pct.allreduce(torch.ones(4), op=pct.Sum, compression=Half).tolist() == expected
        both = pct.grouped_allreduce([torch.ones(4)] * 2, op=pct.Sum, compression=Half)
        assert [one.tolist() for one in both] == [expected] * 2
        scattered = pct.grouped_allreduce([torch.ones(3)], op=pct.Sum)  # leaves memory behind
        assert scattered[0].tolist() == [world.size] * 3


# Process sets


@several
def test_process_sets(world):
    """Overlapping sets with their own calls, in any order between sets."""
    size, rank = world.size, world.rank
    assert pct.global_process_set.size() == size and pct.global_process_set.rank() == rank
    assert pct.global_process_set.included() and pct.global_process_set.process_set_id == 0
    first = pct.add_process_set([0])
    rest = pct.add_process_set(pct.ProcessSet(range(1, size)) if size > 2 else [1])
    all_but = pct.ProcessSet(range(size - 1)) if size > 2 else None
    if all_but is not None:
        assert all_but.size() is None and all_but.included() is None
        pct.add_process_set(all_but)
    for one in filter(None, (rest, all_but, first)):
        assert one.size() == len(one.ranks) and one.included() == (rank in one.ranks)
        if not one.included():
            assert one.rank() is None
            with pytest.raises(ValueError, match=f"rank {rank} is not in ProcessSet"):
                pct.allreduce(torch.ones(1), process_set=one)
            continue
        ranks, root = torch.tensor(one.ranks, dtype=torch.float32), one.ranks[-1]
        x = torch.full((2,), float(rank))
        assert one.ranks[one.rank()] == rank
        assert torch.equal(pct.allreduce(x, op=pct.Sum, process_set=one), ranks.sum().expand(2))
        assert torch.equal(pct.allgather(x[:1], process_set=one), ranks)
        assert torch.equal(pct.broadcast(x, root, process_set=one), x * 0 + root)
        call = pct.allreduce_async(x, name="in a set", process_set=one)
        torch.testing.assert_close(pct.synchronize(call), ranks.mean().expand(2))
        assert pct.allgather_object(rank, process_set=one) == one.ranks
        assert pct.broadcast_object(rank, root, process_set=one) == root
        part = pct.reducescatter(torch.ones(one.size()), op=pct.Sum, process_set=one)
        assert part.tolist() == [one.size()]
        assert len(pct.alltoall(torch.ones(one.size()), process_set=one)) == one.size()
        pct.barrier(one)
        if root != size - 1:
            with pytest.raises(ValueError, match="root_rank: expected one of ProcessSet"):
                pct.broadcast(x, size - 1, process_set=one)
    pct.barrier()
    assert pct.remove_process_set(rest) and not pct.remove_process_set(rest)
    assert rest.process_set_id is None and not pct.remove_process_set(pct.global_process_set)
    with pytest.raises(ValueError, match="is not usable"):
        pct.allreduce(torch.ones(1), process_set=rest)
    again = pct.add_process_set(rest)
    assert again is rest and again.process_set_id > first.process_set_id


@several
def test_a_set_is_removed_while_it_is_in_use(world):
    """Operations that all ranks of the set have called complete; others fail. So at shutdown."""
    x, rank = torch.ones(3), world.rank
    for end, which in ((pct.remove_process_set, range(world.size - 1)), (lambda _: None, None)):
        one = pct.add_process_set(which) if which else pct.global_process_set
        calls, there = [], one.included()
        if there:
            ranks = one.size()
            calls = [
                pct.allgather_async(x, process_set=one),
                pct.allreduce_async(x, name="by all", op=pct.Sum, process_set=one),
                pct.allreduce_async(torch.ones(3000), op=pct.Sum, process_set=one),
            ]
        if rank == 0:
            alone = pct.allreduce_async(x, name="by one", process_set=one)
        end(one)
        if which is None:
            pct.shutdown()
        if there:
            found = [pct.synchronize(call) for call in calls]
            assert [len(f) for f in found] == [3 * ranks, 3, 3000]
            assert all((f == w).all() for f, w in zip(found, (1, ranks, ranks)))
        if rank == 0 and (ranks > 1 or which is None):
            with pytest.raises(pc.StateError, match="before all ranks had called it"):
                pct.synchronize(alone)


@several
def test_calls_by_name_of_threads(world):
    """Calls of several threads with names that are used once, for which nothing is kept. Refused
    calls are made again."""
    found = []

    def work(k):
        for i in range(20):
            call = pct.allreduce_async(torch.ones(2), name=f"{k} {i}", op=pct.Sum)
            found.append(pct.synchronize(call)[0].item())

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert found == [world.size] * 80
    if world.rank == 0:
        with pytest.raises(TypeError, match="got list"):
            pct.allreduce_async([1], name="q")
    else:
        with pytest.raises(pc.MismatchError, match=r"rank 0: TypeError.*\(refused\)"):
            pct.synchronize(pct.allreduce_async(torch.ones(2), name="q"))
    assert pct.synchronize(pct.allreduce_async(torch.ones(2), name="q")).tolist() == [1, 1]
    names = pct.world.world().calls._names
    assert len(names._latest) <= 1 and not names._unplaced and not names._order._told


@several
def test_bad_process_sets(world):
    size = world.size
    for given, error, words in (
        ([], ValueError, "expected different ranks from 0 to"),
        ([0, 0], ValueError, "expected different ranks"),
        ([size], ValueError, f"from 0 to {size - 1}, got"),
        (range(size), ValueError, "there is one of ranks"),
        (3, TypeError, "ranks: expected numbers of ranks, got int"),
        (world, TypeError, "ranks: expected numbers of ranks, got Intracomm"),
        ([0.5], ValueError, "expected numbers of ranks, got"),
    ):
        with pytest.raises(error, match=words):
            pct.add_process_set(given)
    with pytest.raises(pc.MismatchError, match="add_process_set of ranks"):
        pct.add_process_set([world.rank])
    one = pct.add_process_set([0])
    with pytest.raises(ValueError, match="is usable already"):
        pct.add_process_set(one)


@several
def test_sets_of_init(comm):
    pct.shutdown()
    evens = pct.ProcessSet(range(0, comm.size, 2))
    with pytest.raises(
        ValueError, match="process_sets: expected a list of sets or 'dynamic', got 'static'"
    ):
        pct.init(comm, process_sets="static")
    pct.init(comm, process_sets="Dynamic")
    pct.shutdown()
    pct.init(comm, process_sets=[evens, [comm.size - 1]] if comm.size > 2 else [evens])
    if evens.included():
        assert pct.allreduce(torch.ones(1), op=pct.Sum, process_set=evens).item() == evens.size()
    pct.shutdown()
    assert evens.process_set_id is None and pct.global_process_set.size() is None


@several
def test_calls_while_a_rank_has_joined(world):
    """Ranks get an error for operations that need the joined rank, which keeps waiting."""
    for call in (
        lambda: pct.allgather(torch.ones(2)),
        lambda: pct.allreduce(torch.ones(2), op=pct.Max),
        lambda: pct.broadcast(torch.ones(2), 0, name="late"),
        lambda: pct.synchronize(pct.allgather_async(torch.ones(2), name="late")),
    ):
        if world.rank:
            with pytest.raises(pc.MismatchError, match="rank 0: join"):
                call()
        last = pct.join()
        assert world.allgather(last) == [last] * world.size and last != 0
    if world.rank:
        with pytest.raises(TypeError, match="got list"):
            pct.allreduce([1])
    pct.join()
    with pytest.raises(ValueError, match="device: expected a number from -1 on"):
        pct.join(-2)


def sums(world, here, random):
    """Make calls in flight, waited for in any order. `here`: the number of ranks not joined."""
    size, x, many = world.size, torch.arange(3.0), torch.arange(1000)
    begun = [
        (pct.allreduce_async(x, op=pct.Sum), [x * here]),
        (pct.allreduce_async(x, op=pct.Sum), [x * here]),
        (pct.allreduce_async(many, name="many"), [(many * here).div(size, rounding_mode="trunc")]),
        (pct.grouped_allreduce_async([x, many], op=pct.Sum, name="two"), [x * here, many * here]),
        (pct.grouped_allreduce_async([many, x], prescale_factor=size), [many * here, x * here]),
    ]
    assert torch.equal(pct.allreduce(x.half(), op=pct.Sum), x.half() * here)
    for i in map(int, random.permutation(len(begun))):
        found = pct.synchronize(begun[i][0])
        found = found if isinstance(found, list) else [found]
        assert all(map(torch.equal, found, begun[i][1])), (here, i)


@several
def test_sums_while_some_have_joined(world):
    """A joined rank contributes zeros, in calls by order and by name, on existing or new handles,
    although the others wait in other orders. Ranks join one after the other."""
    random = np.random.default_rng(world.rank)
    for turn in range(4):
        rounds = [(rank + turn) % world.size for rank in range(world.size)]
        for k in range(rounds[world.rank]):
            sums(world, sum(count > k for count in rounds), random)
        last = pct.join()
        assert world.allgather(last) == [last] * world.size
        sums(world, world.size, random)


@several
def test_an_optimizer_of_a_set(world):
    """The ranks of the set train together, the others by themselves."""
    some = pct.add_process_set(range(world.size - 1))
    x = torch.nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([x], lr=1)
    opt = pct.DistributedOptimizer(sgd, [("x", x)], num_groups=2, process_set=some)
    for _ in range(3):
        opt.zero_grad()
        (x * (world.rank + 1)).sum().backward()
        opt.step()
    own = world.size if not some.included() else world.size / 2
    assert x.tolist() == [-3 * own] * 3
    opt.close()
    pct.remove_process_set(some)


def test_a_step_that_does_not_skip(world):
    x = torch.nn.Parameter(torch.zeros(3))
    opt = pct.DistributedOptimizer(torch.optim.SGD([x], lr=1), [("x", x)])
    for skip in (False, True):
        opt.zero_grad()
        x.sum().backward()
        opt.synchronize()
        if skip:
            with opt.skip_synchronize():
                opt.step()
        else:
            with pytest.warns(UserWarning, match="called without optimizer.skip_synchronize"):
                opt.step()
    assert x.tolist() == [-2.0] * 3
    opt.close()


def test_questions(world):
    assert pct.mpi_built() and pct.mpi_enabled() and pct.mpi_threads_supported()
    assert pct.is_homogeneous() and not pct.nccl_built() and not pct.gloo_enabled()
    for error in (pc.MismatchError, pc.RankFailedError):
        assert issubclass(error, pct.HorovodInternalError)
    assert not issubclass(pc.StateError, pct.HorovodInternalError)  # a mistake of the program
