# SPDX-License-Identifier: Apache-2.0
"""``partialcoll sim moshpit``: the paper's table, what the paper omits, bad parameters."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pytest

from partialcoll.grid import Grid
from partialcoll.tools.cli import main
from partialcoll.tools.cli.sim import AVERAGERS, commands
from partialcoll.tools.sim import moshpit
from partialcoll.tools.sim.simulated import Events, group_reductions

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

FIELDS = {"peers", "p", "grid", "method", "rounds_to_1e-9", "rounds_to_1e-4", "keys", "losses"}
FIELDS |= {"rate", "finished", "mean_error", "errors", "restarts", "seed", "seconds"}


def options_of(*words):
    command = commands.get_command(None, "moshpit")
    return SimpleNamespace(**command.make_context("moshpit", list(words)).params)


def simulate(*words):
    """Return the rows without their run times."""
    rows = moshpit.run(options_of(*words))
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


def test_the_command(tmp_path):
    path, picture = tmp_path / "rows.json", tmp_path / "p.png"
    words = ["--peers", "24,30", "--p", "0,0.01", "--grid", "8x4", "--restarts", "3"]
    assert main(["sim", "moshpit", "--json", str(path), "--plot", str(picture), *words]) == 0
    doc = json.loads(path.read_text())
    assert doc["schema"] == 1 and doc["command"] == "sim moshpit" and doc["env"]["ranks"] == 30
    rows = doc["rows"]
    assert len(rows) == 2 * 2 * (len(AVERAGERS) + 1)  # moshpit with both kinds of keys
    for row in rows:
        assert set(row) >= FIELDS
        assert 1 <= row["rounds_to_1e-4"] <= row["rounds_to_1e-9"] <= 50
        assert row["mean_error"] < 1e-14
        assert row["errors"] == sorted(row["errors"], reverse=True) or row["method"] == "pushsum"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_seeds():
    words = ["--peers", "50", "--grid", "8x8", "--p", "0.02", "--restarts", "4"]
    assert simulate(*words, "--seed", "3") == simulate(*words, "--seed", "3")
    assert simulate(*words, "--seed", "3") != simulate(*words, "--seed", "4")
    # The first restarts are equal if there are more restarts or fewer methods.
    few = simulate(*words, "--methods", "random")
    assert few == [row for row in simulate(*words) if row["method"] == "random"]


class Engine:
    """The rounds of csrc/group on simulated peers that all begin a round together."""

    def __init__(self, values, sides):
        self.events = Events()
        peers = len(values)
        self.handles = group_reductions(peers, sides, np.zeros(1), self.events, 1e-3, 1.0)
        self.values = values

    def step(self, there, losses):
        """Make one round. An absent peer does not begin it, or is suspended during it."""
        self.events.run(self.events.now + 1)  # groups form in the background
        for handle, comes, value in zip(self.handles, there, self.values):
            if comes:
                handle.send_buffer[:] = value
                handle.Start()
            elif losses == "void":
                handle.stand(True)
        while any(handle.waits for handle in self.handles):
            assert self.events.step()
        came = [h.recv_buffer[0] if c else v for h, c, v in zip(self.handles, there, self.values)]
        self.values = np.array(came)


def first_values(peers):
    return np.random.default_rng(peers).standard_normal(peers)


def compared(sides, peers, keys, losses):
    """Return the arithmetic of `sim moshpit`, and the engine on the same values."""
    values = first_values(peers)
    grid, cells = Grid(sides, peers), np.arange(peers)
    random = np.random.default_rng(0)
    arithmetic = moshpit.GridGroups(values.copy(), grid, cells, keys, losses, random)
    return arithmetic, Engine(values.copy(), sides)


@pytest.mark.parametrize(
    "sides, peers, keys",
    (
        ((4, 4), 16, "static"),
        ((2, 3, 4), 24, "static"),
        ((32, 32), 1024, "static"),
        ((4, 4), 13, "dynamic"),
        ((8, 8), 57, "dynamic"),
        ((16, 16), 250, "dynamic"),
    ),
)
def test_the_arithmetic_is_the_engines(sides, peers, keys):
    """Without failures each round is equal, as long as no line has more peers than cells: then the
    late peers are drawn."""
    arithmetic, engine = compared(sides, peers, keys, "void")
    grid, there = Grid(sides, peers), np.ones(peers, bool)
    for round in range(2 * len(sides)):
        axis = grid.axis(round)
        lines = np.bincount(grid.line(arithmetic.cells, axis))
        if lines.max() > grid.sides[axis]:
            assert round >= len(sides)
            break
        arithmetic.step(there, round)
        engine.step(there, "void")
        np.testing.assert_allclose(engine.values, arithmetic.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_an_absent_peer_counts_as_in_the_engine(seed):
    """The others average without the absent peer, and it takes part in the next round."""
    arithmetic, engine = compared((8, 8), 64, "static", "absent")
    random = np.random.default_rng(seed)
    for round in range(6):
        lines = Grid((8, 8)).line(np.arange(64), round % 2)
        there = random.uniform(size=64) >= 0.2
        for line in range(8):  # each group has a member that comes
            there[random.choice(np.flatnonzero(lines == line))] = True
        arithmetic.step(there, round)
        engine.step(there, "absent")
        np.testing.assert_allclose(engine.values, arithmetic.values, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_a_lost_peer_voids_as_in_the_engine(seed):
    """A lost peer's group keeps its values. The other groups average."""
    arithmetic, engine = compared((8, 8), 64, "static", "void")
    there = np.random.default_rng(seed).uniform(size=64) >= 0.05
    arithmetic.step(there, 0)
    engine.step(there, "void")
    np.testing.assert_allclose(engine.values, arithmetic.values, rtol=1e-12, atol=1e-12)
    assert 0 < np.sum(engine.values != first_values(64)) < 64


