# SPDX-License-Identifier: Apache-2.0
"""Replicas that are sent, saved and loaded: bit for bit, with nothing lost."""

import copy
import io
import logging
import time

import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402
from partialcoll.collectives import state_exchange  # noqa: E402
from partialcoll.decentralized import GlobalSum  # noqa: E402
from partialcoll.torch import checkpoint  # noqa: E402
from partialcoll.torch.loop import average_statistics  # noqa: E402

torch.set_num_threads(1)

pytestmark = [pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "sgd-plain": lambda p: torch.optim.SGD(p, lr=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw-amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}
SCHEDULERS = {
    "none": lambda o: None,
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5),
    "multistep": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 2, 5], 0.5),
    "one-cycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=20),
    "plateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
}


class Model(torch.nn.Module):
    """Every kind of parameter: a view, several shapes and dtypes, memory in another order."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.w = torch.nn.Parameter(torch.randn(40, 60))
        self.scale = torch.nn.Parameter(torch.tensor(1.5))
        self.bf16 = torch.nn.Parameter(torch.randn(4000).bfloat16())
        self.fp64 = torch.nn.Parameter(torch.randn(7, 3, dtype=torch.float64))
        images = torch.randn(8, 4, 16, 16).to(memory_format=torch.channels_last)
        self.images = torch.nn.Parameter(images)

    def loss(self, x):
        """Return some loss that depends on x."""
        parts = ((p.double() * x + 0.1).square().mean() for p in self.parameters())
        return sum(parts)


def bits(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def contents(value):
    """Return everything in a tree, tensors as dtype, shape and bits."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), bits(value))
    if isinstance(value, dict):
        return {key: contents(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [contents(item) for item in value]
    return value


def replica(model, optimizer, scheduler=None):
    return contents(
        [
            dict(model.named_parameters()),
            optimizer.state_dict(),
            scheduler.state_dict() if scheduler else None,
        ]
    )


def train(model, optimizer, scheduler, steps, first=0):
    for t in range(first, first + steps):
        optimizer.zero_grad()
        loss = model.loss(1 + t % 5)
        loss.backward()
        optimizer.step()
        if scheduler is not None:
            plateau = isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)
            scheduler.step(1.0) if plateau else scheduler.step()


def schedulers_of(scheduler):
    return [] if scheduler is None else [scheduler]


def send(state):
    """Pack and unpack a state as the exchange does."""
    return state_exchange.unpack([buffer.copy() for buffer in state_exchange.pack(state)])


# One process: a state as arrays, and back


@pytest.mark.parametrize(
    "kind, schedule",
    [(kind, "none") for kind in OPTIMIZERS]
    + [(kind, schedule) for kind in ("sgd", "adam") for schedule in SCHEDULERS],
)
def test_state_there_and_back(kind, schedule):
    """A state restores a replica that was trained differently, and both continue alike."""
    ways = []
    for seed, steps in ((1, 7), (2, 3)):
        model = Model(seed)
        optimizer = OPTIMIZERS[kind](model.parameters())
        scheduler = SCHEDULERS[schedule](optimizer)
        train(model, optimizer, scheduler, steps)
        ways.append((model, optimizer, scheduler))
    (model, optimizer, scheduler), (other, behind, late) = ways
    held = [p.data_ptr() for p in other.parameters()]
    group, strides = behind.param_groups[0], other.images.stride()
    before = replica(model, optimizer, scheduler)
    named = list(model.named_parameters())
    sent = send(checkpoint.capture(named, optimizer, schedulers_of(scheduler)))
    train(model, optimizer, scheduler, 2, first=7)  # the sent state is a copy
    named = list(other.named_parameters())
    checkpoint.restore(sent, named, behind, schedulers_of(late))
    assert replica(other, behind, late) == before
    assert [p.data_ptr() for p in other.parameters()] == held
    assert behind.param_groups[0] is group and other.images.stride() == strides
    train(other, behind, late, 2, first=7)
    assert replica(other, behind, late) == replica(model, optimizer, scheduler)


def test_large_tensors_are_taken_as_they_are():
    """Large tensors are not copied before the exchange. Small ones are packed together."""
    model = Model()
    optimizer = OPTIMIZERS["adam"](model.parameters())
    train(model, optimizer, None, 1)
    packed = checkpoint.capture(list(model.named_parameters()), optimizer, [])
    for name in ("w", "bf16", "images"):
        _, (array, *_) = packed["parameters"][name].__reduce__()
        assert array.__array_interface__["data"][0] == getattr(model, name).data_ptr()
    large = [b for b in state_exchange.pack(packed)[1:]]
    assert sorted(b.size for b in large) == sorted(3 * [9600, 8000, 32768])


@pytest.mark.parametrize(
    "dtype", ("bfloat16", "float16", "complex64", "bool", "int64", "uint8", "float8_e5m2")
)
def test_tensors_of_every_dtype(dtype):
    dtype = getattr(torch, dtype)
    for shape in ((), (0,), (3,), (70, 90)):
        tensor = torch.randint(0, 2, shape).to(dtype)
        got = send(checkpoint.pack({"x": [tensor, (tensor,)], "y": None}))
        assert got["y"] is None and contents(got["x"]) == contents([tensor, [tensor]])
        assert isinstance(got["x"][1], tuple)


@pytest.mark.parametrize("shape", [(3, 4, 5), (30, 40, 50)])
def test_memory_order_stays(shape):
    whole = torch.randn(shape)
    for tensor in (whole.permute(2, 0, 1), whole[:, ::2], whole[:1].expand(4, *shape[1:])):
        got = send(checkpoint.pack(tensor))
        assert torch.equal(got, tensor)
    assert send(checkpoint.pack(whole.permute(2, 0, 1))).stride() == (
        1,
        *whole.stride()[:2],
    )


class Master(torch.optim.SGD):
    """Keeps a float32 copy of a bfloat16 parameter, as mixed precision does."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                master = self.state[p].setdefault("master", p.detach().float().clone())
                master -= group["lr"] * p.grad.float()
                p.data.copy_(master)


def test_optimizer_state_keeps_its_dtype():
    """torch's load_state_dict would round the state to the dtype of the parameter."""
    p, q = (torch.nn.Parameter(torch.randn(50).bfloat16()) for _ in range(2))
    one, other = Master([p], lr=1e-4), Master([q], lr=1e-4)
    p.grad = torch.randn(50).bfloat16()
    one.step()
    checkpoint.restore(send(checkpoint.capture([("p", p)], one, [])), [("p", q)], other, [])
    assert contents(other.state_dict()) == contents(one.state_dict())
    assert other.state[q]["master"].dtype == torch.float32


def test_state_of_another_model_is_refused():
    model = Model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    named = list(model.named_parameters())
    sent = send(checkpoint.capture(named, optimizer, []))
    with pytest.raises(pc.StateError, match=r"parameters.*'w'"):
        checkpoint.restore(sent, named[1:], optimizer, [])
    with pytest.raises(pc.StateError, match=r"schedulers attached 1, got 0"):
        checkpoint.restore(sent, named, optimizer, [SCHEDULERS["step"](optimizer)])


# Several ranks


@pytest.fixture
def world(comm):
    pct.init(comm)
    yield comm
    pct.shutdown()


class Ledger(torch.nn.Module):
    """Its gradient is the given integer. With SGD of rate 1 and the sum over ranks, the parameters
    are exactly minus the sum of all applied deposits."""

    def __init__(self, size=3000):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(size, dtype=torch.float64))
        self.deposited = 0

    def deposit(self, opt, value):
        self.deposited += value
        opt.zero_grad()
        (self.w * value).sum().backward()
        opt.step()

    def check(self, comm):
        """Check that all deposits of all ranks have been applied once."""
        total = comm.allreduce(self.deposited)
        assert (self.w == -total).all(), (float(self.w[0]), -total)


