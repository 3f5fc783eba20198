# SPDX-License-Identifier: Apache-2.0
"""Programs for the ranks of test_torch_device.py. Each test is a job, which is given the test's
name."""

import itertools
import os
import sys

import fake_torch
import torch
import torch.distributed as dist
from mpi4py import MPI

import partialcoll as pc
import partialcoll.torch as pct

fake, device = fake_torch.load() if "FAKE_TORCH" in os.environ else (None, "cuda")
comm = MPI.COMM_WORLD
ranks, rank = comm.size, comm.rank
DTYPES = (
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "int8",
    "uint8",
    "int32",
    "int64",
)


def refused(kind, words, call, *arguments, **options):
    try:
        call(*arguments, **options)
    except kind as error:
        assert words in str(error), error
    else:
        raise AssertionError("it was not refused")


class Net(torch.nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.first = torch.nn.Linear(7, 9)
        self.norm = torch.nn.BatchNorm1d(9)
        self.last = torch.nn.Linear(9, 3, dtype=dtype)


def loss(net, step):
    """Gradients that need no rounding, because device and host kernels round differently."""
    parts = []
    for i, p in enumerate(net.parameters()):
        factor = torch.arange(p.numel()).view(p.shape) % 13 + i - 3 * rank - step
        parts.append((p * (factor / 64).to(p.dtype).to(p.device)).sum().float())
    return sum(parts)


def train(where, strategy, steps=5, dtype=torch.float32, **options):
    torch.manual_seed(3)
    net = Net(dtype).to(where)
    sgd = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.5)
    opt = pct.DistributedOptimizer(
        sgd, net.named_parameters(), strategy=strategy, model=net, **options
    )
    for step in range(steps):
        opt.zero_grad()
        loss(net, step).backward()
        opt.step()
        net.norm.running_mean.fill_(0.1 * rank + step)
        net.norm.running_var.fill_(1 + rank)
    return net, opt


def values(net):
    return [p.detach().cpu() for p in net.state_dict().values()]


def same(a, b):
    for (name, _), x, y in zip(a.state_dict().items(), values(a), values(b)):
        assert torch.equal(x, y), (name, x, y)


def rounded_alike(x, y):
    """Return whether two tensors are equal. A real device's kernels may round differently."""
    return torch.equal(x, y) or (not fake and x.is_floating_point() and torch.allclose(x, y))


def close(*opts):
    for opt in opts:
        opt.close()


def the_fake_itself():
    """A model is trained on the fake device as on the CPU, and its memory is the device's."""

    def train(where):
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 3).to(where)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(4):
            optimizer.zero_grad()
            (model(torch.ones(4, 5, device=where) * step) ** 2).mean().backward()
            optimizer.step()
        return model.weight.detach()

    there = train(device)
    assert there.device.type == device
    assert rounded_alike(there.cpu(), train("cpu"))
    assert fake is None or fake.counts()["live"] > 0


def tensors():
    """All dtypes. The sum includes what a torch operation wrote late."""
    for name in DTYPES:
        x = torch.zeros(3, 50, dtype=getattr(torch, name), device=device)
        y = torch.zeros_like(x)
        with pc.Allreduce_init(comm, x, y, quorum="full") as h:
            for step in range(3):
                x.fill_(step + comm.rank)
                h.Start()
                h.Wait(timeout=60)
                total = sum(step + rank for rank in range(comm.size))
                assert (y.cpu() == total).all(), name
    mean = torch.full((40,), float(comm.rank), dtype=torch.bfloat16, device=device)
    with pc.GroupAllreduce_init(comm, MPI.IN_PLACE, mean, grid=(comm.size,)) as group:
        group.Start()
        group.Wait(timeout=60)
        assert (mean.cpu() == (comm.size - 1) / 2).all()
    x, y = (torch.zeros(4, 6, device=device) for _ in range(2))
    with pc.Allreduce_init(comm, None, None, like=x, quorum="full") as h:  # as pct.allreduce does
        for step in range(3):
            h.send_buffer[...] = step  # also from the host
            h.Start()
            h.Wait(timeout=60)
            assert h.result.shape == (4, 6) and (h.result == step * comm.size).all()
    refused(ValueError, "C-contiguous", pc.Allreduce_init, comm, x.t(), y)
    refused(TypeError, "requires no grad", pc.Allreduce_init, comm, x.requires_grad_(), y)
    z = torch.zeros(4, dtype=torch.complex64, device=device)
    refused(TypeError, "conj bit is set", pc.Allreduce_init, comm, z.conj(), z)
    refused(TypeError, "neg bit is set", pc.Allreduce_init, comm, y[0], z.conj().imag)


