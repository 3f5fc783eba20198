# SPDX-License-Identifier: Apache-2.0
"""The compiled files as the dynamic loader sees them: protections and exported names."""

import importlib.util
import platform
import re
import subprocess
from pathlib import Path

import pytest

import partialcoll

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(partialcoll.__file__).parent
EXTENSIONS = sorted(PACKAGE.glob("_core_*.so"))
SIMULATOR = sorted(PACKAGE.glob("_simulator*.so"))
INTERPOSERS = sorted(PACKAGE.glob("lib/libpartialcoll_preload_*.so"))
C_LIBRARIES = sorted({*PACKAGE.glob("lib/*.so")} - {*INTERPOSERS})
ALL = [*EXTENSIONS, *SIMULATOR, *C_LIBRARIES, *INTERPOSERS]

# The MPI functions that the interposer replaces.
REPLACED = {
    *("Allreduce", "Allreduce_c", "Allreduce_init", "Allreduce_init_c", "Comm_dup_with_info"),
    *("Comm_free", "Comm_idup_with_info", "Comm_set_info", "Comm_split_type", "Dist_graph_create"),
    *("Dist_graph_create_adjacent", "Finalize", "Init", "Init_thread", "Request_free", "Start"),
    "Startall",
}


def each(libraries):
    return pytest.mark.parametrize("library", libraries, ids=lambda path: path.name)


def said_by(*words):
    return subprocess.run([*map(str, words)], capture_output=True, text=True, check=True).stdout


def symbols(library, kind):
    """Return the names in the dynamic symbol table: "--defined-only" or "--undefined-only"."""
    names = [line.split()[-1] for line in said_by("nm", "-D", kind, library).splitlines()]
    return {name.partition("@")[0] for name in names}


def x86_properties(path):
    """Return the processor protections for which a compiled file is marked."""
    found = re.search(r"x86 feature: ([A-Z, ]+)", said_by("readelf", "--notes", path))
    return set(found[1].split(", ")) if found else set()


def test_four_files():
    assert EXTENSIONS and SIMULATOR and C_LIBRARIES and INTERPOSERS


@each(ALL)
def test_protections(library):
    dynamic = said_by("readelf", "--wide", "--dynamic", library)
    segments = said_by("readelf", "--wide", "--segments", library)
    assert "BIND_NOW" in dynamic
    assert "TEXTREL" not in dynamic
    assert "GNU_RELRO" in segments
    (stack,) = re.findall(r"GNU_STACK .* ([RWE ]+) +0x", segments)
    assert stack.split() == ["RW"]
    needed = symbols(library, "--undefined-only")
    assert "__stack_chk_fail" in needed
    assert {name for name in needed if name.endswith("_chk")} - {"__stack_chk_fail"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="protections of x86-64")
@each(ALL)
def test_control_flow_protection(library, tmp_path):
    """Indirect branch tracking (IBT) depends on the C library's start files as well."""
    empty = tmp_path / "empty.so"
    words = ("cc", "-shared", "-fPIC", "-fcf-protection", "-x", "c", "/dev/null", "-o", empty)
    said_by(*words)
    assert x86_properties(library) >= {"SHSTK"} | x86_properties(empty)


@each([*EXTENSIONS, *SIMULATOR])
def test_extensions_export_their_init_function(library):
    assert symbols(library, "--defined-only") == {f"PyInit_{library.name.partition('.')[0]}"}


@each(C_LIBRARIES)
def test_c_library_exports_its_header(library):
    header = (PACKAGE / "include/partialcoll.h").read_text()
    declared = set(re.findall(r"^[\w *]+?\b((?:pcoll|PCOLL)_\w+)\([^;{]*\);", header, re.MULTILINE))
    assert len(declared) > 100
    # These two are replaced to free objects before MPI ends (csrc/compat/linked).
    assert symbols(library, "--defined-only") == declared | {"MPI_Finalize", "MPI_Comm_free"}


@each(INTERPOSERS)
def test_interposer_exports_names_of_mpi(library):
    names = symbols(library, "--defined-only")
    c_names = {name for name in names if re.match(r"MPI_[A-Z][a-z]", name)}
    assert c_names == {f"MPI_{name}" for name in REPLACED}
    # The names of Fortran compilers, and Open MPI's internal names of the Fortran entries.
    form = re.compile(r"(?i:o?mpi)_(\w+?)(?:_f|_f08_|_f08ts_|_f08ts_large_|_{0,2})")
    fortran = {form.fullmatch(name)[1].lower() for name in names - c_names}
    assert fortran <= {name.lower() for name in REPLACED}


@pytest.fixture
def hardening():
    spec = importlib.util.spec_from_file_location("hardening", ROOT / "csrc" / "hardening.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiler_without(words, folder):
    """Return a compiler that fails for some flags and warns about others: {flag: exit status}."""
    lines = [
        f'case "$*" in *"{flag}"*) echo "{flag}: unknown"; [ {status} = 0 ] || exit {status};; esac'
        for flag, status in words.items()
    ]
    script = folder / "cc"
    script.write_text("\n".join(["#!/bin/sh", *lines, 'exec cc "$@"', ""]))
    script.chmod(0o755)
    return str(script)


def test_a_flag_that_the_compiler_refuses_is_left_out(hardening, tmp_path):
    refusing = compiler_without({"-fcf-protection": 1, "_SOURCE=3": 0, "now": 0}, tmp_path)
    mine, usual = hardening.flags(refusing), hardening.flags("cc")
    assert "-fcf-protection" not in mine.compile
    assert "-Wl,-z,now" in usual.link and "-Wl,-z,now" not in mine.link
    assert mine.compile.index("-U_FORTIFY_SOURCE") < mine.compile.index("-D_FORTIFY_SOURCE=2")
    assert "-fstack-protector-strong" in mine.compile


def test_a_compiler_that_does_not_work(hardening, tmp_path):
    broken = compiler_without({"-shared": 3}, tmp_path)
    with pytest.raises(SystemExit, match="cannot link a library: -shared: unknown"):
        hardening.flags(broken)