def wrap(module, optimizer=None, **how):
    """Wrap the module. `opt.seen` records the parameters of each version."""
    optimizer = optimizer or torch.optim.SGD(module.parameters(), lr=1.0)
    how.setdefault("op", pct.Sum)
    opt = pct.DistributedOptimizer(optimizer, module.named_parameters(), check_every=1, **how)
    opt.seen = {}
    opt.rounds_complete = lambda: opt._loop.rounds.handle.stats.rounds
    return opt


def look(model, opt):
    opt.seen[opt.round] = [bits(p) for p in model.parameters()]


def wait_until(condition, limit_s=60.0):
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "the condition was not met in time"
        time.sleep(1e-3)


def same_versions(comm, opt):
    """Check that equal versions have equal bits. Return how many versions were compared."""
    everybody = comm.allgather(opt.seen)
    compared = 0
    for version in set().union(*everybody):
        there = [seen[version] for seen in everybody if version in seen]
        assert all(one == there[0] for one in there), f"version {version}"
        compared += len(there) > 1
    return compared


ALL = dict(deliver="all", history=2)


@pytest.mark.mpi
@pytest.mark.parametrize("quorum", ("solo", "first_of:2"))
def test_far_behind(world, quorum):
    """Rank 0 makes one step per 40 of the others. It takes their state, and none waits for it."""
    if world.size < 2:
        pytest.skip("takes two ranks")
    model, rounds = Ledger(), 150
    opt = wrap(model, strategy=pct.Eager(quorum, **ALL))
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 40, 1.0)
    opt.attach(scheduler, every=3)
    steps = 0
    for t in opt.until(rounds):
        if world.rank == 0:
            # With drawn ranks the others may need this one.
            wait_until(lambda t=t: quorum != "solo" or opt.rounds_complete() >= min(t + 40, rounds))
        steps += 1
        model.deposit(opt, steps % 7 + 1)
        look(model, opt)
    opt.join()
    look(model, opt)
    model.check(world)
    assert same_versions(world, opt) > 0
    assert len(set(world.allgather(opt.round))) == 1
    assert len(set(world.allgather(scheduler.last_epoch))) == 1
    assert scheduler.last_epoch == opt._loop.rounds.updates // 3
    m = opt.metrics()
    assert m.included == m.steps
    if quorum == "solo":
        assert (m.resyncs > 0) == (m.lost > 0) or world.rank > 0
        assert world.rank > 0 or (m.resyncs >= 1 and m.lost >= 30 and steps <= 8)
    opt.close()


