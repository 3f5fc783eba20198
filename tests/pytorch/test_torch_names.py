# SPDX-License-Identifier: Apache-2.0
"""Horovod's names: their results, and the errors when ranks make different calls."""

import copy
import itertools
import re
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll.torch import calls, verbs  # noqa: E402
from partialcoll.torch.calls import WINDOW  # noqa: E402
from partialcoll.torch.ops import transfer  # noqa: E402

pytestmark = [
    pytest.mark.skipif(MPI.COMM_WORLD.size > 4, reason="up to 4 ranks, for time"),
    pytest.mark.one_domain,
    pytest.mark.few_ranks,
    pytest.mark.one_mpi,
]
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex64, torch.complex128)
EVERYTHING = (*FLOATS, *INTEGERS, *UNSIGNED, *COMPLEX, torch.bool)
LAYOUTS = {
    "plain": lambda t: t,
    "transposed": lambda t: t.t(),
    "strided": lambda t: t.repeat_interleave(2, dim=1)[:, ::2],
    "no dimension": lambda t: t[0, 0],
    "empty": lambda t: t[:0],
}


@pytest.fixture
def world(comm):
    """A world for this test. Return its communicator."""
    torch.set_num_threads(1)
    pct.shutdown()
    pct.init(comm)
    yield pct.comm()
    pct.shutdown()


def values(rank, dtype=torch.float32, shape=(3, 4)):
    """Return small integers that differ by rank and are exact in every dtype, sum and product."""
    numbers = (torch.arange(int(np.prod(shape))) * (rank + 1) + rank) % 4
    return (numbers % 2 == 0 if dtype == torch.bool else numbers).to(dtype).reshape(shape)


def as_exact(tensor):
    """Convert for comparisons, whatever the dtype."""
    wide = torch.complex128 if tensor.dtype.is_complex else torch.float64
    return tensor.to(wide)


def alike(comm, tensor):
    """Return whether every rank has the same bits."""
    plain = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    return len(set(comm.allgather(plain.numpy().tobytes()))) == 1


# Horovod's public names

THEIRS = """
    Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet
    Product Sum SyncBatchNorm add_process_set allgather allgather_async allgather_object
    allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier
    broadcast broadcast_ broadcast_async broadcast_async_ broadcast_object
    broadcast_optimizer_state broadcast_parameters ccl_built check_extension cross_rank
    cross_size cuda_built ddl_built elastic global_process_set gloo_built gloo_enabled
    grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_
    grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter
    grouped_reducescatter_async init is_homogeneous is_initialized join local_rank
    local_size mpi_built mpi_enabled mpi_threads_supported nccl_built poll rank
    reducescatter reducescatter_async remove_process_set rocm_built shutdown size
    sparse_allreduce_async start_timeline stop_timeline synchronize
"""


def test_each_of_horovods_names_is_in_the_docs():
    """Each name exists here too, unless the docs say that it is missing."""
    docs = (Path(__file__).parents[2] / "docs" / "horovod.md").read_text()
    rows = [line.split("|")[1:4] for line in docs.splitlines() if line.startswith("|")]
    for name in THEIRS.split():
        of_it = [ours for theirs, ours, _ in rows if re.search(rf"\b{name}\b", theirs)]
        assert of_it, name
        assert hasattr(pct, name) or any("not there" in ours for ours in of_it), name


# The world


def test_nothing_before_init():
    pct.shutdown()
    assert not pct.is_initialized()
    x = torch.zeros(1)
    for call in (
        pct.rank,
        pct.size,
        pct.local_rank,
        pct.cross_size,
        pct.comm,
        pct.barrier,
        pct.join,
        lambda: pct.allreduce(x),
        lambda: pct.broadcast_async_(x, 0),
        lambda: pct.broadcast_object(1),
        lambda: pct.broadcast_parameters({}),
    ):
        with pytest.raises(pc.StateError, match=r"call init\(\) first"):
            call()


@pytest.mark.mpi
def test_ranks_and_sizes(comm):
    pct.shutdown()
    pct.init(comm)
    pct.init()  # no effect
    pct.init(comm)
    assert pct.is_initialized()
    assert (pct.rank(), pct.size()) == (comm.rank, comm.size)
    assert (pct.local_rank(), pct.local_size()) == (comm.rank, comm.size)  # one machine
    assert (pct.cross_rank(), pct.cross_size()) == (0, 1)
    assert MPI.Comm.Compare(pct.comm(), comm) == MPI.CONGRUENT
    pct.barrier()
    pct.shutdown()
    pct.shutdown()
    assert not pct.is_initialized()
    pct.init()
    assert pct.size() == MPI.COMM_WORLD.size
    pct.shutdown()


@pytest.mark.mpi
def test_worlds_apart(comm):
    pct.shutdown()
    half = comm.Split(comm.rank % 2)
    pct.init(half)
    assert (pct.rank(), pct.size()) == (half.rank, half.size)
    total = pct.allreduce(torch.tensor(comm.rank), op=pct.Sum)
    assert total == sum(range(comm.rank % 2, comm.size, 2))
    if half.size != comm.size:
        with pytest.raises(pc.StateError, match=r"call shutdown\(\) in between"):
            pct.init(comm)
    pct.shutdown()
    half.Free()


@pytest.mark.mpi
def test_bad_worlds(comm):
    pct.shutdown()
    with pytest.raises(TypeError, match="list of ranks"):
        pct.init([0, 1])
    with pytest.raises(TypeError, match="comm: expected an mpi4py communicator, got int"):
        pct.init(3)
    with pytest.raises(ValueError, match="COMM_NULL"):
        pct.init(MPI.COMM_NULL)
    assert not pct.is_initialized()