SYNCHRONOUS = (
    pct.Allreduce(),
    pct.Allreduce(overlap=True, bucket_bytes=300),
    pct.Allreduce(clip_norm=0.05),
    pct.Eager("full"),
    pct.LocalSGD(local_steps=2),
    pct.DPSGD(),
    pct.Moshpit(local_steps=2),
    pct.SlowMo(pct.LocalSGD(local_steps=2), tau=2),
)


def as_on_the_host():
    """The bits equal those of a model on the CPU, through steps and a join."""
    for strategy, dtype in itertools.product(SYNCHRONOUS, (torch.float32, torch.bfloat16)):
        (there, a), (here, b) = (train(w, strategy, dtype=dtype) for w in (device, "cpu"))
        assert there.last.weight.grad.device.type == device
        same(there, here)
        assert a.consensus_distance() == b.consensus_distance()
        a.join()
        b.join()
        same(there, here)
        close(a, b)


def calls():
    """Horovod's calls give the same results as with tensors on the host."""

    def numbers(where, dtype="float32", *shape, add=0):
        dtype, shape = getattr(torch, dtype), shape or (5, 3)
        count = torch.Size(shape).numel()
        return ((torch.arange(count) * (rank + 2) % 11 + add).to(dtype).view(shape)).to(where)

    def calls(where):
        for dtype in DTYPES:
            x = numbers(where, dtype)
            yield pct.allreduce(x), x
            yield pct.allreduce_(numbers(where, dtype).t(), op=pct.Sum)
            yield pct.broadcast(x, root_rank=ranks - 1)
            if dtype != "complex64":
                yield pct.allreduce(x, op=pct.Max), pct.allreduce(x, op=pct.Min)
        x = numbers(where)
        yield pct.allreduce(x > 3, op=pct.Product)
        yield pct.allreduce(x, prescale_factor=0.5, postscale_factor=3)
        yield pct.allreduce(x, compression=pct.Compression.fp16)
        yield pct.allreduce(numbers(where, "float32", 300_000))
        yield pct.allreduce(numbers(where, "float32", 0)), pct.allreduce(x[0, 0])
        x.requires_grad_()
        pct.allreduce(x).sum().backward()
        yield x.grad
        x = numbers(where)
        begun = [pct.allreduce_async(x, op=pct.Sum)]
        x += 100  # is allowed
        begun += [
            pct.allreduce_async_(numbers(where, add=i), name=f"{where} {i}") for i in range(12)
        ]
        begun += [pct.broadcast_async_(numbers(where), 0), pct.allreduce_async(x.t())]
        for call in reversed(begun):
            yield pct.synchronize(call)
        for step in range(3):
            yield pct.allreduce(
                numbers(where, add=step), name=f"solo {where}", quorum="full,linger=1us"
            )
        yield pct.broadcast_(numbers(where), 1)
        with torch.no_grad():
            net = torch.nn.Linear(3, 2).to(where)
            net.weight.copy_(numbers(where, "float32", 2, 3))
        sgd = torch.optim.Adam(net.parameters(), lr=0.1 * (1 + rank))
        if rank == 1:
            net(numbers(where)).sum().backward()
            sgd.step()
        pct.broadcast_parameters(net.state_dict(), root_rank=1)
        pct.broadcast_optimizer_state(sgd, root_rank=1)
        yield net.weight, sgd.state[net.weight]["exp_avg"]
        assert sgd.param_groups[0]["lr"] == 0.2 and net.weight.device.type == where

    for one, other in zip(calls(device), calls("cpu"), strict=True):
        for x, y in zip(*(t if isinstance(t, tuple) else [t] for t in (one, other))):
            assert x.device.type == device and x.dtype == y.dtype
            assert rounded_alike(x.cpu(), y), (x, y)
    other = numbers(device if rank else "cpu")  # device or host may differ by rank
    total = pct.allreduce(other, op=pct.Sum)
    assert total.device == other.device and torch.equal(
        total.cpu(), pct.allreduce(numbers("cpu"), op=pct.Sum)
    )
    pct.shutdown()