@pytest.mark.mpi
def test_all_but_one_far_behind_at_once(world):
    """Rank 0 trains alone and then joins. The others all ask at once, first each other. Then the
    same with another rank ahead, whose state contains more than the rounds."""
    if world.size < 2:
        pytest.skip("takes two ranks")
    model = Model(3)
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
    opt = wrap(model, adam, strategy=pct.Eager("solo", **ALL), op=pct.Average)
    opt.attach(torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=1000))
    for ahead in (0, world.size - 1):
        base = opt.round
        if world.rank == ahead:
            for t in range(40):
                train(model, opt, None, 1, first=t)
                look(model, opt)
        else:
            wait_until(lambda: opt.rounds_complete() >= base + 40)  # noqa: B023
            before = opt.metrics().resyncs
            train(model, opt, None, 1)
            look(model, opt)
            assert opt.metrics().resyncs == before + 1
            assert opt.round >= base + 40
        opt.join()
        look(model, opt)
        assert len({str(one) for one in world.allgather(replica(model, adam))}) == 1
        assert same_versions(world, opt) > 0
    opt.close()


@pytest.mark.mpi
def test_asks_ranks_that_close(world):
    """All other ranks are closing the optimizer. The rank that is behind still gets a state."""
    if world.size < 2:
        pytest.skip("takes two ranks")
    model = Ledger()
    opt = wrap(model, strategy=pct.Eager("solo", **ALL))
    if world.rank == 0:
        wait_until(lambda: opt.rounds_complete() >= 30)
        model.deposit(opt, 1)
        assert opt.metrics().resyncs == 1 and opt.round >= 30
    else:
        for _ in opt.until(30):
            model.deposit(opt, 1)
    opt.close()
    opt.close()


class Tell(logging.Handler):
    """Notify the other ranks of the first warning that rounds were lost."""

    def __init__(self, comm):
        super().__init__(logging.WARNING)
        self.comm, self.said = comm, []

    def emit(self, record):
        if "lost rounds before" not in record.getMessage():
            return  # a warning about a slow round
        if not self.said:
            for peer in range(1, self.comm.size):
                self.comm.send(None, peer)
        self.said.append(record.getMessage())


@pytest.mark.mpi
def test_says_so_while_it_waits_for_a_state(world, monkeypatch):
    """The waiting rank reports it and keeps waiting, because the others are in a long operation."""
    if world.size < 2:
        pytest.skip("takes two ranks")
    monkeypatch.setenv("PARTIALCOLL_STALL_WARN", "0.1")
    model = Ledger()
    opt = wrap(model, strategy=pct.Eager("solo", **ALL))
    if world.rank == 0:
        world.recv(source=1)
        tell = Tell(world)
        logging.getLogger("partialcoll").addHandler(tell)
        model.deposit(opt, 1)
        logging.getLogger("partialcoll").removeHandler(tell)
        assert "without an answer: " in tell.said[0]
        assert opt.metrics().resyncs == 1
    else:
        if world.rank == 1:  # the others have no recent enough state
            for _ in opt.until(30):
                model.deposit(opt, 1)
            world.send(None, 0)
        world.recv(source=0)
    opt.join()
    model.check(world)
    opt.close()


@pytest.mark.mpi
def test_loses_rounds_in_join(world):
    """A rank that is slow to apply rounds during its join has the same state in the end."""
    if world.size < 2:
        pytest.skip("takes two ranks")
    model = Ledger()
    slow = world.rank == 0

    def linger(result):
        if slow:
            wait_until(lambda: opt.rounds_complete() >= 60)

    opt = wrap(model, strategy=pct.Eager("solo", **ALL), on_round=linger)
    if not slow:
        wait_until(lambda: opt.rounds_complete() >= 1)  # rank 0 is in join
        for _ in opt.until(60):
            model.deposit(opt, 3)
    opt.join()
    look(model, opt)
    model.check(world)
    assert same_versions(world, opt) == 1
    assert not slow or (opt.metrics().lost > 0 and opt.metrics().resyncs == 1)
    for _ in range(3):  # and it continues
        model.deposit(opt, 1)
    opt.join()
    model.check(world)
    opt.close()


