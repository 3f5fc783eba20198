# SPDX-License-Identifier: Apache-2.0
"""Decentralized strategies of DistributedOptimizer: guarantees of a step and a join with each."""

import time

import numpy as np
import pytest
from mpi4py import MPI

torch = pytest.importorskip("torch")

from strategies import (  # noqa: E402
    CONSERVING,
    LOCK_STEP,
    OPTIMIZERS,
    STRATEGIES,
    WAIT_FREE,
    Ledger,
    as_plain,
    bits,
    loss,
    mean_of,
    network,
    patient,
    same_everywhere,
    train,
    vector,
    without_slow_momentum,
    wrap,
)

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]
every_strategy = pytest.mark.parametrize("name", STRATEGIES)


@pytest.fixture(autouse=True)
def world(comm):
    torch.set_num_threads(1)
    pct.init()


@pytest.fixture
def alone():
    """Each rank has its own world."""
    pct.shutdown()
    pct.init(MPI.COMM_SELF)
    yield
    pct.shutdown()


# One rank


@pytest.mark.parametrize(
    "name, make",
    [(name, "sgd") for name in STRATEGIES]
    + [(name, make) for name in ("adpsgd", "dpsgd", "localsgd") for make in OPTIMIZERS],
)
def test_one_rank_alone_is_plain_torch(alone, name, make):
    """One rank alone equals plain torch, bit for bit. SlowMo without momentum still divides and
    multiplies by the learning rate."""
    model, plain = network(), network()
    strategy = without_slow_momentum(STRATEGIES[name])
    opt = wrap(model, make, strategy=strategy)
    reference = OPTIMIZERS[make](plain.parameters())
    for step in range(9):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            loss(m, 0, step).backward()
            o.step()
        assert as_plain(name, model, plain), step
    opt.join()
    assert as_plain(name, model, plain) and opt.metrics().steps == 9
    assert opt.consensus_distance() == 0.0
    opt.close()
    assert as_plain(name, model, plain)


@every_strategy
def test_grad_scaler_of_one_rank(alone, name):
    models = [network(), network()]
    strategy = without_slow_momentum(STRATEGIES[name])
    for i, model in enumerate(models):
        opt = OPTIMIZERS["sgd"](model.parameters())
        opt = wrap(model, opt, strategy=strategy) if i else opt
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
        for step in range(10):
            opt.zero_grad()
            scaler.scale(loss(model, 0, step)).backward()
            if step == 4:
                model[0].weight.grad.fill_(float("inf"))
            scaler.step(opt)
            scaler.update()
        assert scaler.get_scale() == 2.0**11
    assert as_plain(name, *models)
    assert opt.metrics().skipped == 1
    opt.close()


@pytest.mark.parametrize("where", ["strategy", "optimizer"])
@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "localsgd", "slowmo"])
def test_clipping_is_of_the_local_gradient(alone, name, where):
    model, plain = network(), network()
    how, options = {"clip_norm": 0.1}, {}
    if where == "optimizer":
        how, options = options, how
    strategy = {
        "adpsgd": lambda: pct.ADPSGD(**how),
        "dpsgd": lambda: pct.DPSGD(**how),
        "localsgd": lambda: pct.LocalSGD(**how),
        "slowmo": lambda: pct.SlowMo(pct.LocalSGD(**how), beta=0.0),
    }[name]()
    opt = wrap(model, strategy=strategy, **options)
    reference = OPTIMIZERS["sgd"](plain.parameters())
    for step in range(5):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            loss(m, 0, step).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
        opt.step()
        reference.step()
    for a, b in zip(model.parameters(), plain.parameters()):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)
    opt.close()


# Averages


@every_strategy
def test_first_models_become_their_average(comm, name):
    model = network(seed=comm.rank)
    mean = mean_of(comm, vector(model))
    opt = wrap(model, strategy=STRATEGIES[name])
    assert same_everywhere(comm, model)
    assert np.array_equal(vector(model), mean.astype(np.float32).astype(np.float64))
    assert opt.consensus_distance() == 0.0
    opt.close()