@pytest.mark.parametrize("progress", ("agent", "manual"))
def test_thread_level(run, progress):
    done = run(
        """
        import torch
        import partialcoll.torch as pct
        try:
            pct.init()
        except pc.StateError as error:
            say(error)
            sys.exit()
        x = torch.ones(3)
        calls = [pct.allreduce_async(x, op=pct.Sum, name=f"n{i}") for i in range(12)]
        calls.append(pct.broadcast_async(x, 1, name="b"))
        calls += [pct.allgather_async(x[:2]), pct.allgather_async(x[:1])]
        pct.barrier()
        if comm.rank == 0:
            assert pct.join() == 1
        else:
            assert pct.allreduce(x, op=pct.Sum).tolist() == [1] * 3
            pct.join()
        assert all(pct.synchronize(one).sum() == 6 for one in calls[:12])
        assert [pct.synchronize(one).tolist() for one in calls[12:]] == [[1] * 3, [1] * 4, [1] * 2]
        pct.shutdown()
        say("made", comm.size)
        """,
        ranks=2,
        before="import mpi4py; mpi4py.rc.thread_level = 'serialized'",
        env={"PARTIALCOLL_PROGRESS": progress},
    )
    assert done.returncode == 0, done.stderr
    if progress == "manual":
        assert done.stdout.count("made 2") == 2
    else:
        assert done.stdout.count("needs MPI_THREAD_MULTIPLE") == 2
        assert "on rank 0, 1" in done.stdout


