# SPDX-License-Identifier: Apache-2.0
"""A rank that was suspended while the others trained does not pull them back when it returns."""

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.in_turns

STANDS_STILL = """
    import os, signal
    import torch
    import partialcoll.torch as pct
    torch.set_num_threads(1)
    pct.init()
    x = torch.nn.Parameter(torch.full((100,), 10.0))  # 5000 at first, 0 at best
    inner = torch.optim.SGD([x], lr=0.02)
    opt = pct.DistributedOptimizer(inner, named_parameters=[("x", x)], strategy=pct.{strategy})
    pids = comm.allgather(os.getpid())

    def train():
        opt.zero_grad()
        loss = x.square().sum() / 2
        loss.backward()
        opt.step()
        time.sleep(1e-3)
        return loss.item()

    for step in range(12):
        train()
    comm.Barrier()
    if comm.rank == 3:
        with opt._loop.process._at_rest():  # an exchange in progress would complete
            os.kill(os.getpid(), signal.SIGSTOP)
    else:
        while state(pids[3]) != "T":
            time.sleep(1e-3)
        begin = time.monotonic()
        while train() > 1e-6 or time.monotonic() - begin < 5:
            pass
        near = comm.Create_group(comm.group.Excl([3])).Ibarrier()
        while not near.Test():
            train()
        if comm.rank == 0:
            os.kill(pids[3], signal.SIGCONT)
    worst = max(train() for step in range(30))
    over = comm.Ibarrier()
    while not over.Test():
        worst = max(worst, train())
    say(comm.rank, "worst" if worst > {most} else "well", opt.metrics().resyncs)
    opt.join()
"""


@pytest.mark.parametrize(
    "strategy",
    (
        "Moshpit((2, 2), timeout=0.5)",
        "Moshpit((2, 2), timeout=0.5, overlap=True)",
        "ADPSGD()",
        "A2CiD2()",
        "Swarm()",
        "SGP()",
    ),
)
def test_a_rank_that_was_suspended(run, strategy):
    done = run(STANDS_STILL.format(strategy=strategy, most=1e-2), ranks=4)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 well 0", "1 well 0", "2 well 0", "3 worst 1"]
    assert "of another rank, and what it" in done.stderr


ALL_STAND_STILL = """
    import os, signal, subprocess
    import torch
    import partialcoll.torch as pct
    torch.set_num_threads(1)
    pct.init()
    x = torch.nn.Parameter(torch.full((100,), 10.0))
    inner = torch.optim.SGD([x], lr=0.02)
    opt = pct.DistributedOptimizer(inner, named_parameters=[("x", x)], strategy=pct.ADPSGD())

    def train(steps):
        for step in range(steps):
            opt.zero_grad()
            (x.square().sum() / 2).backward()
            opt.step()
            time.sleep(1e-3)

    train(12)
    comm.Barrier()
    alarm = subprocess.Popen(["sh", "-c", f"sleep 5; kill -CONT {os.getpid()}"])
    os.kill(os.getpid(), signal.SIGSTOP)
    alarm.wait()
    begin = time.monotonic()
    train(1)
    took = time.monotonic() - begin
    train(400)
    opt.join()
    say("took", took < 5, "well", x.square().sum().item() < 1)
"""


def test_all_were_suspended(run):
    """No rank is up to date. They ask each other, and soon continue."""
    done = run(ALL_STAND_STILL, ranks=4)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["took True well True"] * 4


def test_without_stale_after(run):
    """Without stale_after the others are pulled back."""
    script = STANDS_STILL.format(strategy="Moshpit((2, 2), timeout=0.5, stale_after=None)", most=1)
    done = run(script, ranks=4)
    assert done.returncode == 0, done.stderr
    assert sum(line.endswith("worst 0") for line in done.stdout.splitlines()) > 1, done.stdout