@every_strategy
def test_after_join_all_ranks_are_the_same(comm, name):
    model = network(seed=comm.rank)
    opt = wrap(model, "adamw-foreach", strategy=STRATEGIES[name], clip_norm=1.0)
    for epoch in range(2):
        train(model, opt, comm.rank, 8, delay=3e-3)
        opt.join()
        assert opt.metrics().steps == 8 * (epoch + 1)
        assert same_everywhere(comm, model)
        assert opt.consensus_distance() == 0.0
    opt.close()


@pytest.mark.parametrize(
    "name, make",
    [(name, "sgd") for name in CONSERVING] + [(name, "adam") for name in ("adpsgd", "a2cid2")],
)
def test_conservation(comm, name, make):
    """Whatever the delays and the optimizer, the average changes by the ranks' own updates."""
    model = network(seed=comm.rank).double()
    opt = wrap(model, make, strategy=STRATEGIES[name], model=model)
    ledger = Ledger(model, opt)
    train(model, opt, comm.rank, 12, delay=4e-3)
    whole = opt.averaged_model()
    np.testing.assert_allclose(vector(whole), ledger.expected(comm), rtol=0, atol=1e-11)
    train(model, opt, comm.rank, 5, delay=4e-3)
    opt.join()
    np.testing.assert_allclose(vector(model), ledger.expected(comm), rtol=0, atol=1e-11)
    assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize(
    "name, make",
    [(name, "adam") for name in CONSERVING]
    + [(name, make) for name in ("swarm", "dpsgd") for make in ("sgd-plain", "adamw-foreach")],
)
def test_identical_gradients_are_as_one_rank(comm, name, make):
    """Gradients depend only on the step."""
    model, plain = network(), network()
    makes = {
        "sgd-plain": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
        "adam": OPTIMIZERS["adam"],
        "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0, foreach=True),
    }
    opt = wrap(model, makes[make](model.parameters()), strategy=STRATEGIES[name])
    reference = makes[make](plain.parameters())
    for step in range(10):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            sum((p * np.cos(step + 1.0)).sum() for p in m.parameters()).backward()
            o.step()
    opt.join()
    np.testing.assert_allclose(vector(model), vector(plain), rtol=0, atol=1e-5)
    opt.close()


@pytest.mark.parametrize("make", ["sgd", "adamw-fused"])
@pytest.mark.parametrize("name", ["dpsgd", "localsgd", "slowmo", "moshpit"])
def test_identical_data_in_lock_step_is_as_one_rank(comm, name, make):
    """The models are equal after every step, with weight decay."""
    strategy = without_slow_momentum(patient(STRATEGIES[name], comm.size))
    model, plain = network(), network()
    opt = wrap(model, make, strategy=strategy)
    reference = OPTIMIZERS[make](plain.parameters())
    for step in range(8):
        for m, o in ((model, opt), (plain, reference)):
            o.zero_grad()
            loss(m, 0, step).backward()
            o.step()
        np.testing.assert_allclose(vector(model), vector(plain), rtol=0, atol=1e-5)
    opt.close()


@every_strategy
def test_it_learns(comm, name):
    """Rank r pulls towards r + 1. The ranks agree on a value near the mean of these."""
    model = torch.nn.Linear(7, 1, bias=False)
    opt = wrap(model, torch.optim.SGD(model.parameters(), lr=0.02), strategy=STRATEGIES[name])
    middle = (comm.size + 1) / 2

    def away():
        return float((model.weight.detach() - middle).abs().max())

    # The fastest rank alone would end half of the ranks away.
    enough = 0.2 * away() + 0.25 * comm.size
    epochs = 0
    # Sixty steps are so quick that ranks may run one after the other before anything is averaged.
    # Strategies that never wait may then need more steps; all others converge at once.
    while away() >= enough and epochs < (20 if name in WAIT_FREE else 1):
        for _ in range(60):
            opt.zero_grad()
            (model.weight - (comm.rank + 1.0)).square().sum().backward()
            opt.step()
        opt.join()
        epochs += 1
    assert epochs and away() < enough
    opt.close()


def test_variant_registers(comm):
    """The paper's Algorithm 1, taken literally, loses updates. It must still end and agree."""
    model = network()
    opt = wrap(model, strategy=pct.Swarm(local_steps=2, variant="registers", geometric=True))
    train(model, opt, comm.rank, 10, delay=2e-3)
    opt.join()
    assert same_everywhere(comm, model) and np.isfinite(vector(model)).all()
    opt.close()