def test_a_program_just_ends(run):
    done = run(
        """
        import torch
        import partialcoll.torch as pct
        pct.init()
        x = torch.ones(3)
        pct.allreduce_async(x, name="forgotten")
        pct.allreduce(x, name="partial", quorum="solo")
        pct.barrier()
        say("over")
        """,
        ranks=2,
        before="warnings.simplefilter('error')",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("over") == 2
    assert "Warning" not in done.stderr and "Error" not in done.stderr


def test_torch_is_not_imported_unasked(run):
    done = run("say('torch' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


def test_descriptions_are_equal_in_each_process(run):
    """Optimizers are compared by complete descriptions without addresses or set order."""
    script = """
        import functools, torch, types
        from partialcoll.torch.rounds import hyperparameters
        class Schedule:
            def __call__(self, step): return step
        def norms_only(p): return p.ndim == 1
        group = dict(
            params=[], lr=torch.tensor(0.1), weights=torch.arange(5000.0), filter=norms_only,
            schedule=Schedule(), bound=Schedule().__call__, names={"a", "b", "c", "d"},
            half=functools.partial(norms_only, p=1), nested={"f": [norms_only, {"x", "y"}]},
        )
        say(hyperparameters(types.SimpleNamespace(param_groups=[group])))
    """
    done = [run(script, env={"PYTHONHASHSEED": seed}) for seed in ("1", "2")]
    assert not any(one.returncode for one in done), done[0].stderr
    said = {one.stdout for one in done}
    assert len(said) == 1 and " at 0x" not in said.pop()


# Allreduce


def expected(comm, tensors, op):
    """Compute the result from all ranks' tensors."""
    stack = torch.stack([as_exact(t) for t in tensors])
    if op is pct.Min:
        return stack.min(0).values
    if op is pct.Max:
        return stack.max(0).values
    if op is pct.Product:
        return stack.prod(0)
    return stack.sum(0)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", EVERYTHING, ids=str)
def test_allreduce(world, dtype):
    ops = [pct.Sum, pct.Min, pct.Max, pct.Product]
    if dtype.is_complex:
        ops = [pct.Sum, pct.Product]
    if dtype == torch.bool:
        ops = [pct.Min, pct.Max, pct.Product]
    for op, layout in itertools.product(ops, LAYOUTS.values()):
        everybody = [layout(values(rank, dtype)) for rank in range(world.size)]
        mine = everybody[world.rank]
        before = mine.clone()
        for result in (
            pct.allreduce(mine, op=op),
            pct.synchronize(pct.allreduce_async(mine, op=op)),
        ):
            assert result.dtype == dtype and result.shape == mine.shape
            torch.testing.assert_close(
                as_exact(result), expected(world, everybody, op), rtol=0, atol=0
            )
        assert torch.equal(as_exact(mine), as_exact(before))


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", (*FLOATS, *COMPLEX), ids=str)
def test_average_and_factors(world, dtype):
    mine = values(world.rank, dtype)
    total = expected(world, [values(rank, dtype) for rank in range(world.size)], pct.Sum)
    mean = (total / world.size).to(dtype)
    close = {"rtol": 1e-6, "atol": 0} if dtype in (*COMPLEX, torch.float32) else {}
    for result in (pct.allreduce(mine), pct.allreduce(mine, average=True)):
        torch.testing.assert_close(result, mean, **close)
    torch.testing.assert_close(pct.allreduce(mine, average=False), total.to(dtype))
    scaled = pct.allreduce(mine, op=pct.Sum, prescale_factor=0.5, postscale_factor=4)
    torch.testing.assert_close(scaled, (2 * total).to(dtype), **close)


@pytest.mark.mpi
def test_rounding(world):
    large = torch.full((3,), 60000.0, dtype=torch.float16)
    assert torch.equal(pct.allreduce(large), large)  # the sum is beyond float16
    whole = torch.tensor([-1 if world.rank == 0 else 0, 7])
    assert pct.allreduce(whole).tolist() == [-1 if world.size == 1 else 0, 7]  # towards zero
    for dtype in UNSIGNED:
        assert pct.allreduce(torch.tensor([3], dtype=dtype))[0] == 3
    third = torch.full((2,), 1 / 3)
    for compression, dtype in (
        (pct.Compression.fp16, torch.float16),
        (pct.Compression.bf16, torch.bfloat16),
    ):
        rounded = pct.allreduce(third, compression=compression)
        assert rounded.dtype == torch.float32
        assert torch.equal(rounded, third.to(dtype).to(torch.float32))
        whole = pct.synchronize(pct.allreduce_async(torch.tensor([2]), compression=compression))
        assert whole.dtype == torch.int64 and whole[0] == 2
    assert torch.equal(pct.allreduce(third, compression=pct.Compression.none, op=pct.Max), third)


@pytest.mark.mpi
def test_in_place(world):
    total = sum(range(1, world.size + 1))
    for begin in (
        lambda t: pct.allreduce_(t, op=pct.Sum),
        lambda t: pct.synchronize(pct.allreduce_async_(t, op=pct.Sum)),
    ):
        memory = torch.full((4, 6), float(world.rank + 1))
        columns = memory[:, ::2]
        assert begin(columns) is columns
        assert (columns == total).all()
        assert (memory[:, 1::2] == world.rank + 1).all()
    weight = torch.nn.Parameter(torch.full((2,), float(world.rank + 1)))
    assert pct.allreduce_(weight, op=pct.Sum) is weight
    assert weight.tolist() == [total] * 2 and weight.requires_grad


@pytest.mark.mpi
def test_gradients(world):
    x = torch.full((3,), float(world.rank), requires_grad=True)
    y = pct.allreduce(x, op=pct.Sum)
    assert y.requires_grad
    (y * (world.rank + 1)).sum().backward()
    assert x.grad.tolist() == [sum(range(1, world.size + 1))] * 3
    x.grad = None
    pct.allreduce(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(3))
    x.grad = None
    root = world.size - 1
    (pct.broadcast(x, root) * (world.rank + 1)).sum().backward()
    share = (world.size + 1) / 2 if world.rank == root else 0  # the mean, as in Horovod
    assert x.grad.tolist() == [share] * 3
    with torch.no_grad():
        assert not pct.allreduce(x).requires_grad


# Broadcast


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", EVERYTHING, ids=str)
def test_broadcast(world, dtype):
    for root, layout in itertools.product({0, world.size - 1}, LAYOUTS.values()):
        wanted = layout(values(root, dtype))
        for call in (
            pct.broadcast,
            pct.broadcast_,
            lambda t, r: pct.synchronize(pct.broadcast_async(t, r)),
            lambda t, r: pct.synchronize(pct.broadcast_async_(t, r)),
        ):
            mine = layout(values(world.rank, dtype).clone())
            before = mine.clone()
            result = call(mine, root)
            assert result.dtype == dtype and torch.equal(as_exact(result), as_exact(wanted))
            if result is not mine:
                assert torch.equal(as_exact(mine), as_exact(before))


@pytest.mark.mpi
def test_broadcast_keeps_bits(world):
    patterns = torch.tensor([-(2**31), 0x7FC12345, 0x7F800001, 1], dtype=torch.int32)
    odd = patterns.view(torch.float32) if world.rank == 0 else torch.zeros(4)
    for result in (pct.broadcast(odd, 0), pct.synchronize(pct.broadcast_async(odd, 0))):
        assert torch.equal(result.view(torch.int32), patterns)


# Asynchronous calls


@pytest.mark.mpi
def test_many_in_flight(world):
    """More calls than channels, waited for in another order on every rank."""
    count = 3 * WINDOW + 1
    handles = []
    for i in range(count):
        x = torch.full((1 + i % 3,), float(i + world.rank))
        handles.append(pct.allreduce_async(x, op=pct.Sum))
        x.fill_(-1)  # already copied
    order = np.random.default_rng(world.rank).permutation(count)
    offset = sum(range(world.size))
    for i in order:
        result = pct.synchronize(handles[i])
        assert result.tolist() == [i * world.size + offset] * (1 + i % 3)
        assert pct.poll(handles[i])
        assert pct.synchronize(handles[i]) is result
        assert handles[i].round.active == world.size


@pytest.mark.mpi
def test_more_is_waited_for_than_can_be_in_flight(world):
    """All handles stay on their channels: waiting for another call frees a channel."""
    for step in range(3):
        ones = [torch.full((10,), world.rank + step + 1.0) for _ in range(WINDOW)]
        handles = [pct.allreduce_async_(one, op=pct.Sum) for one in ones]
        pct.barrier()
        kept = pct.allreduce_async(torch.ones(3), op=pct.Sum)
        for i in range(2 * WINDOW):
            assert pct.allreduce(torch.full((10,), float(i)), op=pct.Sum)[0] == i * world.size
        for one, handle in zip(ones, handles):
            pct.synchronize(handle)
            assert one[0] == sum(range(1, world.size + 1)) + step * world.size
        assert pct.synchronize(kept)[0] == world.size
    dropped = [pct.allreduce_async(torch.ones(3)) for _ in range(WINDOW)]
    pct.shutdown()
    del dropped


@pytest.mark.mpi
def test_join_with_a_quorum(world):
    """Rounds of the others continue without the joined rank, however many they are."""
    needs_two(world)
    for _epoch in range(2):
        for _step in range(3 if world.rank == 0 else 40):
            for name, quorum in (("loss", "solo"), ("norm", "majority")):
                pct.allreduce(torch.ones(5), name=name, quorum=quorum, op=pct.Sum)
        assert 0 <= pct.join() < world.size
    total = pct.allreduce(torch.ones(5), name="loss", quorum="full", op=pct.Sum)
    assert (total >= 0).all()


@pytest.mark.mpi
def test_poll(world):
    x = torch.ones(2)
    pct.allreduce_async(x)  # creates channel and handles
    for _ in range(WINDOW - 1):
        pct.synchronize(pct.allreduce_async(x))
    if world.rank == 0:
        handle = pct.allreduce_async(x, op=pct.Sum)
        if world.size > 1:
            assert not pct.poll(handle)  # the others wait for rank 0
    world.bcast(None)
    if world.rank:
        handle = pct.allreduce_async(x, op=pct.Sum)
    while not pct.poll(handle):
        pass
    assert pct.synchronize(handle).tolist() == [world.size] * 2


@pytest.mark.mpi
def test_a_call_does_not_wait_for_data_of_earlier_ones(world):
    """Calls with other data are not mixed with earlier ones, also if ranks differ in one."""
    ones = torch.ones(3)
    for _ in range(WINDOW):  # then each channel has a handle
        pct.synchronize(pct.allreduce_async(ones, op=pct.Sum))
    for _ in range(2):
        handles = [pct.allreduce_async(ones * i, op=pct.Sum) for i in range(3)]
        assert pct.allreduce(ones, op=pct.Sum).tolist() == [world.size] * 3
        assert pct.synchronize(handles[2]).tolist() == [2 * world.size] * 3
        pct.barrier()
        for i in (1, 0):
            assert pct.synchronize(handles[i]).tolist() == [i * world.size] * 3
    odd = world.rank == world.size - 1
    handles = [pct.allreduce_async(ones * i, op=pct.Sum) for i in range(2)]
    if odd:
        call = partial(pct.broadcast, ones, 0)
    else:
        call = partial(pct.allreduce, ones * 100, op=pct.Sum)
    if world.size > 1:
        with pytest.raises(pc.MismatchError):
            call()
    assert pct.allreduce(ones, op=pct.Sum).tolist() == [world.size] * 3
    for i in (1, 0):
        assert pct.synchronize(handles[i]).tolist() == [i * world.size] * 3


@pytest.mark.mpi
def test_names_in_any_order(world):
    """New and known names, started and waited for in a different order on each rank, more of them
    than can be in flight. Calls without names between them are matched by order."""
    random = np.random.default_rng(world.rank)
    begin = [
        lambda i, name: pct.allreduce_async(torch.full((i + 1,), float(i)), name=name, op=pct.Max),
        lambda i, name: pct.allgather_async(torch.full((world.rank + 1,), float(i)), name=name),
        lambda i, name: pct.broadcast_async(torch.full((2,), float(i)), 0, name=name),
    ]
    rows = world.size * (world.size + 1) // 2
    for _ in range(2):
        handles = {}
        for i in map(int, random.permutation(2 * WINDOW)):
            handles[i] = begin[i % 3](i, f"layer {i}")
            if random.random() < 0.2:
                pct.poll(handles[i])
        assert pct.allreduce(torch.ones(1), op=pct.Sum) == world.size
        for i in map(int, random.permutation(2 * WINDOW)):
            assert pct.synchronize(handles[i]).tolist() == [i] * (i + 1, rows, 2)[i % 3]


@pytest.mark.mpi
def test_a_name_that_is_under_way(world):
    """A second call of a name in flight raises an error at once. Another rank may be late."""
    x, late = torch.ones(2), world.size - 1
    if world.rank != late:
        first = pct.allreduce_async(x, name="x", op=pct.Sum)
        assert not pct.poll(first)
        for again in (pct.allreduce_async, pct.allgather_async):
            with pytest.raises(ValueError, match="no call is under way on this rank, got 'x'"):
                again(x, name="x")
    pct.barrier()
    if world.rank == late:
        first = pct.allreduce_async(x, name="x", op=pct.Sum)
    assert pct.synchronize(first).tolist() == [world.size] * 2
    assert pct.synchronize(pct.allreduce_async(x, name="x")).tolist() == [1, 1]


def test_places_of_names():
    """Whatever the ranks' orders, a name gets its place once, when the last rank that has not
    joined announces it."""
    for seed in range(50):
        random, order = np.random.default_rng(seed), calls.Order(4)
        told = [[f"n{i}" for i in random.permutation(6)] for _ in range(4)]
        told[seed % 4] = [*told[seed % 4][: seed % 7], calls.JOIN]
        placed, left = [], 4 * [0]
        while any(left[rank] < len(told[rank]) for rank in range(4)):
            rank = int(random.choice([r for r in range(4) if left[r] < len(told[r])]))
            new = order.tell(rank, told[rank][left[rank]])
            left[rank] += 1
            placed += new
            heard = [{*told[r][: left[r]]} for r in range(4)]
            every = {name for one in told for name in one if name != calls.JOIN}
            assert {*placed} == {n for n in every if all({n, calls.JOIN} & h for h in heard)}
        assert len(placed) == len(set(placed)) == 6
        order.tell((seed + 1) % 4, "alone")
        for rank in range(1, 4):
            last = order.tell((seed + rank) % 4, calls.JOIN)
        assert last == ["alone", calls.JOIN]
        assert order.missing(calls.JOIN) == [0, 1, 2, 3]
        again = [order.tell(rank, "twice") for _ in range(2) for rank in (0, 1, 2)]
        assert not any(again) and order.missing("twice") == [3]
        assert order.tell(3, "twice") == ["twice"]
        assert order.tell(3, "twice") == ["twice"] and not order._told


@pytest.mark.mpi
def test_handles_are_bounded(world, monkeypatch):
    """For data of new sizes the oldest handles are freed, in the same order on all ranks."""
    kept = 4
    monkeypatch.setattr(transfer, "_KEPT", kept)
    sizes = [transfer.rounded_up(9 * size, 1 << 20) for size in (1 << 14, 1 << 15, 1 << 16)]
    sizes += [size + 1 for size in sizes]
    kinds = [(size, dtype) for dtype in (torch.int8, torch.bool) for size in sizes]
    assert len(kinds) > 2 * kept
    for size, dtype in [*kinds, kinds[0], kinds[1]]:
        ones = torch.ones(size, dtype=dtype)
        assert pct.allreduce(ones, op=pct.Max).all()
        result = pct.synchronize(pct.allreduce_async(ones, op=pct.Max, name="x"))
        assert result.all() and len(result) == size
    own = pct.world.world().calls
    for queue in (own._in_order, own._names.queue):
        assert len(queue.handles._of) == kept


@pytest.mark.mpi
def test_shutdown_ends_calls_in_progress(world):
    handle = pct.allreduce_async(torch.ones(2), op=pct.Sum)
    size = pct.size()
    pct.shutdown()
    assert pct.synchronize(handle).tolist() == [size] * 2


# Ranks that make different calls


def needs_two(world):
    if world.size < 2:
        pytest.skip("takes two ranks")


def still_works(world):
    """Check a call on every channel, with and without handles."""
    assert pct.allreduce(torch.ones(2), op=pct.Sum).tolist() == [world.size] * 2
    for handle in [pct.allreduce_async(torch.ones(2), op=pct.Sum) for _ in range(WINDOW)]:
        assert pct.synchronize(handle).tolist() == [world.size] * 2
    assert pct.allgather_object(world.rank) == list(range(world.size))


DIFFERENT = {
    "shape": (
        lambda: pct.allreduce(torch.zeros(3)),
        lambda: pct.allreduce(torch.zeros(4)),
        ("float32 (3,)", "float32 (4,)"),
    ),
    "same number of elements": (
        lambda: pct.allreduce_(torch.zeros(2, 3)),
        lambda: pct.allreduce_(torch.zeros(3, 2)),
        ("float32 (2, 3)", "float32 (3, 2)"),
    ),
    "dtype": (
        lambda: pct.allreduce(torch.zeros(3)),
        lambda: pct.allreduce(torch.zeros(3, dtype=torch.bfloat16)),
        ("float32 (3,)", "bfloat16 (3,)"),
    ),
    "op": (
        lambda: pct.allreduce(torch.zeros(3), op=pct.Sum),
        lambda: pct.allreduce(torch.zeros(3)),
        ("Sum", "Average"),
    ),
    "factor": (
        lambda: pct.allreduce(torch.zeros(3), prescale_factor=2),
        lambda: pct.allreduce(torch.zeros(3)),
        ("prescale_factor=2.0",),
    ),
    "name": (
        lambda: pct.allreduce(torch.zeros(3), name="a"),
        lambda: pct.allreduce(torch.zeros(3), name="b"),
        ("name='a'", "name='b'"),
    ),
    "root": (
        lambda: pct.broadcast(torch.zeros(3), 0),
        lambda: pct.broadcast(torch.zeros(3), 1),
        ("from rank 0", "from rank 1"),
    ),
    "function": (
        lambda: pct.allreduce(torch.zeros(3)),
        pct.barrier,
        ("allreduce of float32 (3,)", "barrier"),
    ),
    "asynchronous": (
        lambda: pct.allreduce(torch.ones(2)),
        lambda: pct.synchronize(pct.allreduce_async(torch.ones(2))),
        ("asynchronous allreduce of float32 (2,)",),
    ),
    "shape, in the background": (
        lambda: pct.synchronize(pct.allreduce_async(torch.ones(2))),
        lambda: pct.synchronize(pct.allreduce_async(torch.ones(5))),
        ("float32 (2,)", "float32 (5,)"),
    ),
    "a broadcast in the background": (
        lambda: pct.synchronize(pct.broadcast_async(torch.ones(2), 0)),
        lambda: pct.synchronize(pct.allreduce_async(torch.ones(2))),
        ("broadcast of float32 (2,) from rank 0",),
    ),
    "rows and none": (
        lambda: pct.allgather(torch.ones(2)),
        lambda: pct.allreduce(torch.ones(2)),
        ("allgather of rows of float32 ()",),
    ),
    "rows in the background": (
        lambda: pct.synchronize(pct.alltoall_async(torch.ones(pct.size()))),
        lambda: pct.synchronize(pct.allreduce_async(torch.ones(2))),
        ("alltoall of rows of float32 ()",),
    ),
    "under one name": (
        lambda: pct.synchronize(pct.allreduce_async(torch.ones(2), name="a")),
        lambda: pct.synchronize(pct.broadcast_async(torch.ones(2), 0, name="a")),
        ("float32 (2,), Average, name='a'", "broadcast of float32 (2,) from rank 0, name='a'"),
    ),
    "objects": (
        lambda: pct.broadcast_object(1, 0),
        lambda: pct.allgather_object(1),
        ("broadcast_object", "allgather_object"),
    ),
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", DIFFERENT)
@pytest.mark.parametrize("warm", (False, True), ids=("cold", "warm"))
def test_different_calls(world, case, warm):
    needs_two(world)
    if warm:
        still_works(world)
    usual, other, words = DIFFERENT[case]
    odd = world.size - 1
    with pytest.raises(pc.MismatchError) as caught:
        (other if world.rank == odd else usual)()
    for word in words:
        assert word in str(caught.value)
    assert f"rank {odd}: " in str(caught.value)
    still_works(world)


def begin_or_refuse(i, refused, odd, name):
    """Make the i-th of several calls, which is different, or wrong, on an odd rank."""
    if refused and odd:
        with pytest.raises(TypeError, match="got list"):
            pct.allreduce_async([], name=name and f"{name}{i}")
        return None
    x = torch.full((7 if odd else 2 + i,), float(pct.rank()))
    return pct.allreduce_async(x, None, name and f"{name}{i}", pct.Sum)


@pytest.mark.mpi
@pytest.mark.parametrize("name", (None, "x"))
@pytest.mark.parametrize("refused", (False, True))
def test_one_of_several_in_flight_differs(world, name, refused):
    """The other calls succeed in whatever order ranks wait for them, and so do the same calls
    later, on handles that had been started for the call that differed."""
    needs_two(world)
    total, random = sum(range(world.size)), np.random.default_rng(world.rank)
    for differs in (False, True, False, True, True, False):
        odd = differs and world.rank == 0
        handles = [begin_or_refuse(i, refused, odd and i == 3, name) for i in range(WINDOW)]
        for i in random.permutation(WINDOW):
            if not differs or i != 3:
                assert pct.synchronize(handles[i]).tolist() == [total] * (2 + i)
            elif handles[i] is not None:
                words = "TypeError.*refused.*" if refused else r"\(7,\).*"
                with pytest.raises(pc.MismatchError, match=rf"rank 0: .*{words}\(5,\)"):
                    pct.synchronize(handles[i])
    still_works(world)


@pytest.mark.mpi
def test_shutdown_of_some(world):
    needs_two(world)
    call = pct.shutdown if world.rank == 0 else pct.barrier
    with pytest.raises(pc.MismatchError, match=r"rank 0: shutdown; .*: barrier"):
        call()
    assert pct.is_initialized()
    still_works(world)


@pytest.mark.mpi
def test_a_long_name_is_cut_in_the_message(world):
    needs_two(world)
    with pytest.raises(pc.MismatchError, match=r"rank 0: allreduce .* name='é+… \([0-9a-f]{8}\)"):
        pct.allreduce(torch.ones(2), name="é" * 1000 + str(world.rank))
    still_works(world)


REFUSED = {
    "no tensor": (lambda f: f([1.0]), TypeError, "tensor: expected a torch.Tensor, got list"),
    "sparse": (lambda f: f(torch.eye(2).to_sparse()), TypeError, "dense"),
    "meta": (lambda f: f(torch.zeros(2, device="meta")), TypeError, "with memory, got one on meta"),
    "dtype": (lambda f: f(torch.zeros(2).to(torch.float8_e5m2)), TypeError, "float8_e5m2"),
    "bool": (lambda f: f(torch.ones(2) > 0), TypeError, "op: Average is not defined for bool"),
    "op": (lambda f: f(torch.ones(2), op="mean"), TypeError, "op: expected Average, Sum, Min"),
    "average": (lambda f: f(torch.ones(2), True, op=pct.Sum), ValueError, "got both"),
    "complex": (
        lambda f: f(torch.ones(2) + 0j, op=pct.Min),
        TypeError,
        "Min is not defined for complex64",
    ),
    "factor": (
        lambda f: f(torch.ones(1) > 0, op=pct.Max, prescale_factor=0.5),
        TypeError,
        "expected 1 for a tensor of bool",
    ),
    "no factor": (
        lambda f: f(torch.ones(1), postscale_factor="2"),
        TypeError,
        "postscale_factor: expected a number, got '2'",
    ),
    "name": (lambda f: f(torch.ones(2), name=3), TypeError, "name: expected a text"),
    "quorum": (lambda f: f(torch.ones(2), quorum="most"), ValueError, "most"),
    "quorum without a name": (
        lambda f: f(torch.ones(2), quorum="solo"),
        ValueError,
        "name: expected one with quorum='solo'",
    ),
    "process_set": (
        lambda f: f(torch.ones(2), process_set=1),
        TypeError,
        "process_set: expected a ProcessSet or None, got int",
    ),
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("asynchronous", (False, True), ids=("now", "later"))
def test_bad_arguments_on_one_rank(world, case, asynchronous):
    """The rank's error says what is wrong; the others learn that it refused. All may be wrong."""
    call, error, words = REFUSED[case]
    function = pct.allreduce_async if asynchronous else pct.allreduce
    with pytest.raises(error, match=words):
        call(function)
    if world.rank == 0:
        with pytest.raises(error, match=words):
            call(function)
    else:
        with pytest.raises(pc.MismatchError, match=r"rank 0: .*\(refused\)"):
            result = function(torch.ones(2))
            pct.synchronize(result)
    still_works(world)


@pytest.mark.mpi
def test_bad_arguments_of_the_rest(world):
    x = torch.ones(2)
    with pytest.raises(
        ValueError, match=f"root_rank: expected a rank from 0 to {world.size - 1}, got -1"
    ):
        pct.broadcast(x, -1)
    with pytest.raises(TypeError, match=r"root_rank: expected a rank, got 0\.0"):
        pct.broadcast_parameters({}, 0.0)
    with pytest.raises(ValueError, match="expanded"):
        pct.allreduce_(torch.ones(1).expand(3))
    with pytest.raises(TypeError, match="compression: expected"):
        pct.allreduce(x, compression="fp16")
    with pytest.raises(TypeError, match="handle: expected what an asynchronous call"):
        pct.synchronize(x)
    with pytest.raises(TypeError, match="handle: expected"):
        pct.poll(3)
    with pytest.raises(ValueError, match="device: expected a number from -1 on"):
        pct.join(-2)
    with pytest.raises(RuntimeError, match="allreduce: Max has no gradient"):
        y = torch.ones(2, requires_grad=True)
        pct.allreduce(y, op=pct.Max).sum().backward()
    still_works(world)


# With a quorum


@pytest.mark.mpi
def test_quorum(world):
    """Every rank sees the same rounds, and no more than was deposited."""
    seen = []
    for _ in range(20):
        handle = pct.allreduce_async(torch.ones(3), name="x", op=pct.Sum, quorum="solo")
        seen.append(pct.synchronize(handle))
        assert handle.round.active >= 1
    assert alike(world, torch.stack(seen))
    assert sum(t[0].item() for t in seen) <= 20 * world.size
    everybody = pct.allreduce(torch.ones(3), name="y", op=pct.Sum, quorum=pc.Quorum(world.size))
    assert everybody.tolist() == [world.size] * 3
    assert pct.allreduce(torch.ones(3), name="z", quorum=pc.Full()).tolist() == [1] * 3


@pytest.mark.mpi
def test_nothing_with_a_quorum(world):
    for _ in range(3):
        assert pct.allreduce(torch.empty(0, 2), name="e", quorum="solo").shape == (0, 2)
    still_works(world)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ("loss", "again"))
def test_a_bad_first_call_with_a_quorum(world, name):
    """The other ranks get the error where the order of calls puts it. The name stays free."""
    if world.rank == 0:
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            pct.allreduce_async(3, name=name, quorum="solo")
    else:
        with pytest.raises(pc.MismatchError, match=r"rank 0: .*\(refused\)"):
            pct.synchronize(pct.allreduce_async(torch.ones(2), name=name, quorum="solo"))
    for quorum in (pc.Full(), "solo"):
        pct.synchronize(pct.allreduce_async(torch.ones(2), name=name, quorum=quorum))
    still_works(world)


@pytest.mark.mpi
@pytest.mark.parametrize("asynchronous", (False, True), ids=("now", "later"))
def test_a_bad_call_of_all_ranks_under_a_name_that_had_a_quorum(world, asynchronous):
    """The other ranks wait for it, although they do not wait for calls with the quorum."""
    function = pct.allreduce_async if asynchronous else pct.allreduce
    pct.allreduce(torch.ones(2), name="both", quorum="solo")
    if world.rank == 0:
        with pytest.raises(TypeError, match=r"torch\.Tensor"):
            function(3, name="both")
    else:
        with pytest.raises(pc.MismatchError, match=r"rank 0: .*\(refused\)"):
            pct.synchronize(function(torch.ones(2), name="both"))
    still_works(world)


@pytest.mark.mpi
def test_solo_waits_for_no_other_rank(world):
    x = torch.ones(3)
    pct.allreduce(x, name="x", quorum="solo")
    world.Barrier()
    if world.rank == 0:
        for _ in range(4):  # within the history
            assert pct.allreduce(x, name="x", op=None, quorum="solo").shape == (3,)
    world.Barrier()
    if world.rank:
        for _ in range(4):
            pct.allreduce(x, name="x", quorum="solo")
    still_works(world)


@pytest.mark.mpi
def test_with_a_quorum_a_name_is_of_one_thing(world):
    x = torch.ones(3)
    pct.allreduce(x, name="x", quorum="solo")
    for call in (
        lambda: pct.allreduce(torch.ones(4), name="x", quorum="solo"),
        lambda: pct.allreduce(x, name="x", quorum="majority"),
        lambda: pct.allreduce(x, name="x", op=pct.Sum, quorum="solo"),
    ):
        if world.rank == 0:  # the others need not take part
            with pytest.raises(ValueError, match="name: 'x' stands for allreduce of float32"):
                call()
    if world.rank == 0:
        with pytest.raises(TypeError, match=r"expected a torch\.Tensor"):
            pct.allreduce(3, name="x", quorum="solo")
    world.Barrier()
    if world.size > 1:
        with pytest.raises(pc.MismatchError, match="quorum=majority"):
            pct.allreduce(x, name="new", quorum="solo" if world.rank else "majority")
    still_works(world)


# Objects


@pytest.mark.mpi
def test_objects(world):
    root = world.size - 1
    mine = {"rank": world.rank, "list": [1, None, "é"]}
    assert pct.broadcast_object(mine, root)["rank"] == root
    assert pct.broadcast_object(mine if world.rank == 0 else None)["rank"] == 0
    if world.rank == root:
        assert pct.broadcast_object(mine, root, name="x") is mine
    else:
        assert pct.broadcast_object(root_rank=root, name="x") == {**mine, "rank": root}
    assert pct.allgather_object(mine, name="y") == [
        {**mine, "rank": rank} for rank in range(world.size)
    ]


@pytest.mark.mpi
def test_objects_that_cannot_be_pickled(world):
    bad = threading.Lock()
    expected = (TypeError, "pickle") if world.rank == 0 else (pc.MismatchError, "rank 0: .*refused")
    for call in (pct.broadcast_object, pct.allgather_object):
        with pytest.raises(expected[0], match=expected[1]):
            call(bad if world.rank == 0 else None)
    still_works(world)


# Parameters and optimizer state


def model_of(rank, dtype=torch.float32):
    torch.manual_seed(rank)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 2)
    ).to(dtype)


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_broadcast_parameters(world, dtype):
    for root, what in itertools.product(
        {0, world.size - 1},
        (
            lambda m: m.state_dict(),
            lambda m: m.named_parameters(),
            lambda m: list(m.state_dict().items()),
        ),
    ):
        model, wanted = model_of(world.rank, dtype), model_of(root, dtype)
        pct.broadcast_parameters(what(model), root_rank=root)
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, wanted.get_parameter(name))
            assert parameter.requires_grad


