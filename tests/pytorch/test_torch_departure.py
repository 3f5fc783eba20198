# SPDX-License-Identifier: Apache-2.0
"""An error on one rank ends its program, and those of other ranks, which would wait for it."""

import pytest

pytest.importorskip("torch")

TRAIN = """
    import torch
    import partialcoll.torch as pct
    torch.set_num_threads(1)
    torch.manual_seed(0)
    pct.init()
    model = torch.nn.Linear(4, 4)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)

    def backward():
        model(torch.ones(2, 4)).square().mean().backward()

    def train(opt, mistake=lambda: None):
        for step in range(30):
            opt.zero_grad()
            backward()
            if step == 3 and comm.rank == 1:
                mistake()
            opt.step()
        opt.join()

    def telling(call):
        try:
            call()
        except pc.Error as error:
            say(comm.rank, type(error).__name__, error)
            raise
"""


def check(done, ranks, own, kind="StateError"):
    """Rank 1 has its own error. The others report its end."""
    assert done.returncode != 0
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert said.pop("1").startswith(f"{kind} {own}"), done.stdout
    assert sorted(said) == [str(rank) for rank in range(ranks) if rank != 1], done.stderr
    for line in said.values():
        assert line.startswith("Departed the program of rank "), line
        assert f"{kind}: {own}" in line


@pytest.mark.parametrize("strategy", ('Eager("solo")', 'Eager("full")', "ADPSGD()", "DPSGD()"))
@pytest.mark.parametrize("mistake", ("zero_grad", "join"))
def test_a_call_between_backward_and_step(run, strategy, mistake):
    done = run(
        TRAIN
        + f"""
    opt = pct.DistributedOptimizer(inner, strategy=pct.{strategy})
    telling(lambda: train(opt, opt.{mistake}))
    """,
        ranks=3,
    )
    check(done, 3, f"{mistake}() between backward")


@pytest.mark.parametrize("strategy", ("Allreduce(overlap=True, bucket_bytes=40)", "DPSGD()"))
def test_a_hook_that_raises_in_a_closure(run, strategy):
    done = run(
        TRAIN
        + f"""
    opt = pct.DistributedOptimizer(inner, strategy=pct.{strategy})

    def closure():
        opt.zero_grad()
        backward()

    def hook(gradient):
        if comm.rank == 1 and opt.round == 3:
            raise ValueError("my own hook")

    def train():
        model.weight.register_hook(hook)
        for _ in range(30):
            opt.step(closure)

    try:
        telling(train)
    except ValueError as error:
        say(comm.rank, type(error).__name__, error)
        raise
    """,
        ranks=3,
    )
    check(done, 3, "my own hook", "ValueError")


@pytest.mark.parametrize("call", ("barrier()", 'synchronize(pct.allreduce_async(x, name="x"))'))
def test_others_wait_in_a_call(run, call):
    done = run(
        TRAIN
        + f"""
    opt = pct.DistributedOptimizer(inner)
    x = torch.ones(2)
    pct.barrier()
    telling(opt.step if comm.rank == 1 else lambda: pct.{call})
    """,
        ranks=2,
    )
    check(done, 2, "step() without backward")


def test_a_program_that_exits_with_an_error(run):
    """The other ranks wait in a barrier that the failed rank does not reach."""
    done = run(
        TRAIN
        + """
    telling(lambda: sys.exit(3) if comm.rank == 1 else pct.barrier())
    """,
        ranks=2,
    )
    assert done.returncode != 0
    assert "Departed the program of rank 1 has ended: SystemExit: 3" in done.stdout, done.stderr


def test_an_error_whose_text_no_encoding_has(run):
    """For example an error with a file name that is not UTF-8."""
    done = run(
        TRAIN
        + """
    opt = pct.DistributedOptimizer(inner)
    try:
        if comm.rank == 1:
            raise ValueError("cannot read " + os.fsdecode(bytes([255])))
        opt.step(lambda: backward())
    except pc.Error as error:
        say(comm.rank, error)
        raise
    """,
        ranks=2,
    )
    assert done.returncode != 0 and "ValueError: cannot read ?" in done.stdout, done.stderr


