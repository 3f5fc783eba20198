# SPDX-License-Identifier: Apache-2.0
"""Ranks are killed, and the training of the others continues (docs/faults.md)."""

import pytest
from ulfm import needs_ulfm

pytest.importorskip("torch")
pytestmark = [
    needs_ulfm,
    pytest.mark.in_turns,
]

COMMON = """
    import faulthandler, hashlib, os, signal, threading
    faulthandler.dump_traceback_later(110, exit=True)
    import torch
    import partialcoll.torch as pct

    die = lambda *_: os.kill(os.getpid(), signal.SIGKILL)

    def end():
        say("end")
        MPI.COMM_WORLD.Shrink().Barrier()
        os._exit(0)

    def same(comm, model):
        flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
        said = comm.allgather(hashlib.sha1(flat.numpy().tobytes()).hexdigest())
        assert len(set(said)) == 1, said
"""

# Optimizers load torch's compiler for a second per rank, only to disable it for themselves.
NO_COMPILER = """
    import types
    torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(
        disable=lambda function=None, *_, **__: function, graph_break=lambda: None
    )
"""


def survivors(run, program, ranks, dead):
    options = ["--with-ft", "ulfm"]
    done = run(COMMON + program, ranks=ranks, launcher_options=options)
    ended = done.stdout.splitlines().count("end")
    assert ended == ranks - dead, f"{done.stdout}\n{done.stderr}"


# The gradients of rank r are r + 1. One optimizer; the highest live rank dies at each kill point.
OPTIMIZER = (
    NO_COMPILER
    + """
    pct.init()
    strategy = pct.STRATEGY
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    inner = torch.optim.SGD(model.parameters(), lr=1.0)
    opt = pct.DistributedOptimizer(inner, strategy=strategy, model=model)
    pct.broadcast_parameters(model.state_dict(), 0)

    def step(at=None, now=False):
        here = lambda moment: now and at == moment and die()
        before = model[0].bias.detach().clone()
        here("zero_grad")
        opt.zero_grad()
        here("forward")
        loss = (pct.rank() + 1) * model[0].bias.sum()
        if now and at == "hooks":
            model[0].bias.register_hook(die)
        (loss + 0 * model(torch.ones(2, 3)).sum()).backward()
        if now and at == "step":
            opt._loop.rounds.wait = die  # while its deposit is in flight
        opt.step()
        return before - model[0].bias.detach()

    left = list(range(pct.size()))
    for moment in ("zero_grad", "forward", "hooks", "step"):
        for _ in range(3):
            step()
        victim = left.pop()
        step(moment, pct.rank() == victim)
        for _ in range(3):
            change = step()
        if FULL:
            mean = sum(rank + 1 for rank in left) / len(left)
            assert torch.allclose(change, torch.full((4,), mean)), (change, mean)
    opt.join()
    assert opt.metrics().failed == tuple(range(len(left), pct.size())), opt.metrics()
    assert opt.consensus_distance() == 0
    comm = MPI.COMM_WORLD.Shrink()
    same(comm, model)
    assert len(set(comm.allgather((opt.round, float(model[1].running_mean.sum()))))) == 1
    opt.load_state_dict(opt.state_dict())
    step()
    opt.close()
    end()
"""
)


@pytest.mark.parametrize(
    "strategy", ('Allreduce(on_failure="continue")', 'Eager("solo", on_failure="continue")')
)
def test_a_rank_dies_in_each_moment_of_a_step(run, strategy):
    full = strategy.startswith("Allreduce")
    survivors(run, OPTIMIZER.replace("STRATEGY", strategy).replace("FULL", str(full)), 6, 4)


