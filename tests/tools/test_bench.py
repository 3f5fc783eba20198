# SPDX-License-Identifier: Apache-2.0
"""The benchmarks: rows, options, and limits computed by formulas."""

import importlib.util
import itertools
import json
import math
import pathlib
import subprocess
import sys

import pytest
from rows import ROW
from schema import validate

from partialcoll.tools import skewed
from partialcoll.tools.cli import main

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


@pytest.fixture
def run(clean_environment, tmp_path):
    """Run a benchmark, which starts its own job. Return its rows."""

    def run_it(*words):
        path = tmp_path / "rows.json"
        command = [sys.executable, "-m", "partialcoll", "bench", *words, "--json", str(path)]
        done = subprocess.run(
            command, env=clean_environment, capture_output=True, text=True, timeout=170
        )
        assert done.returncode == 0, done.stderr
        run_it.said = done.stderr
        doc = json.loads(path.read_text())
        assert doc["schema"] == 1 and doc["command"] == f"bench {words[0]}"
        validate(doc)
        return doc["rows"]

    return run_it


def test_balanced(run, tmp_path):
    names = "mpi,full,quorum:0.5,solo,linger=10ms"
    rows = run(
        "balanced", "-n", "3", "--sizes", "8,1K", "--iters", "2", "--collectives", names,
        "--domain", "rank",
        "--plot", str(tmp_path / "p.png"),
    )  # fmt: skip
    expected = itertools.product((8, 1024), ("mpi", "full", "quorum:0.5", "solo,linger=10ms"))
    assert [(row["bytes"], row["collective"]) for row in rows] == list(expected)
    for row in rows:
        assert set(row) == set(ROW) and row["wrong"] == 0 and row["ranks"] == 3
        assert row["busbw_gbs"] == pytest.approx(row["bandwidth_gbs"] * 4 / 3)
        assert row["bandwidth_gbs"] == pytest.approx(row["bytes"] / row["latency_us_avg"] / 1e3)
        assert row["collective"] in ("quorum:0.5", "solo,linger=10ms") or row["active_mean"] == 3
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_skew_with_quorums(run):
    names = "mpi,quorum:2,first_of:2,last_of:2,full,deadline=100s"
    rows = run("skew", "-n", "3", "--iters", "3", "--collectives", names, "--domain", "rank")
    assert [row["collective"] for row in rows] == names.replace("full,", "full;").replace(
        ",", " "
    ).replace(";", ",").split()
    assert all(row["wrong"] == 0 for row in rows)
    assert rows[1]["active_mean"] >= 2 and rows[4]["active_mean"] == 3


@pytest.mark.parametrize(
    "words",
    (
        ["balanced", "--sizes", "8:x"],
        ["balanced", "--sizes", "0"],
        ["balanced", "--sizes", "-4"],
        ["balanced", "--sizes", "4T"],
        ["balanced", "--algorithm", "smoke"],
        ["balanced", "--iters", "0"],
        ["balanced", "--domain", "galaxy"],
        ["skew", "--domain", "node,"],
        ["idle", "--domain", "auto"],
        ["gossip", "--bits", "1"],
        ["gossip", "--sizes", "0"],
        ["group", "--grid", "2y4"],
        ["group", "--bandwidth", "1,0,1"],
        ["group", "--bandwidth", "fast"],
        ["group", "--keys", "moving"],
        ["quantize", "--bits", "8,17"],
        ["quantize", "--bits", "1"],
        ["quantize", "--sizes", "0"],
        ["skew", "--collectives", "mpi,quorum:0"],
        ["skew", "--collectives", "mpi,solo,speed=3"],
    ),
)
def test_refused(words, capsys):
    with pytest.raises(SystemExit) as refused:
        main(["bench", *words])
    assert refused.value.code == 2 and f"{words[1]}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    "words, said",
    (
        (["--json", "/nowhere/rows.json"], "--json: expected a file that can be written"),
        (["--json", "/"], "--json: expected a file that can be written"),
        (["--plot", "/nowhere/p.png"], "--plot: expected a file that can be written"),
        (["--plot", "p.doc"], "--plot: expected a name that ends in .png, .pdf or .svg"),
        (["-n", "10000000"], "-n: expected 1 to"),
        (["--mpiexec-args", "'a"], "--mpiexec-args: expected words as for a shell"),
        (["--warmup", "-1"], "--warmup: -1 is not in the range x>=0"),
        (["--frobnicate"], "--frobnicate"),
        (["--json"], "--json"),
        (["surplus"], "surplus"),
    ),
)
def test_refused_before_a_job_is_started(words, said, capsys, monkeypatch):
    """The error is one sentence that names the option, after a hint to the help."""
    monkeypatch.setattr("partialcoll.tools.launcher.relaunch", None)
    monkeypatch.setattr("partialcoll.tools.launcher.in_job", lambda: False)
    with pytest.raises(SystemExit) as refused:
        main(["bench", "skew", *words])
    assert refused.value.code == 2
    usage, sentence = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: partialcoll") and said in sentence