@every_strategy
def test_consensus_distance(comm, name):
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=STRATEGIES[name])
    train(model, opt, comm.rank, 5)
    own = np.stack(comm.allgather(vector(model)))
    expected = np.sqrt(np.square(own - own.mean(0)).sum(1).mean())
    before = bits(model)
    assert opt.consensus_distance() == pytest.approx(expected, rel=1e-6, abs=1e-12)
    assert bits(model) == before
    opt.join()
    opt.close()


@pytest.mark.parametrize("strategy", [pct.Allreduce(), pct.Eager("solo")])
def test_consensus_distance_of_replicas(comm, strategy):
    model = network()
    opt = wrap(model, strategy=strategy)
    train(model, opt, comm.rank, 5)
    opt.join()
    assert opt.consensus_distance() == 0.0
    opt.close()


class Normalized(torch.nn.Module):
    """Buffers of every kind: statistics, a count, none, and one that is not averaged."""

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.a = torch.nn.Linear(3, 4)
        self.b = torch.nn.BatchNorm1d(4)
        self.c = torch.nn.BatchNorm1d(4, track_running_stats=False)
        self.register_buffer("mine", torch.zeros(2) + seed)

    def forward(self, x):
        return self.c(self.b(self.a(x)))


@pytest.mark.parametrize("name", [*STRATEGIES, "allreduce", "solo"])
def test_averaged_model(comm, name):
    """Parameters and BatchNorm's buffers are averaged. The model itself continues unchanged."""
    strategy = {"allreduce": pct.Allreduce(), "solo": pct.Eager("solo"), **STRATEGIES}[name]
    replicas = name in ("allreduce", "solo")
    model = Normalized(0 if replicas else comm.rank)
    opt = wrap(model, strategy=strategy, model=model)
    ledger = Ledger(model, opt)

    def batches(steps):
        for step in range(steps):
            opt.zero_grad()
            torch.manual_seed(100 * comm.rank + step)
            (model(torch.randn(8, 3) + comm.rank).square() * torch.randn(8, 4)).mean().backward()
            opt.step()

    batches(4 + comm.rank % 2 * (name in WAIT_FREE))
    own = {key: value.clone() for key, value in model.state_dict().items()}
    everybody = comm.allgather(own)
    whole = opt.averaged_model()
    if name in ("swarm", "swarm-8bit", "moshpit-overlap"):  # data in flight is included
        own = {key: value.clone() for key, value in model.state_dict().items()}
    assert all(torch.equal(own[key], value) for key, value in model.state_dict().items())
    got = whole.state_dict()
    for key in ("b.running_mean", "b.running_var"):
        mean = sum(one[key].double() for one in everybody) / comm.size
        torch.testing.assert_close(got[key].double(), mean, rtol=0, atol=1e-6)
    assert got["b.num_batches_tracked"] == max(one["b.num_batches_tracked"] for one in everybody)
    assert (got["mine"] == own["mine"]).all()
    if name in CONSERVING:
        np.testing.assert_allclose(vector(whole), ledger.expected(comm), rtol=0, atol=1e-5)
    if name in ("dpsgd", "localsgd", "slowmo", "moshpit", "allreduce"):
        names = [key for key, _ in model.named_parameters()]
        mean = sum(
            np.concatenate([one[key].double().numpy().ravel() for key in names])
            for one in everybody
        )
        np.testing.assert_allclose(vector(whole), mean / comm.size, rtol=0, atol=1e-6)
    assert same_everywhere(comm, whole)
    # The result is a separate model: its use affects neither model nor optimizer.
    whole.train()(torch.randn(8, 3)).sum().backward()
    with torch.no_grad():
        for parameter in whole.parameters():
            parameter.fill_(7.0)
    assert all(torch.equal(own[key], value) for key, value in model.state_dict().items())
    batches(2)
    opt.join()
    assert same_everywhere(comm, model)
    assert len(set(comm.allgather(model.b.running_mean.numpy().tobytes()))) == 1
    opt.close()


def test_averaged_model_takes_a_model(comm):
    for strategy in (pct.Allreduce(), pct.ADPSGD()):
        model = network()
        opt = wrap(model, strategy=strategy)
        with pytest.raises((pc.StateError, ValueError), match="model="):
            opt.averaged_model()
        opt.close()


# By hand

