# SPDX-License-Identifier: Apache-2.0
"""Build, test and measure on a machine with one GPU, in a few minutes (README.md).

    python3 bench/device/visit.py --carried FOLDER [--output FOLDER] [--seconds 480] [--fake]

Each step has a limit of its own, and a step that fails or takes too long does not stop the next
one. After each step a line is added to visit.jsonl. What the step prints goes to log.txt while it
runs, so nothing is lost when the machine is taken away. Needs no network.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import site
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
GRACE_S = 5  # for a launcher to end its ranks
MACHINE = """
nvidia-smi; gcc --version; nproc; free -g; command -v mpicc mpiexec mpirun
$PYTHON -c 'import sys; print(sys.version, sys.executable)'
$PYTHON -c 'import torch; print(torch.__version__, torch.version.cuda, torch.cuda.is_available())'
$PYTHON -c 'import cupy; print(cupy.__version__, cupy.cuda.is_available())'
$PYTHON -c 'import mpi4py; print(mpi4py.__version__, mpi4py.get_config())'
$PYTHON -c 'from mpi4py import MPI; print(MPI.Get_library_version())'
true
"""
# Does mpi4py load the MPI that was carried along?
OWN_MPI = """
import sys
from mpi4py import MPI
print(MPI.Get_library_version())
with open("/proc/self/maps") as maps:
    loaded = {line.split()[-1] for line in maps if "/libmpi" in line}
print(*loaded)
assert loaded and all(path.startswith(sys.prefix) for path in loaded)
"""


class Step(NamedTuple):
    """A shell command and the seconds that it may take. instead_of: run it only if the step of this
    name has failed."""

    name: str
    limit_s: float
    command: str
    instead_of: str = ""
    folder: Path = HERE


def steps(python: Path, carried: Path, output: Path, fake: bool) -> list[Step]:
    """Return what a visit does. `python`: of the environment that is made."""
    this = shlex.quote(sys.executable)
    own, tests = shlex.quote(str(python)), ROOT / "tests"
    own_command = shlex.quote(str(python.parent / "partialcoll"))
    pip = f"{this} -m pip --python {own} install --no-index --no-deps"
    wheels = [p for p in sorted(carried.glob("*.whl")) if not p.name.startswith("partialcoll-")]
    first = shlex.join(str(p) for p in wheels if not p.name.startswith("mpi4py-"))
    last = shlex.join(str(p) for p in carried.glob("mpi4py-*.whl"))
    check = f"{own} -c {shlex.quote(OWN_MPI)}"
    built = shlex.join(str(p) for p in carried.glob("partialcoll-*.whl"))
    run = f"{own_command} run -n 2 {own}"
    gpu = "collectives/test_cupy.py pytorch/test_torch_device.py"
    marked = "-m 'not gpu' -k 'fake and (calls or bench_gpu)'" if fake else "-m gpu"
    example, measure = ROOT / "examples", f"{own_command} bench gpu -n 2 --iters"
    cupy = f"PYTHONPATH={HERE / 'fake'}:{tests / 'support'} " if fake else ""
    return [
        Step("machine", 40, f"PYTHON={this}\n{MACHINE}"),
        Step("wheels", 60, f"{pip} -q {first}"),
        Step("mpi4py", 20, check),
        Step("mpi4py wheel", 20, f"{pip} --force-reinstall {last} && {check}", "mpi4py"),
        Step("build", 120, f"{pip} --no-build-isolation {shlex.quote(str(ROOT))}"),
        Step("built wheel", 20, f"{pip} {built}", "build"),
        Step("info", 20, f"{own_command} info"),
        Step("cupy example", 40, f"{cupy}{run} {example}/cupy_persistent.py"),
        Step("torch example", 60, f"{run} {example}/torch_cuda.py"),
        Step("tests", 180, f"{own} -m pytest -v --no-header {marked} {gpu}", folder=tests),
        Step("bench gpu, short", 60, f"{measure} 9 --sizes 1K,64K,1M --json {output}/gpu-1.json"),
        Step("training", 90, f"{run} {HERE.parent}/run.py device --json {output}/training.json"),
        Step("bench gpu, long", 60, f"{measure} 9 --sizes 16M,64M --json {output}/gpu-2.json"),
        Step("bench gpu, longest", 60, f"{measure} 5 --sizes 256M --json {output}/gpu-3.json"),
        Step("doctor", 40, f"{own_command} doctor"),
    ]


def make_environment(folder: Path) -> Path:
    """Make an environment that sees the packages of this interpreter; return its interpreter.

    This interpreter may itself be that of an environment, and may lack ensurepip. So its packages
    are named in a .pth file, and its pip installs into the new environment.
    """
    words = ["-m", "venv", "--clear", "--without-pip", "--system-site-packages", str(folder)]
    subprocess.run([sys.executable, *words], check=True)
    (packages,) = folder.glob("lib/python3*/site-packages")
    (packages / "machine.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    return folder / "bin" / "python"


def run_step(step: Step, limit_s: float, log: Path, environment: dict[str, str]) -> str:
    """Run the step; return "ok", "status N" or "out of time"."""
    with open(log, "ab", buffering=0) as out:
        out.write(f"\n== {step.name}\n$ {step.command.strip()}\n".encode())
        words = ["timeout", f"--kill-after={GRACE_S}", f"{limit_s}", "bash", "-c", step.command]
        how: dict[str, Any] = {"stdout": out, "stderr": out, "cwd": step.folder}
        status = subprocess.call(words, stdin=subprocess.DEVNULL, env=environment, **how)
    if status in (124, 128 + signal.SIGKILL):
        return "out of time"
    return f"status {status}" if status else "ok"


def visit(
    todo: Iterable[Step], output: Path, seconds: float, environment: dict[str, str]
) -> dict[str, str]:
    began, results = time.monotonic(), {}
    for step in todo:
        if step.instead_of and results.get(step.instead_of) == "ok":
            continue
        begin = time.monotonic()
        limit_s = min(step.limit_s, began + seconds - begin)
        result = "no time left"
        if limit_s > 0:
            result = run_step(step, limit_s, output / "log.txt", environment)
        results[step.name] = result
        row = {"step": step.name, "result": result, "limit_s": step.limit_s}
        row["seconds"] = round(time.monotonic() - begin, 1)
        with open(output / "visit.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            file.flush()
            os.fsync(file.fileno())
        print(f"{row['seconds']:6.1f} s  {step.name}: {result}", flush=True)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--carried", type=Path, default=ROOT / "build" / "device")
    parser.add_argument("--output", type=Path, default=os.environ.get("OUT"))
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--fake", action="store_true", help="rehearse without a GPU")
    given = parser.parse_args()
    if given.output is None:
        parser.error("--output: expected a folder, here or in $OUT")
    output = given.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    python = make_environment(ROOT / "build" / "device-venv")
    environment = {
        **os.environ,
        "PATH": f"{python.parent}:{os.environ['PATH']}",
        "MPICC": str(python.parent / "mpicc"),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
    }
    todo = steps(python, given.carried.resolve(), output, given.fake)
    left_s = given.seconds - (time.monotonic() - begin)
    results = visit(todo, output, left_s, environment)
    replaced = {step.instead_of for step in todo if step.name in results}
    return int(any(end != "ok" for name, end in results.items() if name not in replaced))


if __name__ == "__main__":
    sys.exit(main())