@pytest.mark.mpi
def test_broadcast_parameters_of_all_kinds(world):
    rank = world.rank
    params = {
        "strided": torch.full((4, 4), float(rank))[:, ::2],
        "scalar": torch.tensor(rank),
        "empty": torch.empty(0),
        "float8": torch.full((3,), float(rank)).to(torch.float8_e5m2),
        "object": {"rank": rank},
        "number": rank,
    }
    if rank % 2:
        params = dict(reversed(params.items()))  # in another order
    pct.broadcast_parameters(params, root_rank=world.size - 1)
    last = world.size - 1
    assert params["strided"].tolist() == [[last] * 2] * 4
    assert (params["scalar"].item(), params["number"], params["object"]["rank"]) == (last,) * 3
    assert (params["float8"].float() == last).all()


@pytest.mark.mpi
def test_different_parameters(world):
    needs_two(world)
    odd = world.size - 1
    model = model_of(0)
    if world.rank == odd:
        model[2] = torch.nn.Linear(3, 5)
    with pytest.raises(pc.MismatchError) as caught:
        pct.broadcast_parameters(model.state_dict())
    for words in ("2.bias: float32 (2,)", f"rank {odd}: 2.bias: float32 (5,)"):
        assert words in str(caught.value)
    more = {"a": torch.ones(1), "b": torch.ones(1)}
    if world.rank == 0:
        del more["b"]
    with pytest.raises(pc.MismatchError, match=r"rank 0: nothing more; .*: b: float32"):
        pct.broadcast_parameters(more)
    for bad, words in (
        ([("a", torch.ones(1)), ("b", 3)], r"params\['b'\]: expected a tensor, got int"),
        ([3], "or pairs of name and tensor, got int"),
        (torch.ones(1), "expected a state_dict"),
        ({"a": torch.eye(2).to_sparse()}, r"params\['a'\]: .*dense"),
    ):
        error = TypeError if world.rank == 0 else pc.MismatchError
        with pytest.raises(error, match=words):
            pct.broadcast_parameters(bad if world.rank == 0 else {"a": torch.ones(1)})
    still_works(world)


