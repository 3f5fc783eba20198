# SPDX-License-Identifier: Apache-2.0
"""Selection of a core for an MPI, and the messages if no core fits or MPI is missing."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from partialcoll._core import ffi
from partialcoll.errors import AbiError

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]


def fake_mpi(size=8, abi=None, version=(4, 0), vendor="MPICH"):
    """Return an MPI as mpi4py shows it. `abi`: its standard ABI's version; None: mpi4py 4.0."""
    mpi = SimpleNamespace(Comm=object, _sizeof=lambda kind: size, Get_version=lambda: version)
    mpi.get_vendor = lambda: (vendor, (1, 0, 0))
    if abi is not None:
        mpi.Get_abi_version = lambda: (abi, 0)
    return mpi


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"size": 4}, "mpich"),
        ({"size": 4, "abi": -1, "vendor": "Intel MPI"}, "mpich"),
        ({"size": 8, "abi": -1, "vendor": "Open MPI"}, "openmpi"),
        ({"size": 8}, "openmpi"),
        ({"size": 8, "abi": 1, "vendor": "MPICH"}, "mpiabi"),
        ({"size": 8, "abi": 1, "vendor": "Open MPI"}, "mpiabi"),
    ],
)
def test_which_core(monkeypatch, given, expected):
    monkeypatch.setattr(ffi, "MPI", fake_mpi(**given))
    assert ffi.abi() == expected


def test_an_old_mpi_is_refused(monkeypatch):
    monkeypatch.setattr(ffi, "MPI", fake_mpi(version=(2, 2), vendor="Old MPI"))
    with pytest.raises(AbiError, match=r"version 3.0 at least, mpi4py uses Old MPI, which has 2.2"):
        ffi._load()


def test_no_core_of_that_abi(monkeypatch):
    monkeypatch.setattr(ffi, "MPI", fake_mpi(abi=1))
    monkeypatch.setattr(ffi, "built", lambda: ["mpich", "openmpi"])
    with pytest.raises(AbiError, match=r"ABI: mpiabi.*built for mpich and openmpi.*MPICC="):
        ffi._load()


@pytest.mark.parametrize("raised", ["RuntimeError('cannot load MPI library\\n...')", "ImportError"])
def test_without_mpi(clean_environment, tmp_path, raised):
    """The package can be imported. The first use says what to install, and so does the command."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("rc = type('rc', (), {})\n")
    (tmp_path / "mpi4py/MPI.py").write_text(f"raise {raised}")
    code = """import partialcoll as pc
print(pc.__version__)
try:
    pc.Allreduce_init(None, None)
except pc.errors.AbiError as error:
    print(error)"""
    for words in (["-c", code], ["-m", "partialcoll", "info"], ["-m", "partialcoll", "doctor"]):
        done = subprocess.run(
            [sys.executable, *words],
            env={**clean_environment, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
            cwd=tmp_path,
        )
        said = done.stdout + done.stderr
        assert "Install one, for instance by" in " ".join(said.split()), said
        assert done.returncode == (words[0] == "-m") and "Traceback" not in said, said
