# SPDX-License-Identifier: Apache-2.0
"""Builds partialcoll's core and its simulator with cffi in API mode.

The declarations are the text between two markers of include/partialcoll.h and of
include/simulator.h, so there is one source of truth. The core's module is named after the MPI it
is compiled with, or MPI's own ABI (``_core_mpich``, ``_core_openmpi``, ``_core_mpiabi``);
partialcoll/_core/ffi.py picks the one that fits. The simulator's, ``_simulator``, has no MPI.
"""

import os
import re
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import hardening  # noqa: E402
import layers  # noqa: E402
import mpi_compiler  # noqa: E402

HEADER = HERE / "include" / "partialcoll.h"
SIMULATOR_HEADER = HERE / "include" / "simulator.h"
FLAGS = [
    "-std=c11",
    "-D_GNU_SOURCE",
    "-O3",
    "-ffp-contract=off",  # the same bits on every processor
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]
LIBRARIES = ["m", "pthread", "dl"]
if os.environ.get("PARTIALCOLL_CHECKS") == "1":  # what base/check.h asserts
    FLAGS.append("-DPCOLL_CHECKS")
if os.environ.get("PARTIALCOLL_PORTABLE") == "1":  # for other machines: make wheel
    FLAGS += ["-include", str(HERE / "base" / "glibc.h")]
    LIBRARIES = ["m", ":libpthread.so.0", ":libdl.so.2"]  # where an older glibc has functions


# Core functions for simulated ranks and arithmetic: all that neither make, free nor need an MPI.
SIMULATED = re.compile(
    r"pcoll_(last_error|op_check|domain_parse|tuning_path"
    r"|(policy|grid|lattice)_\w+|(gossip|group)_(?!create|free)\w+)"
)


def declarations(header: Path = HEADER) -> str:
    """The part of a header that cffi parses, without comments."""
    text = header.read_text()
    inside = text.split("/* cffi:begin */")[1].split("/* cffi:end */")[0]
    return re.sub(r"/\*.*?\*/", "", inside, flags=re.DOTALL)


def simulated_declarations() -> str:
    """All types of the public header, the functions that simulated ranks and arithmetic use, the
    simulator."""
    function = re.compile(r"^[\w *]+?\b(pcoll_\w+)\([^;{]*\);", re.MULTILINE)
    kept = function.sub(
        lambda found: found[0] if SIMULATED.fullmatch(found[1]) else "", declarations()
    )
    return kept + declarations(SIMULATOR_HEADER)


def make_ffi(name: str, cdef: str, header: Path, parts: tuple[str, ...]) -> FFI:
    """A module with these declarations, out of these parts of the build (layers.txt)."""
    ffi = FFI()
    ffi.cdef(cdef)
    ffi.set_source(
        f"partialcoll.{name}",
        f'#include "include/{header.name}"\n',
        sources=layers.sources(*parts),
        include_dirs=["csrc"],
        extra_compile_args=FLAGS,
        libraries=LIBRARIES,
    )
    return ffi


if not os.environ.get("PARTIALCOLL_NO_BUILD"):
    compiler = mpi_compiler.chosen()
    FLAGS += hardening.flags(compiler.mpicc).compile
    os.environ["CC"] = compiler.compile_command()
    os.environ["LDSHARED"] = compiler.link_command()
    ffibuilder = make_ffi(f"_core_{compiler.abi}", declarations(), HEADER, ("pure", "core", "mpi"))
    simulator = make_ffi(
        "_simulator", simulated_declarations(), SIMULATOR_HEADER, ("pure", "core", "sim")
    )
