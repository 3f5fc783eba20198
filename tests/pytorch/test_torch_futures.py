# SPDX-License-Identifier: Apache-2.0
"""Futures of the backend: chained callbacks may wait for further collectives of the group."""

import contextlib
import functools
import random
import threading
import time
from datetime import timedelta
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import partialcoll.torch  # noqa: E402, F401
from partialcoll.torch.ops.call import Call, Future, Line, Queue, Work  # noqa: E402
from partialcoll.torch.ops.transfer import Form, Reduction  # noqa: E402

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.filterwarnings("ignore:`torch.distributed:FutureWarning"),
    pytest.mark.mpi,
    pytest.mark.one_domain,
    pytest.mark.few_ranks,
    pytest.mark.one_mpi,
]


@pytest.fixture(scope="module")
def backend():
    dist.init_process_group("partialcoll")
    yield
    dist.destroy_process_group()


@pytest.fixture
def group(comm, backend):
    """A group of all ranks."""
    made = dist.new_group()
    yield made
    dist.destroy_process_group(made)


def total(group, value=1.0):
    """Return the future of an all_reduce."""
    return dist.all_reduce(torch.tensor([value]), group=group, async_op=True).get_future()


def test_a_callback_waits_for_a_further_collective(comm, group):
    def then(future):
        return future.value()[0] + total(group).wait()[0]

    for _ in range(3):
        assert total(group).then(then).wait() == 2 * comm.size


def test_a_callback_waits_for_one_that_had_begun(comm, group):
    """Only the group's own threads can run the callback."""
    if comm.rank:
        comm.Barrier()
    first, second = total(group), total(group)
    chained = first.then(lambda future: future.value()[0] + second.wait()[0])
    if not comm.rank:  # whose main thread has not run the callback
        comm.Barrier()
    assert chained.wait() == 2 * comm.size


def test_callbacks_within_callbacks(comm, group):
    """The nesting is deeper than the initial number of threads."""

    def deeper(left):
        def then(future):
            come = future.value()[0]
            return come + total(group).then(deeper(left - 1)).wait() if left else come

        return then

    assert total(group).then(deeper(5)).wait() == 6 * comm.size


def test_messages_in_a_callback(comm, group):
    ahead, behind = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    come = torch.zeros(1)

    def then(future):
        sent = dist.isend(torch.tensor([float(comm.rank)]), ahead, group=group)
        dist.irecv(come, behind, group=group).get_future().wait()
        sent.get_future().wait()
        return come

    received = torch.zeros(1)
    sent = dist.isend(torch.ones(1), ahead, group=group)
    chained = dist.irecv(received, behind, group=group).get_future().then(then)
    assert chained.wait() == behind and received == 1
    sent.wait()


def test_the_time_limit_holds_in_a_callback(comm, group):
    if comm.size < 2:
        pytest.skip("no rank is missing")
    group.set_timeout(timedelta(seconds=2))

    def then(future):
        if comm.rank:  # rank 0 does not make this call
            return total(group).wait()

    chained = total(group).then(then)
    if comm.rank:
        with pytest.raises(RuntimeError, match="was not over after its timeout of 2 s"):
            chained.wait()
    else:
        chained.wait()
    comm.Barrier()


def test_a_group_that_is_destroyed_while_a_callback_waits(comm, backend):
    """The operation that a callback waits for fails, and no thread is left."""
    if comm.size < 2:
        pytest.skip("no rank is missing")
    group = dist.new_group()
    waits = threading.Event()

    def then(future):
        if comm.rank:  # rank 0 does not make this call
            further = total(group)
            waits.set()
            further.wait()

    chained = total(group).then(then)
    if comm.rank:
        waits.wait()
    else:
        chained.wait()
    dist.destroy_process_group(group)
    if comm.rank:
        with pytest.raises(RuntimeError, match=r"ended while|destroyed before"):
            chained.wait()
    names = [thread.name for thread in threading.enumerate()]
    assert f"partialcoll group {group._name}" not in names
    comm.Barrier()


# Order: calls in callbacks must not be matched with those of the program or of other callbacks


def straggle(draw):
    """Sleep for a random time that differs by rank, often 0."""
    time.sleep(draw.choice((0, 0, 0, 0.5e-3, 2e-3)))


def every(comm, value):
    """Return the sum of `value` and each rank's number."""
    return comm.size * value + comm.size * (comm.size - 1) / 2


def test_calls_in_callbacks_stay_apart_from_the_programs(comm, group):
    """All calls have one shape, so an exchange would not raise an error."""
    draw = random.Random(comm.rank)
    for step in range(0, 1000, 20):

        def then(future, own):
            straggle(draw)
            first = total(group, own + comm.rank)
            second = total(group, own + 1 + comm.rank)
            return first.wait()[0].item(), second.wait()[0].item()

        chained, found = [], []
        for own in range(step, step + 20, 4):
            straggle(draw)
            begun = total(group)
            straggle(draw)  # some ranks have completed it by now
            chained.append(begun.then(functools.partial(then, own=own)))
            found.append((total(group, own + 2 + comm.rank).wait()[0].item(), own))
        for value, own in found:
            assert value == every(comm, own + 2)
        for future, (_, own) in zip(chained, found):
            assert future.wait() == (every(comm, own), every(comm, own + 1))


