# SPDX-License-Identifier: Apache-2.0
"""`bench train`: delays and limits against closed forms, tasks, rows."""

import argparse
import collections
import itertools
import json
import math
import pathlib
import subprocess
import sys

import click
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from schema import validate

from partialcoll import decentralized
from partialcoll.grid import Grid
from partialcoll.tools import launcher
from partialcoll.tools.bench.train import delays as limits
from partialcoll.tools.bench.train import strategies
from partialcoll.tools.bench.train.delays import (
    Pattern,
    Waits,
    chosen,
    durations,
    limit,
    meeting_limit,
    meeting_seconds,
    step_seconds,
)
from partialcoll.tools.bench.train.strategies import STRATEGIES, topologies
from partialcoll.tools.cli import main
from partialcoll.tools.cli.bench import TASKS
from partialcoll.topology import Topology

pytestmark = [pytest.mark.one_domain, pytest.mark.in_turns]

FIELDS = [
    "strategy", "topology", "steps_per_s", "speedup_vs_allreduce", "limit", "final_loss",
    "accuracy", "consensus", "communications", "included_ratio", "wait_s", "replicas_identical",
    "seed",
]  # fmt: skip

tried = settings(deadline=None)
ranks = st.integers(1, 17)
seconds = st.floats(0.001, 10)


# Delays


@tried
@given(seed=st.integers(0, 2**64 - 1), step=st.integers(0, 10**6), ranks=ranks, delay=seconds)
def test_one_random(seed, step, ranks, delay):
    """One rank in each step has the whole delay. All ranks draw the same one."""
    delays = Pattern("one-random").delays(seed, step, ranks, delay).tolist()
    assert sorted(delays) == [0] * (ranks - 1) + [delay]
    assert delays.index(delay) == chosen(seed, step, ranks)


def test_one_random_draws_every_rank():
    """Each rank is drawn about equally often, in another order with another seed."""
    orders = [[chosen(seed, step, 8) for step in range(4000)] for seed in (0, 1)]
    for order in orders:
        counts = collections.Counter(order)
        assert len(counts) == 8 and all(abs(n - 500) < 5 * 500**0.5 for n in counts.values())
    assert orders[0] != orders[1]


@tried
@given(step=st.integers(0, 10**6), ranks=ranks, delay=seconds)
def test_all_shifted(step, ranks, delay):
    """In every step the delays are delay/P to delay, shifted by one rank per step."""

    def delays(step):
        return Pattern("all-shifted").delays(0, step, ranks, delay).tolist()

    expected = [(k + 1) * delay / ranks for k in range(ranks)]
    assert sorted(delays(step)) == pytest.approx(expected)
    assert delays(step + 1) == delays(step)[1:] + delays(step)[:1]
    assert delays(step)[0] == pytest.approx((1 + step % ranks) * delay / ranks)


@tried
@given(ranks=ranks, factor=st.floats(1, 1000), delay=seconds)
def test_one_slow(ranks, factor, delay):
    pattern = Pattern.parse(f"one-slow:{factor}")
    assert [pattern.times(rank) for rank in range(ranks)] == [factor] + [1] * (ranks - 1)
    assert all(pattern.delays(0, step, ranks, delay)[0] == 0 for step in range(5))


@tried
@given(seed=st.integers(0, 99), count=st.integers(2, 20))
def test_kills_are_separate_and_spare_the_first_and_last(seed, count):
    times = Pattern.parse("kill:60").lifetimes(seed, count)
    assert times[0] == times[-1] == math.inf
    assert sorted(times[1:-1]) == [60 * (i + 1) for i in range(count - 2)]
    assert (Pattern().lifetimes(seed, count) == math.inf).all()


@pytest.mark.parametrize(
    "text", ("none", "one-random", "all-shifted", "one-slow:10", "one-slow:1", "kill:60")
)
def test_patterns_by_name(text):
    assert str(Pattern.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    (
        "",
        "some",
        "one-slow",
        "one-slow:",
        "one-slow:0.5",
        "one-slow:x",
        "one-slow:inf",
        "none:3",
        "kill:0",
    ),
)
def test_no_patterns(text):
    with pytest.raises(ValueError, match="expected none, one-random"):
        Pattern.parse(text)


@tried
@given(ranks=ranks, delay=seconds, name=st.sampled_from(("none", "one-random", "all-shifted")))
def test_cases_are_what_happens(ranks, delay, name):
    """The equally likely cases from which limits are computed are the delays of steps."""
    pattern = Pattern(name)
    cases = {tuple(row) for row in pattern.vectors(ranks, delay)}
    for step in range(2 * ranks):
        assert tuple(pattern.delays(3, step, ranks, delay)) in cases
    assert len(cases) == (1 if name == "none" or ranks == 1 else ranks)


# Limits


def cases(text, ranks, compute, delay):
    return durations(Pattern.parse(text), ranks, np.full((1, ranks), compute), delay)


@tried
@given(ranks=ranks, c=seconds, d=seconds)
def test_limits_with_one_random(ranks, c, d):
    """Synchronous c + d; solo c + d/P; majority: unless neither this nor the drawn rank is the
    delayed one."""
    found = {waits: step_seconds(waits, cases("one-random", ranks, c, d)) for waits in Waits}
    assert found[Waits.ALL] == pytest.approx(c + d)
    assert [found[Waits.FIRST], found[Waits.NOBODY]] == pytest.approx([c + d / ranks] * 2)
    assert found[Waits.DRAWN] == pytest.approx(c + d * (1 - (1 - 1 / ranks) ** 2))