@pytest.mark.mpi
def test_parameters_without_names(world):
    torch.manual_seed(world.rank)
    model = torch.nn.Linear(3, 2)
    pct.broadcast_parameters(model.parameters(), root_rank=0)
    alike(world, model.weight.detach())
    pct.broadcast_parameters(list(model.parameters()), root_rank=world.size - 1)
    alike(world, model.bias.detach())


OPTIMIZERS = {
    "SGD": lambda p, f: torch.optim.SGD(p, lr=0.1 * f),
    "momentum": lambda p, f: torch.optim.SGD(p, lr=0.1 * f, momentum=0.9, nesterov=True),
    "Adam": lambda p, f: torch.optim.Adam(p, lr=0.01 * f, betas=(0.8, 0.9 + 0.01 * f)),
    "AdamW": lambda p, f: torch.optim.AdamW(p, lr=0.01 * f, amsgrad=True),
    "tensor lr": lambda p, f: torch.optim.AdamW(p, lr=torch.tensor(0.01 * f), foreach=False),
    "Adagrad": lambda p, f: torch.optim.Adagrad(p, lr=0.1 * f),
    "RMSprop": lambda p, f: torch.optim.RMSprop(p, lr=0.01 * f, centered=True, momentum=0.5),
    "Adadelta": lambda p, f: torch.optim.Adadelta(p, lr=f),
    "NAdam": lambda p, f: torch.optim.NAdam(p, lr=0.01 * f),
    "Rprop": lambda p, f: torch.optim.Rprop(p, lr=0.01 * f, etas=(0.4, 1.1 + 0.01 * f)),
}


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.linspace(-1, 1, 20).reshape(5, 4).to(model[0].weight.dtype)).sum().backward()
        optimizer.step()


