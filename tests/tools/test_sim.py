# SPDX-License-Identifier: Apache-2.0
"""The simulations behind ``partialcoll sim``: rows, growth with the ranks, bad parameters."""

import json
import math
import re

import pytest
from rows import ROW

from partialcoll.tools.cli import main
from partialcoll.tools.sim import skew

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]


def simulate(tmp_path, *words):
    """Return the rows of a run of the command."""
    path = tmp_path / "rows.json"
    assert main(["sim", "skew", "--json", str(path), *words]) == 0
    doc = json.loads(path.read_text())
    assert doc["schema"] == 1 and doc["command"] == "sim skew"
    return doc["rows"]


def test_rows(tmp_path):
    rows = simulate(tmp_path, "--ranks", "32", "--iters", "40", "--plot", str(tmp_path / "p.png"))
    by_name = {row["collective"]: row for row in rows}
    assert list(by_name) == ["mpi", "solo", "majority", "full"]
    for row in rows:
        assert set(ROW) <= set(row) and row["ranks"] == 32 and row["wrong"] == 0
    # The computed limits, in which the latency of a few messages must be small.
    assert by_name["full"]["latency_us_avg"] == pytest.approx(15500, rel=0.01)
    assert by_name["majority"]["latency_us_avg"] == pytest.approx(5328, rel=0.35)
    assert by_name["solo"]["latency_us_avg"] < 3
    assert by_name["solo"]["active_mean"] == 1
    assert 10 < by_name["majority"]["active_mean"] < 23
    assert by_name["full"]["active_mean"] == 32
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ranks", (1, 2, 3, 5, 8, 17, 63, 64, 65, 100))
def test_activation_hops(tmp_path, ranks):
    """An activation reaches all ranks within ceil(log2 P) hops of L + 2o."""
    words = ("--ranks", str(ranks), "--collectives", "solo", "--loggp", "10,1,0,0", "--iters", "3")
    (row,) = simulate(tmp_path, *words)
    hops = math.ceil(math.log2(ranks))
    # Sending and receiving several messages keeps the processor a little longer.
    assert min(hops, 1) * 12 <= row["activation_us"] <= (12 + 3) * hops
    assert row["latency_us_max"] >= row["activation_us"]


def test_growth(tmp_path):
    """If all ranks arrive at once, latency grows with the steps of recursive doubling."""
    words = ("--skew-ms", "0", "--collectives", "full", "--loggp", "5,0,0,0", "--iters", "1")
    picture = tmp_path / "growth.png"
    rows = simulate(tmp_path, "--ranks", "2,16,256,2048", "--plot", str(picture), *words)
    assert [row["latency_us_max"] for row in rows] == [5, 20, 40, 55]
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("algorithm", "hops"), (("recdbl", 3), ("rabenseifner", 6), ("ring", 14), ("native", None))
)
def test_the_algorithm_is_the_one_asked_for(tmp_path, monkeypatch, algorithm, hops):
    """The algorithm does not depend on a table. mpi means recursive doubling for any of them."""
    table = tmp_path / "tune.txt"
    table.write_text("1 0 ring\n")
    monkeypatch.setenv("PARTIALCOLL_TUNE", str(table))
    words = ("--ranks", "8", "--skew-ms", "0", "--loggp", "5,0,0,0", "--iters", "1", "--count", "8")
    rows = simulate(tmp_path, *words, "--collectives", "mpi,full", "--algorithm", algorithm)
    assert [row["algorithm"] for row in rows] == ["recdbl", algorithm]
    assert rows[0]["latency_us_max"] == 15 and all(row["wrong"] == 0 for row in rows)
    assert hops is None or rows[1]["latency_us_max"] == 5 * hops


@pytest.mark.parametrize("words", (["--ranks", "1"], ["--ranks", "4", "--loggp", "0,0,0,0"]))
def test_no_latency_at_all(tmp_path, words):
    """Ratios of zeros are no numbers, and the picture is still drawn."""
    rows = simulate(tmp_path, "--skew-ms", "0", "--plot", str(tmp_path / "p.png"), *words)
    assert all(row["latency_us_avg"] == 0 and row["speedup_vs_mpi"] is None for row in rows)


def test_gaps_do_not_carry_over(tmp_path):
    """Each iteration begins with free links, so all are alike."""
    words = ("--ranks", "8", "--skew-ms", "0", "--loggp", "5,1,1000,0", "--collectives", "full")
    (row,) = simulate(tmp_path, *words, "--iters", "4")
    assert row["latency_us_p50"] == row["latency_us_max"] == 2007