@pytest.mark.parametrize("grid", ("7", "4x4", "2x3x4", "8x8x8"))
@pytest.mark.parametrize("keys", ("static", "dynamic"))
def test_a_full_grid_takes_as_many_rounds_as_axes(grid, keys):
    peers = Grid(grid).cells
    words = ["--peers", str(peers), "--grid", grid, "--p", "0", "--restarts", "5"]
    (row,) = simulate(*words, "--methods", "moshpit", "--keys", keys)
    assert row["rounds_to_1e-9"] == Grid(grid).axes
    assert row["errors"][Grid(grid).axes] < 1e-28


def test_dynamic_keys_on_an_under_full_grid():
    """768 of 1024 need two rounds, as if the grid were 24 x 32. 900 need fewer than if the holes
    were always last, on a grid of 29 rows."""
    words = ["--grid", "32x32", "--p", "0", "--restarts", "20", "--methods", "moshpit"]
    rows = {(r["peers"], r["keys"]): r for r in simulate(*words, "--peers", "768,900")}
    assert rows[768, "dynamic"]["rounds_to_1e-9"] == 2
    assert rows[900, "dynamic"]["rounds_to_1e-9"] <= 4.2 < rows[900, "static"]["rounds_to_1e-9"]


@pytest.mark.parametrize("losses", ("void", "absent"))
@pytest.mark.parametrize("method", AVERAGERS)
def test_the_sum_is_conserved(method, losses):
    """Whichever peer fails, on full and under-full grids, with lines larger than their side."""
    words = ["--peers", "60,81", "--grid", "3x3x3x3", "--p", "0.2,0.9", "--restarts", "3"]
    rows = simulate(*words, "--methods", method, "--losses", losses, "--until", "1e-14")
    assert all(row["mean_error"] < 1e-15 for row in rows)


def test_void_rounds():
    """A lost peer costs its whole group the round. If a peer is absent the others average, and it
    keeps its model."""
    values = np.arange(6.0)
    groups = np.array([0, 0, 0, 1, 1, 1])
    there = np.array([True, True, False, True, True, True])
    void = moshpit.group_means(values, groups, there, "void")
    np.testing.assert_array_equal(void, [0, 1, 2, 4, 4, 4])
    absent = moshpit.group_means(values, groups, there, "absent")
    np.testing.assert_array_equal(absent, [0.5, 0.5, 2, 4, 4, 4])


def test_a_peer_that_missed_a_round_keeps_its_cell():
    """Its group moves on without it, or not at all if the round was void."""
    for losses, stay in (("absent", {2}), ("void", {0, 2, 4, 6})):
        averager = moshpit.GridGroups(
            np.arange(8.0), Grid((4, 2)), np.arange(8), "dynamic", losses, None
        )
        before = averager.cells.copy()
        averager.step(np.arange(8) != 2, 0)
        lines = Grid((4, 2)).line(averager.cells, 0)
        np.testing.assert_array_equal(lines, before % 2)
        moved = Grid((4, 2)).coordinate(averager.cells, 0)
        assert len(set(moved[1::2])) == 4
        rest = [i for i in range(0, 8, 2) if i not in stay]
        assert len(set(moved[rest])) == len(rest)
        assert all(averager.cells[i] == before[i] for i in stay)