@pytest.mark.mpi
def test_rounds_that_no_rank_has_applied(world, caplog):
    """Does not happen with a sufficient history. If it did, the ranks would become equal."""
    if world.size < 2:
        pytest.skip("takes two ranks")
    model = Ledger()
    opt = wrap(model, strategy=pct.Eager("solo", deliver="all"))
    opt.join()
    opt._loop.rounds._first += 5  # as if five rounds had been missed
    with torch.no_grad():
        model.w += world.rank
    opt._loop.rounds.version -= world.rank  # and the others had missed more
    opt.join()
    look(model, opt)
    assert same_versions(world, opt) == 1 and (model.w == 0).all()
    assert "were lost on all ranks" in caplog.text
    opt.close()


@pytest.mark.mpi
def test_history_has_room_for_joins(world):
    opt = wrap(Ledger(), strategy=pct.Eager("solo", **ALL))
    one = wrap(Ledger(), strategy=pct.Eager("solo", history=2))
    assert world.size == 1 or opt._loop.rounds.handle.memory > one._loop.rounds.handle.memory
    opt.close()
    one.close()


@pytest.mark.mpi
@pytest.mark.parametrize("deliver", ("one", "all"))
@pytest.mark.parametrize("quorum", ("solo", "majority", "full"))
def test_join_with_uneven_data(world, quorum, deliver):
    """In each of two epochs, rank r has 5 r + 3 batches."""
    model = Ledger()
    opt = wrap(model, strategy=pct.Eager(quorum, deliver=deliver, history=3))
    for _ in range(2):
        for t in range(5 * world.rank + 3):
            model.deposit(opt, t + 1)
            look(model, opt)
        opt.join()
        look(model, opt)
        assert len(set(world.allgather(opt.round))) == 1
        assert same_versions(world, opt) > 0 or world.size == 1
        model.check(world)
        assert opt.metrics().included == opt.metrics().steps
    opt.close()


class Normalized(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(3, 4)
        self.b = torch.nn.BatchNorm1d(4)
        self.c = torch.nn.BatchNorm1d(4, track_running_stats=False)
        self.register_buffer("mine", torch.zeros(2))

    def forward(self, x):
        return self.c(self.b(self.a(x)))


@pytest.mark.mpi
def test_join_averages_batch_normalization(world):
    """Means of the ranks' statistics, and the largest count. Other buffers stay as they are."""
    torch.manual_seed(1)
    model = Normalized()
    model.mine += world.rank
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = wrap(model, sgd, strategy=pct.Eager("solo"), model=model, op=pct.Average)
    for t in range(world.rank + 1):
        opt.zero_grad()
        model(torch.randn(8, 3) + world.rank + t).square().mean().backward()
        opt.step()
    own = model.b.running_mean.clone().double(), model.b.running_var.clone().double()
    everybody = world.allgather(own)
    opt.join()
    for i, name in enumerate(("running_mean", "running_var")):
        mean = sum(one[i] for one in everybody) / world.size
        assert torch.equal(getattr(model.b, name), mean.float())
        assert len(set(world.allgather(bits(getattr(model.b, name))))) == 1
    assert model.b.num_batches_tracked == world.size
    assert (model.mine == world.rank).all()
    opt.close()


@pytest.mark.mpi
def test_batch_normalization_that_differs(world):
    model = torch.nn.BatchNorm1d(3 + (world.rank > 0))
    total = GlobalSum.over(world)
    if world.size == 1:
        average_statistics(world, total, model)
    else:
        with pytest.raises(pc.MismatchError, match=r"running_mean.*shape \(4,\)"):
            average_statistics(world, total, model)
    total.Free()


# Checkpoints


def written(opt, extra=None):
    """Write to a file and read it as torch does by default: plain types only."""
    file = io.BytesIO()
    torch.save({"opt": opt.state_dict(), **(extra or {})}, file)
    file.seek(0)
    return torch.load(file)


def all_late_but_rank_0(comm, model, opt, steps):
    """Only rank 0 is in time: the other ranks' deposits are added to the next round."""
    for t in range(steps):
        if comm.rank == 0:
            model.deposit(opt, t + 1)
        comm.Barrier()
        if comm.rank > 0:
            model.deposit(opt, 10 * comm.rank + t + 1)
        comm.Barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("strategy", ("solo", "full"))
def test_pending_deposits_are_saved(world, strategy):
    """5 steps, a checkpoint, and another optimizer instead: nothing is lost or applied twice, also
    if the state is saved again before the first step."""
    model = Ledger()
    opt = wrap(model, strategy=pct.Eager("solo", history=20))
    all_late_but_rank_0(world, model, opt, 5)
    pending = opt.state_dict()["partialcoll"]["pending"]
    assert (pending is None) == (world.rank == 0)
    if pending is not None:
        assert (pending["float64"] == 10 * world.rank + 5).all()
    saved = written(opt, {"model": model.state_dict()})
    opt.close()

    for again in range(2):
        other = Ledger()
        other.load_state_dict(saved["model"])
        opt = wrap(other, strategy=pct.Eager(strategy))
        opt.load_state_dict(saved["opt"])
        assert opt.round == 5
        if not again:
            saved = written(opt, {"model": other.state_dict()})
            opt.close()
    other.deposited = model.deposited
    for t in range(3):
        other.deposit(opt, t + 1)
    assert opt.round == 8
    opt.join()
    other.check(world)
    opt.close()


@pytest.mark.mpi
def test_checkpoint_goes_back(world):
    """A checkpoint loaded into a further trained optimizer gives the same state and steps."""
    model = Model(5)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    opt = wrap(model, adam, strategy=pct.Eager("full"), op=pct.Average)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)
    opt.attach(scheduler, every=2)
    train(model, opt, None, 7)
    before, version = replica(model, adam, scheduler), opt.round
    saved = written(opt, {"model": model.state_dict()})
    train(model, opt, None, 6)
    after = replica(model, adam, scheduler)
    opt.join()
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    assert replica(model, adam, scheduler) == before and opt.round == version
    train(model, opt, None, 6)
    assert replica(model, adam, scheduler) == after and opt.round == version + 6
    opt.close()