def test_a_caught_error_stays_on_its_rank(run):
    done = run(
        TRAIN
        + """
    opt = pct.DistributedOptimizer(inner, strategy=pct.Eager("solo"))

    def mistake():
        try:
            opt.zero_grad()
        except pc.StateError:
            say("caught")

    telling(lambda: train(opt, mistake))
    opt.close()
    """,
        ranks=2,
    )
    assert done.returncode == 0 and done.stdout == "caught\n", done.stdout + done.stderr


@pytest.mark.parametrize("strategy", ("ADPSGD()", "DPSGD()", "SGP()", "Moshpit()", "LocalSGD(2)"))
def test_parameters_that_are_not_finite_stay_here(run, strategy):
    """An optimizer may turn finite gradients into parameters that are not finite. Other ranks do
    not get them."""
    done = run(
        TRAIN
        + f"""
    opt = pct.DistributedOptimizer(inner, strategy=pct.{strategy})

    def diverge():
        inner.param_groups[0]["lr"] = float("inf")

    try:
        telling(lambda: train(opt, diverge))
    except FloatingPointError as error:
        say(comm.rank, type(error).__name__, error)
        raise
    finally:
        finite = all(p.isfinite().all() for p in model.parameters())
        assert finite == (comm.rank != 1), "spread"
    """,
        ranks=3,
    )
    assert "spread" not in done.stderr
    check(done, 3, "the parameters of this rank are not finite", "FloatingPointError")


BACKEND = """
    import torch
    import torch.distributed as dist
    import partialcoll.torch
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("partialcoll")
    group = dist.group.WORLD

    def telling(call):
        try:
            call()
        except (RuntimeError, ValueError) as error:  # DDP turns all into RuntimeError
            kind, text = type(error).__name__, str(error).splitlines()[0]
            _, told, why = text.partition("the program of rank 1 has ended")
            say(comm.rank, *(("Departed", told + why) if told else (kind, text)))
            raise
"""


@pytest.mark.parametrize("ranks", (2, 4))
def test_a_hook_that_raises_in_ddp(run, ranks):
    """With the backend, other ranks wait for the failed rank's buckets in their backward pass."""
    done = run(
        BACKEND
        + """
    model = torch.nn.Linear(4, 4)
    ddp = torch.nn.parallel.DistributedDataParallel(model)

    def train():
        for step in range(30):
            if step == 3 and comm.rank == 1:
                model.weight.register_hook(lambda gradient: bad())
            ddp(torch.ones(2, 4)).square().mean().backward()

    def bad():
        raise ValueError("my own hook")

    telling(train)
    """,
        ranks=ranks,
    )
    check(done, ranks, "my own hook", "ValueError")


WAITS = {
    "a collective": "dist.all_reduce(torch.ones(3))",
    "a message": "dist.recv(torch.ones(3), 1)",
    "a new group": "dist.new_group()",
    "a group of its own": "dist.all_reduce(torch.ones(3), group=other)",
}


@pytest.mark.parametrize("call", WAITS)
def test_others_wait_in_the_backend(run, call):
    """The failing rank has already destroyed its groups, as programs do in `finally`."""
    done = run(
        BACKEND
        + f"""
    other = dist.new_group()

    def fails():
        try:
            raise ValueError("before the call")
        finally:
            dist.destroy_process_group()

    telling(fails if comm.rank == 1 else lambda: {WAITS[call]})
    """,
        ranks=3,
    )
    check(done, 3, "before the call", "ValueError")


def test_a_group_beside_gloo(run):
    """The default group is gloo's, so the ranks of the group notify each other."""
    done = run(
        BACKEND.replace('"partialcoll")', '"gloo")')
        + """
    mine = dist.new_group(backend="partialcoll")

    def fails():
        raise ValueError("before the call")

    telling(fails if comm.rank == 1 else lambda: dist.all_reduce(torch.ones(3), group=mine))
    """,
        ranks=2,
        env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    check(done, 2, "before the call", "ValueError")