@tried
@given(ranks=ranks, c=seconds, d=seconds)
def test_limits_with_all_shifted(ranks, c, d):
    """Synchronous c + max; solo c + mean; majority c + the expected greater of two."""
    found = {waits: step_seconds(waits, cases("all-shifted", ranks, c, d)) for waits in Waits}
    delays = [(k + 1) * d / ranks for k in range(ranks)]
    greater = [max(pair) for pair in itertools.product(delays, repeat=2)]
    assert found[Waits.ALL] == pytest.approx(c + d)
    assert [found[Waits.FIRST], found[Waits.NOBODY]] == pytest.approx([c + np.mean(delays)] * 2)
    assert found[Waits.DRAWN] == pytest.approx(c + np.mean(greater))


@tried
@given(ranks=st.integers(3, 17), c=seconds, factor=st.floats(1, 1000))
def test_limits_with_one_slow(ranks, c, factor):
    """A strategy that keeps up with the slow rank has its pace, and the others their own."""
    found = cases(f"one-slow:{factor}", ranks, c, 0)
    for waits in (Waits.ALL, Waits.FIRST, Waits.DRAWN):
        assert limit(waits, found) == pytest.approx(1)
    assert limit(Waits.NOBODY, found) == pytest.approx(factor)


def test_limits_of_the_paper():
    """Ratios at 300 ms per step, and at 100 ms with up to 400 ms."""
    for delay, expected in ((0.2, 1.5385), (0.3, 1.7778), (0.4, 2.0)):
        assert limit(Waits.FIRST, cases("one-random", 8, 0.3, delay)) == pytest.approx(
            expected, abs=1e-4
        )
    assert limit(Waits.DRAWN, cases("all-shifted", 8, 0.1, 0.4)) == pytest.approx(1.28)
    assert limit(Waits.FIRST, cases("all-shifted", 8, 0.1, 0.4)) == pytest.approx(500 / 325)


def test_no_limit_without_time():
    assert limit(Waits.FIRST, cases("none", 4, 0.0, 1.0)) is None


@tried
@given(data=st.data(), ranks=st.integers(1, 6), n=st.integers(1, 6))
def test_limits_are_in_order(data, ranks, n):
    """Waiting for more ranks takes longer. The pairs of majority are summed one by one."""
    rows = st.lists(seconds, min_size=ranks, max_size=ranks)
    some = np.array(data.draw(st.lists(rows, min_size=n, max_size=n)))
    found = {waits: step_seconds(waits, some) for waits in Waits}
    pairs = [max(row[i], row[j]) for row in some for i in range(ranks) for j in range(ranks)]
    slowest = max(some[:, rank].mean() for rank in range(ranks))
    assert found[Waits.DRAWN] == pytest.approx(max(np.mean(pairs), slowest))
    assert found[Waits.FIRST] == pytest.approx(slowest)
    assert found[Waits.ALL] >= found[Waits.DRAWN] * (1 - 1e-9)
    assert found[Waits.DRAWN] >= found[Waits.FIRST] * (1 - 1e-9)
    assert found[Waits.FIRST] >= found[Waits.NOBODY] * (1 - 1e-9)


# Limits of strategies that meet some of the other ranks


def times(text, ranks, compute=1.0, delay=0.0, count=400):
    compute = np.full((1, ranks), compute)
    return limits.drawn(Pattern.parse(text), ranks, compute, delay, count)


@tried
@given(
    ranks=ranks, c=seconds, d=seconds, name=st.sampled_from(("none", "one-random", "all-shifted"))
)
def test_consecutive_steps_are_the_delays(ranks, c, d, name):
    found, pattern = times(name, ranks, c, d, 20), Pattern(name)
    for step, row in enumerate(found):
        expected = (c + pattern.delays(0, step, ranks, d)).tolist()
        assert row == pytest.approx(expected)


def test_steps_in_a_row_take_any_of_the_cases():
    compute = np.array([[1.0, 2.0], [3.0, 4.0]])
    found = limits.drawn(Pattern("one-slow", 10.0), 2, compute, 0.0, 100)
    assert {tuple(row) for row in found} == {(10.0, 2.0), (30.0, 4.0)}