def process_group():
    dist.init_process_group(f"cpu:partialcoll,{device}:partialcoll")

    def numbers(where, add=0, size=6):
        return (torch.arange(float(size)) * (rank + 2) + add).to(where)

    def calls(where):
        x = numbers(where)
        dist.all_reduce(x)
        yield x
        x = numbers(where).half()
        dist.all_reduce(x, op=dist.ReduceOp.AVG)
        yield x
        x = numbers(where, size=500_000)  # in chunks
        dist.all_reduce(x, op=dist.ReduceOp.MAX)
        yield x
        works, several = [], [numbers(where, i) for i in range(5)]
        works = [dist.all_reduce(one, async_op=True) for one in several]
        assert all(work.wait() for work in works)
        yield from several
        x = numbers(where)
        future = dist.all_reduce(x, async_op=True).get_future()
        future.wait()
        yield x
        x = numbers(where)
        dist.broadcast(x, 1)
        yield x
        x = numbers(where)
        dist.reduce(x, 0)
        yield x if rank == 0 else numbers(where)
        for some in (torch.zeros(ranks, 6), torch.zeros(ranks, 6).t().contiguous().t()):
            outputs = list(some.to(where))
            dist.all_gather(outputs, numbers(where))
            yield from outputs
        x = torch.zeros(6 * ranks).to(where)
        dist.all_gather_into_tensor(x, numbers(where))
        yield x
        x = torch.zeros(6 // ranks).to(where)
        dist.reduce_scatter_tensor(x, numbers(where))
        yield x
        outputs = [torch.zeros(6).to(where) for _ in range(ranks)] if rank == 0 else None
        dist.gather(numbers(where), outputs, 0)
        yield torch.cat(outputs) if outputs else numbers(where)
        x = torch.zeros(6).to(where)
        dist.scatter(x, [numbers(where, i) for i in range(ranks)] if rank == 0 else None, 0)
        yield x
        x = torch.zeros(6).to(where)
        dist.all_to_all_single(x, numbers(where))
        yield x
        x = numbers(where)
        if rank == 0:
            dist.send(x, 1)
        elif rank == 1:
            dist.recv(x, 0)
        yield x
        dist.barrier()
        objects = [None] * ranks
        dist.all_gather_object(objects, ("of", rank))
        assert objects == [("of", r) for r in range(ranks)]

    for one, other in zip(calls(device), calls("cpu"), strict=True):
        assert one.device.type == device and torch.equal(one.cpu(), other), (one, other)
    outputs = [numbers(where) for where in (["cpu", device] * ranks)[:ranks]]
    dist.all_gather(outputs, numbers(device))
    assert torch.equal(outputs[0], outputs[0] * 0 + torch.arange(6.0) * 2), outputs
    outputs = [torch.zeros(6) for _ in range(ranks)]  # only the arguments are on the device
    dist.all_gather(outputs, numbers(device).add_(1))
    assert torch.equal(outputs[1], torch.arange(6.0) * 3 + 1), outputs
    dist.all_to_all(outputs, [numbers(device).add_(10 * to) for to in range(ranks)])
    assert torch.equal(outputs[1], torch.arange(6.0) * 3 + 10 * rank), outputs
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2).to(device))
    (ddp(torch.ones(3, 4, device=device)) * (1 + rank)).sum().backward()
    expected = torch.full((2, 4), 3.0 * (1 + (ranks - 1) / 2))
    assert torch.equal(ddp.module.weight.grad.cpu(), expected), ddp.module.weight.grad
    dist.destroy_process_group()


def ddp_hook():
    dist.init_process_group(f"cpu:partialcoll,{device}:partialcoll")

    def train(where, quorum):
        torch.manual_seed(3)
        net = Net(torch.float32).to(where)
        ddp = torch.nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
        state = pct.PartialState(ddp, quorum=quorum)
        sgd = torch.optim.SGD(ddp.parameters(), lr=0.5, momentum=0.5)
        ddp.module.forward = lambda step: loss(net, step)
        for step in range(4):
            sgd.zero_grad()
            ddp(step).backward()
            sgd.step()
        state.join(sgd)
        return net, state

    (there, a), (here, b) = (train(where, "full") for where in (device, "cpu"))
    same(there, here)
    _, c = train(device, "solo")
    rounds = comm.allgather(c.round)
    assert len(set(rounds)) == 1, rounds
    total = comm.allgather(c.metrics().included)
    assert total == [4] * ranks, total
    for state in (a, b, c):
        state.close()
    dist.destroy_process_group()