@pytest.mark.mpi
def test_one_rank_loads_and_broadcasts(world):
    """Resume like Horovod's scripts: then the others are at its round, with its schedulers."""
    model = Model(5)
    adam = torch.optim.Adam(model.parameters(), lr=0.01)
    opt = wrap(model, adam, strategy=pct.Eager("full"), op=pct.Average)
    opt.attach(torch.optim.lr_scheduler.StepLR(opt, 3, 0.5), every=2)
    train(model, opt, None, 7)
    saved = written(opt, {"model": model.state_dict()})
    train(model, opt, None, 4)
    after = replica(model, adam)
    opt.close()

    model = Model(6 + world.rank)
    adam = torch.optim.Adam(model.parameters(), lr=0.3)
    opt = wrap(model, adam, strategy=pct.Eager("full"), op=pct.Average)
    opt.attach(torch.optim.lr_scheduler.StepLR(opt, 3, 0.5), every=2)
    if world.rank == 0:
        model.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
    pct.broadcast_parameters(model.state_dict(), root_rank=0)
    pct.broadcast_optimizer_state(opt, root_rank=0)
    assert opt.round == 7
    train(model, opt, None, 4)
    assert replica(model, adam) == after
    opt.close()


class Parts(torch.nn.Module):
    """Parameters of which a loss uses some."""

    def __init__(self):
        super().__init__()
        self.common = torch.nn.Parameter(torch.ones(5))
        self.odd = torch.nn.Parameter(torch.ones(5))
        self.never = torch.nn.Parameter(torch.ones(5))

    def loss(self, odd):
        return (self.common * 2).sum() + ((self.odd * 3).sum() if odd else 0)


@pytest.mark.mpi
@pytest.mark.parametrize("zeros", (False, True))
@pytest.mark.parametrize(
    "strategy",
    (
        pct.Allreduce(),
        pct.Allreduce(overlap=True, bucket_bytes=64),
        pct.Eager("solo"),
        pct.Eager("majority", deliver="all"),
        pct.DPSGD("ring"),
    ),
    ids=("allreduce", "overlap", "solo", "all", "local"),
)
def test_unused_parameters(world, strategy, zeros):
    """Weight decay skips unused parameters, unless zeros=True. A parameter that only the last rank
    uses is updated in the rounds with its gradient, however late, and is the same on all ranks."""
    model = Parts()
    opt = pct.DistributedOptimizer(
        torch.optim.AdamW(model.parameters(), 0.01, weight_decay=0.5),
        model.named_parameters(),
        strategy=strategy,
        unused_as_zeros=zeros,
        backward_passes_per_step=2,
        check_every=1,
    )
    uses = world.rank == world.size - 1
    local = isinstance(strategy, pct.LocalStrategy)
    for step in range(4):
        opt.zero_grad()
        for k in range(2):
            model.loss(uses and step == 1 and k == 1).backward()
        rounds = opt.metrics().rounds
        opt.step()
        updated = local or opt.metrics().rounds > rounds  # deliver="all" may return no round
        if not zeros and updated:
            assert model.never.grad is None
    opt.join()
    assert (model.never == 1).all() == (not zeros)
    if not zeros and not local:
        assert opt.state[model.odd]["step"] == 1
    if not local:
        assert len(set(world.allgather(bits(model.odd)))) == 1
    opt.close()


