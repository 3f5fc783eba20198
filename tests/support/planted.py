# SPDX-License-Identifier: Apache-2.0
"""The package with one of the mistakes of tests/mistakes in its core, for real jobs: a program uses
it if PYTHONPATH names its folder."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import c_users

import partialcoll
from partialcoll.tools import launcher

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "csrc"), str(ROOT / "tests")]

import layers  # noqa: E402
from mistakes import MUTANTS  # noqa: E402
from mistakes.growth import GROWTH  # noqa: E402
from mutants import as_pattern  # noqa: E402

FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-DPCOLL_CHECKS", "-O1", "-fPIC", "-fvisibility=hidden"]
CORE = ("pure", "core", "mpi")


def folder_of(name):
    return re.sub(r"\W+", "-", name)


class Libraries:
    """Compiles everything once. Each mistake then needs one file and a link."""

    def __init__(self, folder):
        self.folder = folder
        shutil.copytree(ROOT / "csrc", folder / "csrc", ignore=shutil.ignore_patterns("*.o"))
        sources = layers.sources(*CORE)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = pool.map(self._compile, [folder / source for source in sources])
            self.objects = dict(zip(sources, objects))

    def _compile(self, source, *flags):
        to = source.with_suffix(".o")
        words = [c_users.mpicc(), *FLAGS, *flags, f"-I{self.folder / 'csrc'}", "-c", str(source)]
        subprocess.run([*words, "-o", str(to)], check=True)
        return to

    def package(self, mistake=None):
        """Return the folder of a copy of the Python package, with this mistake, if any."""
        objects = self._objects_with(mistake) if mistake else self.objects
        to = self.folder / f"package-{folder_of(mistake or 'right')}"
        where = Path(partialcoll.__file__).parent
        shutil.copytree(where, to / "partialcoll", ignore=shutil.ignore_patterns("__pycache__"))
        (module,) = (to / "partialcoll").glob(f"_core_{launcher.abi()}*.so")
        words = [c_users.mpicc(), "-shared", str(self._generated()), "-o", str(module)]
        words += map(str, objects.values())
        subprocess.run([*words, "-lm", "-lpthread", "-ldl"], check=True)
        return to

    def _generated(self):
        """Return cffi's generated code for the core, compiled once."""
        source = self.folder / "module.c"
        if not source.exists():
            with mock.patch.dict(os.environ, PARTIALCOLL_NO_BUILD="1"):
                import ffibuilder
            name = f"_core_{launcher.abi()}"
            declared = ffibuilder.declarations()
            ffi = ffibuilder.make_ffi(name, declared, ffibuilder.HEADER, CORE)
            ffi.emit_c_code(str(source))
            self._compile(source, f"-I{sysconfig.get_path('include')}")
        return source.with_suffix(".o")

    def _objects_with(self, mistake):
        (mutant,) = [mutant for mutant in (*MUTANTS, *GROWTH) if mutant.name == mistake]
        file = f"csrc/{mutant.file}"
        source = self.folder / file
        text = source.read_text()
        changed, count = re.subn(as_pattern(mutant.old), lambda found: mutant.new, text)
        assert count == 1, mistake
        wrong = source.with_name(f"planted_{len(list(self.folder.iterdir()))}.c")
        wrong.write_text(changed)
        return {**self.objects, file: self._compile(wrong)}
