# SPDX-License-Identifier: Apache-2.0
"""The library for C users, with the flags that `partialcoll config` prints."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import c_users
import device
import pytest

from partialcoll.tools import launcher

BEGIN = """
int main(void)
{
    pcoll_options options;
    pcoll_gossip_options gossip;
    pcoll_group_options group;
    pcoll_lattice lattice;
    pcoll_options_init(&options);
    pcoll_gossip_options_init(&gossip);
    pcoll_group_options_init(&group);
    pcoll_lattice_init(&lattice);
    return !PCOLL_VERSION_FITS(pcoll_version());
}
"""
DOCS = Path(__file__).resolve().parents[2] / "docs"


def header_text():
    (folder,) = c_users.config("--cflags").stdout.split()
    return (Path(folder.removeprefix("-I")) / "partialcoll.h").read_text()


def compile_program(name, folder):
    return c_users.compile_program(f"capi/{name}.c", folder / name, *c_users.config_flags())


@pytest.fixture(scope="session")
def dropin(tmp_path_factory):
    return compile_program("dropin", tmp_path_factory.mktemp("capi"))


@pytest.fixture(scope="session")
def reduction(tmp_path_factory):
    return compile_program("reduction", tmp_path_factory.mktemp("capi"))


@pytest.fixture(scope="session")
def describe(tmp_path_factory):
    return compile_program("describe", tmp_path_factory.mktemp("capi"))


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_dropin(dropin, clean_environment, tmp_path, ranks):
    """Results, in place, two sums in a loop, errors and their handlers."""
    done = c_users.run([dropin], clean_environment, tmp_path, ranks)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_dropin_on_a_device(clean_environment, tmp_path):
    """Buffers of some ranks are on a device. The host reads none of them."""
    flags = [*c_users.config_flags(), "-DCALL=PCOLL_Allreduce", f"-I{c_users.PROGRAMS / 'pmpi'}"]
    program = c_users.compile_program("pmpi/device.c", tmp_path / "device", *flags)
    settings = {"PARTIALCOLL_CUDA_LIBRARY": str(device.build(tmp_path))}
    done = c_users.run([program], clean_environment, tmp_path, 3, settings)
    assert (done.returncode, done.stdout) == (0, "device\n"), done.stderr


@pytest.mark.parametrize(
    ("quorum", "outcome"), [("solo", "partial"), ("full", "full"), ("most", "refused")]
)
def test_quorum_of_the_environment(dropin, clean_environment, tmp_path, quorum, outcome):
    settings = {"PARTIALCOLL_QUORUM": quorum}
    done = c_users.run([dropin, quorum], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, f"{outcome}\n"), done.stderr


@pytest.mark.parametrize("algorithm", ["recdbl", "rabenseifner", "ring"])
def test_algorithm_of_the_environment(dropin, clean_environment, tmp_path, algorithm):
    """For elements that Rabenseifner's algorithm cannot cut (24 bytes) the ring is used."""
    settings = {"PARTIALCOLL_ALGORITHM": algorithm, "PARTIALCOLL_DOMAIN": "rank"}
    done = c_users.run([dropin], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_unknown_algorithm(dropin, clean_environment, tmp_path):
    settings = {"PARTIALCOLL_ALGORITHM": "fastest"}
    done = c_users.run([dropin, "fastest"], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr


def test_complete_rounds_are_mpis(clean_environment, tmp_path):
    """MPI makes them without a handle until the saved time would have paid for one, unless the
    environment or a table of `bench tune` requests ours."""
    program, table = compile_program("passed", tmp_path), tmp_path / "table"
    table.write_text("2 never ours\n")
    clean_environment.pop("PARTIALCOLL_DOMAIN", None)  # It would request complete rounds of ours.
    for doubles, settings, becomes in (
        (2, {}, "never"),
        (1 << 18, {}, "later"),
        (1 << 18, {"PARTIALCOLL_TUNE": str(table)}, "never"),
        (2, {"PARTIALCOLL_ALGORITHM": "auto"}, "at once"),
    ):
        words = [program, str(doubles)]
        done = c_users.run(words, clean_environment, tmp_path, 2, settings)
        assert (done.returncode, done.stdout) == (0, f"{becomes}\n"), (settings, done.stderr)


def test_a_replay_waits(clean_environment, tmp_path):
    """The rank that was late in the record is early now, by more than one call waits."""
    program = compile_program("replayed", tmp_path)

    def sums(late, variable):
        settings = {"PARTIALCOLL_QUORUM": "solo", variable: str(tmp_path / "record")}
        done = c_users.run([program, str(late)], clean_environment, tmp_path, 2, settings)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert sums(0, "PARTIALCOLL_RECORD") == sums(1, "PARTIALCOLL_REPLAY")


PRIVILEGED = """
#include <stdio.h>
#include <partialcoll.h>

int main(void)
{
    int32_t devices, driver;
    pcoll_device_count(&devices, &driver);
    puts(pcoll_last_error());
    return 0;
}
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root")
def test_a_program_with_privileges_ignores_its_callers_environment(clean_environment):
    """A set-user-id program must not load the library that its caller names."""
    caller = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    env = {**clean_environment, "PARTIALCOLL_CUDA_LIBRARY": "/named/by/its/caller.so"}
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        source, program = Path(folder, "privileged.c"), Path(folder, "privileged")
        source.write_text(PRIVILEGED)
        c_users.compile_program(source, program, *c_users.config_flags())

        def says(mode):
            program.chmod(mode)
            words = {"env": env, "capture_output": True, "text": True, "check": True}
            return subprocess.run([*caller, program], timeout=60, **words).stdout

        assert "/named/by/its/caller.so" in says(0o755)
        assert "libcuda.so.1" in says(0o4755)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_set_reduction(reduction, clean_environment, tmp_path, ranks):
    """Another op between two rounds is used and checked, and refused during a round."""
    done = c_users.run([reduction], clean_environment, tmp_path, ranks)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("domain", ["node", "rank"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_describe(describe, clean_environment, tmp_path, ranks, domain):
    """Calls of many forms in one handle. All ranks detect a difference, and the next call works."""
    done = c_users.run([describe, domain], clean_environment, tmp_path, ranks)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_dropin_below_the_interposer(dropin, clean_environment, tmp_path):
    """Both libraries in one process, each with its own core."""
    done = c_users.run([dropin], clean_environment, tmp_path, preload=True)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_tests_keep_the_core(clean_environment, tmp_path):
    """Open MPI's switch is off during each of our tests, and unchanged after them."""
    if launcher.flavor() != "openmpi":
        pytest.skip("this MPI has no such switch")
    program = compile_program("core_kept", tmp_path)
    settings = {"PARTIALCOLL_DOMAIN": "rank", "OMPI_MCA_mpi_yield_when_idle": "1"}
    done = c_users.run([program], clean_environment, tmp_path, settings=settings)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_header_in_cxx(tmp_path):
    """The header compiles alone and after mpi.h, as C and C++, and so do its defaults."""
    flags = c_users.config("--cflags").stdout.split()
    for name, before in (("a.c", ""), ("b.cpp", ""), ("c.c", "#include <mpi.h>\n")):
        source = tmp_path / name
        source.write_text(f"{before}#include <partialcoll.h>\n{BEGIN}")
        words = [c_users.mpicc(), "-Wall", "-Wextra", "-Werror", *flags, "-fsyntax-only"]
        subprocess.run([*words, str(source)], check=True)


def test_the_program_of_the_docs(clean_environment, tmp_path):
    """The program of docs/c.md, compiled as described there, runs."""
    (block,) = re.findall(
        r"^```c\n(.*?)^```", (DOCS / "c.md").read_text(), re.DOTALL | re.MULTILINE
    )
    source = tmp_path / "docs.c"
    source.write_text(block)
    program = c_users.compile_program(source, tmp_path / "docs", *c_users.config_flags())
    done = c_users.run([program], clean_environment, tmp_path, ranks=2)
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^\d ranks were in this sum$", done.stdout, re.MULTILINE)) == 2


VERSIONS = pytest.mark.parametrize(
    ("header", "library", "fits"),
    [
        ((0, 1, 0), (0, 1, 0), True),
        ((0, 1, 0), (0, 1, 3), True),
        ((0, 1, 3), (0, 1, 0), False),
        ((0, 1, 0), (0, 2, 0), False),
        ((0, 2, 0), (0, 1, 9), False),
        ((0, 9, 0), (1, 0, 0), False),
        ((1, 0, 0), (1, 7, 0), True),
        ((1, 7, 0), (1, 6, 5), False),
        ((1, 7, 0), (2, 0, 0), False),
    ],
)


def write_header(path, version):
    text = header_text()
    for name, part in zip(("MAJOR", "MINOR", "PATCH"), version):
        text = re.sub(rf"(#define PCOLL_VERSION_{name}) \d+", rf"\1 {part}", text)
    path.write_text(text)


@VERSIONS
def test_which_versions_fit(tmp_path, header, library, fits):
    """The rule of docs/c.md, as the header computes it."""
    write_header(tmp_path / "partialcoll.h", header)
    number = 10000 * library[0] + 100 * library[1] + library[2]
    source = tmp_path / "fits.c"
    source.write_text(
        f'#include "partialcoll.h"\n'
        f'_Static_assert({"" if fits else "!"}PCOLL_VERSION_FITS({number}), "");\n'
    )
    words = [c_users.mpicc(), "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run([*words, str(source)], check=True)


@VERSIONS
@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs cmake")
def test_which_versions_cmake_finds(tmp_path, header, library, fits):
    """The same rule for find_package: `header` is the version that a project requests."""
    shutil.copytree(c_users.config("--cmakedir").stdout.strip(), tmp_path / "cmake")
    (tmp_path / "include").mkdir()
    write_header(tmp_path / "include/partialcoll.h", library)
    asked = ".".join(map(str, header))
    (tmp_path / "ask.cmake").write_text(
        f"set(PACKAGE_FIND_VERSION {asked})\n"
        f"set(PACKAGE_FIND_VERSION_MAJOR {header[0]})\n"
        f"set(PACKAGE_FIND_VERSION_MINOR {header[1]})\n"
        "include(cmake/partialcollConfigVersion.cmake)\n"
        'message("${PACKAGE_VERSION} ${PACKAGE_VERSION_COMPATIBLE}")\n'
    )
    words = ["cmake", "-P", "ask.cmake"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    version = ".".join(map(str, library))
    assert done.stderr.split() == [version, "TRUE" if fits else "FALSE"]


@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="needs pkg-config")
def test_pkg_config(clean_environment, tmp_path):
    """Its flags compile like those of `partialcoll config`, wherever the package is."""
    env = {**clean_environment, "PKG_CONFIG_PATH": c_users.config("--pkgconfigdir").stdout.strip()}
    words = ["pkg-config", "--cflags", "--libs", f"partialcoll_{launcher.abi()}"]
    flags = subprocess.run(
        words, capture_output=True, text=True, check=True, env=env
    ).stdout.split()
    program = c_users.compile_program("capi/dropin.c", tmp_path / "dropin", *flags)
    done = c_users.run([program], clean_environment, tmp_path, ranks=2)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_config_alone():
    assert c_users.config("--cflags").stdout.startswith("-I")
    assert "-lpartialcoll_" in c_users.config("--libs").stdout
    refused = c_users.config()
    assert refused.returncode == 2 and "--cflags" in refused.stderr