@pytest.mark.mpi
def test_a_gradient_that_is_written_without_backward(world):
    """A gradient without backward counts where it is not zero. After synchronize() the average of
    others is None. A gradient from a checkpoint counts as well."""
    model = Parts()
    opt = pct.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), 1.0, weight_decay=0.5), model.named_parameters()
    )
    opt.zero_grad()
    model.loss(False).backward()
    if world.rank == 0:
        model.odd.grad.add_(1.0)
    opt.synchronize()
    assert model.never.grad is None and model.odd.grad is not None
    with opt.skip_synchronize():
        opt.step()
    assert (model.never == 1).all() and (model.odd < 1).all()
    state = opt.state_dict()
    pending = torch.zeros_like(opt._loop.gradients.slot.flats[0])
    opt._loop.rounds.plain.part([pending], 1).fill_(1.0)
    state["partialcoll"]["pending"] = {"float32": pending}
    opt.load_state_dict(state)
    opt.zero_grad()
    model.loss(False).backward()
    before = model.odd.detach().clone()
    opt.step()
    assert (model.never == 1).all() and (model.odd != before).all()
    opt.close()


class Around(torch.optim.Optimizer):
    """A wrapper of an optimizer that shares its state, like Lookahead."""

    def __init__(self, parameters):
        self.base = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        super().__init__(self.base.param_groups, {})
        self.param_groups = self.base.param_groups

    def step(self, closure=None):
        return self.base.step(closure)

    def state_dict(self):
        return self.base.state_dict()

    def load_state_dict(self, state):
        self.base.load_state_dict(state)
        self.param_groups = self.base.param_groups


class Forgetful(Around):
    """A wrapper that keeps the groups with which it was created."""

    def load_state_dict(self, state):
        self.base.load_state_dict(state)


class Sharpness(Around):
    """A wrapper with its own state, like SAM."""

    state_dict = torch.optim.Optimizer.state_dict

    def load_state_dict(self, state):
        torch.optim.Optimizer.load_state_dict(self, state)
        self.base.param_groups = self.param_groups


class Forwarding(Around):
    """A wrapper that forwards all to the inner optimizer without setters, like schedule-free's."""

    param_groups = property(lambda self: self.base.param_groups)
    state = property(lambda self: self.base.state)

    def __init__(self, parameters):
        self.base = torch.optim.SGD(parameters, 0.1, momentum=0.9)
        self._optimizer_step_pre_hooks = self._optimizer_step_post_hooks = {}

    def load_state_dict(self, state):
        self.base.load_state_dict(state)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", (Around, Forgetful, Sharpness, Forwarding))
@pytest.mark.parametrize("how", ("load", "broadcast"))
def test_an_optimizer_around_another_one(world, kind, how):
    """After loading, both optimizers share their original groups: a learning rate that is set later
    has an effect."""
    model = torch.nn.Linear(4, 2).bfloat16()
    opt = pct.DistributedOptimizer(kind(model.parameters()), model.named_parameters())
    pct.broadcast_parameters(model.state_dict())
    held = opt.param_groups[0]

    def step():
        opt.zero_grad()
        model(torch.ones(1, 4).bfloat16()).sum().backward()
        opt.step()

    step()
    if how == "load":
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    else:
        held["lr"] = 1.0 + world.rank
        pct.broadcast_optimizer_state(opt, root_rank=world.size - 1)
        assert held["lr"] == world.size
    assert opt.param_groups[0] is held and opt.base.param_groups[0] is held
    held["lr"] = 0.0
    before = bits(model.weight)
    step()
    assert bits(model.weight) == before
    opt.close()


@pytest.mark.mpi
def test_one_rank_saves_for_all(world):
    """If nothing is pending, one rank can save for all, as trainers do, also for other ranks."""
    for strategy in (pct.Allreduce(), pct.Eager("solo")):
        model = Model(5)
        opt = wrap(model, torch.optim.Adam(model.parameters(), lr=0.01), strategy=strategy)
        train(model, opt, None, 3)
        alone = isinstance(strategy, pct.Allreduce)
        assert opt.state_dict()["partialcoll"]["shared"] is alone
        opt.join()
        version = opt.round
        saved = world.bcast(written(opt, {"model": model.state_dict()}))
        opt.close()
        for ranks in (world.size, 2 * world.size + 1):
            saved["opt"]["partialcoll"]["size"] = ranks
            other = Model(1)
            other.load_state_dict(saved["model"])
            opt = wrap(other, torch.optim.Adam(other.parameters()), strategy=strategy)
            opt.load_state_dict(saved["opt"])
            assert contents(list(other.parameters())) == contents(list(model.parameters()))
            assert contents(opt.state_dict()["state"]) == contents(saved["opt"]["state"])
            assert opt.round == version
            assert not opt.state_dict()["partialcoll"]["shared"]  # others may load more
            train(other, opt, None, 2)
            opt.close()


