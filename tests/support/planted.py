# SPDX-License-Identifier: Apache-2.0
"""The library for C users with one of the mistakes of tests/mistakes in its core, for real jobs: a
program that is linked with the library takes this one if LD_LIBRARY_PATH names its folder."""

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import c_users

from partialcoll.tools import launcher

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "csrc"), str(ROOT / "tests")]

import layers  # noqa: E402
from mistakes import MUTANTS  # noqa: E402
from mutants import as_pattern  # noqa: E402

FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-DPCOLL_CHECKS", "-O1", "-fPIC", "-fvisibility=hidden"]
PARTS = ("pure", "core", "mpi", "c")


class Libraries:
    """Compiles everything once; then a mistake costs one file and a link."""

    def __init__(self, folder):
        self.folder = folder
        self.name = f"libpartialcoll_{launcher.abi()}.so"
        shutil.copytree(ROOT / "csrc", folder / "csrc", ignore=shutil.ignore_patterns("*.o"))
        sources = layers.sources(*PARTS)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            objects = pool.map(self._compile, [folder / source for source in sources])
            self.objects = dict(zip(sources, objects))

    def _compile(self, source):
        to = source.with_suffix(".o")
        words = [c_users.mpicc(), *FLAGS, f"-I{self.folder / 'csrc'}", "-c", str(source)]
        subprocess.run([*words, "-o", str(to)], check=True)
        return to

    def _link(self, to, objects):
        to.mkdir()
        exports = self.folder / "csrc/compat/mpi_shaped/exports.map"
        words = [c_users.mpicc(), "-shared", *map(str, objects), f"-Wl,-soname,{self.name}"]
        words += [f"-Wl,--version-script={exports}", "-Wl,-Bsymbolic", "-lm", "-lpthread", "-ldl"]
        subprocess.run([*words, "-o", str(to / self.name)], check=True)
        return to

    def right(self):
        """The folder of the library as it should be."""
        return self._link(self.folder / "right", self.objects.values())

    def planted(self, mistake):
        """The folder of one with the mistake of this name."""
        (mutant,) = [mutant for mutant in MUTANTS if mutant.name == mistake]
        file = f"csrc/{mutant.file}"
        source = self.folder / file
        text = source.read_text()
        changed, count = re.subn(as_pattern(mutant.old), lambda found: mutant.new, text)
        assert count == 1, mistake
        wrong = source.with_name(f"planted_{len(list(self.folder.iterdir()))}.c")
        wrong.write_text(changed)
        objects = {**self.objects, file: self._compile(wrong)}
        return self._link(self.folder / re.sub(r"\W+", "-", mistake), objects.values())