def numbers(value):
    """Return a state for comparisons."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.tolist())
    if isinstance(value, dict):
        return {key: numbers(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(numbers(one) for one in value)
    return value


@pytest.mark.mpi
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("trained", ("root", "others", "all"))
def test_broadcast_optimizer_state(world, kind, trained):
    """Also if only some ranks have loaded a checkpoint."""
    root = world.size - 1
    model = model_of(world.rank)
    groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    optimizer = OPTIMIZERS[kind](groups, 1 + world.rank)
    optimizer.param_groups[1]["lr"] *= 2
    if trained == "all" or (world.rank == root) == (trained == "root"):
        train(model, optimizer, 1 + world.rank)
    before = numbers(optimizer.state_dict())
    pct.broadcast_parameters(model.state_dict(), root)
    pct.broadcast_optimizer_state(optimizer, root)
    after = numbers(optimizer.state_dict())
    assert all(after == other for other in world.allgather(after))
    if world.rank == root:
        assert after == before
    train(model, optimizer, 2)
    for parameter in model.parameters():
        assert alike(world, parameter)


@pytest.mark.mpi
def test_state_keeps_its_dtype(world):
    """load_state_dict would convert it to the parameter's dtype. The root's is float32."""
    model = model_of(0, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if world.rank == 0:
        for parameter in model.parameters():
            optimizer.state[parameter]["momentum_buffer"] = torch.rand(parameter.shape)
            optimizer.state[parameter]["name"] = ("é", 3)
    pct.broadcast_optimizer_state(optimizer, root_rank=0)
    for parameter in model.parameters():
        entries = optimizer.state[parameter]
        assert entries["momentum_buffer"].dtype == torch.float32
        assert alike(world, entries["momentum_buffer"])
        assert entries["name"] == ("é", 3)


@pytest.mark.mpi
def test_a_checkpoint_on_one_rank(world, tmp_path):
    """Resume like Horovod's examples: rank 0 loads, and the others receive."""
    model, reference = model_of(world.rank), model_of(0)
    trained = torch.optim.Adam(reference.parameters(), lr=0.3)
    train(reference, trained, 3)
    optimizer = torch.optim.Adam(model.parameters())
    if world.rank == 0:
        model.load_state_dict(copy.deepcopy(reference.state_dict()))
        optimizer.load_state_dict(copy.deepcopy(trained.state_dict()))
    pct.broadcast_parameters(model.state_dict())
    pct.broadcast_optimizer_state(optimizer)
    assert numbers(optimizer.state_dict()) == numbers(trained.state_dict())
    train(model, optimizer, 1)
    train(reference, trained, 1)
    for one, other in zip(model.parameters(), reference.parameters()):
        assert torch.equal(one, other)