def strategies_without_waits():
    """After a join all ranks are the same, and the model is still on its device."""
    codec = pc.Lattice(bits=8)
    for strategy in (
        pct.ADPSGD(),
        pct.A2CiD2(),
        pct.Swarm(local_steps=2, codec=codec),
        pct.SGP(),
        pct.SlowMo(pct.ADPSGD(), tau=2),
        pct.Eager("solo"),
        pct.Eager("solo", deliver="all"),
    ):
        net, opt = train(device, strategy, steps=2 + 3 * rank)
        opt.join()
        everyones = comm.allgather(values(net))
        assert all(torch.equal(x, y) for other in everyones for x, y in zip(everyones[0], other))
        assert net.first.weight.device.type == device and opt.consensus_distance() == 0
        mean = opt.averaged_model()
        same(mean, net)
        if not isinstance(strategy, pct.SlowMo):
            saved = opt.state_dict()
            opt.load_state_dict(saved)
        opt.close()


def around_the_optimizer():
    """Loss scaling, a checkpoint, broadcast parameters, and refusals."""
    net, opt = train(device, pct.Eager("full"))
    saved = opt.state_dict()
    pct.broadcast_parameters(net.state_dict(), 0)
    pct.broadcast_optimizer_state(opt, 0)
    opt.zero_grad()
    scale = torch.tensor(4.0, device=device)
    (loss(net, 5) * 4).backward()
    opt.grad_scale, opt.found_inf = scale, torch.tensor(0.0, device=device)
    opt.step()
    other, second = train(device, pct.Eager("full"))
    second.zero_grad()
    loss(other, 5).backward()
    second.step()
    net.norm.load_state_dict(other.norm.state_dict())  # rank 0's buffers were broadcast
    same(net, other)
    assert opt.metrics().skipped == 0
    opt.zero_grad()
    loss(net, 6).backward()
    opt.grad_scale, opt.found_inf = None, torch.tensor(1.0 - rank, device=device)
    opt.step()
    assert opt.metrics().skipped == (rank == 0)
    opt.close()
    second.close()
    third, later = train(device, pct.Eager("full"), steps=0, non_finite="skip")
    later.load_state_dict(saved)
    assert later.round == 5
    later.zero_grad()
    (loss(third, 0) * (float("nan") if rank else 1)).backward()
    later.step()
    assert later.metrics().skipped == rank and all(v.isfinite().all() for v in values(third))
    later.close()
    net, early = train(device, pct.Allreduce(overlap=True, bucket_bytes=300))
    early.zero_grad()
    loss(net, 6).backward()
    net.last.weight.grad.mul_(2)
    refused(pc.StateError, "after it had been sent", early.step)
    early.close()

    # Unsupported cases
    def wrap(net, strategy):
        sgd = torch.optim.SGD(net.parameters(), lr=1)
        pct.DistributedOptimizer(sgd, net.named_parameters(), strategy=strategy)

    net = Net(torch.float32)
    net.first.to(device)
    for strategy in (pct.Allreduce(), pct.ADPSGD()):
        refused(ValueError, "expected all on one device", wrap, net, strategy=strategy)
        refused(
            TypeError, "got one on meta", wrap, Net(torch.float32).to("meta"), strategy=strategy
        )
    refused(TypeError, "got one on meta", lambda: pct.allreduce(torch.zeros(3, device="meta")))


def bench_gpu():
    """The command has no device to run on here, but its measuring functions work."""
    from partialcoll.tools.bench import gpu

    place = gpu.Device(comm, device)
    rows = [row for n in (1, 5000) for row in gpu.measure(comm, place, n, 2, {})]
    assert [row["collective"] for row in rows] == ["mpi", "full"] * (2 if rank == 0 else 0)
    assert all(row["wrong"] == 0 and row["latency_us_p50"] > 0 for row in rows), rows


if __name__ == "__main__":
    name = sys.argv[1]
    if name not in ("the_fake_itself", "tensors", "bench_gpu"):
        pct.init()
    globals()[name]()
    assert fake is None or fake.counts()["complaints"] == 0, fake.counts()