def test_lines_that_hold_too_many_split():
    """Lines split into full groups and a random rest. Positions follow the numbers."""
    lines = np.array([5, 3, 3, 5, 3, 3, 3, 8, 3, 3])
    left_over = set()
    for seed in range(100):
        split = moshpit.Split(lines, 3, np.random.default_rng(seed))
        assert split.largest == 7
        sizes = np.bincount(split.groups)
        np.testing.assert_array_equal(sorted(sizes), [1, 1, 2, 3, 3])
        np.testing.assert_array_equal(split.sizes, sizes[split.groups])
        for group in range(5):
            members = np.nonzero(split.groups == group)[0]
            assert len(set(lines[members])) == 1
            np.testing.assert_array_equal(split.positions[members], np.arange(len(members)))
        left_over |= set(np.nonzero((split.sizes == 1) & (lines == 3))[0])
    assert left_over == set(np.nonzero(lines == 3)[0])
    whole = moshpit.Split(lines, 7, None)
    np.testing.assert_array_equal(whole.sizes, np.bincount(lines)[lines])


def test_random_groups():
    """Groups are equal except for the rest, which is distributed. The rate is that of the paper's
    theorem 3.2."""
    words = ["--peers", "256", "--grid", "16x16", "--p", "0", "--restarts", "60"]
    (row,) = simulate(*words, "--methods", "random")
    groups = 256 // 16
    assert row["rate"] == pytest.approx((groups - 1) / 256 + groups / 256**2, rel=0.1)


# Table 4 of the paper, 32 x 32: rounds to 1e-9 and to 1e-4, by peers and p (0, 0.001, 0.005, 0.01).
PRINTED = {
    "allreduce": {
        512: ((1.0, 1.6, 10.9, 41.7), (1.0, 1.6, 10.9, 41.7)),
        768: ((1.0, 1.8, 28.7, 50.0), (1.0, 1.8, 28.7, 50.0)),
        900: ((1.0, 1.8, 50.0, 50.0), (1.0, 1.8, 50.0, 50.0)),
        1024: ((1.0, 2.0, 42.6, 50.0), (1.0, 2.0, 42.6, 50.0)),
    },
    "gossip": {peers: ((50.0,) * 4, (50.0,) * 4) for peers in (512, 768, 900, 1024)},
    "pushsum": {
        512: ((47.6, 47.6, 47.8, 47.8), (15.6, 15.6, 15.6, 15.6)),
        768: ((43.2, 43.2, 43.2, 43.9), (13.8, 13.8, 14.1, 14.2)),
        900: ((45.0, 45.0, 45.2, 45.6), (14.7, 14.7, 14.7, 14.9)),
        1024: ((49.0, 49.0, 49.5, 49.5), (16.2, 16.3, 16.3, 16.3)),
    },
    "random": {
        512: ((6.1, 6.3, 6.3, 6.6), (3.0, 3.0, 3.0, 3.0)),
        768: ((6.2, 6.5, 6.6, 7.0), (3.0, 3.0, 3.0, 3.0)),
        900: ((6.4, 6.3, 6.7, 7.0), (3.0, 3.0, 3.0, 3.1)),
        1024: ((6.2, 6.5, 6.7, 6.9), (3.0, 3.0, 3.0, 3.1)),
    },
}
MOSHPIT = {
    512: ((8.2, 8.1, 8.7, 9.1), (3.5, 3.7, 3.9, 3.9)),
    768: ((6.0, 6.2, 6.6, 6.8), (3.0, 3.0, 3.0, 3.0)),
    900: ((5.0, 5.5, 5.9, 6.4), (2.8, 3.0, 3.0, 3.1)),
    1024: ((2.0, 3.4, 5.4, 5.9), (2.0, 2.2, 2.9, 3.0)),
}


def as_the_paper_counts(method, restarts):
    """Return the rows by peers: rounds to 1e-9, to 1e-4."""
    words = ["--p", "0,0.001,0.005,0.01", "--grid", "32x32", "--paper-compat", "--methods", method]
    rows = simulate(*words, "--restarts", restarts, "--peers", "512,768,900,1024")
    return {
        peers: tuple(
            tuple(row[f"rounds_to_{target}"] for row in rows if row["peers"] == peers)
            for target in ("1e-9", "1e-4")
        )
        for peers in MOSHPIT
    }


@pytest.mark.parametrize("method", PRINTED)
def test_the_printed_table(method):
    """Ten restarts with the paper's draws give every figure except those of Moshpit, whose
    placement had no seed there."""
    assert as_the_paper_counts(method, "10") == PRINTED[method]


def test_the_printed_table_of_moshpit():
    """A hundred restarts, each with a random placement, are within a tenth."""
    found = as_the_paper_counts("moshpit", "100")
    for peers, printed in MOSHPIT.items():
        np.testing.assert_allclose(found[peers], printed, rtol=0.1)


def test_the_papers_count_hides_a_drift():
    """Without weights peers do not agree on the mean. With weights they do."""
    words = ["--peers", "512", "--p", "0.005", "--methods", "pushsum,gossip", "--restarts", "5"]
    assert all(row["mean_error"] > 1e-4 for row in simulate(*words, "--paper-compat"))
    assert all(row["mean_error"] < 1e-15 for row in simulate(*words))


