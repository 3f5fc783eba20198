# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the decentralized strategies, and the ways in which programs end."""

import copy
import io

import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

# Strategies without messages in flight between two steps.
SETTLED = {
    "dpsgd": lambda size: pct.DPSGD(),
    "localsgd": lambda size: pct.LocalSGD(local_steps=3),
    "moshpit": lambda size: pct.Moshpit(grid=(size,), local_steps=2, timeout=240.0),
    "moshpit-outer": lambda size: pct.Moshpit(
        grid=(size,),
        local_steps=2,
        average="pseudo-gradients",
        outer_learning_rate=0.7,
        outer_momentum=0.5,
        timeout=240.0,
    ),
    "slowmo": lambda size: pct.SlowMo(pct.LocalSGD(local_steps=2), tau=4),
    "slowmo-dpsgd": lambda size: pct.SlowMo(pct.DPSGD(), tau=3),
}
UNDER_WAY = {
    "adpsgd": lambda size: pct.ADPSGD(),
    "a2cid2": lambda size: pct.A2CiD2(),
    "swarm": lambda size: pct.Swarm(local_steps=2, geometric=True, codec=pc.Lattice(bits=8)),
    "sgp": lambda size: pct.SGP(),
    "slowmo-adpsgd": lambda size: pct.SlowMo(pct.ADPSGD(), tau=3),
}
ALL = {**SETTLED, **UNDER_WAY}


@pytest.fixture
def world(comm):
    torch.set_num_threads(1)
    pct.init(comm)
    yield comm
    pct.shutdown()


class Model(torch.nn.Module):
    """Several dtypes, memory in another order, BatchNorm."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.images = torch.nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm2d(3)
        self.fp64 = torch.nn.Parameter(torch.randn(4, dtype=torch.float64))
        self.bf16 = torch.nn.Parameter(torch.randn(6).bfloat16())

    def loss(self, rank, step):
        random = torch.Generator().manual_seed(1000 * rank + step)
        y = self.norm(self.images(torch.randn(4, 2, 6, 6, generator=random)))
        return y.square().mean() + (self.fp64 + 0.1).square().sum() + self.bf16.square().sum()


def wrap(model, strategy, seed_of_lr=0.01):
    adam = torch.optim.AdamW(model.parameters(), lr=seed_of_lr, amsgrad=True)
    opt = pct.DistributedOptimizer(
        adam, model.named_parameters(), strategy=strategy, model=model, clip_norm=1.0
    )
    opt.attach(torch.optim.lr_scheduler.StepLR(opt, 3, 0.7), every=2)
    return opt


def train(model, opt, rank, steps, first=0):
    for step in range(first, first + steps):
        opt.zero_grad()
        model.loss(rank, step).backward()
        opt.step()


def contents(value):
    """Return everything in a tree, tensors as dtype, shape and bits."""
    if isinstance(value, torch.Tensor):
        flat = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        return (str(value.dtype), tuple(value.shape), flat)
    if isinstance(value, dict):
        return {key: contents(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [contents(item) for item in value]
    return value


def everything(model, opt):
    """Return model, optimizer and schedulers, without the strategy's own entry."""
    state = {k: v for k, v in opt.state_dict().items() if k != "partialcoll"}
    return contents([model.state_dict(), state, opt.param_groups[0]["lr"]])


def written(model, opt):
    """Write to a file and read it as torch does by default: plain types only."""
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    return torch.load(file)


def load(saved, model, opt):
    """Load a copy: like in plain torch, the optimizer keeps the given tensors."""
    model.load_state_dict(saved["model"])
    opt.load_state_dict(copy.deepcopy(saved["opt"]))


# Resuming