N, LR, MOMENTUM, DECAY = 5, 0.05, 0.9, 0.02


def slope(rank, step, x):
    return (1 + 0.1 * rank) * x + np.cos(np.arange(N) * (rank + 1) + step)


class Quadratic(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(N, dtype=torch.float64))

    def loss(self, rank, step):
        constant = torch.from_numpy(slope(rank, step, np.zeros(N)))
        return (0.5 * (1 + 0.1 * rank) * self.w.square() + constant * self.w).sum()


def by_hand(size, steps, mix):
    """Run momentum SGD on all ranks; mix(step, models, updates) returns the next models."""
    x, v, seen = np.zeros((size, N)), np.zeros((size, N)), []
    for step in range(steps):
        gradients = np.stack([slope(rank, step, x[rank]) for rank in range(size)]) + DECAY * x
        v = gradients if step == 0 else MOMENTUM * v + gradients
        x = mix(step, x, -LR * v)
        seen.append(x.copy())
    return seen


def check_by_hand(comm, strategy, mix, steps=14):
    model = Quadratic()
    sgd = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    opt = wrap(model, sgd, strategy=strategy, model=model)
    for step, expected in enumerate(by_hand(comm.size, steps, mix)):
        opt.zero_grad()
        model.loss(comm.rank, step).backward()
        opt.step()
        own = expected[comm.rank]
        np.testing.assert_allclose(model.w.detach(), own, rtol=0, atol=1e-11, err_msg=str(step))
        if step % 5 == 4:
            whole = opt.averaged_model().w.detach()
            np.testing.assert_allclose(whole, expected.mean(0), rtol=0, atol=1e-11)
    opt.join()
    np.testing.assert_allclose(model.w.detach(), expected.mean(0), rtol=0, atol=1e-11)
    opt.close()


def averaged(x):
    return np.broadcast_to(x.mean(0), x.shape).copy()


@pytest.mark.parametrize("local_steps", [1, 4])
def test_local_sgd_by_hand(comm, local_steps):
    def mix(step, x, update):
        x = x + update
        return averaged(x) if (step + 1) % local_steps == 0 else x

    check_by_hand(comm, pct.LocalSGD(local_steps=local_steps), mix)


@pytest.mark.parametrize("topology", ["ring", "star", "complete", "exponential"])
def test_dpsgd_by_hand(comm, topology):
    """X <- W X + updates, where the updates are computed at X."""
    graph = pc.Topology.make(topology, comm.size)
    near = [set(graph.neighbors(rank)) for rank in range(comm.size)]
    w = np.zeros((comm.size, comm.size))
    for i in range(comm.size):
        for j in near[i]:
            w[i, j] = 1 / (1 + max(len(near[i]), len(near[j])))
        w[i, i] = 1 - w[i].sum()
    check_by_hand(comm, pct.DPSGD(topology), lambda step, x, update: w @ x + update)


@pytest.mark.parametrize("inner", ["localsgd", "dpsgd"])
def test_slowmo_by_hand(comm, inner):
    """Algorithm 1 of the paper."""
    beta, alpha, tau = 0.6, 0.8, 4
    # Both of these leave the ranks' mean to the outer step.
    strategy = {"localsgd": pct.LocalSGD(local_steps=100), "dpsgd": pct.DPSGD("complete")}[inner]
    start, slow = np.zeros(N), np.zeros(N)

    def mix(step, x, update):
        nonlocal start, slow
        x = (averaged(x) if inner == "dpsgd" else x) + update
        if (step + 1) % tau:
            return x
        slow = beta * slow + (start - x.mean(0)) / LR
        start = start - alpha * LR * slow
        return np.broadcast_to(start, x.shape).copy()

    # The join restarts the outer step, so the computation by hand ends here.
    check_by_hand(comm, pct.SlowMo(strategy, tau=tau, beta=beta, alpha=alpha), mix)


def test_a2cid2_with_rate_0_is_local(comm):
    """Without averagings x is the local model, and so is the x~ that enters the average."""
    check_by_hand(comm, pct.A2CiD2(rate=0.0), lambda step, x, update: x + update)


