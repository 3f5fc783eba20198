# SPDX-License-Identifier: Apache-2.0
"""The build's choice of MPI: csrc/mpi_compiler.py with the compiler of this environment."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.one_domain

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def mpi_compiler():
    path = ROOT / "csrc" / "mpi_compiler.py"
    spec = importlib.util.spec_from_file_location("mpi_compiler", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def foreign(tmp_path):
    """Return a folder with a header and a library named libmpi."""
    (tmp_path / "mpi.h").write_text("#error another MPI's header\n")
    (tmp_path / "other.c").write_text("int MPI_Init(void *a, void *b) { return !a + !b; }\n")
    subprocess.run(
        ["cc", "-shared", "-fPIC", tmp_path / "other.c", "-o", tmp_path / "libmpi.so"], check=True
    )
    return tmp_path


def link(compiler, folder, command):
    """Link a library with one function that calls MPI. Return the linker's map."""
    source, linker_map = folder / "user.c", folder / "user.map"
    source.write_text("#include <mpi.h>\nint user(void) { return MPI_Init(0, 0); }\n")
    compile_words = compiler.compile_command().split()
    subprocess.run(
        [*compile_words, "-fPIC", "-c", source, "-o", folder / "user.o"], check=True, cwd=folder
    )
    words = [*command.split(), f"-L{folder}", folder / "user.o", f"-Wl,-Map={linker_map}"]
    subprocess.run([*words, "-o", folder / "libuser.so"], check=True, cwd=folder)
    return linker_map


def test_own_folders_come_first(mpi_compiler, foreign, monkeypatch):
    monkeypatch.setenv("CPATH", str(foreign))
    monkeypatch.setenv("LIBRARY_PATH", str(foreign))
    compiler = mpi_compiler.Compiler(mpi_compiler.find())
    compiler.check("libuser.so", link(compiler, foreign, compiler.link_command()))


def test_another_library_is_refused(mpi_compiler, foreign):
    compiler = mpi_compiler.Compiler(mpi_compiler.find())
    linker_map = link(compiler, foreign, f"{compiler.mpicc} -shared -L{foreign}")
    with pytest.raises(SystemExit, match=rf"linked with {foreign}/libmpi.so, which is not"):
        compiler.check("libuser.so", linker_map)


def test_broken_compilers_are_reported(mpi_compiler, tmp_path):
    with pytest.raises(SystemExit, match="/no/such/mpicc does not work"):
        mpi_compiler.Compiler("/no/such/mpicc")
    (tmp_path / "mpicc").write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    os.chmod(tmp_path / "mpicc", 0o755)
    with pytest.raises(SystemExit, match="does not work: broken"):
        mpi_compiler.Compiler(str(tmp_path / "mpicc"))


def test_a_path_with_a_space(mpi_compiler, monkeypatch, tmp_path):
    monkeypatch.delenv("MPICC", raising=False)
    own = tmp_path / "my env" / "mpicc"
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\nexec {mpi_compiler.find()} "$@"\n')
    own.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(own.parent / "python"))
    assert mpi_compiler.Compiler(mpi_compiler.find()).libraries


def test_mpicc_without_a_compiler_behind_it(mpi_compiler, monkeypatch, tmp_path):
    mpicc = shutil.which(mpi_compiler.find())
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"mpicc does not work: (?s:.*)\bcc\b"):
        mpi_compiler.Compiler(mpicc)


def test_the_oldest_python_is_the_same_everywhere():
    """pip's requirement, the core's limited API, the style and the workflows name one version."""
    project = (ROOT / "pyproject.toml").read_text()
    oldest = re.search(r'requires-python = ">=3\.(\d+)"', project)[1]
    assert f'target-version = "py3{oldest}"' in project
    assert f'LIMITED_API = "cp3{oldest}"' in (ROOT / "setup.py").read_text()
    assert f'"3.{oldest}"' in (ROOT / ".github/workflows/tests.yml").read_text()


def test_nothing_of_an_earlier_build_is_left(tmp_path):
    """A module that was moved, and the core of another MPI, are not installed again."""
    package = tmp_path / "partialcoll"
    package.mkdir()
    for name in ("moved_since.py", "_core_another.abi3.so"):
        (package / name).touch()
    words = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(words, check=True, cwd=ROOT)
    assert (package / "__init__.py").exists()
    assert not (package / "moved_since.py").exists()
    assert not (package / "_core_another.abi3.so").exists()