@pytest.mark.mpi
@pytest.mark.parametrize("order", ["wrap first", "load the model first"])
@pytest.mark.parametrize("name", SETTLED)
def test_resume_is_bitwise(world, name, order):
    """11 steps give the same bits as 5, a checkpoint, and 6 with another optimizer and model."""
    strategy = SETTLED[name](world.size)
    model = Model()
    opt = wrap(model, strategy)
    train(model, opt, world.rank, 5)
    saved = written(model, opt)
    at_5 = everything(model, opt)
    train(model, opt, world.rank, 6, first=5)
    whole = everything(model, opt)
    opt.close()

    model = Model(seed=5 + world.rank)
    if order == "wrap first":
        opt = wrap(model, strategy, 0.3)
        load(saved, model, opt)
    else:
        model.load_state_dict(saved["model"])
        opt = wrap(model, strategy, 0.3)
        opt.load_state_dict(saved["opt"])
    assert opt.round == 5
    if order == "wrap first":
        assert everything(model, opt) == at_5
        assert contents(opt.state_dict()) == contents(saved["opt"])
    train(model, opt, world.rank, 6, first=5)
    assert everything(model, opt) == whole
    opt.join()
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ALL)
def test_resume_after_join(world, name):
    """Resume right after join: model and state are the same, and training continues."""
    strategy = ALL[name](world.size)
    model = Model(seed=world.rank)
    opt = wrap(model, strategy)
    train(model, opt, world.rank, 6)
    opt.join()
    saved = written(model, opt)
    before, steps = everything(model, opt), opt.round
    assert contents(saved["opt"]) == contents(opt.state_dict())
    opt.close()

    model = Model(seed=9 + world.rank)
    opt = wrap(model, strategy, 0.3)
    load(saved, model, opt)
    assert everything(model, opt) == before and opt.round == steps
    assert contents(opt.state_dict()) == contents(saved["opt"])  # saved again before a step
    assert opt.consensus_distance() == 0.0
    whole = opt.averaged_model()
    assert contents(dict(whole.named_parameters())) == contents(dict(model.named_parameters()))
    train(model, opt, world.rank, 4, first=6)
    opt.join()
    assert opt.round >= steps + 4
    end = contents(dict(model.named_parameters()))
    assert len(set(map(repr, world.allgather(end)))) == 1
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_goes_back(world, name):
    """A checkpoint loaded into a further trained optimizer removes the effects of later steps."""
    model = Model()
    opt = wrap(model, ALL[name](world.size))
    train(model, opt, world.rank, 4)
    opt.join()
    saved, before, number = written(model, opt), everything(model, opt), opt.round
    train(model, opt, world.rank, 4)
    opt.join()
    assert everything(model, opt) != before
    load(saved, model, opt)
    assert everything(model, opt) == before and opt.round == number
    train(model, opt, world.rank, 4)
    load(saved, model, opt)  # whatever is in flight
    assert everything(model, opt) == before and opt.round == number
    opt.join()
    assert everything(model, opt) == before
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", SETTLED)
def test_the_same_again_after_going_back(world, name):
    """Go back between two steps, without a join."""
    model = Model()
    opt = wrap(model, SETTLED[name](world.size))
    train(model, opt, world.rank, 4)
    saved = written(model, opt)
    ends = []
    for _ in range(2):
        train(model, opt, world.rank, 5)
        ends.append(everything(model, opt))
        load(saved, model, opt)
    assert ends[0] == ends[1]
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ALL)
def test_state_of_an_optimizer_that_was_not_wrapped(world, name):
    """Load the state of a plain optimizer, and the other way round."""
    model, other = Model(1), Model(2)
    plain = torch.optim.AdamW(model.parameters(), amsgrad=True)
    train(model, plain, 0, 3)
    opt = wrap(other, ALL[name](world.size))
    opt.load_state_dict(plain.state_dict())
    assert opt.round == 0
    train(other, opt, world.rank, 2)
    opt.join()
    state = opt.state_dict()
    plain.load_state_dict(state)
    state.pop("partialcoll")
    assert contents(plain.state_dict()) == contents(state)
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["adpsgd", "localsgd", "slowmo"])
def test_one_rank_loads_and_broadcasts(world, name):
    """Resume like Horovod's scripts, also with another number of ranks."""
    model = Model()
    opt = wrap(model, ALL[name](world.size))
    train(model, opt, world.rank, 4)
    opt.join()
    saved = written(model, opt)
    opt.close()
    saved["opt"].pop("partialcoll")

    model = Model(6 + world.rank)
    opt = wrap(model, ALL[name](world.size))
    if world.rank == 0:
        load(saved, model, opt)
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
    pct.broadcast_optimizer_state(opt, root_rank=0)
    if world.rank == 0:
        assert contents(model.state_dict()) == contents(saved["model"])
    trained = contents(dict(model.named_parameters()))
    assert len(set(map(repr, world.allgather(trained)))) == 1
    opt.join()
    assert contents(dict(model.named_parameters())) == trained
    train(model, opt, world.rank, 2)
    opt.join()
    opt.close()


# Refusals


