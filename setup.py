# SPDX-License-Identifier: Apache-2.0
"""Builds three things from the sources in csrc, for the MPI that mpicc belongs to:

partialcoll/_core_<mpi>            the extension that Python uses (cffi, csrc/ffibuilder.py)
partialcoll/lib/libpartialcoll_<mpi>.so          the same core for C users, with PCOLL_Allreduce
partialcoll/lib/libpartialcoll_preload_<mpi>.so  the interposer

and copies the public header beside them. The core is compiled once and linked three times; only
the few files that call MPI are compiled again for the interposer, where they call PMPI.
"""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent / "csrc"))
import clibs
import mpi_compiler

PACKAGE = Path("partialcoll")


class BuildAll(build_ext):
    """build_ext that also links the libraries for C users."""

    def finalize_options(self):
        """What is linked depends on the objects, which setuptools does not look at."""
        super().finalize_options()
        self.force = True

    def run(self):
        """In a folder where another MPI's core was built before, leave that out."""
        for pattern in ("_core_*", "lib/*"):
            for old in (Path(self.build_lib) / PACKAGE).glob(pattern):
                old.unlink()
        super().run()

    def build_extension(self, ext):
        """Compile the core, link the libraries, then let the extension link the same objects."""
        generated, core = ext.sources[:1], ext.sources[1:]
        objects = self._compile(core, ext)
        vendor = ext.name.rpartition("_core_")[2]
        for library in clibs.libraries(vendor):
            self._link(library, objects, core, ext)
        header = Path(self.build_lib) / PACKAGE / "include"
        header.mkdir(parents=True, exist_ok=True)
        shutil.copy2(clibs.HEADER, header)
        ext.sources, ext.extra_objects = generated, objects
        ext.extra_link_args = [self._map_argument(ext.name)]
        super().build_extension(ext)
        mpi_compiler.chosen().check(ext.name, self._map(ext.name))
        ext.sources, ext.extra_objects = generated + core, []

    def _map(self, name):
        """Where the linker writes what it took from where."""
        return Path(self.build_temp) / f"{name}.map"

    def _map_argument(self, name):
        return f"-Wl,-Map={self._map(name)}"

    def _compile(self, sources, ext, folder="", arguments=()):
        return self.compiler.compile(
            sources,
            output_dir=str(Path(self.build_temp) / folder),
            include_dirs=ext.include_dirs,
            extra_postargs=[*ext.extra_compile_args, *arguments],
            depends=ext.depends,
        )

    def _link(self, library, objects, core, ext):
        """The core's objects, but for the sources that this library has compiled anew."""
        own = self._compile(library.sources, ext, library.name, library.arguments)
        own += self._compile(library.anew, ext, library.name, library.anew_arguments)
        left_out = {*library.anew, *library.without}
        shared = [o for o, source in zip(objects, core) if source not in left_out]
        self.compiler.link_shared_object(
            shared + own,
            str(Path(self.build_lib) / PACKAGE / "lib" / library.file),
            libraries=[*ext.libraries, "dl"],
            extra_postargs=[*library.link_arguments, self._map_argument(library.name)],
        )
        mpi_compiler.chosen().check(library.file, self._map(library.name))

    def _extras(self):
        """Paths inside the package of what this command makes besides the extension."""
        for ext in self.extensions:
            for library in clibs.libraries(ext.name.rpartition("_core_")[2]):
                yield Path("lib") / library.file
        yield Path("include") / clibs.HEADER.name

    def copy_extensions_to_source(self):
        """For builds in place (pip install -e)."""
        super().copy_extensions_to_source()
        for path in self._extras():
            target = PACKAGE / path
            target.parent.mkdir(exist_ok=True)
            shutil.copy2(Path(self.build_lib) / PACKAGE / path, target)

    def get_outputs(self):
        """All files that this command installs."""
        extras = [str(Path(self.build_lib) / PACKAGE / path) for path in self._extras()]
        return [*super().get_outputs(), *extras]


setup(
    cffi_modules=["csrc/ffibuilder.py:ffibuilder"],
    cmdclass={"build_ext": BuildAll},
)