@pytest.mark.mpi
@pytest.mark.parametrize("wrap_first", (False, True))
def test_state_of_a_distributed_optimizer(world, wrap_first):
    """Broadcast before or after wrapping. From then on the replicas are the same."""
    model = model_of(world.rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 / (1 + world.rank))
    if world.rank == 0:
        train(model, optimizer, 2)
    wanted = numbers(optimizer.state_dict()) if world.rank == 0 else None
    inner = optimizer
    if wrap_first:
        optimizer = pct.DistributedOptimizer(optimizer, model.named_parameters())
    pct.broadcast_parameters(model.state_dict())
    pct.broadcast_optimizer_state(optimizer)
    assert numbers(inner.state_dict()) == world.bcast(wanted)
    if not wrap_first:
        optimizer = pct.DistributedOptimizer(optimizer, model.named_parameters())
    for step in range(3):
        optimizer.zero_grad()
        model(torch.full((4, 4), float(world.rank + step))).square().sum().backward()
        optimizer.step()
        assert all(alike(world, parameter) for parameter in model.parameters())
    assert optimizer.round == 3
    optimizer.close()


@pytest.mark.mpi
def test_different_optimizers(world):
    needs_two(world)
    odd = world.rank == world.size - 1
    model = model_of(0)
    kind = torch.optim.Adam if odd else torch.optim.SGD
    with pytest.raises(pc.MismatchError, match=r"optimizer: SGD; .*optimizer: Adam"):
        pct.broadcast_optimizer_state(kind(model.parameters(), lr=0.1))
    parameters = list(model.parameters())[: -1 if odd else None]
    with pytest.raises(pc.MismatchError, match=r"parameter 5: float32 \(2,\); .*: nothing more"):
        pct.broadcast_optimizer_state(torch.optim.SGD(parameters, lr=0.1))
    for bad, words in (
        (model, "expected a torch.optim.Optimizer, got Sequential"),
        (torch.optim.LBFGS(model.parameters()), "LBFGS"),
    ):
        with pytest.raises(TypeError if odd else pc.MismatchError, match=words):
            good = torch.optim.SGD(model.parameters(), lr=0.1)
            pct.broadcast_optimizer_state(bad if odd else good)
    still_works(world)


class Picky(torch.optim.SGD):
    """Cannot load a state on some ranks."""

    def load_state_dict(self, state_dict):
        if pct.rank() == 1:
            raise ValueError("not today")
        super().load_state_dict(state_dict)


@pytest.mark.mpi
def test_state_that_cannot_be_loaded_or_sent(world):
    needs_two(world)
    model = model_of(0)
    error = ValueError if world.rank == 1 else pc.MismatchError
    with pytest.raises(error, match="not today"):
        pct.broadcast_optimizer_state(Picky(model.parameters(), lr=0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.param_groups[0]["lock"] = threading.Lock()
    error, words = (TypeError, "pickle") if world.rank == 0 else (pc.MismatchError, "refused")
    with pytest.raises(error, match=words):
        pct.broadcast_optimizer_state(optimizer)
    still_works(world)


# The end of an epoch


@pytest.mark.mpi
def test_join(world, monkeypatch):
    """join() returns the rank that came last by the clock."""
    for last in {0, world.size - 1}:
        now = 2.0 if world.rank == last else 1.0
        monkeypatch.setattr(verbs.time, "time", lambda now=now: now)
        assert pct.join() == last
    still_works(world)
