# SPDX-License-Identifier: Apache-2.0
"""The results that are kept, and the experiments that make them."""

import ast
import json
import re
import subprocess
import sys

import jsonschema
import pytest
from schema import ROOT, SCHEMA, validate

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
    """JSON alone, by MPI, as the schema has it."""
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
    """Nothing with an underscore, and no name of a package that it measures."""
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
    for name in ("gloo", "hivemind", "series", "figures", "uneven", "soak"):
        assert re.search(rf"^  {name} ", done.stdout, re.MULTILINE), name


def test_no_such_experiment():
    words = [sys.executable, str(BENCH / "run.py"), "dance"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.returncode == 2 and "dance" in done.stderr and "Traceback" not in done.stderr


def test_figures(tmp_path):
    """A table and a picture of each result that is asked for."""
    words = [sys.executable, str(BENCH / "run.py"), "figures", "--to", str(tmp_path)]
    done = subprocess.run(
        [*words, "idle-8", "conserved"], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    made = {path.name for path in tmp_path.iterdir()}
    assert made >= {"idle-8-mpich.txt", "idle-8-mpich.png", "conserved-openmpi.txt"}
    assert "cpu_percent_per_rank" in (tmp_path / "idle-8-mpich.txt").read_text()


def test_series_can_be_listed():
    words = [sys.executable, str(BENCH / "run.py"), "series", "moshpit", "--list"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert done.stdout.startswith("moshpit-paper-10: sim moshpit"), done.stderr


def test_soak_is_understood(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    from core.soak import parse

    rows = parse(
        "handles run, by policy x algorithm and number of ranks\n"
        "                 1      2\n"
        "solo x recdbl    5      6\n"
        "11 schedules, 12 handles, 13 rounds, 1 rounds lost to slow ranks: all invariants held\n"
        "2.5 s in 2 processes: 5 rounds a second\n"
    )
    assert rows[0] == {
        "row": "policy",
        "policy": "solo",
        "algorithm": "recdbl",
        "handles": {"1": 5, "2": 6},
    }
    assert rows[1]["rounds"] == 13 and rows[1]["seconds"] == 2.5 and "held" in rows[1]["found"]