def test_quorums(tmp_path):
    names = "quorum:0.5,quorum:3,first_of:2,last_of:2,solo,linger=50us,full,deadline=2ms"
    rows = simulate(tmp_path, "--ranks", "16", "--iters", "60", "--collectives", names)
    active = {row["collective"]: row["active_mean"] for row in rows}
    assert active["quorum:0.5"] == 8 and active["quorum:3"] == 3
    assert active["first_of:2"] == pytest.approx(17 / 3, rel=0.3)
    assert active["last_of:2"] == pytest.approx(2 * 17 / 3, rel=0.3)
    assert active["solo,linger=50us"] == 1 and active["full,deadline=2ms"] == 3
    for row in rows[:4]:
        assert row["latency_us_avg"] == pytest.approx(row["limit_us"], rel=0.35)


def test_seeds(tmp_path):
    words = ("--ranks", "33", "--latency", "exponential", "--iters", "5")
    first = simulate(tmp_path, *words, "--seed", "4")
    assert first == simulate(tmp_path, *words, "--seed", "4")
    assert first != simulate(tmp_path, *words, "--seed", "5")


@pytest.mark.parametrize("late", ("carry", "latest", "drop"))
@pytest.mark.parametrize("latency", ("uniform:0.9", "lognormal:1.5", "exponential", "constant"))
def test_latencies(tmp_path, late, latency):
    rows = simulate(tmp_path, "--ranks", "20", "--latency", latency, "--late", late, "--count", "3")
    wrong = 0 if late == "drop" else None  # otherwise the sum does not follow from the mask
    assert all(row["wrong"] == wrong and row["latency"].startswith(latency[:7]) for row in rows)


@pytest.mark.parametrize(
    ("words", "complaint"),
    (
        (["--loggp=-1,0,0,0"], r"L \(latency\): expected a time of 0 to 3600s"),
        (["--loggp", "1,nan,0,0"], r"o \(overhead\): expected"),
        (["--loggp", "1,0,1e99,0"], r"g \(gap\): expected"),
        (["--loggp", "1,0,0,9s"], r"G \(gap per byte\): expected a time of 0 to 0.001s"),
        (["--loggp", "1,2,3"], "four times"),
        (["--latency", "pareto"], "expected constant, uniform, exponential, lognormal"),
        (["--latency", "lognormal:5"], "spread of 0 to 4"),
        (["--latency", "constant:1"], "no spread"),
        (["--algorithm", "smoke"], "'smoke' is not one of 'recdbl'"),
        (["--collectives", "solo,some"], "expected mpi or a policy; quorum: expected"),
        (["--ranks", "0"], "0 is not in the range x>=1"),
        (["--ranks", "8,-2"], "-2 is not in the range x>=1"),
        (["--ranks", "many"], "'many' is not a valid integer"),
        (["--skew-ms=-1"], "not in the range 0<=x<=3600000"),
        (["--skew-ms", "nan"], "'nan' is not a finite number"),
        (["--count", "0"], "not in the range"),
        (["--iters", "0"], "not in the range"),
        (["--seed", "-1"], "not in the range 0<=x<=18446744073709551615"),
    ),
)
def test_refused_by_the_parser(words, complaint, capsys):
    with pytest.raises(SystemExit):
        main(["sim", "skew", *words])
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(complaint, text), text


@pytest.mark.parametrize(
    ("words", "complaint"),
    (
        (["--ranks", "1048577"], r"--ranks: expected 1 to \d+ \(what the memory"),
        (["--ranks", "1000000000"], "--ranks: expected 1 to"),
        (["--skew-ms", "1e30"], r"--skew-ms: 1e\+30 is not in the range"),
        (["--count", "999999999999999"], "elements are more than can be held"),
        (["--count", "9" * 30], "--count: 9+ is not in the range"),
        (
            ["--ranks=16", "--skew-ms=3600000", "--iters=3000000", "--collectives=solo"],
            "clock ends after",
        ),
        (["--json", "/nowhere/rows.json"], "--json: "),
        (["--plot", "picture.doc"], "--plot: expected a name that ends in .png"),
    ),
)
def test_refused_before_it_runs(words, complaint, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["sim", "skew", *words])
    assert refused.value.code == 2
    text = capsys.readouterr().err
    assert complaint in text or re.search(complaint, text), text


@pytest.mark.mpi
def test_inside_a_job(comm, capsys):
    """Only one rank simulates and prints."""
    assert main(["sim", "skew", "--ranks", "8", "--collectives", "solo", "--iters", "1"]) == 0
    assert bool(capsys.readouterr().out) == (comm.rank == 0)


def test_times():
    parsed = skew.parse_loggp("2us,500ns,0.001ms,0.1ns")
    assert parsed == skew.LogGP(2000, 500, 1000, 0.1)
    assert skew.parse_loggp("2,0.5,1,0.0001") == parsed
    assert skew.parse_loggp(str(parsed)) == parsed
    assert str(skew.parse_latency("uniform:0.25")) == "uniform:0.25"