# Horovod's calls, and a process group of each kind, at once. The last rank dies while all are in
# calls; the others continue with them.
CALLS = """
    import torch.distributed as dist
    dist.init_process_group("partialcoll")
    told = dist.new_group()
    goes = dist.new_group(pg_options=pct.GroupOptions(on_failure="continue"))
    pct.init(on_failure="continue")
    rank, size, last = pct.rank(), pct.size(), pct.size() - 1
    alive = size - 1

    def refused(error, call, word):
        try:
            call()
        except error as found:
            assert word in str(found), found
        else:
            raise AssertionError(word)

    def reduced(value, **options):
        x = torch.full((70000,), float(value))
        dist.all_reduce(x, group=goes, **options)
        assert len(set(x.tolist())) == 1
        return x[0].item()

    whole = [torch.zeros(3) for _ in range(size)]
    dist.all_gather(whole, torch.full((3,), float(rank)), group=goes)
    assert [x[0].item() for x in whole] == list(range(size))
    flat = torch.zeros(2 * size)
    dist.all_gather_into_tensor(flat, torch.tensor([rank, rank + 0.5]), group=goes)
    assert flat.tolist() == [r + half for r in range(size) for half in (0, 0.5)]
    assert reduced(1) == size
    objects = [None] * size
    dist.all_gather_object(objects, "x" * rank, group=goes)
    assert objects == ["x" * r for r in range(size)]
    assert pct.allgather_object(rank) == list(range(size))
    assert pct.broadcast_object([rank] * 100000, 1) == [1] * 100000
    x = torch.ones(3)
    y = torch.zeros(size)
    refused(pc.Error, lambda: dist.all_to_all_single(y, y, group=goes), "cannot go on")
    refused(pc.Error, lambda: pct.allgather(x), "cannot go on")
    dist.barrier(group=told)

    if rank == last:
        threading.Timer(0.3, die).start()
    seen = set()
    def one_more():
        count, mean = reduced(1), reduced(rank, op=dist.ReduceOp.AVG)
        dist.barrier(group=goes)
        assert pct.allreduce(torch.ones(5), op=pct.Sum).tolist()[0] in (alive, size)
        y = torch.full((7,), float(rank))
        dist.broadcast(y, 1, group=goes)
        assert y.tolist() == [1.0] * 7
        model = torch.full((9,), float(rank))
        pct.broadcast_parameters(dict(model=model, note=rank), 2)
        assert model[0] == 2 and pct.broadcast_object(rank, 1) == 1
        seen.add((count, mean))
        return pct.allgather_object(rank) == list(range(alive))
    while not one_more():
        pass
    assert one_more()
    assert {c for c, _ in seen} <= {alive, size}
    assert reduced(rank, op=dist.ReduceOp.AVG) == sum(range(alive)) / alive
    assert pct.allreduce(torch.tensor(float(rank))).item() == sum(range(alive)) / alive
    for work in [dist.all_reduce(torch.ones(2), group=goes, async_op=True) for _ in range(5)]:
        work.wait()

    # operations that need the dead rank
    died = f"rank {last} has died"
    refused(pc.RankFailedError, lambda: dist.broadcast(x, last, group=goes), died)
    refused(pc.RankFailedError, lambda: dist.all_gather(whole, x, group=goes), died)
    refused(pc.RankFailedError, lambda: pct.broadcast_object(1, last), died)
    refused(pc.RankFailedError, lambda: dist.recv(x, last, group=goes), died)
    assert reduced(1) == alive
    message = torch.tensor([float(rank)])
    (dist.send if rank == 0 else dist.recv if rank == 1 else lambda *a, **k: None)(
        message, 1 - rank, group=goes) if rank < 2 else None
    assert rank != 1 or message == 0

    # a group without it is notified at once
    for call in (dist.all_reduce, dist.barrier, dist.all_gather_into_tensor, dist.recv):
        give = {dist.barrier: (), dist.recv: (x, (rank + 1) % alive)}.get(call, (x,))
        give = (torch.zeros(3 * size), x) if call is dist.all_gather_into_tensor else give
        refused(pc.RankFailedError, lambda: call(*give, group=told), died)

    # DistributedDataParallel, whose process group continues
    more = dist.new_group(
        list(range(alive)), use_local_synchronization=True,
        pg_options=pct.GroupOptions(on_failure="continue"),
    )
    ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(300, 3), process_group=more)
    sgd = torch.optim.SGD(ddp.parameters(), lr=0.1)
    def train(steps, hook=None):
        for _ in range(steps):
            sgd.zero_grad()
            loss = ddp(torch.ones(2, 300)).sum()
            if hook:
                ddp.module.weight.register_hook(hook)
            loss.backward()
            sgd.step()
    train(3)
    train(1, die if rank == alive - 1 else None)
    train(3)
    pct.shutdown()
    pct.init()
    assert pct.size() == alive - 1 and pct.allreduce(torch.ones(1), op=pct.Sum).item() == alive - 1
    same(pct.comm(), ddp)
    dist.destroy_process_group()
    end()
"""


def test_calls_and_process_groups(run):
    survivors(run, CALLS, 5, 2)


ELASTIC = (
    NO_COMPILER
    + """
    pct.init(on_failure="continue")
    model = torch.nn.Linear(3, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    opt = pct.DistributedOptimizer(inner, strategy=pct.Allreduce(on_failure="continue"))
    sampler = pct.elastic.ElasticSampler(list(range(120)), shuffle=False)
    state = pct.elastic.TorchState(model, opt, sampler=sampler, batch=0)
    resets, kills = [], {4: 1, 9: 0, 14: 2}  # batch: rank of the first world
    first = pct.rank()
    state.register_reset_callbacks([lambda: resets.append((state.batch, pct.size()))])

    @pct.elastic.run
    def train(state):
        steps = []
        while state.batch < 20:
            steps.append(state.batch)
            opt.zero_grad()
            model(torch.ones(3)).sum().backward()
            if kills.get(state.batch) == first:
                die()
            opt.step()
            state.batch += 1
            state.sampler.record_batch(state.batch, 1)
            pct.allreduce(torch.ones(1), name="loss")
            if state.batch % 2 == 0:
                state.commit()
        return steps

    steps = train(state)
    assert resets == [(6, 4), (10, 3), (16, 2)], resets
    assert steps == [16, 17, 18, 19] and opt.round == 20, (steps, opt.round)  # nothing twice
    assert pct.size() == 2 == sampler.num_replicas and pct.rank() == sampler.rank == first - 3
    assert opt.metrics().failed == (0, 1, 2)
    same(pct.comm(), model)
    opt.close()
    pct.shutdown()
    end()
"""
)


def test_elastic_takes_nothing_back(run):
    survivors(run, ELASTIC, 5, 3)