def test_pictures_without_matplotlib(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SystemExit):
        main(["bench", "skew", "--plot", "p.png"])
    assert "--plot: pictures need matplotlib: pip install" in capsys.readouterr().err


def test_limits():
    """The formula equals the mean over all draws, computed one by one."""
    ranks, skew = 7, 100.0

    def wait(starter):
        return sum((starter - r) * skew for r in range(starter)) / ranks

    def mean(values):
        values = list(values)
        return sum(values) / len(values)

    sets = list(itertools.combinations(range(ranks), 3))
    expected = {
        "mpi": wait(6),
        "full": wait(6),
        "majority": mean(wait(r) for r in range(ranks)),
        "quorum:1": wait(0),
        "quorum:4": wait(3),
        "quorum:0.5": wait(math.ceil(3.5) - 1),
        "quorum:1.0": wait(6),
        "first_of:3": mean(wait(min(s)) for s in sets),
        "last_of:3": mean(wait(max(s)) for s in sets),
    }
    for name, value in expected.items():
        assert skewed.limit_us(name, ranks, skew) == pytest.approx(value), name
    assert skewed.limit_us("solo", ranks, skew) is None
    assert skewed.limit_us("full,deadline=1s", ranks, skew) is None


def test_limits_of_many_ranks():
    """More draws than a float can count; a share that rounding must not raise."""
    skew = 1.0
    assert skewed.limit_us("quorum:0.55", 100, skew) == skewed.limit_us("quorum:55", 100, skew)
    halves = [skewed.limit_us(f"{name}:2048", 4096, skew) for name in ("first_of", "last_of")]
    assert halves[0] < 1 and halves[1] == pytest.approx(4094 * 4095 / (2 * 4096), rel=1e-3)


def test_tune(run, tmp_path):
    """All algorithms with 2 ranks and all ranks. auto can read the table."""
    path = tmp_path / "new" / "tune.txt"
    rows = run("tune", "-n", "3", "--sizes", "1K,64K", "--iters", "2", "--output", str(path))
    expected = itertools.product(
        (2, 3), (1024, 65536), ("recdbl", "rabenseifner", "ring", "native")
    )
    ranked = [row for row in rows if row["domain"] == "rank"]
    assert [(row["ranks"], row["bytes"], row["algorithm"]) for row in ranked] == list(expected)
    others = [row["collective"] for row in rows if row not in ranked]
    assert others == ["full", "mpi"] * 4
    assert all(set(row) == set(ROW) and row["wrong"] == 0 for row in rows)
    lines = [line.split() for line in path.read_text().splitlines() if not line.startswith("#")]
    assert ["2", "0", "recdbl"] in lines and ["3", "0", "recdbl"] in lines
    assert [line[0] for line in lines if line[2] == "ours"] == ["2", "3"]


def test_tune_of_ranks_that_have_nothing_to_do(run, clean_environment, tmp_path):
    """Idle ranks wait by design and cause no warning. Without a terminal, lines show progress."""
    clean_environment["PARTIALCOLL_STALL_WARN"] = "0.5"
    path = tmp_path / "tune.txt"
    run("tune", "-n", "4", "--sizes", "1K:1M", "--iters", "5", "--output", str(path))
    absent = ("rank 0 has not arrived", "rank 1 has not arrived")  # the measured ranks
    before, all_are_measured, _ = run.said.partition("bench tune: 4 of 4 ranks")
    assert not [line for line in before.splitlines() if all(who in line for who in absent)]
    assert "bench tune: 2 of 4 ranks" in before and all_are_measured