@pytest.mark.mpi
def test_a_checkpoint_without_rounds(world):
    """A plain optimizer's state loads into a wrapped one, and the other way round."""
    model, other = Model(1), Model(2)
    plain = torch.optim.Adam(model.parameters())
    train(model, plain, None, 3)
    adam = torch.optim.Adam(other.parameters())
    opt = wrap(other, adam, op=pct.Average)
    opt.load_state_dict(plain.state_dict())
    assert contents(adam.state_dict()) == contents(plain.state_dict()) and opt.round == 0
    train(other, opt, None, 2)
    plain.load_state_dict(opt.state_dict())
    assert contents(plain.state_dict()) == contents(adam.state_dict())
    opt.close()


@pytest.mark.mpi
def test_checkpoints_that_are_refused(world):
    """Each error names the expected and the actual value. Nothing has changed."""
    model = Ledger()
    opt = wrap(model, strategy=pct.Eager("solo"))
    model.deposit(opt, 1)
    opt.join()
    good, version = opt.state_dict(), opt.round

    def refused(error, match, **changes):
        entry = {**good["partialcoll"], "shared": False, **changes}
        with pytest.raises(error, match=match):
            opt.load_state_dict({**good, "partialcoll": entry})
        assert opt.round == version and opt.param_groups[0]["lr"] == 1.0

    P, r = world.size, world.rank
    refused(
        ValueError, rf"of rank {r} of {P + 1} ranks, expected one of rank {r} of {P}", size=P + 1
    )
    refused(ValueError, rf"of rank {r + 1} of {P} ranks, expected one of rank {r} of", rank=r + 1)
    refused(ValueError, r"state of 1 attached schedulers, 0 are attached", schedulers=[{}])
    pending = {"float32": torch.zeros(3)}
    refused(ValueError, r"orders of memory", pending=pending, layout="another")
    with pytest.raises(ValueError, match="none that state_dict"):
        opt.load_state_dict({**good, "partialcoll": {"size": 3}})
    with pytest.raises(ValueError, match="parameter groups"):
        opt.load_state_dict({**good, "param_groups": []})
    (model.w * 1).sum().backward()
    with pytest.raises(pc.StateError, match="between backward"):
        opt.load_state_dict(good)
    opt.step()
    with pytest.raises(pc.StateError, match="between rounds"):
        opt.load_state_dict(good)
    opt.join()
    opt.load_state_dict(good)
    opt.close()


@pytest.mark.mpi
def test_checkpoints_of_different_steps(world):
    """One rank's checkpoint is older, for instance because its last write failed."""
    model = Model(5)
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    train(model, opt, None, 2)
    older = copy.deepcopy(opt.state_dict())
    train(model, opt, None, 1)
    newer = copy.deepcopy(opt.state_dict())
    opt.close()
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1))
    opt.load_state_dict(older if world.rank == 0 else newer)
    if world.size == 1:
        train(model, opt, None, 1)
    else:
        with pytest.raises(pc.MismatchError, match=r"2 on rank 0, 3 on ranks? 1.*same step"):
            train(model, opt, None, 1)
    opt.close()


@pytest.mark.mpi
def test_checkpoint_of_ranks_at_different_rounds(world):
    """With deliver="all" a checkpoint exists only after a join, when nothing is pending."""
    model = Ledger()
    opt = wrap(model, strategy=pct.Eager("solo", **ALL))
    model.deposit(opt, 1)
    if world.size > 1:
        with pytest.raises(pc.StateError, match=r"save right after join"):
            opt.state_dict()
    opt.join()
    saved = written(opt, {"model": model.state_dict()})
    assert saved["opt"]["partialcoll"]["pending"] is None
    opt.close()
    other = Ledger()
    other.load_state_dict(saved["model"])
    opt = wrap(other, strategy=pct.Eager("solo", **ALL))
    opt.load_state_dict(saved["opt"])
    other.deposited = model.deposited
    for t in opt.until(opt.round + 5):
        other.deposit(opt, t)
    opt.join()
    other.check(world)
    opt.close()


@pytest.mark.mpi
def test_no_checkpoint_between_synchronize_and_step(world):
    model = Ledger()
    opt = wrap(model)
    (model.w * 1).sum().backward()
    opt.synchronize()
    with pytest.raises(pc.StateError, match="synchronize"):
        opt.state_dict()
    with pytest.raises(pc.StateError, match="call step"):
        opt.load_state_dict({})
    with opt.skip_synchronize():
        opt.step()
    assert opt.state_dict()["partialcoll"]["version"] == 1
    opt.close()


