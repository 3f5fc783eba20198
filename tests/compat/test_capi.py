# SPDX-License-Identifier: Apache-2.0
"""The library for C users, with the flags that `partialcoll config` prints."""

import subprocess
import sys

import c_users
import pytest

from partialcoll.tools import launcher


def config(*words):
    command = [sys.executable, "-m", "partialcoll", "config", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=c_users.LIMIT_S)


def compile_program(name, folder):
    flags = config("--cflags", "--libs")
    assert flags.returncode == 0, flags.stderr
    return c_users.compile_program(f"capi/{name}.c", folder / name, *flags.stdout.split())


@pytest.fixture(scope="session")
def dropin(tmp_path_factory):
    return compile_program("dropin", tmp_path_factory.mktemp("capi"))


@pytest.fixture(scope="session")
def reduction(tmp_path_factory):
    return compile_program("reduction", tmp_path_factory.mktemp("capi"))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_dropin(dropin, clean_environment, tmp_path, ranks):
    """Results, in place, two sums in a loop, errors and their handlers."""
    done = c_users.run([dropin], clean_environment, tmp_path, ranks)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize(
    ("quorum", "outcome"), [("solo", "partial"), ("full", "full"), ("most", "refused")]
)
def test_quorum_of_the_environment(dropin, clean_environment, tmp_path, quorum, outcome):
    settings = {"PARTIALCOLL_QUORUM": quorum}
    done = c_users.run([dropin, quorum], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, f"{outcome}\n"), done.stderr


@pytest.mark.parametrize("algorithm", ["recdbl", "rabenseifner", "ring"])
def test_algorithm_of_the_environment(dropin, clean_environment, tmp_path, algorithm):
    """Elements that Rabenseifner's does not cut (24 bytes) go round the ring."""
    settings = {"PARTIALCOLL_ALGORITHM": algorithm, "PARTIALCOLL_DOMAIN": "rank"}
    done = c_users.run([dropin], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_algorithm_that_is_none(dropin, clean_environment, tmp_path):
    settings = {"PARTIALCOLL_ALGORITHM": "fastest"}
    done = c_users.run([dropin, "fastest"], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_set_reduction(reduction, clean_environment, tmp_path, ranks):
    """Another op between two rounds: used, judged, and refused while a round is under way."""
    done = c_users.run([reduction], clean_environment, tmp_path, ranks)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_dropin_below_the_interposer(dropin, clean_environment, tmp_path):
    """Both libraries in one process, each with its own core."""
    done = c_users.run([dropin], clean_environment, tmp_path, preload=True)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_tests_keep_the_core(clean_environment, tmp_path):
    """Open MPI's switch is off in each of our tests, and as before after them."""
    if launcher.flavor() != "openmpi":
        pytest.skip("this MPI has no such switch")
    program = compile_program("core_kept", tmp_path)
    settings = {"PARTIALCOLL_DOMAIN": "rank", "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = c_users.run([program], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_header_in_cxx(tmp_path):
    """The header compiles alone and after mpi.h, as C and as C++."""
    flags = config("--cflags").stdout.split()
    for name, before in (("a.c", ""), ("b.cpp", ""), ("c.c", "#include <mpi.h>\n")):
        source = tmp_path / name
        source.write_text(f"{before}#include <partialcoll.h>\n")
        words = [c_users.mpicc(), "-Wall", "-Wextra", "-Werror", *flags, "-fsyntax-only"]
        subprocess.run([*words, str(source)], check=True)


def test_config_alone():
    assert config("--cflags").stdout.startswith("-I")
    assert "-lpartialcoll_" in config("--libs").stdout
    refused = config()
    assert refused.returncode == 2 and "--cflags" in refused.stderr