@pytest.mark.mpi
@pytest.mark.parametrize("name", UNDER_WAY)
def test_only_settled_strategies_save_between_steps(world, name):
    """One rank is treated alike: a program's validity must not depend on the number of ranks."""
    model = Model()
    opt = wrap(model, UNDER_WAY[name](world.size))
    opt.state_dict()  # before the first step all ranks are the same
    for _ in range(2):
        train(model, opt, world.rank, 1)
        with pytest.raises(pc.StateError, match="join"):
            opt.state_dict()
        opt.join()
        opt.state_dict()
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ALL)
def test_between_backward_and_step(world, name):
    model = Model()
    opt = wrap(model, ALL[name](world.size))
    train(model, opt, world.rank, 2)
    opt.join()
    state = opt.state_dict()
    model.loss(0, 0).backward()
    with pytest.raises(pc.StateError, match="between backward"):
        opt.load_state_dict(state)
    opt.step()
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ALL)
def test_checkpoints_that_are_refused(world, name):
    """Each error names the expected and the actual value. Nothing has changed."""
    model = Model()
    opt = wrap(model, ALL[name](world.size))
    train(model, opt, world.rank, 4)
    opt.join()
    good, before = opt.state_dict(), everything(model, opt)
    entry = good["partialcoll"]
    assert (entry["size"], entry["rank"], entry["version"]) == (world.size, world.rank, opt.round)
    assert type(opt.strategy).__name__ in entry["strategy"]

    def refused(error, match, **changes):
        with pytest.raises(error, match=match):
            opt.load_state_dict({**good, "partialcoll": {**entry, **changes}})
        assert everything(model, opt) == before

    P, r = world.size, world.rank
    refused(
        ValueError, rf"of rank {r} of {P + 1} ranks, expected one of rank {r} of {P}", size=P + 1
    )
    refused(ValueError, rf"of rank {r + 1} of {P} ranks, expected one of rank {r} of", rank=r + 1)
    refused(ValueError, r"state of 0 attached schedulers, 1 are attached", schedulers=[])
    with pytest.raises(ValueError, match="none that state_dict"):
        opt.load_state_dict({**good, "partialcoll": {"size": 3}})
    with pytest.raises(ValueError, match="parameter groups"):
        opt.load_state_dict({**good, "param_groups": []})
    assert everything(model, opt) == before
    opt.load_state_dict(copy.deepcopy(good))
    train(model, opt, world.rank, 1)
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize(
    "one, other",
    [("adpsgd", "localsgd"), ("localsgd", "adpsgd"), ("slowmo", "localsgd"), ("dpsgd", "slowmo")],
)
def test_a_checkpoint_of_another_strategy(world, one, other):
    """A checkpoint with a missing or additional strategy entry is refused by name."""
    model = Model()
    opt = wrap(model, ALL[one](world.size))
    train(model, opt, world.rank, 2)
    opt.join()
    saved = written(model, opt)
    opt.close()
    model = Model()
    opt = wrap(model, ALL[other](world.size))
    before = everything(model, opt)
    with pytest.raises(ValueError, match=r"of (ADPSGD|LocalSGD|SlowMo|DPSGD)\(.*expected one of "):
        opt.load_state_dict(saved["opt"])
    assert everything(model, opt) == before
    opt.close()


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["adpsgd", "localsgd"])
def test_a_checkpoint_of_rounds_of_gradients(world, name):
    model = Model()
    opt = wrap(model, pct.Allreduce())
    train(model, opt, world.rank, 2)
    saved = written(model, opt)
    opt.close()
    opt = wrap(model, ALL[name](world.size))
    with pytest.raises(ValueError, match=r"strategy Allreduce\("):
        opt.load_state_dict(saved["opt"])
    opt.close()


# Programs that end


ALL_AT_ONCE = """
import torch, partialcoll.torch as pct
torch.set_num_threads(1)
pct.init()
strategies = [
    pct.ADPSGD(), pct.DPSGD(), pct.Swarm(), pct.Swarm(codec=pc.Lattice(bits=8)), pct.A2CiD2(),
    pct.Moshpit(), pct.SGP(), pct.LocalSGD(), pct.SlowMo(pct.ADPSGD(), tau=2),
    pct.SlowMo(pct.LocalSGD(), tau=2),
]
models = [torch.nn.Linear(20, 3) for _ in strategies]
opts = [
    pct.DistributedOptimizer(torch.optim.SGD(m.parameters(), lr=0.1), strategy=s, model=m)
    for m, s in zip(models, strategies)
]

def step():
    for model, opt in zip(models, opts):
        opt.zero_grad()
        model(torch.ones(2, 20)).sum().backward()
        opt.step()

step()
step()
step()
"""
QUIET = {"OMP_NUM_THREADS": "1"}


