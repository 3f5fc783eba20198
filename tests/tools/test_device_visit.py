# SPDX-License-Identifier: Apache-2.0
"""bench/device: the steps of a visit to a machine with a GPU, without one."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
DEVICE = ROOT / "bench" / "device"


def functions(commands, **variables):
    """Return what bash prints when it runs commands with the functions of the script."""
    words = ["bash", "-c", f". {DEVICE}/visit.sh; {commands}"]
    env = {**os.environ, **{name: str(value) for name, value in variables.items()}}
    return subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout


def rows(folder):
    return [json.loads(line) for line in (folder / "visit.jsonl").read_text().splitlines()]


def test_each_step_is_written_down(tmp_path):
    """A step that fails or hangs does not stop the next one."""
    commands = f"""
        step fails 60 'echo one; exit 3' || step instead 60 'echo two'
        step hangs 1 'echo four; sleep 600'
        step last 60 'cd {tmp_path} && pwd'
    """
    printed = functions(commands, output=tmp_path, end=600)
    expected = {"fails": "status 3", "instead": "ok", "hangs": "out of time", "last": "ok"}
    assert {row["step"]: row["result"] for row in rows(tmp_path)} == expected
    assert all(f"{name}: {result}" in printed for name, result in expected.items())
    log = (tmp_path / "log.txt").read_text()
    assert re.findall(r"^(one|two|four)$", log, re.MULTILINE) == ["one", "two", "four"]
    assert str(tmp_path) in log


def test_without_time_left_nothing_is_started(tmp_path):
    functions("step late 60 'touch $output/started' || true", output=tmp_path, end=0)
    assert [row["result"] for row in rows(tmp_path)] == ["no time left"]
    assert not (tmp_path / "started").exists()


def test_steps_name_files_that_exist():
    text = (DEVICE / "visit.sh").read_text()
    names = re.findall(r"\$root/((?:bench|examples|tests)[/\w.]*)", text)
    names += re.findall(r"(?:collectives|pytorch)/\w+\.py", text)
    assert len(names) > 5
    there = (ROOT, ROOT / "tests")
    assert not [name for name in names if not any((each / name).exists() for each in there)]


def test_environment_sees_the_packages_of_this_one(tmp_path):
    made = tmp_path / "environment"
    code = f"import sys, numpy; assert sys.prefix == {str(made)!r}"
    functions(f'make_environment {made} && {made}/bin/python -c "{code}"', PYTHON=sys.executable)


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