def test_order_in_which_they_are_chained(comm, group):
    """The order is that of chaining, not of the calls' ends, also for nested callbacks and for one
    that is chained when all has ended."""
    draw = random.Random(10 + comm.rank)
    for step in range(0, 400, 20):
        seen = []

        def then(future, own, seen=seen):
            seen.append(own)
            inner = total(group, own + comm.rank)
            straggle(draw)
            deeper = inner.then(lambda come: total(group, own + 1 + comm.rank).wait()[0].item())
            return inner.wait()[0].item(), deeper.wait()

        begun = [total(group) for _ in range(3)]
        numbers = (2, 0, 1, 0)
        chained = []
        for i in numbers:
            straggle(draw)
            chained.append(begun[i].then(functools.partial(then, own=step + i)))
        for i, future in zip(numbers, chained):
            assert future.wait() == (every(comm, step + i), every(comm, step + i + 1))
        last = begun[1].then(functools.partial(then, own=step + 5))
        assert last.wait() == (every(comm, step + 5), every(comm, step + 6))
        assert seen == [step + i for i in (*numbers, 5)]


def test_a_callback_waits_for_a_later_one():
    """A callback that waits for a later one of its line runs it, and its callbacks, itself."""
    line = Line()
    begun, other = Future([], line), Future([], line)
    seen = []

    def then(future):
        seen.append("then")
        return later.wait() + later.then(lambda inner: inner.wait() + 1).wait() + chained.wait()

    first = begun.then(then)
    later = other.then(lambda future: seen.append("later") or future.wait())
    chained = later.then(lambda future: future.wait() + 2)
    thread = threading.Thread(target=begun.set_result, args=(0,))
    thread.start()
    other.set_result(10)  # before that callback, or while it waits
    thread.join(60)
    assert first.done() and first.wait() == 10 + 11 + 12
    assert seen == ["then", "later"]


def test_get_future_runs_a_callback_that_ends_another_call():
    """The thread that asks for the future of a finished call may find a callback to run."""
    line = Line()
    queue = SimpleNamespace(aside=contextlib.nullcontext)
    call, inner = Work([], queue), Work([], queue)
    call.line = line
    call._end()
    line._busy = True  # another thread runs a callback
    before = Future([], line)
    chained = before.then(lambda future: inner._end())
    before.set_result(0)
    line._busy = False  # it has returned, and that thread has not looked for the next one yet
    thread = threading.Thread(target=call.get_future, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and chained.done() and inner.is_completed()


def test_errors_in_callbacks():
    """Chained callbacks get the error, and the line continues."""
    begun = Future([], Line())
    failed = begun.then(lambda future: 1 // 0)
    begun.add_done_callback(lambda future: 1 // 0)
    heard = failed.then(lambda future: future.value())
    after = begun.then(lambda future: future.value() + 1)
    begun.set_result(1)
    assert after.wait() == 2
    for future in (failed, heard):
        with pytest.raises(ZeroDivisionError):
            future.wait()


def train(comm, bucket_cap_mb, steps=12):
    """Train with torch's PowerSGD hook, which waits within callbacks from its third step on. Return
    the weights after each step, the losses, and the number of buckets."""
    from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power_sgd

    draw = random.Random(comm.rank)
    torch.manual_seed(0)
    layers = [torch.nn.Linear(32, 32) for _ in range(6)]  # all of one shape
    model = DDP(torch.nn.Sequential(*layers), bucket_cap_mb=bucket_cap_mb)
    options = {"matrix_approximation_rank": 2, "start_powerSGD_iter": 2}
    state = power_sgd.PowerSGDState(None, min_compression_rate=1, **options)

    def hook(state, bucket):
        straggle(draw)
        buckets.add(bucket.index())
        return power_sgd.powerSGD_hook(state, bucket)

    model.register_comm_hook(state, hook)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    data = torch.randn(8, 32, generator=torch.Generator().manual_seed(comm.rank))
    losses, weights, buckets = [], [], set()
    for _ in range(steps):
        opt.zero_grad()
        loss = model(data).square().mean()
        loss.backward()
        opt.step()
        losses.append(loss.item())
        weights.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    return torch.stack(weights), losses, len(buckets)


@pytest.mark.parametrize("bucket_cap_mb", [25, 0.001])
def test_power_sgd(comm, backend, bucket_cap_mb):
    """With one bucket, and with one per layer, whose calls have equal shapes, replicas are bitwise
    equal after each step."""
    weights, losses, buckets = train(comm, bucket_cap_mb)
    assert buckets == (1 if bucket_cap_mb > 1 else 6)
    assert len(set(comm.allgather(weights.numpy().tobytes()))) == 1
    assert losses[-1] < losses[0]


def test_a_tensor_that_is_resized_before_its_call_begins(comm):
    """A wait for the call's future raises the error."""

    def reduction(tensor):
        return Call("a sum", [Reduction(Form("sum"), tensor, tensor)], [tensor])

    queue = Queue(comm, "a test", 2)
    queue.run(reduction(torch.ones(3)))  # creates the handle, so the next call starts early
    tensor = torch.ones(3)
    with queue._turn:
        call = queue.submit(reduction(tensor), background=True)
        tensor.resize_(10**6)  # more than the handle takes
    future = call.get_future()
    ended = threading.Event()
    future.add_done_callback(lambda _: ended.set())
    assert ended.wait(30), "the thread has ended, and the call has not"
    with pytest.raises(RuntimeError, match="size"):
        future.wait()
    assert queue.broken
    queue.free()