# Trains a small network from version A to B. Ranks other than 0 are sometimes late.
TRAINING = """
import hashlib, torch
import partialcoll.torch as pct
torch.set_num_threads(1)
kind, first, last, save, load, seed = sys.argv[1:]
first, last = int(first), int(last)
pct.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(6, 50), torch.nn.Tanh(), torch.nn.Linear(50, 1))
adam = torch.optim.AdamW(model.parameters(), lr=0.01, amsgrad=True)
strategy = {
    "allreduce": pct.Allreduce(clip_norm=1.0),
    "full": pct.Eager("full"),
    "solo": pct.Eager("solo"),
}[kind]
opt = pct.DistributedOptimizer(adam, model.named_parameters(), strategy=strategy)
opt.attach(torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=200))
file = lambda name: f"{name}-{comm.rank}.pt"
if load != "-":
    saved = torch.load(file(load))
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    assert saved["step"] == first
late = np.random.default_rng([int(seed), comm.rank])
complete = lambda: opt._loop.rounds.handle.stats.rounds
for t in range(first, last):
    if late.random() < 0.6:
        time.sleep(late.random() * 3e-3)
    while kind == "solo" and t == last - 1 and comm.rank and complete() == t - first:
        time.sleep(1e-3)  # this deposit comes late
    data = torch.from_numpy(np.random.default_rng([t, comm.rank]).standard_normal((8, 7)))
    x, y = data[:, :6].float(), data[:, 6:].float()
    opt.zero_grad()
    (model(x) - y).square().mean().backward()
    opt.step()
pending = opt.state_dict()["partialcoll"]["pending"] is not None
if save != "-":
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": last}, file(save))
tensors = [*model.parameters(), *(v for s in opt.state.values() for v in s.values())]
digest = hashlib.sha256(b"".join(t.detach().numpy().tobytes() for t in tensors)).hexdigest()
say(comm.rank, opt.round, opt.param_groups[0]["lr"], digest, pending)
opt.close()
pct.shutdown()
"""
RANKS = 2


@pytest.fixture
def training(run):
    """Run the training. Return what the ranks print, in order."""

    def start(kind, first, last, save="-", load="-", seed=1, **env):
        words = [kind, str(first), str(last), save, load, str(seed)]
        done = run(TRAINING, RANKS, arguments=words, env={"OMP_NUM_THREADS": "1", **env})
        assert done.returncode == 0, done.stdout + done.stderr
        return sorted(done.stdout.splitlines())

    return start


@pytest.mark.in_turns
@pytest.mark.parametrize("kind", ("allreduce", "full"))
def test_resume_is_bitwise(training, kind):
    """10 steps give the same bits as 5, a checkpoint, a new process, and 5."""
    whole = training(kind, 0, 10)
    training(kind, 0, 5, save="half", seed=2)
    rest = training(kind, 5, 10, load="half", seed=3)
    assert rest == whole and len(rest) == RANKS
    assert len({line.split()[3] for line in rest}) == 1


@pytest.mark.in_turns
def test_resume_is_bitwise_under_recorded_arrivals(training, tmp_path):
    """Two consecutive processes are recorded, and replayed with other delays: the same bits,
    including the pending deposit."""
    ways = []
    for way, seed in (("RECORD", 1), ("REPLAY", 5)):
        halves = [{f"PARTIALCOLL_{way}": str(tmp_path / name)} for name in ("a", "b")]
        first = training("solo", 0, 12, save=way, seed=seed, **halves[0])
        rest = training("solo", 12, 24, load=way, seed=seed + 1, **halves[1])
        ways.append([first, rest])
    assert ways[0] == ways[1]
    assert [line.split()[-1] for line in ways[0][0]] == ["False", "True"]


def test_program_ends_without_join(run):
    """A rank that is behind gets its state from a rank whose program has ended."""
    script = """
    import torch, partialcoll.torch as pct
    torch.set_num_threads(1)
    pct.init()
    w = torch.nn.Parameter(torch.zeros(10))
    how = pct.Eager("solo", deliver="all")
    opt = pct.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), strategy=how)
    complete = lambda: opt._loop.rounds.handle.stats.rounds
    while comm.rank == 0 and complete() < 50:
        time.sleep(1e-3)
    for _ in opt.until(50):
        w.sum().backward()
        opt.step()
        opt.zero_grad()
    say(comm.rank, opt.round >= 50, opt.metrics().resyncs)
    """
    done = run(script, RANKS, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 True 1", "1 True 0"]


def test_program_that_an_exception_ends(run, tmp_path):
    """The program does not wait for other ranks: `python -m mpi4py` can abort the job."""
    script = """
    import torch, partialcoll.torch as pct
    pct.init()
    w = torch.nn.Parameter(torch.zeros(10))
    how = pct.Eager("solo", deliver="all")
    opt = pct.DistributedOptimizer(torch.optim.SGD([w], lr=1.0), strategy=how)
    if comm.rank == 1:
        from mpi4py.run import set_abort_status
        open("RAISED", "w").close()
        try:
            raise KeyError("lost its way")
        except KeyError as error:
            set_abort_status(error)
            raise
    opt.join()
    """
    raised = tmp_path / "raised"
    done = run(script.replace("RAISED", str(raised)), RANKS, env={"OMP_NUM_THREADS": "1"})
    assert done.returncode != 0 and raised.exists(), done.stderr