@pytest.mark.parametrize(
    "end",
    [
        "",
        "import gc; del opts; gc.collect()",
        "opts[3].join(); opts[4].close(); models[0](torch.ones(20)).sum().backward()",
    ],
)
def test_a_program_just_ends(run, end):
    """End with all strategies in use, without a join or in the middle of an operation."""
    done = run(ALL_AT_ONCE + end + "\nsay('end')", ranks=2, env=QUIET)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("end") == 2


def test_all_ranks_end_by_an_exception(run, tmp_path):
    end = (
        f"open({str(tmp_path)!r} + f'/{{comm.rank}}', 'w').close()\nraise KeyError('lost its way')"
    )
    done = run(ALL_AT_ONCE + end, ranks=2, env=QUIET)
    assert done.returncode not in (0, -6, 134), done.stderr
    assert any(tmp_path.iterdir()), done.stderr


@pytest.mark.parametrize("how", ["adpsgd", "dpsgd"])
def test_one_rank_ends_by_an_exception(run, how, tmp_path):
    """The other ranks are in a step or in a join. `python -m mpi4py` ends the job."""
    strategies = {"adpsgd": "pct.ADPSGD()", "dpsgd": "pct.DPSGD()"}
    script = f"""
    import torch, partialcoll.torch as pct
    torch.set_num_threads(1)
    pct.init()
    model = torch.nn.Linear(20, 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = pct.DistributedOptimizer(sgd, strategy={strategies[how]})
    for t in range(20):
        opt.zero_grad()
        model(torch.ones(2, 20)).sum().backward()
        if comm.rank == 1 and t == 5:
            from mpi4py.run import set_abort_status
            open({str(tmp_path / "raised")!r}, "w").close()
            try:
                raise KeyError("lost its way")
            except KeyError as error:
                set_abort_status(error)
                raise
        opt.step()
    opt.join()
    say("joined")
    """
    done = run(script, ranks=2, env=QUIET)
    assert done.returncode != 0 and (tmp_path / "raised").exists(), done.stderr
    assert "joined" not in done.stdout


def test_ranks_that_end_at_different_steps(run):
    """These strategies never wait: without a join, ranks may make different numbers of steps."""
    script = """
    import torch, partialcoll.torch as pct
    torch.set_num_threads(1)
    pct.init()
    for strategy in (pct.ADPSGD(), pct.A2CiD2(), pct.Swarm(), pct.SGP()):
        model = torch.nn.Linear(20, 3)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = pct.DistributedOptimizer(sgd, strategy=strategy)
        for t in range(2 + 20 * comm.rank):
            opt.zero_grad()
            model(torch.ones(2, 20)).sum().backward()
            opt.step()
    say("end", opt.round)
    """
    done = run(script, ranks=2, env=QUIET)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["end 2", "end 22"]


@pytest.mark.parametrize("progress", ["agent", "manual"])
def test_below_thread_multiple(run, progress):
    """Without MPI_THREAD_MULTIPLE a communication thread is refused by name, and strategies without
    one work."""
    script = """
    import torch, partialcoll.torch as pct
    torch.set_num_threads(1)
    try:
        pct.init()
    except pc.StateError as error:
        say("refused", error)
        raise SystemExit
    for strategy in (pct.ADPSGD(), pct.A2CiD2(), pct.Swarm(), pct.SGP(), pct.SlowMo(pct.SGP())):
        model = torch.nn.Linear(20, 3)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            pct.DistributedOptimizer(sgd, strategy=strategy)
        except pc.StateError as error:
            say("refused", type(strategy).__name__, error)
    for strategy in (pct.LocalSGD(2), pct.DPSGD(), pct.SlowMo(pct.LocalSGD(2))):
        model = torch.nn.Linear(20, 3)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = pct.DistributedOptimizer(sgd, strategy=strategy)
        for t in range(4):
            opt.zero_grad()
            model(torch.ones(2, 20)).sum().backward()
            opt.step()
        opt.join()
        opt.close()
        say("works")
    """
    done = run(
        script,
        ranks=2,
        before="import mpi4py; mpi4py.rc.thread_level = 'serialized'",
        env={**QUIET, "PARTIALCOLL_PROGRESS": progress},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    refusals = [line for line in done.stdout.splitlines() if line.startswith("refused")]
    assert all("MPI_THREAD_MULTIPLE" in line for line in refusals)
    assert len(refusals) == (2 if progress == "agent" else 10)
    assert done.stdout.count("works") == (0 if progress == "agent" else 6)
