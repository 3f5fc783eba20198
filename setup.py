# SPDX-License-Identifier: Apache-2.0
"""Build four libraries from the sources in csrc, the first three for the MPI of mpicc:

partialcoll/_core_<mpi>            the extension that Python uses (cffi, csrc/ffibuilder.py)
partialcoll/lib/libpartialcoll_<mpi>.so          the same core for C users, with PCOLL_Allreduce
partialcoll/lib/libpartialcoll_preload_<mpi>.so  the interposer
partialcoll/_simulator             the extension with simulated ranks, which needs no MPI

and add the public header and a file for pkg-config. The core is compiled once and linked four
times; only the few files that call MPI are compiled again for the interposer, where they call
PMPI. The simulator links only parts of the core that do not call MPI.
"""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent / "csrc"))
import clibs
import hardening
import mpi_compiler

PACKAGE = Path("partialcoll")
PKG_CONFIG = Path("lib/pkgconfig")  # in the package
SIMULATOR = "partialcoll._simulator"
# The core uses only the limited API of Python 3.9, which all later versions have.
LIMITED_API = "cp39"
EXTENSION_EXPORTS = "csrc/extension_exports.map"
# A build with checks is for debugging.
STRIPPED = [] if os.environ.get("PARTIALCOLL_CHECKS") else ["-Wl,--strip-debug"]


class BuildAnew(build_py):
    """build_py that removes remains of an earlier build: modules that were moved, the core of
    another MPI."""

    def run(self):
        """Run before build_ext, which adds to the same folder."""
        shutil.rmtree(Path(self.build_lib) / PACKAGE, ignore_errors=True)
        super().run()


class BuildAll(build_ext):
    """build_ext that also links the libraries for C users."""

    def finalize_options(self):
        """Always link, because setuptools does not compare the objects."""
        super().finalize_options()
        self.force = True
        self._objects = {}  # by source

    def build_extension(self, ext):
        """Compile missing objects, then let the extension link them. After the core, link the
        libraries for C users with the same objects."""
        generated, sources = ext.sources[:1], ext.sources[1:]
        fresh = [source for source in sources if source not in self._objects]
        self._objects.update(zip(fresh, self._compile(fresh, ext)))
        objects = [self._objects[source] for source in sources]
        ext.extra_link_args = [*self._link_flags(), f"-Wl,--version-script={EXTENSION_EXPORTS}"]
        if ext.name == SIMULATOR:
            # An archive, from which a linker takes only the needed objects.
            archive = Path(self.build_temp) / self.compiler.library_filename(ext.name)
            archive.unlink(missing_ok=True)  # ar keeps the objects of sources that were removed
            self.compiler.create_static_lib(objects, ext.name, output_dir=self.build_temp)
            objects = [str(archive)]
            ext.extra_link_args.append("-Wl,--as-needed")  # mpicc's libraries are not
        else:
            self._build_libraries(ext, sources, objects)
            ext.extra_link_args.append(f"-Wl,-Map={self._map(ext.name)}")
        ext.sources, ext.extra_objects = generated, objects
        super().build_extension(ext)
        if ext.name != SIMULATOR:
            mpi_compiler.chosen().check(ext.name, self._map(ext.name))
        ext.sources, ext.extra_objects = generated + sources, []

    def _build_libraries(self, ext, core, objects):
        for library in clibs.libraries(mpi_compiler.chosen().abi):
            self._link(library, objects, core, ext)
        header = Path(self.build_lib) / PACKAGE / "include"
        header.mkdir(parents=True, exist_ok=True)
        shutil.copy2(clibs.HEADER, header)
        name, text = clibs.pkg_config(mpi_compiler.chosen().abi)
        folder = Path(self.build_lib) / PACKAGE / PKG_CONFIG
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    def _link_flags(self):
        return [*STRIPPED, *hardening.flags(mpi_compiler.chosen().mpicc).link]

    def _map(self, name):
        """Return the path of the linker's map."""
        return Path(self.build_temp) / f"{name}.map"

    def _compile(self, sources, ext, folder="", arguments=()):
        """Compile to objects, in parallel on all cores."""

        def compile_one(source):
            (compiled,) = self.compiler.compile(
                [source],
                output_dir=str(Path(self.build_temp) / folder),
                include_dirs=ext.include_dirs,
                extra_postargs=[*ext.extra_compile_args, *arguments],
                depends=ext.depends,
            )
            return compiled

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(compile_one, sources))

    def _link(self, library, objects, core, ext):
        """Link the core's objects, except for the sources that this library compiles again."""
        own = self._compile(library.sources, ext, library.name, library.arguments)
        own += self._compile(library.anew, ext, library.name, library.anew_arguments)
        shared = [o for o, source in zip(objects, core) if source not in library.anew]
        self.compiler.link_shared_object(
            shared + own,
            str(Path(self.build_lib) / PACKAGE / "lib" / library.file),
            libraries=ext.libraries,
            extra_postargs=[
                *self._link_flags(),
                *library.link_arguments,
                f"-Wl,-Map={self._map(library.name)}",
            ],
        )
        mpi_compiler.chosen().check(library.file, self._map(library.name))

    def _extras(self):
        """Yield paths inside the package of this command's files besides the extension."""
        for library in clibs.libraries(mpi_compiler.chosen().abi):
            yield Path("lib") / library.file
        yield Path("include") / clibs.HEADER.name
        yield PKG_CONFIG / clibs.pkg_config(mpi_compiler.chosen().abi)[0]

    def copy_extensions_to_source(self):
        """Also copy for builds in place (pip install -e)."""
        super().copy_extensions_to_source()
        for path in self._extras():
            target = PACKAGE / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(Path(self.build_lib) / PACKAGE / path, target)

    def get_outputs(self):
        """Return all files that this command installs."""
        extras = [str(Path(self.build_lib) / PACKAGE / path) for path in self._extras()]
        return [*super().get_outputs(), *extras]


setup(
    cffi_modules=["csrc/ffibuilder.py:ffibuilder", "csrc/ffibuilder.py:simulator"],
    options={"bdist_wheel": {"py_limited_api": LIMITED_API}},
    cmdclass={"build_ext": BuildAll, "build_py": BuildAnew},
)
