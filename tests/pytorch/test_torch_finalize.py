# SPDX-License-Identifier: Apache-2.0
"""After MPI.Finalize() all remaining objects report it, and no thread is inside MPI."""

import pytest

pytest.importorskip("torch")

BEFORE = """
import torch
import torch.distributed as dist
import partialcoll.torch as pct
torch.set_num_threads(1)
torch.manual_seed(0)
"""
LAST = """
    for name, call in calls.items():
        try:
            call()
        except pc.StateError as error:
            if "MPI is finalized" not in str(error):
                say(name, error)
        else:
            say(name, "said nothing")
    say("over")
"""


@pytest.mark.parametrize(
    "strategy",
    (
        'Eager("solo")',
        "Allreduce(overlap=True)",
        "ADPSGD(rate=None)",
        "DPSGD()",
        "Moshpit()",
    ),
)
def test_an_optimizer(run, strategy):
    done = run(
        f"""
    pct.init()
    model = torch.nn.Linear(4, 4)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = pct.DistributedOptimizer(inner, strategy=pct.{strategy})

    def backward():
        model(torch.ones(2, 4)).square().mean().backward()

    for _ in range(3):
        opt.zero_grad()
        backward()
        opt.step()
    saved = opt.state_dict() if opt.strategy == pct.Allreduce() else {{}}
    MPI.Finalize()
    backward()
    inner.zero_grad()
    opt.metrics()
    calls = dict(step=opt.step, zero_grad=opt.zero_grad, join=opt.join, state=opt.state_dict)
    calls |= dict(load=lambda: opt.load_state_dict(saved), distance=opt.consensus_distance)
    calls |= dict(rank=pct.rank, barrier=pct.barrier, sum=lambda: pct.allreduce(torch.ones(3)))
    calls |= dict(again=lambda: pct.DistributedOptimizer(inner))
    """
        + LAST
        + """
    opt.close()
    pct.shutdown()
    """,
        ranks=2,
        before=BEFORE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["over", "over"], done.stdout


def test_the_backend_and_the_hook(run):
    done = run(
        """
    from torch.nn.parallel import DistributedDataParallel as DDP
    pct.init()
    dist.init_process_group("partialcoll")
    model = DDP(torch.nn.Linear(4, 4))
    state = pct.PartialState(model, quorum="solo")

    def backward():
        model(torch.ones(2, 4)).square().mean().backward()

    for _ in range(2):
        backward()
    work = dist.all_reduce(torch.ones(3), async_op=True)
    work.get_future().wait()
    MPI.Finalize()
    calls = dict(backward=backward, join=state.join, average=state.average_parameters)
    calls |= dict(sum=lambda: dist.all_reduce(torch.ones(3)), barrier=dist.barrier)
    calls |= dict(send=lambda: dist.send(torch.ones(3), 1 - dist.get_rank()))
    """
        + LAST
        + """
    state.close()
    dist.destroy_process_group()
    """,
        ranks=2,
        before=BEFORE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == ["over", "over"], done.stdout
