# SPDX-License-Identifier: Apache-2.0
"""Builds partialcoll's core with cffi in API mode.

The declarations are the text between two markers of include/partialcoll.h, so there is one
source of truth. The module is named after the MPI it is compiled with
(``_core_mpich``, ``_core_openmpi``); partialcoll/_core/ffi.py picks the one that fits.
"""

import os
import re
import sys
from pathlib import Path

from cffi import FFI

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import layers  # noqa: E402
import mpi_compiler  # noqa: E402

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
if os.environ.get("PARTIALCOLL_CHECKS") == "1":  # what base/check.h asserts
    FLAGS.append("-DPCOLL_CHECKS")


def declarations() -> str:
    """The part of the header that cffi parses, without comments."""
    text = HEADER.read_text()
    inside = text.split("/* cffi:begin */")[1].split("/* cffi:end */")[0]
    return re.sub(r"/\*.*?\*/", "", inside, flags=re.DOTALL)


def sources() -> list[str]:
    """Everything but what only looks like MPI to C programs."""
    return layers.sources("pure", "core", "mpi", "sim")


def make_ffi() -> FFI:
    compiler = mpi_compiler.chosen()
    os.environ["CC"] = compiler.compile_command()
    os.environ["LDSHARED"] = compiler.link_command()
    ffi = FFI()
    ffi.cdef(declarations())
    ffi.set_source(
        f"partialcoll._core_{compiler.vendor}",
        '#include "include/partialcoll.h"\n',
        sources=sources(),
        include_dirs=["csrc"],
        extra_compile_args=FLAGS,
        libraries=["m", "pthread", "dl"],
    )
    return ffi


if not os.environ.get("PARTIALCOLL_NO_BUILD"):
    ffibuilder = make_ffi()