def test_neighbors_by_hand():
    """In a chain of three, each rank waits for its neighbors' previous step."""
    chain = limits.neighbors([[1], [0, 2], [1]])
    some = np.array([[5.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    # Ends of the steps: (5, 1, 1), then (6, 5, 2), then (7, 6, 5).
    for count, expected in ((1, [5, 1, 1]), (2, [6, 5, 2]), (3, [7, 6, 5])):
        found = meeting_seconds(chain, some[:count]) * count
        assert found == pytest.approx(np.median(expected))


@tried
@given(
    ranks=ranks, c=seconds, d=seconds, name=st.sampled_from(("none", "one-random", "all-shifted"))
)
def test_all_ranks_in_each_step(ranks, c, d, name):
    """The result equals the closed formula for an allreduce."""
    found = meeting_seconds(limits.everybody(ranks, 1), times(name, ranks, c, d, 10 * ranks))
    assert found == pytest.approx(step_seconds(Waits.ALL, cases(name, ranks, c, d)))


@tried
@given(ranks=ranks, c=seconds, d=seconds, period=st.integers(1, 9))
def test_all_ranks_now_and_then(ranks, c, d, period):
    """With one random delay per step, the rank delayed most often in H steps is waited for. With
    all-shifted, P steps take equally long on all ranks."""
    some = times("one-random", ranks, c, d, 5 * period)
    blocks = some.reshape(5, period, ranks).sum(axis=1).max(axis=1)
    found = meeting_seconds(limits.everybody(ranks, period), some)
    assert found == pytest.approx(blocks.sum() / len(some))
    shifted = times("all-shifted", ranks, c, d, 3 * ranks)
    found = meeting_limit(limits.everybody(ranks, ranks), shifted)
    assert found == pytest.approx((c + d) / (c + d * (ranks + 1) / (2 * ranks)))


def test_all_ranks_with_two_periods():
    """SlowMo's period, and that of its inner strategy."""
    found = limits.everybody(2, 4, 6)
    assert [t + 1 for t in range(13) if found.whom(t) is not None] == [4, 6, 8, 12]


@pytest.mark.parametrize(
    "sides, peers", (("2x4", 8), ("auto", 16), ("8", 8), ("3x3", 7), ("4x4", 5))
)
def test_groups(sides, peers):
    """Groups are equivalence classes of at most a side. After some rounds all have met."""
    grid = Grid(sides, peers)
    meetings, reached = limits.groups(grid, 3), np.eye(peers, dtype=bool)
    for step in range(36):
        mask = meetings.whom(step)
        assert (mask is None) == bool((step + 1) % 3)
        if mask is None:
            continue
        assert (mask == mask.T).all() and mask.diagonal().all()
        assert (mask @ mask == mask).all() and mask.sum(axis=1).max() <= max(grid.sides)
        reached = (mask.astype(int) @ reached) > 0
        if step == 3 * grid.axes - 1 and grid.full:
            assert reached.all()
    assert reached.all()


def meetings(ranks):
    graph = Topology.ring(ranks)
    return {
        "dpsgd": limits.neighbors([graph.neighbors(rank) for rank in range(ranks)]),
        "localsgd": limits.everybody(ranks, 4),
        "moshpit": limits.groups(Grid("auto", ranks), 1),
    }


@pytest.mark.parametrize("name", meetings(2))
@pytest.mark.parametrize("ranks", (3, 4, 8))
def test_meetings_are_in_order(name, ranks):
    """No strategy is slower than one where all wait for all, or faster than one without waits; and
    one slow rank determines the pace of all in the end."""
    for text in ("none", "one-random", "all-shifted"):
        some = times(text, ranks, 1.0, 2.0)
        found = meeting_limit(meetings(ranks)[name], some)
        alone = meeting_limit(limits.Meetings(lambda step: None), some)
        assert 1 - 1e-9 <= found <= alone + 1e-9, text
        if text == "none":
            assert found == pytest.approx(1)
    slow = times("one-slow:20", ranks)
    assert meeting_limit(meetings(ranks)[name], slow) == pytest.approx(1, rel=0.03)


def test_no_limit_of_meetings_without_time():
    assert meeting_limit(limits.everybody(2, 1), np.zeros((5, 2))) is None


# Strategies by name


def test_strategies_of_the_command_line():
    """Options of the command line, else the strategy's defaults."""
    make = strategies.make
    pct = pytest.importorskip("partialcoll.torch")
    nothing = argparse.Namespace(rate=None, local_steps=None, grid=None, history=16)
    some = argparse.Namespace(rate=3.0, local_steps=2, grid="2x2", history=5)
    assert make("adpsgd", nothing, None) == pct.ADPSGD()
    assert make("adpsgd", some, "star") == pct.ADPSGD(topology="star", rate=3.0)
    assert make("dpsgd", some, "star") == pct.DPSGD(topology="star")
    assert make("swarm", some, "ring") == pct.Swarm(topology="ring", local_steps=2)
    assert make("swarm-8bit", nothing, None).codec.bits == 8
    assert make("a2cid2", nothing, "ring").accelerated
    assert make("a2cid2-paper", some, "ring") == pct.A2CiD2("ring", rate=3.0, variant="paper")
    assert make("a2cid2-baseline", some, "ring") == pct.A2CiD2("ring", rate=3.0, accelerated=False)
    assert make("moshpit", some, None) == pct.Moshpit(grid=(2, 2), local_steps=2)
    assert make("sgp", some, None) == pct.SGP(rate=3.0)
    assert make("slowmo", some, None) == pct.SlowMo(pct.LocalSGD(local_steps=2))
    assert make("eager-solo-all", some, None) == pct.Eager("solo", deliver="all", history=5)
    assert make("allreduce", some, None) == pct.Allreduce()


def test_topologies_of_strategies():
    assert topologies("a2cid2", ["ring", "star"]) == ["ring", "star"]
    assert topologies("moshpit", ["ring", "star"]) == topologies("a2cid2", None) == [None]


# The end, and the course


def test_last_moment():
    """Half of the ranks, rounded up, and a tenth of the slowest one's time, or a second."""
    from partialcoll.tools.bench.train.run import last_moment

    assert last_moment([], 1) == last_moment([1.0], 4) == last_moment([1.0], 3) == float("inf")
    assert last_moment([20.0], 2) == pytest.approx(22)
    assert last_moment([30.0, 10.0], 4) == pytest.approx(33)
    assert last_moment([30.0, 10.0, 20.0], 4) == pytest.approx(22)
    assert last_moment([30.0, 10.0, 20.0], 5) == pytest.approx(33)
    assert last_moment([3.0, 1.0, 2.0], 4) == pytest.approx(3)


@pytest.mark.mpi
def test_ending(comm):
    """The ends of other ranks arrive without waiting. A rank that has made all steps is done. A
    rank without steps continues until half of the ranks have ended, and then not for long."""
    from partialcoll.tools.bench.train.run import Ending

    ending = Ending(comm, 3)
    assert not ending.over(0) and not ending.over(2) and ending.over(3)
    comm.Barrier()
    if comm.rank == 0 and comm.size > 1:
        while not ending.over(0):
            pass
    ending.close()
    ending.free()


@pytest.mark.mpi
def test_distances(comm):
    """Distances of rows, compared with numpy."""
    pytest.importorskip("torch")
    from partialcoll.tools.bench.train.run import distances

    everybody = np.random.default_rng(3).normal(size=(comm.size, 4, 7))
    mean, found = distances(comm, everybody[comm.rank].copy())
    assert mean == pytest.approx(everybody.mean(axis=0))
    squares = ((everybody - everybody.mean(axis=0)) ** 2).sum(axis=2)
    assert found == pytest.approx(np.sqrt(squares.mean(axis=0)))


def test_copies(tasks):
    """A copy after every period of steps. For a step never made, the newest copy of that time."""
    torch = pytest.importorskip("torch")
    from partialcoll.tools.bench.train.run import Copies

    model = torch.nn.Linear(1, 1, bias=False)
    copies = Copies(model, 2)
    copies.begin()
    for step in (1, 2, 3, 4, 4):
        model.weight.data.fill_(step)
        copies.look(step)
    model.weight.data.fill_(9)
    copies.finish()
    assert copies.steps == [0, 2, 4] and copies.end.tolist() == [9]
    assert [flat.tolist() for flat in copies.flats[1:]] == [[2], [4]]
    copies.seconds = [0.0, 1.0, 5.0]
    assert copies.at(4, 0.5).tolist() == [4]
    assert copies.at(6, 4.0).tolist() == [2] and copies.at(8, 9.0).tolist() == [4]


@pytest.mark.mpi
def test_courses(comm, tasks):
    """The course has the loss of the mean, one rank's loss, and distances, with the copies' owners.
    The trained model is unchanged. The slow rank 0 counts with its last copy."""
    torch = pytest.importorskip("torch")
    from partialcoll.tools.bench.train.run import Copies, course_of

    task = tasks.Hyperplane(options(size=8, batch=64), comm.rank, comm.size)
    task.start(0)
    before = [p.clone() for p in task.model.parameters()]
    copies, observer = Copies(task.model, 1), comm.size - 1
    copies.steps, copies.seconds = [0, 1, 2], [0.0, 1.0, 2.0]
    values = [float(comm.rank), 2.0 * comm.rank, 1.0]
    if comm.rank == 0 and comm.size > 1:
        copies.steps, copies.seconds, values = [0, 1], [0.0, 1.5], [0.0, 1.0]
    copies.flats = [torch.full((9,), value) for value in values]
    course = course_of(comm, copies, task, observer)

    def loss(value):
        torch.nn.utils.vector_to_parameters(torch.full((9,), value), task.model.parameters())
        return pytest.approx(task.held_out()[0], abs=1e-5)

    own = np.arange(comm.size)
    assert course["rounds"] == [0, 1, 2] and course["seconds"] == [0.0, 1.0, 2.0]
    second = 2.0 * own + (own == 0 if comm.size > 1 else 0)
    expected = [3 * own.std(), 3 * second.std(), 0]
    assert course["consensus"] == pytest.approx(expected, abs=1e-6)
    assert course["accuracy"] == course["own_accuracy"] == [None] * 3
    assert all(torch.equal(p, b) for p, b in zip(task.model.parameters(), before))
    for i, (mean, mine) in enumerate(
        ((own.mean(), observer), (second.mean(), 2.0 * observer), (1.0, 1.0))
    ):
        assert course["loss"][i] == loss(float(mean))
        assert course["own_loss"][i] == loss(float(mine))


# Tasks


@pytest.fixture
def tasks():
    pytest.importorskip("torch").set_num_threads(1)
    return pytest.importorskip("partialcoll.tools.bench.train.tasks")


def options(**given):
    known = {"steps": 40, "batch": 128, "size": None, "length_scale": 0.05, "data": "shared"}
    known["learning_rate"] = None
    return argparse.Namespace(**{**known, **given})


SMALL = {"hyperplane": {"size": 64}, "digits": {"size": 4}, "sequences": {"size": 8}}


@pytest.fixture(params=TASKS)
def make(request, tasks):
    """Return a function that creates the task, small, for a rank of 4."""
    if request.param == "digits":
        pytest.importorskip("sklearn")
    chosen = options(**SMALL[request.param])
    return lambda rank=0: tasks.TASKS[request.param](chosen, rank, 4)


def gradient(task, step):
    task.model.zero_grad()
    loss = task.loss(step)
    loss.backward()
    return [loss.item(), *(p.grad.sum().item() for p in task.model.parameters())]


def test_tasks_by_name(tasks):
    assert tuple(tasks.TASKS) == TASKS


def test_tasks_are_deterministic(make):
    """Equal on every machine up to rounding. Ranks, steps and seeds draw different samples."""
    first, again, other = make(), make(), make(rank=1)
    for task in (first, again, other):
        task.start(5)
    assert gradient(first, 3) == gradient(again, 3)
    assert gradient(first, 3) != gradient(first, 4)
    assert gradient(first, 3) != gradient(other, 3)
    same = [m.state_dict() for m in (first.model, other.model)]
    assert all((same[0][name] == same[1][name]).all() for name in same[0])
    assert first.held_out() == other.held_out()
    first.start(6)
    assert gradient(first, 3) != gradient(again, 3) and first.held_out() != again.held_out()
    first.start(5)
    assert gradient(first, 3) == gradient(again, 3)


def test_tasks_can_be_learned(make):
    """One process can learn the task."""
    task = make()
    task.start(0)
    optimizer = task.optimizer()
    before, _ = task.held_out()
    for step in range(task.steps):
        optimizer.zero_grad()
        task.loss(step).backward()
        optimizer.step()
    after, accuracy = task.held_out()
    assert after < 0.97 * before
    assert accuracy is None or 0 <= accuracy <= 1


def test_hyperplane_is_the_papers(tasks):
    """8193 parameters, 2048 samples in a step, and a loss of noise once the task is learned."""
    torch = pytest.importorskip("torch")
    task = tasks.Hyperplane(options(steps=None, batch=None), 7, 8)
    task.start(0)
    assert sum(p.numel() for p in task.model.parameters()) == 8193
    assert task.per_rank == 256 and len(task.x) * 8 == 32768
    task.model.weight.data.copy_(torch.from_numpy(task.plane))
    task.model.bias.data.zero_()
    assert task.held_out()[0] == pytest.approx(0.25, rel=0.15)


def test_lengths_are_ucf101s(tasks):
    lengths = tasks.video_lengths(9537)
    assert np.median(lengths) == 167 and lengths.std() == pytest.approx(97, rel=0.01)
    assert lengths.min() >= 29 and lengths.max() <= 1776 and (np.diff(lengths) >= 0).all()
    few = tasks.video_lengths(1)
    assert list(few) == [167]


def test_batches_of_sequences(tasks):
    """Videos of similar length: a step costs as much as its longest, and none is held out."""
    task = tasks.Sequences(options(length_scale=1, batch=32), 2, 4)
    for step in range(30):
        which = task.training(step)
        assert len(which) == 8 and not set(which) & set(np.concatenate(task.test()))
        longest = task.lengths[which].max()
        assert task.compute(0.2, 0, step, 2) == pytest.approx(0.2 * longest / 29)
        assert task.compute(0.2, 0, step, 2) >= 0.2
    assert len({task.compute(1, 0, step, 2) for step in range(30)}) > 10
    spread = task.compute_cases(0.2)
    assert spread.mean(axis=0) == pytest.approx([spread.mean()] * 4)


def test_sorted_digits(tasks):
    """The images are divided among the ranks, each with as few different digits as possible."""
    pytest.importorskip("sklearn")
    shared = tasks.Digits(options(), 0, 4)
    parts = [tasks.Digits(options(data="sorted"), rank, 4) for rank in range(4)]
    assert sorted(np.concatenate([part._train for part in parts])) == sorted(shared._train)
    for part in parts:
        assert len(set(part.labels[part._train].tolist())) <= 4
        assert set(part.training(3)) <= set(part._train)
        assert list(part._test) == list(shared._test)


def test_data_of_other_tasks():
    pytest.importorskip("torch")
    from partialcoll.tools.cli.bench import fits

    more = {"pattern": Pattern(), "respawn": False}
    given = argparse.Namespace(topology=None, grid=None, data="sorted", task="hyperplane", **more)
    with pytest.raises(
        click.UsageError, match="--data: expected shared with hyperplane, got sorted"
    ):
        fits(given, 2)


def test_padding_does_not_count(tasks):
    """The class of a video does not depend on the others in its batch."""
    task = tasks.Sequences(options(size=8), 0, 1)
    task.start(1)
    short, long = 3, task.VIDEOS - 2
    alone, _ = task.logits(np.array([short]))
    together, _ = task.logits(np.array([short, long]))
    assert alone[0].tolist() == pytest.approx(together[0].tolist(), abs=1e-5)


def test_too_few_samples(tasks):
    with pytest.raises(Exception, match="--batch: expected at least one sample a rank, 8; got 7"):
        tasks.Sequences(options(batch=7), 0, 8)


# The command


def test_identical():
    """Replicas are compared at equal rounds and at the end."""
    pytest.importorskip("torch")
    from partialcoll.tools.bench.train.run import identical

    a, b = {1: "x", 2: "y"}, {2: "y", 3: "z"}
    assert identical([(a, "e"), (b, "e")]) and identical([({}, "e")])
    assert not identical([(a, "e"), (b, "f")])
    assert not identical([(a, "e"), ({3: "z"}, "e"), ({2: "Y"}, "e")])


def test_means_over_seeds():
    """Speedups are relative to the allreduce of the same seed. Means are over all seeds: no average
    over some of the runs, and one differing replica is reported."""
    pytest.importorskip("torch")
    from partialcoll.tools.bench.train.run import compare, summary

    def row(strategy, seed, rate, same=True):
        return {
            **dict.fromkeys(FIELDS),
            "strategy": strategy, "seed": seed, "steps_per_s": rate, "replicas_identical": same,
        }  # fmt: skip

    rows = [row("allreduce", 0, 2.0), row("allreduce", 1, 4.0)]
    rows += [row("eager-solo", 0, 3.0), row("eager-solo", 1, 8.0, False), row("eager-solo", 2, 1.0)]
    compare(rows)
    assert [r["speedup_vs_allreduce"] for r in rows] == [1, 1, 1.5, 2, None]
    first, second = summary(rows[:4])
    assert first == {**rows[0], "seed": "mean", "steps_per_s": 3.0}
    assert second["speedup_vs_allreduce"] == 1.75 and second["replicas_identical"] is False
    assert second["accuracy"] is None and rows[2]["seed"] == 0


@pytest.fixture
def train(clean_environment, tmp_path):
    """Run the command. Return its JSON document."""
    pytest.importorskip("torch")

    def run_it(*words, picture=True, statuses=(0,)):
        path = tmp_path / "train.json"
        words = ["bench", "train", *words, "--json", str(path)]
        words += ["--plot", str(tmp_path / "p.png")] if picture else []
        done = subprocess.run(
            [sys.executable, "-m", "partialcoll", *words],
            env=clean_environment,
            capture_output=True,
            text=True,
            timeout=170,
        )
        assert done.returncode in statuses, done.stderr
        assert not picture or (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
        doc = json.loads(path.read_text())
        assert doc["command"] == "bench train"
        validate(doc)
        return doc

    return run_it


@pytest.mark.in_turns
@pytest.mark.skipif(launcher.flavor() != "openmpi", reason="this MPI ends the job when a rank dies")
def test_training_continues_when_ranks_are_killed(train):
    doc = train(
        "-n", "4", "--pattern", "kill:0.2", "--compute-ms", "10", "--steps", "100", "--seeds", "1",
        "--strategies", "eager-majority", "--batch", "32", "--size",
        str(SMALL["hyperplane"]["size"]),
    )  # fmt: skip
    (row,), (run,) = doc["rows"], doc["runs"]
    assert row["replicas_identical"] is True and sorted(run["failed"]) == [1, 2]
    assert run["steps"] == [100, 100]


@pytest.mark.in_turns
@pytest.mark.skipif(launcher.flavor() != "openmpi", reason="this MPI ends the job when a rank dies")
def test_ranks_that_are_killed_are_replaced(train):
    """The launcher's status is 1 if newcomers were killed, too."""
    doc = train(
        "-n", "3", "--pattern", "kill:0.3", "--respawn", "--compute-ms", "20", "--steps", "60",
        "--seeds", "1", "--strategies", "allreduce", "--batch", "30", "--size",
        str(SMALL["hyperplane"]["size"]), picture=False, statuses=(0, 1, 137),
    )  # fmt: skip
    (row,) = doc["rows"]
    assert row["replicas_identical"] is True and row["kills"] >= row["replaced"] >= 1
    assert 0 < row["steps_per_s"] <= 50 and 0 < row["steps_per_s_none"] <= 50
    assert 0 < row["part_with_fewer"] < 1 and row["pause_s"] > 0


@pytest.mark.parametrize("task", TASKS)
def test_tasks_on_two_ranks(train, task):
    if task == "digits":
        pytest.importorskip("sklearn")
    doc = train(
        "--task", task, "-n", "2", "--steps", "12", "--batch", "32", "--size",
        str(SMALL[task]["size"]), "--compute-ms", "2", "--delay-ms", "2", "--length-scale", "0.05",
        "--pattern", "none" if task == "sequences" else "all-shifted",
        "--seeds", "2", "--strategies", "allreduce,eager-solo",
    )  # fmt: skip
    order = itertools.product((0, 1), ("allreduce", "eager-solo"))
    assert [(row["seed"], row["strategy"]) for row in doc["rows"]] == list(order)
    for row, run in zip(doc["rows"], doc["runs"]):
        assert list(row) == FIELDS
        assert row["replicas_identical"] is True and row["included_ratio"] == 1
        assert (row["accuracy"] is None) == (task == "hyperplane")
        assert row["steps_per_s"] > 0 and row["final_loss"] > 0 and row["wait_s"] >= 0
        assert run["steps"] == [12, 12] and len(run["wait_s"]) == 2
        assert run["course"]["rounds"][:13] == [*range(13)]  # join may have added some
        assert run["course"]["loss"][-1] == pytest.approx(row["final_loss"], rel=0.5)
    for row, base in zip(doc["rows"], doc["rows"][:1] * 2 + doc["rows"][2:3] * 2):
        expected = row["steps_per_s"] / base["steps_per_s"]
        assert row["speedup_vs_allreduce"] == pytest.approx(expected)
    assert doc["settings"]["task"] == task and doc["settings"]["batch"] == 32


def test_every_strategy_has_a_name_on_the_command_line():
    made = {type(choice.make()).__name__ for choice in STRATEGIES.values()}
    assert made >= {"Allreduce", "Eager", *decentralized.strategies.__all__}


REPLICAS = [name for name, choice in STRATEGIES.items() if choice.replicas]
OWN_MODELS = [name for name in STRATEGIES if name not in REPLICAS]


def test_all_strategies_with_replicas(train):
    """All strategies learn the same. Those that wait for all are bitwise equal."""
    doc = train(
        "--task", "hyperplane", "-n", "3", "--steps", "40", "--batch", "96", "--size", "32",
        "--compute-ms", "2", "--delay-ms", "3", "--pattern", "one-random", "--seeds", "1",
        "--seed", "7", "--strategies", ",".join(REPLICAS), "--check-every", "4",
    )  # fmt: skip
    rows = {row["strategy"]: row for row in doc["rows"]}
    assert list(rows) == REPLICAS
    for name, row in rows.items():
        assert row["replicas_identical"] is True and row["included_ratio"] == 1, name
        # Without waits, a rank that the machine delays leaves its gradients out.
        most = 0.7 if STRATEGIES[name].waits is Waits.NOBODY else 0.5
        assert row["seed"] == 7 and row["final_loss"] < most and row["topology"] is None, name
        expected = limit(STRATEGIES[name].waits, cases("one-random", 3, 0.002, 0.003))
        assert row["limit"] == pytest.approx(expected)
    assert rows["allreduce"]["final_loss"] == rows["eager-full"]["final_loss"]
    assert rows["allreduce"]["consensus"] == 0 and rows["allreduce"]["communications"] == 40


def test_all_strategies_with_own_models(train):
    """Each rank makes all steps. In the end all have one model, which has learned as much as
    replicas. The courses start together."""
    doc = train(
        "--task", "hyperplane", "-n", "3", "--steps", "40", "--batch", "96", "--size", "32",
        "--compute-ms", "2", "--seeds", "1", "--strategies", ",".join(["allreduce", *OWN_MODELS]),
        "--topology", "star", "--local-steps", "3", "--rate", "1.5", "--grid", "1x3",
    )  # fmt: skip
    assert [row["strategy"] for row in doc["rows"]] == ["allreduce", *OWN_MODELS]
    assert sum(row["topology"] == "star" for row in doc["rows"]) == 7
    base, *others = doc["rows"]
    for row, run in zip(others, doc["runs"][1:]):
        name = row["strategy"], row["topology"]
        assert list(row) == FIELDS and row["limit"] == pytest.approx(1)
        assert row["replicas_identical"] is True and row["included_ratio"] == 1, name
        # Without waits, a rank that the machine delays makes fewer steps.
        left_out = 1 - sum(run["steps"]) / 120
        distance = abs(row["final_loss"] - base["final_loss"])
        assert distance < 0.1 + left_out, name
        assert row["final_loss"] < run["course"]["loss"][0], name
        assert row["communications"] > 0 and row["consensus"] >= 0, name
        assert max(run["steps"]) == 40, name
        assert STRATEGIES[name[0]].waits is Waits.NOBODY or run["steps"] == [40] * 3, name
        course = run["course"]
        assert course["rounds"][0] == 0 and course["consensus"][0] == 0, name
        assert (
            course["loss"][0]
            == course["own_loss"][0]
            == pytest.approx(doc["runs"][0]["course"]["loss"][0])
        )
        assert max(course["consensus"]) > 0, name
        assert all(len(course[key]) == len(course["rounds"]) for key in course)
    assert doc["settings"]["topology"] == ["star"] and doc["settings"]["rate"] == 1.5


def test_on_two_topologies(train, tmp_path):
    """Strategies with a topology run on each. The picture has both."""
    pytest.importorskip("sklearn")
    doc = train(
        "--task", "digits", "-n", "3", "--steps", "6", "--batch", "24", "--size", "4",
        "--compute-ms", "0", "--seeds", "2", "--strategies", "dpsgd,localsgd",
        "--topology", "ring,star", "--plot-consensus", str(tmp_path / "c.png"),
    )  # fmt: skip
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")
    found = [(row["strategy"], row["topology"], row["seed"]) for row in doc["rows"]]
    assert found == [
        (*one, seed)
        for seed in (0, 1)
        for one in (("dpsgd", "ring"), ("dpsgd", "star"), ("localsgd", None))
    ]
    for row, run in zip(doc["rows"], doc["runs"]):
        assert run["topology"] == row["topology"] and row["limit"] is None
        assert run["course"]["rounds"] == [*range(7)]
        assert all(0 <= each <= 1 for each in run["course"]["own_accuracy"])


def test_no_rank_waits_for_a_slow_rank(train):
    """The slow rank makes fewer steps, and ends with the others' model."""
    names = [name for name, choice in STRATEGIES.items() if choice.waits is Waits.NOBODY]
    assert set(names) > {"eager-solo-all", "adpsgd", "swarm", "a2cid2", "sgp"}
    doc = train(
        "--task", "hyperplane", "-n", "3", "--steps", "24", "--batch", "30", "--size", "16",
        "--compute-ms", "20", "--pattern", "one-slow:40", "--seeds", "1",
        "--strategies", ",".join(names),
    )  # fmt: skip
    for row, run in zip(doc["rows"], doc["runs"]):
        assert row["replicas_identical"] is True and row["speedup_vs_allreduce"] is None
        assert row["limit"] == pytest.approx(40)
        assert run["steps"][0] < max(run["steps"][1:]), row["strategy"]
        if row["strategy"] in OWN_MODELS:
            assert max(run["steps"]) == 24, row["strategy"]


@pytest.mark.parametrize(
    "words",
    (
        ["--task", "chess"],
        ["--pattern", "one-slow:0"],
        ["--pattern", "rank-3"],
        ["--strategies", "allreduce,greedy"],
        ["--strategies", ""],
        ["--steps", "0"],
        ["--batch", "-1"],
        ["--size", "x"],
        ["--compute-ms", "-1"],
        ["--delay-ms", "inf"],
        ["--length-scale", "0"],
        ["--seeds", "0"],
        ["--history", "0"],
        ["--topology", "circle"],
        ["--topology", ""],
        ["--rate", "0"],
        ["--rate", "nan"],
        ["--local-steps", "0"],
        ["--grid", "2y4"],
        ["--grid", "0x4"],
        ["--data", "mine"],
        ["--learning-rate", "0"],
    ),
)
def test_refused(words, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["bench", "train", *words])
    assert refused.value.code == 2 and f"{words[0]}: " in capsys.readouterr().err


def test_refused_by_the_ranks(clean_environment):
    """Options whose validity depends on the number of ranks."""
    pytest.importorskip("torch")
    words = ["--task", "sequences", "--batch", "1", "-n", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "partialcoll", "bench", "train", *words],
        env=clean_environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode != 0 and "--batch: expected" in done.stderr


@pytest.mark.parametrize(
    "topology, grid, said",
    (
        (["torus:3x5"], None, "^--topology: torus expected sides of product 8"),
        (["ring", "one_peer_exponential"], None, "^--topology: expected connected ranks and un"),
        (None, "1x7", "^--grid: "),
    ),
)
def test_options_that_do_not_fit_the_ranks(topology, grid, said):
    pytest.importorskip("torch")
    from partialcoll.tools.cli.bench import fits

    more = {"data": "shared", "task": "digits", "pattern": Pattern(), "respawn": False}
    fits(argparse.Namespace(topology=["ring", "star"], grid="2x4", **more), 8)
    with pytest.raises(Exception, match=said) as found:
        fits(argparse.Namespace(topology=topology, grid=grid, **more), 8)
    assert type(found.value) is click.UsageError


@pytest.mark.parametrize("module, package", (("torch", "torch"), ("sklearn", "scikit-learn")))
def test_without(monkeypatch, capfd, module, package):
    """The command names the missing package, and does not start a job."""
    monkeypatch.setitem(sys.modules, module, None)
    for present in {"torch", "sklearn"} - {module}:
        monkeypatch.setitem(sys.modules, present, pytest)  # present, whatever is installed
    monkeypatch.setattr("partialcoll.tools.launcher.relaunch", None)
    assert main(["bench", "train", "--task", "digits"]) == 1
    assert f"needs {package}: pip install" in capfd.readouterr().err


def test_torch_is_loaded_late(clean_environment):
    """Neither other commands nor the help of this one load torch."""
    code = (
        "import sys, partialcoll.tools.cli\n"
        "try: partialcoll.tools.cli.main(['bench', 'train', '--help'])\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], env=clean_environment, timeout=60)
    assert done.returncode == 0


# Compared with other systems

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


def script(name, environment, *words):
    path = BENCH / "run.py"
    code = (
        f"import sys, runpy; sys.argv = {[str(path), name, *words]}; "
        f"runpy.run_path({str(path)!r}, run_name='__main__')"
    )
    return subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=170
    )


def test_beside_others(clean_environment, tmp_path):
    """All systems reach the same parameters."""
    pytest.importorskip("torch")
    path = tmp_path / "rows.json"
    words = ["-n", "2", "--layers", "2", "--width", "16", "--batch", "4"]
    words += ["--steps", "2", "--iters", "2", "--late-ms", "1", "--json", str(path)]
    done = script("ddp_hook", clean_environment, *words)
    assert done.returncode == 0, done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert all(row["ranks"] == 2 and row["step_ms"] > 0 for row in rows)
    methods = ["ddp-gloo", "hook-full", "hook-majority", "hook-solo"]
    methods += ["Comm.Allreduce", "allreduce", "eager-full"]
    assert [row["method"] for row in rows] == 2 * methods
    complete = [row for row in rows if row["method"] not in ("hook-majority", "hook-solo")]
    assert all(row["difference"] < 1e-5 for row in complete)
    ratios = [row["speedup_vs_ddp"] for row in rows[:7]]
    assert ratios == pytest.approx([rows[0]["step_ms"] / row["step_ms"] for row in rows[:7]])