@pytest.mark.parametrize("grid, axes", [("auto", None), ((2, 2), 2), ((2, 2, 2), 3), ((2, 4), 2)])
def test_moshpit_on_a_full_grid_by_hand(comm, grid, axes):
    """One round per axis gives the exact average."""
    if axes is not None and np.prod(grid) != comm.size:
        pytest.skip("another number of ranks fills this grid")
    if axes is None:
        grid, axes = (comm.size,), 1

    def mix(step, x, update):
        x = x + update
        return averaged(x) if step % 2 else x

    strategy = pct.Moshpit(grid=grid, local_steps=2, rounds=axes, timeout=240.0)
    check_by_hand(comm, strategy, mix)


def test_moshpit_with_an_outer_optimizer_by_hand(comm):
    rate, momentum = 0.7, 0.5
    anchor, slow = np.zeros(N), np.zeros(N)

    def mix(step, x, update):
        nonlocal anchor, slow
        x = x + update
        if step % 3 != 2:
            return x
        slow = momentum * slow + (anchor - x.mean(0))
        anchor = anchor - rate * slow
        return np.broadcast_to(anchor, x.shape).copy()

    strategy = pct.Moshpit(
        grid=(comm.size,),
        local_steps=3,
        average="pseudo-gradients",
        outer_learning_rate=rate,
        outer_momentum=momentum,
        timeout=240.0,
    )
    check_by_hand(comm, strategy, mix)


# Waiting


@pytest.mark.parametrize("name", WAIT_FREE)
def test_no_step_waits(comm, name):
    """This rank's steps end although no other rank makes one."""
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    if comm.rank == 0:
        train(model, opt, 0, 12)
    comm.Barrier()
    if comm.rank != 0:
        train(model, opt, comm.rank, 12)
    comm.Barrier()
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()


def test_dpsgd_waits_for_neighbors_only(comm):
    """The opposite ranks on the ring do not move until rank 0's step has ended."""
    if comm.size < 4:
        pytest.skip("all ranks are neighbors")
    model = network()
    opt = wrap(model, strategy=pct.DPSGD("ring"))
    opposite = [rank for rank in range(comm.size) if rank not in (0, 1, comm.size - 1)]
    if comm.rank in opposite:
        comm.recv(source=0)
    train(model, opt, comm.rank, 1)
    if comm.rank == 0:
        for rank in opposite:
            comm.send(None, rank)
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()


@every_strategy
def test_ranks_with_more_and_less_data(comm, name):
    """Some ranks have no data, twice in a row, and training continues."""
    model = network(seed=comm.rank).double()
    opt = wrap(model, strategy=STRATEGIES[name], model=model)
    ledger, steps = Ledger(model, opt), 0

    def check():
        assert same_everywhere(comm, model)
        assert opt.metrics().steps == steps
        # In lock-step a rank without data makes steps that change nothing.
        rounds = comm.allgather(opt.round)
        assert opt.round == steps if name not in LOCK_STEP else min(rounds) == max(rounds) >= steps
        if name in CONSERVING:
            np.testing.assert_allclose(vector(model), ledger.expected(comm), rtol=0, atol=1e-11)

    for epoch in range(3):
        more = 3 * ((comm.rank + epoch) % comm.size)  # 0 for one rank in each epoch
        train(model, opt, comm.rank, more)
        steps += more
        opt.join()
        check()
    opt.join()
    check()
    train(model, opt, comm.rank, 4)
    steps += 4
    opt.join()
    check()
    opt.close()


@every_strategy
def test_a_join_changes_nothing_where_all_agree(comm, name):
    model = network(seed=comm.rank)
    opt = wrap(model, strategy=STRATEGIES[name])
    train(model, opt, comm.rank, 5)
    opt.join()
    own = vector(model)
    for _ in range(2):
        opt.join()
        # Rounding residues in an accumulator are applied with the next averaging.
        np.testing.assert_allclose(vector(model), own, rtol=0, atol=1e-7)
        assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize("name", ["adpsgd", "dpsgd", "localsgd", "moshpit", "slowmo"])
def test_one_rank_has_nearly_all_the_data(comm, name):
    """All other ranks join at once, and do not delay the last one."""
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    if comm.rank == comm.size - 1:
        train(model, opt, comm.rank, 25)
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()