def test_push_sum_is_exact_on_powers_of_two():
    (row,) = simulate("--peers", "64", "--p", "0", "--methods", "pushsum", "--restarts", "2")
    assert row["rounds_to_1e-9"] == 6 and row["errors"][6] < 1e-28


def test_push_sum_agrees_on_the_mean_where_peers_fail():
    """The distance to the mean decreases, although the estimates have another mean meanwhile."""
    words = ["--peers", "64", "--p", "0.2", "--methods", "pushsum", "--restarts", "3"]
    words += ["--rounds", "300"]
    (row,) = simulate(*words)
    assert row["finished"] == 1 and row["errors"][-1] < 1e-9
    options = options_of(*words)
    (case,) = moshpit.cases(options)
    draws = moshpit.Draws(False, 0, 0)
    averager = moshpit.make(case, False, draws)
    mean = averager.values.mean()
    for round in range(3):
        averager.step(draws.failures.uniform(0, 1, 64) >= 0.2, round)
    error = np.mean((averager.values - mean) ** 2)
    assert moshpit.follow(case, options, 0)[0][3] == error > 1.0001 * averager.values.var()


@pytest.mark.parametrize("peers", ("1", "2", "3", "5"))
@pytest.mark.parametrize("compat", ([], ["--paper-compat"]))
def test_few_peers(peers, compat):
    rows = simulate("--peers", peers, "--p", "0,0.99", "--restarts", "2", *compat)
    assert all(np.isfinite(row["errors"]).all() for row in rows)
    assert all(row["finished"] == 1 for row in rows if row["p"] == 0)


def test_many_peers():
    words = ["--peers", "40000", "--p", "0.001", "--restarts", "1", "--methods", "moshpit"]
    for row in simulate(*words, "--grid", "32x32x32x2,200x200"):
        assert row["finished"] == 1 and row["mean_error"] < 1e-15


@pytest.mark.parametrize(
    ("words", "complaint"),
    (
        (["--peers", "0"], "--peers: 0 is not in the range x>=1"),
        (["--peers", "8,many"], "--peers: 'many' is not a valid integer"),
        (["--p", "1"], "--p: 1.0 is not in the range 0<=x<1"),
        (["--p", "0,1.5"], "--p: 1.5 is not in the range"),
        (["--p=-0.1"], "--p: -0.1 is not in the range"),
        (["--p", "nan"], "--p: 'nan' is not a finite number"),
        (["--grid", "0x8"], "--grid: grid: sides: expected 1 to 4294967295, got 0"),
        (["--grid", "2x" * 16 + "2"], "--grid: grid: expected 1 to 16 axes, got 17"),
        (["--grid", "big"], '--grid: grid: expected "auto" or sides such as "32x32"'),
        (["--restarts", "0"], "--restarts: 0 is not in the range x>=1"),
        (["--rounds", "0"], "--rounds: 0 is not in the range x>=1"),
        (["--methods", "moshpit,magic"], "--methods: 'magic' is not one of 'moshpit', "),
        (["--keys", "golden"], "--keys: 'golden' is not one of 'static', 'dynamic'"),
        (["--losses", "all"], "--losses: 'all' is not one of 'void', 'absent'"),
        (["--seed=-1"], "--seed: -1 is not in the range 0<=x"),
    ),
)
def test_refused_by_the_parser(words, complaint, capsys):
    with pytest.raises(SystemExit):
        main(["sim", "moshpit", *words])
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(complaint, text), text


@pytest.mark.parametrize(
    ("words", "complaint"),
    (
        (["--grid", "4x4", "--peers", "17"], "grid: expected cells for 17 peers, got 16"),
        (["--peers", "99999999999999"], "--peers: expected 1 to"),
        (["--until", "1e-3"], "--until: 0.001 is not in the range 0<x<=1e-09"),
        (["--until", "0"], "--until: 0.0 is not in the range 0<x"),
        (["--paper-compat", "--keys", "dynamic"], "--keys: expected static with --paper-compat"),
        (["--paper-compat", "--losses", "void"], "--losses: expected absent with --paper-compat"),
        (["--paper-compat", "--grid", "99999x9999"], "--grid: expected at most 268435456 cells"),
        (["--plot", "picture.gif"], "--plot: expected a name that ends in .png"),
    ),
)
def test_refused_before_it_runs(words, complaint, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["sim", "moshpit", *words])
    assert refused.value.code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.mpi
def test_inside_a_job(comm, capsys):
    """Only one rank simulates and prints."""
    words = ["--peers", "8", "--restarts", "1", "--methods", "moshpit"]
    assert main(["sim", "moshpit", *words]) == 0
    assert bool(capsys.readouterr().out) == (comm.rank == 0)
