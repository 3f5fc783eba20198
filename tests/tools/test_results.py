# SPDX-License-Identifier: Apache-2.0
"""The stored results, and the experiments that produce them."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from schema import ROOT, SCHEMA, validate

from partialcoll.tools import skewed

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

BENCH = ROOT / "bench"
RESULTS = sorted((BENCH / "results").glob("*/*"))
SCRIPTS = sorted(p for p in BENCH.rglob("*.py") if "results" not in p.parts)
OF_TESTS = ("coverage", "model", "mutants", "test-all")  # rows of checks, by tests/


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    env = {"mpi": "M", "ranks": 1, "cores": 1, "version": "0"}
    good = {"schema": 1, "command": "bench idle", "env": env}
    validate({**good, "rows": [{"state": "idle", "ranks": 2, "cpu_percent_per_rank": 0.1}]})
    for rows in ([], [{"state": "idle"}], [{}]):
        with pytest.raises(jsonschema.ValidationError):
            validate({**good, "rows": rows})


@pytest.mark.parametrize("path", RESULTS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_kept_results(path):
    """Only JSON, one file per MPI, valid by the schema."""
    assert path.name in ("mpich.json", "openmpi.json", "any.json")
    document = json.loads(path.read_text())
    if path.parent.name in OF_TESTS:
        assert document["schema"] == 1 and document["rows"]
        return
    validate(document)
    library = document["env"]["mpi"]
    assert library is None or ("Open MPI" in library or library == "openmpi") == (
        path.stem == "openmpi"
    )


def test_nothing_else_is_kept():
    assert not [p for p in (BENCH / "results").iterdir() if not p.is_dir()]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: str(p.relative_to(BENCH)))
def test_experiments_use_public_modules(path):
    """Experiments use no private names of a package that they measure."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            assert not re.match(r"partialcoll\b.*\._", name), f"{path} imports {name}"
    assert path.stem not in ("hivemind", "gloo", "torch", "mpi4py", "numpy", "partialcoll")


def test_every_experiment_has_its_help():
    words = [sys.executable, str(BENCH / "run.py"), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    for name in ("peers", "hivemind", "series", "uneven"):
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE), name


def test_no_such_experiment():
    words = [sys.executable, str(BENCH / "run.py"), "dance"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "dance" in done.stderr and "Traceback" not in done.stderr


def test_series_can_be_listed():
    words = [sys.executable, str(BENCH / "run.py"), "series", "moshpit", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("moshpit-paper-10: sim moshpit"), done.stderr


ENV = {"mpi": "M", "ranks": 2, "cores": 1, "version": "0"}


def arrivals(latency, speedup, **more):
    """Return a document of `bench skew` with one row."""
    row = {"collective": "solo", "domain": "rank", "algorithm": "recdbl", "ranks": 2, "count": 1}
    row |= {"bytes": 4, "active_mean": 1.0, "limit_us": None, "speedup_vs_limit": None, "wrong": 0}
    row |= {f"latency_us_{which}": latency for which in ("avg", "p50", "p99")}
    row |= {"bandwidth_gbs": None, "busbw_gbs": None, "speedup_vs_mpi": speedup, **more}
    return {"schema": 1, "command": "bench skew", "env": ENV, "rows": [row]}


def test_separate_runs_are_merged(monkeypatch, tmp_path):
    """Runs are merged into medians with their spread. Values equal in all runs stay, and a failed
    run is visible."""
    monkeypatch.syspath_prepend(str(BENCH))
    from paper.series import merged

    once = arrivals(5.0, 2.0)
    assert merged([once]) == once
    five = [arrivals(v, 10 / v, ok=v < 5, auto=f"a{v > 2}") for v in (3.0, 1.0, 2.0, 9.0, 4.0)]
    for document in five:
        document["runs"] = [{"seed": 0}]
    document = merged(five)
    validate(document)
    (row,) = document["rows"]
    assert document["repeats"] == 5 and len(document["runs"]) == 5 and document["env"] == ENV
    assert (row["latency_us_avg"], row["speedup_vs_mpi"]) == (3.0, 10 / 3)
    assert row["spread"]["latency_us_avg"] == [1, 9]
    assert row["spread"]["speedup_vs_mpi"] == [10 / 9, 10]
    assert "wrong" not in row["spread"] and row["wrong"] == 0 and row["limit_us"] is None
    assert row["ok"] is False and row["auto"] == "aTrue / aFalse"
    skewed.plot(document["rows"], str(tmp_path / "skew.png"), "whiskers")
    assert (tmp_path / "skew.png").read_bytes().startswith(b"\x89PNG")
    two = arrivals(5.0, 2.0)
    two["rows"] *= 2
    with pytest.raises(ValueError, match="rows: expected as many in each run"):
        merged([once, two])


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("bench skew -n 2", 3),
        ("bench train -n 2", 3),
        ("bench train --seed 4", 1),
        ("sim skew", 1),
        ("shortfall", 1),
        ("peers", 3),
    ],
)
def test_a_series_repeats_measurements(monkeypatch, tmp_path, text, runs):
    """Measurements repeat in their own jobs, and trainings with their own seeds. Simulations are
    deterministic and run once."""
    monkeypatch.syspath_prepend(str(BENCH))
    from paper import series

    calls = []

    def call(words, cwd):
        document = arrivals(float(len(calls)), 1.0)
        Path(words[words.index("--json") + 1]).write_text(json.dumps(document))
        return calls.append(words)

    monkeypatch.setattr(series.subprocess, "call", call)
    monkeypatch.setattr(series, "_kept", lambda result, text: tmp_path / "kept.json")
    assert not series._run("kept", text, 3)
    kept = json.loads((tmp_path / "kept.json").read_text())
    validate(kept)
    assert len(calls) == runs and kept.get("repeats", 1) == runs
    seeds = [words[words.index("--seed") + 1] for words in calls if "--seed" in words]
    assert seeds == {"bench train -n 2": ["0", "1", "2"], "bench train --seed 4": ["4"]}.get(
        text, []
    )
    monkeypatch.setattr(series.subprocess, "call", lambda words, cwd: 3)
    assert series._run("kept", text, 3) == 3
    assert json.loads((tmp_path / "kept.json").read_text()) == kept