@pytest.mark.parametrize(
    "strategies",
    (
        (pct.ADPSGD(), pct.Swarm(), pct.Eager("solo")),
        (pct.Allreduce(), pct.Eager("majority"), pct.Eager("solo", deliver="all")),
        (pct.DPSGD(), pct.LocalSGD(local_steps=3), pct.SlowMo(pct.ADPSGD(), tau=2)),
        (pct.Eager("full"), pct.SGP(), pct.Moshpit(), pct.DPSGD()),
    ),
    ids=lambda strategies: "+".join(type(one).__name__ for one in strategies),
)
def test_join_of_horovod_joins_all_optimizers(comm, strategies):
    """The ranks join all optimizers at once. A rank with more data steps all of them in turn, and
    some strategies wait for the joined ranks in these steps."""
    models = [network(seed) for seed in range(len(strategies))]
    opts = [wrap(model, strategy=how) for model, how in zip(models, strategies)]
    for epoch in range(2):
        for step in range(1 + 4 * ((comm.rank + epoch) % comm.size)):
            for model, opt in zip(models, opts):
                opt.zero_grad()
                loss(model, comm.rank, step).backward()
                opt.step()
        assert 0 <= pct.join() < comm.size
        for model in models:
            assert same_everywhere(comm, model)
    for opt in opts:
        opt.close()


def test_until(comm):
    model = network()
    opt = wrap(model, strategy=pct.ADPSGD())
    seen = []
    for number in opt.until(5 + comm.rank):
        seen.append(number)
        train(model, opt, comm.rank, 1)
    assert seen == list(range(5 + comm.rank)) and opt.round == 5 + comm.rank
    opt.join()
    opt.close()


# Leaving and rejoining


def test_leave_and_rejoin(comm):
    """The other ranks continue. A returning rank gets the model of one of them."""
    if comm.size < 2:
        pytest.skip("needs two ranks")
    model = network()
    strategy = pct.Moshpit(grid=(comm.size,), timeout=60.0)  # no rank is suspected
    opt = wrap(model, strategy=strategy, model=model)
    last = comm.size - 1
    train(model, opt, comm.rank, 3)
    if comm.rank == last:
        opt.leave()
        comm.send(None, 0)  # the others make many steps without it
        train(model, opt, comm.rank, 2)  # its own
        for rank in range(last):
            comm.recv(source=rank)
        opt.rejoin(timeout=60)
        assert opt.round >= 3 + 4
        comm.send(None, 0)
    else:
        if comm.rank == 0:
            comm.recv(source=last)
        train(model, opt, comm.rank, 4)
        comm.send(None, last)
        if comm.rank == 0:
            while not comm.iprobe(source=last):  # in its join it would be away, and not asked
                train(model, opt, comm.rank, 1)
            comm.recv(source=last)
    train(model, opt, comm.rank, 4)
    opt.join()
    assert same_everywhere(comm, model)
    assert np.isfinite(vector(model)).all()
    opt.close()


@pytest.mark.parametrize("name", [name for name in STRATEGIES if "moshpit" not in name])
def test_leaving_is_for_moshpit(comm, name):
    model = network()
    opt = wrap(model, strategy=STRATEGIES[name])
    with pytest.raises(pc.StateError, match="Moshpit"):
        opt.leave()
    with pytest.raises(pc.StateError, match="Moshpit"):
        opt.rejoin()
    opt.close()


def test_rejoin_while_the_others_join(comm):
    """The rank that is asked has no more data, and still answers."""
    if comm.size < 2:
        pytest.skip("needs two ranks")
    model = network()
    opt = wrap(model, strategy=pct.Moshpit(timeout=4.0))
    train(model, opt, comm.rank, 2)
    if comm.rank == comm.size - 1:
        opt.leave()
        comm.Barrier()
        opt.rejoin(timeout=20.0)
        train(model, opt, comm.rank, 2)
    else:
        comm.Barrier()
        time.sleep(0.2)  # else it finds no live rank to ask
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()


def test_a_rank_that_is_away_joins(comm):
    model = network()
    opt = wrap(model, strategy=pct.Moshpit(timeout=4.0))
    train(model, opt, comm.rank, 2)
    if comm.rank == comm.size - 1:
        opt.leave()
    train(model, opt, comm.rank, 3)
    opt.join()
    assert same_everywhere(comm, model)
    train(model, opt, comm.rank, 2)
    opt.join()
    assert same_everywhere(comm, model)
    opt.close()