def test_a_rank_that_fails_ends_the_job(clean_environment):
    """Only rank 0 finds the error; the others wait for it."""
    words = ["bench", "tune", "-n", "3", "--sizes", "8", "--iters", "1", "--output", "none"]
    done = subprocess.run(
        [sys.executable, "-m", "partialcoll", *words],
        env=clean_environment, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode != 0 and "rank 0: bench tune: there is nowhere" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("algorithm", ("recdbl", "rabenseifner", "ring", "native"))
def test_balanced_says_its_algorithm(run, algorithm):
    rows = run(
        "balanced", "-n", "2", "--sizes", "4K", "--iters", "1", "--algorithm", algorithm,
        "--domain", "rank",
    )  # fmt: skip
    assert [row["algorithm"] for row in rows] == ["native", algorithm]
    assert [row["domain"] for row in rows] == ["-", "rank"]


def domains_of(rows, said, collective):
    """Check the domains of a collective's rows with both planes: each occurs once. If there is no
    shared memory, a message says so."""
    domains = [row["domain"] for row in rows if row["collective"] == collective]
    assert domains == (["rank"] if 'domain "node" comes to "rank"' in said else ["node", "rank"])
    return domains


def test_both_planes(run, tmp_path):
    """By default each row shows the domain of its handle."""
    picture = tmp_path / "p.png"
    words = ("-n", "2", "--iters", "2", "--collectives", "mpi,full", "--plot", str(picture))
    rows = run("skew", "--skew-ms", "0.1", *words)
    domains = domains_of(rows, run.said, "full")
    assert [row["domain"] for row in rows] == ["-", *domains]
    assert all(row["wrong"] == 0 and row["speedup_vs_mpi"] for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    rows = run("balanced", "--sizes", "8,1K", *words)
    assert [row["domain"] for row in rows] == ["-", *domains] * 2
    assert run.said.count("comes to") == (len(domains) == 1)
    rows = run("balanced", "--sizes", "8", "-n", "2", "--algorithm", "native")
    assert domains_of(rows, run.said, "full") == ["rank"]


def test_idle(run, tmp_path):
    picture = tmp_path / "p.png"
    rows = run("idle", "-n", "2", "--seconds", "0.05", "--plot", str(picture))
    expected = {"state", "domain", "ranks", "cpu_percent_per_rank"}
    assert all(set(row) == expected and row["ranks"] == 2 for row in rows)
    domains = ["rank"] if "comes to" in run.said else ["node", "rank"]
    states = itertools.product(domains, ("idle", "waiting"))
    assert [(row["domain"], row["state"]) for row in rows] == list(states)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_zero_copy(run):
    """Every element is checked in place. mpi has no zero copy and is unchanged."""
    rows = run(
        "balanced", "-n", "3", "--sizes", "8,4K", "--iters", "1", "--zero-copy", "--domain", "rank",
        "--collectives", "mpi,full,solo",
    )  # fmt: skip
    names = ["mpi", "full (zero copy)", "solo (zero copy)"]
    assert [row["collective"] for row in rows] == 2 * names
    assert all(set(row) == set(ROW) and row["wrong"] == 0 for row in rows)


def test_overhead(run, tmp_path):
    rows = run("overhead", "--iters", "3", "--plot", str(tmp_path / "p.png"))
    assert [set(row) for row in rows] == [{"call", "us"}] * 5
    us = {row["call"]: row["us"] for row in rows}
    assert all(us[name] > 0 for name in us if name != "added by Python")
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ranks", ("1", "2"))
def test_quantize(run, tmp_path, ranks):
    """The errors fit the bits, and the ratios fit the format."""
    rows = run(
        "quantize", "-n", ranks, "--sizes", "4,20K", "--bits", "4,8,13", "--rotate", "--iters", "2",
        "--plot", str(tmp_path / "p.png"),
    )  # fmt: skip
    coded = itertools.product(
        ("lattice", "lattice, rotated"), (4, 8, 13), ("encode", "decode", "decode+average")
    )
    expected = [("memcpy", 32, "copy"), *coded]
    for size, part in ((4, rows[: len(expected)]), (20 << 10, rows[len(expected) :])):
        assert [(r["codec"], r["bits"], r["direction"]) for r in part] == expected
        for row in part:
            fields = ["codec", "bits", "direction", "bytes", "gbs", "share", "max_error", "ratio"]
            assert list(row) == fields and row["bytes"] == size and row["gbs"] > 0
            if row["codec"] == "lattice":
                step = 2 * 0.01 / (2 ** row["bits"] - 1)
                half = 2 if row["direction"] == "decode+average" else 1
                assert row["max_error"] <= 0.51 * step / half + 4e-6
            if row["codec"] != "memcpy" and size > 4:
                assert row["ratio"] == pytest.approx(row["bits"] / 32, abs=0.01)
    assert all(row["max_error"] == 0 and row["ratio"] == 1 for row in rows[:: len(expected)])
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ranks", ["2", "3"])
def test_gossip(run, tmp_path, ranks):
    plot = tmp_path / "gossip.png"
    words = ["gossip", "-n", ranks, "--sizes", "4,300K", "--bits", "8", "--iters", "2"]
    rows = run(*words, "--plot", str(plot))
    ops = ["memcpy", "sendrecv", "publish", "read", "average", "collect", "push", "drain"]
    assert [row["op"] for row in rows] == 4 * ops
    assert {(row["codec"], row["bytes"]) for row in rows} == {
        (codec, size) for codec in (None, 8) for size in (4, 300 << 10)
    }
    for row in rows:
        assert row["peers"] == int(ranks) - 1 and row["gbs"] > 0 and row["latency_us"] > 0
        assert row["sum_error"] < 1e-6
    assert plot.stat().st_size > 5000


def test_gossip_alone(capfd):
    """One rank has no partner to average with."""
    with pytest.raises(SystemExit) as refused:
        main(["bench", "gossip", "-n", "1"])
    assert refused.value.code == 2
    assert "at least 2 ranks" in capfd.readouterr().err


@pytest.mark.parametrize("bandwidth", ("equal", "measured", "1,2,1,0.5"))
def test_group(run, clean_environment, tmp_path, bandwidth):
    """A turn is exact on a full grid, and not on others. Every element is checked."""
    clean_environment["PARTIALCOLL_TIMEOUT"] = "240"  # no rank is passed over for being slow
    plot = tmp_path / "group.png"
    words = ["group", "-n", "4", "--sizes", "4,100K", "--grid", "2x2,4,3x2", "--iters", "2"]
    rows = run(*words, "--bandwidth", bandwidth, "--plot", str(plot))
    kinds = [
        ("mpi", None),
        ("full", None),
        ("group", "2x2"),
        ("group, one round", "2x2"),
        ("group", "4"),
        ("group", "3x2"),
        ("group, one round", "3x2"),
    ]
    assert [(row["method"], row["grid"]) for row in rows] == 2 * kinds
    for row in rows:
        assert row["ranks"] == 4 and row["wrong"] == 0 and row["seconds"] > 0
        assert row["bytes"] in (4, 100 << 10) and row["error"] < 1e-5
        assert not row["void_rounds"]
        full = row["grid"] in (None, "2x2", "4") and "one round" not in row["method"]
        assert row["exact"] == full
        assert row["rounds"] == (2 if row["method"] == "group" and "x" in row["grid"] else 1)
        if full:
            share = 2 * 3 / 4 if row["grid"] != "2x2" else 2.0
            bus = row["bytes"] * share / row["seconds"] / 1e9
            assert row["busbw_gbs"] == pytest.approx(bus)
    assert plot.stat().st_size > 5000


@pytest.mark.parametrize(
    "words, said",
    (
        (["group", "--bandwidth", "1,2"], "expected 4 numbers"),
        (["group", "--grid", "3"], "--grid"),
        (["gpu"], "finds no CUDA device" if importlib.util.find_spec("torch") else "needs PyTorch"),
    ),
)
def test_refused_by_the_ranks(clean_environment, words, said):
    """Options that only the ranks can check."""
    if words == ["gpu"] and pathlib.Path("/dev/nvidiactl").exists():
        pytest.skip("there may be one")
    command = [sys.executable, "-m", "partialcoll", "bench", *words, "-n", "4"]
    done = subprocess.run(
        command, env=clean_environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode != 0 and said in done.stderr


def test_uneven_prediction():
    """Compared with the linear program, solved by HiGHS."""
    scipy = pytest.importorskip("scipy.optimize")
    import partialcoll as pc

    sys.path.insert(0, str(BENCH))
    try:
        from lib.hosts import bits_per_second
        from paper import uneven
    finally:
        sys.path.remove(str(BENCH))
    for text in ("1gbit,1gbit,1gbit,100mbit", "5mbit,4mbit,3mbit", "1gbit,1gbit,1gbit,1gbit"):
        rates = [bits_per_second(rate) for rate in text.split(",")]
        m = len(rates)
        # min t with 8 (1 + (m-2) w_i) <= t b_i, for one byte, in nanoseconds and gigabits
        bounds = [
            [*(8 * (m - 2) * (i == j) for j in range(m)), -b / 1e9] for i, b in enumerate(rates)
        ]
        found = scipy.linprog(
            [0] * m + [1], bounds, [-8] * m, [[1] * m + [0]], [1], bounds=[(0, None)] * (m + 1)
        )
        got = uneven.predicted(pc.bandwidth_shares(rates), rates, 1)
        assert got == pytest.approx(found.fun / 1e9, rel=1e-6)
    with pytest.raises(Exception, match="expected rates such as"):
        bits_per_second("fast")


def test_hivemind_refuses():
    """An invalid interpreter is refused before anything is started."""
    words = [sys.executable, str(BENCH / "run.py"), "hivemind", "--hivemind", "/nowhere/python"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "'/nowhere/python' does not exist" in done.stderr
