# SPDX-License-Identifier: Apache-2.0
"""bench/device: the steps of a visit to a machine with a GPU, without one."""

import json
import os
import re
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "bench" / "device"


@pytest.fixture
def visit(monkeypatch):
    monkeypatch.syspath_prepend(str(DEVICE))
    import visit

    return visit


def test_each_step_is_written_down(visit, tmp_path):
    """A step that fails or hangs does not stop the next one."""
    todo = [
        visit.Step("fails", 60, "echo one; exit 3"),
        visit.Step("instead", 60, "echo two", "fails"),
        visit.Step("not needed", 60, "echo three", "instead"),
        visit.Step("hangs", 0.5, "echo four; sleep 600"),
        visit.Step("last", 60, "pwd", folder=tmp_path),
    ]
    results = visit.visit(todo, tmp_path, 600, dict(os.environ))
    expected = {"fails": "status 3", "instead": "ok", "hangs": "out of time", "last": "ok"}
    assert results == expected
    rows = [json.loads(line) for line in (tmp_path / "visit.jsonl").read_text().splitlines()]
    assert {row["step"]: row["result"] for row in rows} == expected
    printed = (tmp_path / "log.txt").read_text()
    assert re.findall(r"^(one|two|three|four)$", printed, re.MULTILINE) == ["one", "two", "four"]
    assert str(tmp_path) in printed


def test_without_time_left_nothing_is_started(visit, tmp_path):
    todo = [visit.Step("late", 60, f"touch {tmp_path}/started")]
    assert visit.visit(todo, tmp_path, 0, dict(os.environ)) == {"late": "no time left"}
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize("fake", [False, True])
def test_steps_name_files_that_exist(visit, tmp_path, fake):
    (tmp_path / "mpi4py-1.whl").touch()
    todo = visit.steps(Path(sys.executable), tmp_path, tmp_path / "output", fake)
    assert len({step.name for step in todo}) == len(todo)
    assert {step.instead_of for step in todo} <= {"", *(step.name for step in todo)}
    words = [word for step in todo for word in re.split(r"[\s=:']+", step.command)]
    files = [word for word in words if word.startswith(str(ROOT))]
    assert len(files) > 3
    assert not [word for word in files if not Path(word).exists()]


def test_environment_sees_the_packages_of_this_one(visit, tmp_path):
    python = visit.make_environment(tmp_path / "environment")
    code = f"import sys, numpy; assert sys.prefix == {str(tmp_path / 'environment')!r}"
    step = visit.Step("import", 60, f"{python} -c {visit.shlex.quote(code)}")
    assert visit.run_step(step, 60, tmp_path / "log", dict(os.environ)) == "ok"


@pytest.mark.in_turns
def test_training_without_a_device(run, tmp_path):
    pytest.importorskip("torch")
    words = f"run.py device --steps 2 --late-ms 1 --json {tmp_path}/rows.json"
    program = f"""
import runpy, sys
sys.argv = {words.split()}
runpy.run_path({str(DEVICE.parent / "run.py")!r}, run_name="__main__")
"""
    done = run(program, 2)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert [row["strategy"] for row in rows] == ["allreduce", "eager"]
    assert all(row["images_per_s"] > 0 and row["loss_last"] > 0 for row in rows)
