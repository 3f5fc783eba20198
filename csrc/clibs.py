# SPDX-License-Identifier: Apache-2.0
"""The libraries for C users: what each is made of. Used by setup.py only."""

from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
HEADER = HERE / "include" / "partialcoll.h"


@dataclass
class Library:
    """Sources beyond the core's, and those of the core that this library compiles anew, each with
    arguments of its own; how to link it."""

    name: str
    file: str
    link_arguments: list
    sources: list
    arguments: list = field(default_factory=list)
    anew: list = field(default_factory=list)
    anew_arguments: list = field(default_factory=list)


def _sources(folder, pattern="*.c"):
    return sorted(str(path.relative_to(ROOT)) for path in (HERE / folder).glob(pattern))


def _link(file, exports):
    """Only what is listed leaves the library, and calls inside it stay there: several copies of
    the core (Python's, the interposer's) can then live in one process."""
    return [
        f"-Wl,-soname,{file}",
        f"-Wl,--version-script={HERE / exports}",
        "-Wl,-Bsymbolic",
        "-Wl,-z,defs",
    ]


def libraries(vendor):
    """The library for C users and the interposer."""
    plain, preload = f"libpartialcoll_{vendor}.so", f"libpartialcoll_preload_{vendor}.so"
    return [
        Library("plain", plain, _link(plain, "dropin/exports.map"), _sources("dropin")),
        Library(
            "preload",
            preload,
            _link(preload, "pmpi/exports.map"),
            _sources("pmpi"),
            arguments=["-fvisibility=default"],  # MPI's names; the map says what leaves
            anew=[
                *_sources("transport", "mpi*.c"),
                *_sources("gossip", "*_mpi.c"),
                *_sources("dropin"),
            ],
            anew_arguments=["-include", str(HERE / "pmpi" / "names.h")],
        ),
    ]
