# SPDX-License-Identifier: Apache-2.0
"""The libraries for C users: what each is made of. Used by setup.py only."""

import re
from dataclasses import dataclass, field
from pathlib import Path

import layers

HERE = Path(__file__).resolve().parent
HEADER = HERE / "include" / "partialcoll.h"


# For each library for C users: where it is, relative to this file.
PKG_CONFIG = """prefix=${{pcfiledir}}/../..

Name: partialcoll
Description: MPI collectives for ranks that do not arrive together
Version: {version}
Cflags: -I${{prefix}}/include
Libs: -L${{prefix}}/lib -Wl,-rpath,${{prefix}}/lib -lpartialcoll_{abi}
"""


def pkg_config(abi):
    """Name and text of the file by which pkg-config knows the library for C users."""
    parts = re.findall(r"#define PCOLL_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", HEADER.read_text())
    return f"partialcoll_{abi}.pc", PKG_CONFIG.format(abi=abi, version=".".join(parts))


@dataclass
class Library:
    """A C library: its additional sources, and the core's sources that it compiles again, each with
    its own arguments; how to link it."""

    name: str
    file: str
    link_arguments: list
    sources: list
    arguments: list = field(default_factory=list)
    anew: list = field(default_factory=list)
    anew_arguments: list = field(default_factory=list)


def _link(file, exports):
    """Only what is listed leaves the library, and calls inside it stay there: several copies of
    the core (Python's, the interposer's) can then live in one process."""
    return [
        f"-Wl,-soname,{file}",
        f"-Wl,--version-script={HERE / exports}",
        "-Wl,-Bsymbolic",
        "-Wl,-z,defs",
    ]


# Names of MPI's that are types. All other names in its style that the core has are functions.
TYPES = "Aint|Comm|Count|Datatype|Errhandler|Group|Op|Request|Status|Win"


def _own_names(sources):
    """Arguments with which what these sources call goes to MPI (by its PMPI names), not back into
    the interposer or to a profiler.

    Two calls are replaced. The core dup's the communicators and datatypes it works on; a dup runs
    the copy callbacks of the user's attributes, which an MPI_Allreduce must not do. A split does
    not, nor does a datatype of one element."""
    folders = {(HERE.parent / source).parent for source in sources}
    text = "".join(path.read_text() for folder in folders for path in folder.glob("*.[ch]"))
    names = set(re.findall(rf"\bMPI_(?!(?:{TYPES})\b)([A-Z][a-z]\w*)", text))
    own = {name: f"PMPI_{name}" for name in sorted(names)}
    own |= {"Comm_idup": "pmpi_private_idup", "Type_dup": "pmpi_private_type_dup"}
    return [f"-DMPI_{name}={other}" for name, other in own.items()]


def libraries(abi):
    """The library for C users and the interposer."""
    plain, preload = f"libpartialcoll_{abi}.so", f"libpartialcoll_preload_{abi}.so"
    anew = layers.sources("mpi", "c")
    interposer = layers.sources("interposer")
    if abi == "mpiabi":  # which has no Fortran
        interposer.remove("csrc/compat/interposer/fortran.c")
    return [
        Library(
            "plain",
            plain,
            _link(plain, "compat/mpi_shaped/exports.map"),
            layers.sources("c", "linked"),
        ),
        Library(
            "preload",
            preload,
            _link(preload, "compat/interposer/exports.map"),
            interposer,
            arguments=["-fvisibility=default"],  # MPI's names; the map says what leaves
            anew=anew,
            anew_arguments=_own_names(anew),
        ),
    ]
