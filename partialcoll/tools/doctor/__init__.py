# SPDX-License-Identifier: Apache-2.0
"""`partialcoll doctor`: finds the usual faults of installing and of launching, and says how to
mend each. Outside of a job MPI is tried in a process of its own, which may hang or die; in one, all
ranks look and one of them tells."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
from typing import Any, Callable

from ..._core import launch
from .. import installed, launcher
from ..job import end_with_parent
from . import checks, stale
from .checks import MACHINE, Facts, Finding, fine

_BEGIN_S = 60  # for MPI to begin

INSTALLATION = (
    checks.check_mpi,
    checks.check_two_mpis,
    checks.check_launcher,
    checks.check_threads,
    checks.check_ulfm,
    checks.check_cuda,
    checks.check_torch,
)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]


def _facts_of_another_process() -> Facts:
    words = launcher.own("info", "--json")
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=_BEGIN_S, preexec_fn=end_with_parent
        )
    except subprocess.TimeoutExpired:
        return {"error": f"MPI did not begin within {_BEGIN_S} s in a process of its own"}
    if done.returncode:
        how = f"status {done.returncode}: " if done.returncode < 0 else ""
        return {"error": how + _last_line(done.stderr)}
    return _document(done.stdout)


def _document(text: str) -> Facts:
    """Return the JSON in what was printed: libraries below MPI print to the same streams."""
    for start in re.finditer(r"^\{", text, re.MULTILINE):
        with contextlib.suppress(ValueError):
            facts: Facts = json.JSONDecoder().raw_decode(text, start.start())[0]
            return facts
    return {"error": f"partialcoll info says no facts: {_last_line(text)}"}


def _facts() -> Facts:
    """Return the facts of `partialcoll info`; if MPI does not begin, the reason: an "error" or a
    "launcher"."""
    if not launcher.in_job():
        return _facts_of_another_process()
    try:
        foreign = launch.foreign(launcher.flavor())
        return {"launcher": foreign} if foreign else installed.collect()
    except Exception as error:  # whatever it is, the other ranks are not to wait for this one
        return {"error": f"{error}" or type(error).__name__}


def _same_everywhere(of_ranks: list[Facts]) -> Finding:
    """Check that all ranks run the same versions."""
    names = ("partialcoll", "mpi library", "mpi4py", "python", "numpy")
    seen = {name: {str(facts[name]) for facts in of_ranks if name in facts} for name in names}
    different = [f"{name}: {', '.join(sorted(v))}" for name, v in seen.items() if len(v) > 1]
    if not different:
        return fine("ranks", f"{len(of_ranks)}, with the same versions")
    return Finding(
        "ranks",
        "stop",
        "; ".join(different),
        "Ranks of different versions do not understand each other.",
        "The same environment on all hosts.",
    )


def _ask(check: Callable[[Any], Finding], about: Any) -> Finding:
    try:
        return check(about)
    except Exception as error:  # a system that is not as we know it; the other ranks wait
        return Finding(check.__name__, "note", f"could not look: {type(error).__name__}: {error}")


def _look(facts: Facts, local: int, remove: bool) -> list[Finding]:
    of_installation = [_ask(check, facts) for check in INSTALLATION]
    of_machine = [_ask(check, local) for check in MACHINE]
    left = [_ask(check, remove) for check in (stale.check_stale, stale.check_launchers)]
    return [*of_installation, *of_machine, *left]


def _in_job(facts: Facts, remove: bool) -> tuple[dict[Finding, list[int]], int] | None:
    """Return what all ranks have found, on the first one."""
    from ..._core.mpi import MPI

    comm = MPI.COMM_WORLD
    host = comm.Split_type(MPI.COMM_TYPE_SHARED)
    found = comm.gather((facts, _look(facts, host.size, remove and host.rank == 0)))
    host.Free()
    if found is None:
        return None
    merged = checks.merge([findings for _, findings in found])
    merged[_same_everywhere([facts for facts, _ in found])] = list(range(comm.size))
    return merged, comm.size


def _show(merged: dict[Finding, list[int]], size: int, as_json: bool) -> None:
    if as_json:
        rows = checks.rows(merged)
        print(json.dumps({"schema": 1, "command": "doctor", "ranks": size, "rows": rows}, indent=2))
        return
    for line in checks.lines(merged, size):
        print(line)


def main(as_json: bool, remove: bool) -> int:
    """Check and show the findings; return the exit status."""
    facts = _facts()
    if launcher.in_job() and "mpi4py.MPI" in sys.modules:
        found = _in_job(facts, remove)
    else:
        found = checks.merge([_look(facts, 1, remove)]), 1
    if found is None or (found[1] == 1 and not launch.is_first()):
        return 0
    _show(*found, as_json)
    return int(any(each.level == "stop" for each in found[0]))
