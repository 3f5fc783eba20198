# SPDX-License-Identifier: Apache-2.0
"""Who may include or import whom. A file knows only what lies to its left."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folder of csrc -> folders it may include besides itself and include/.
C_LAYERS = {
    "base": set(),
    "schedule": {"base"},
    "protocol": {"base", "schedule"},
    "algorithms": {"base", "schedule"},
    "kernels": {"base"},
    "transport": {"base", "kernels"},
    "domain": {"base", "kernels", "protocol"},
    "progress": {"base"},
    "allreduce": {
        "base",
        "schedule",
        "protocol",
        "algorithms",
        "kernels",
        "transport",
        "domain",
        "progress",
    },
    "program": {
        "base",
        "schedule",
        "algorithms",
        "kernels",
        "transport",
        "progress",
        "allreduce",
    },
    "gossip": {"base", "kernels", "transport", "progress", "allreduce"},
    "group": {
        "base",
        "schedule",
        "algorithms",
        "kernels",
        "transport",
        "progress",
        "allreduce",
        "gossip",
    },
    "simulation": {
        "base",
        "schedule",
        "protocol",
        "algorithms",
        "kernels",
        "transport",
        "domain",
        "progress",
        "allreduce",
    },
    # Shaped like MPI, on top of the public header.
    "dropin": {"base"},
    "pmpi": {"base", "dropin", "progress", "allreduce"},
}
MAY_CALL_MPI = re.compile(r"transport/mpi(_\w+)?\.[ch]|gossip/window_mpi\.c")
FOLDERS_OF_MPI = {"dropin", "pmpi"}

# Module of the package -> modules it may import.
PY_LAYERS = [
    {"_errors", "_version", "_settings", "_graph", "_topology_text", "_snapshot", "_asking"},
    {"_spectrum", "_named_graphs"},
    {"topology"},
    {"pairing"},
    {"_ffi", "_launch", "_mpiexec"},
    {"_clibs"},
    {"policy", "grid", "_buffers", "_comm", "_waiting"},
    {"_ops", "_round"},
    {"_slots"},
    {"_handle", "_freeing"},
    {"quantize"},
    {"allreduce", "schedule", "gossip", "group", "resync"},
    {"_drop_in"},
    {"processes"},
    {"__init__"},
    {"torch"},
    {"_info", "_report"},
    {"_skew"},
    {"bench", "sim"},
    {"cli"},
    {"__main__"},
]


def c_files():
    return sorted(p for p in (ROOT / "csrc").glob("*/*.[ch]") if p.parent.name in C_LAYERS)


def test_every_folder_is_listed():
    folders = {
        p.name for p in (ROOT / "csrc").iterdir() if p.is_dir() and not p.name.startswith("__")
    }
    assert folders == set(C_LAYERS) | {"include"}


@pytest.mark.parametrize("path", c_files(), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_includes(path):
    folder = path.parent.name
    for target in re.findall(r'#include "([^"]+)"', path.read_text()):
        other = target.split("/")[1] if target.startswith("../") else folder
        assert other in C_LAYERS[folder] | {folder, "include"}, f"{path} includes {target}"


@pytest.mark.parametrize("path", c_files(), ids=lambda p: f"{p.parent.name}/{p.name}")
def test_only_some_call_mpi(path):
    name = f"{path.parent.name}/{path.name}"
    code = re.sub(r"/\*.*?\*/|\"(\\.|[^\"])*\"", "", path.read_text(), flags=re.DOTALL)
    calls = re.findall(r"\bMPI_\w+\s*\(|<mpi\.h>", code)
    assert MAY_CALL_MPI.fullmatch(name) or path.parent.name in FOLDERS_OF_MPI or not calls, calls
    if folder_is_pure(path):
        assert not re.search(r"<pthread\.h>|<unistd\.h>|<time\.h>", path.read_text())


def folder_is_pure(path):
    return path.parent.name in {"schedule", "protocol", "algorithms", "kernels"}


def level(module):
    for i, names in enumerate(PY_LAYERS):
        if module in names:
            return i
    raise AssertionError(f"{module} is not listed in PY_LAYERS")


def imported(tree, package_level):
    """Modules of partialcoll that are imported at the top or inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == package_level:
            if node.module:
                yield node.module.split(".")[0]
            else:
                yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("path", sorted((ROOT / "partialcoll").glob("*.py")), ids=lambda p: p.name)
def test_imports(path):
    if path.name.startswith("_core_"):
        pytest.skip("generated")
    own = level(path.stem)
    for module in imported(ast.parse(path.read_text()), 1):
        assert level(module) < own, f"{path.name} imports {module}"


@pytest.mark.parametrize("path", sorted((ROOT / "partialcoll").rglob("*.py")), ids=lambda p: p.name)
def test_only_ffi_knows_the_core(path):
    text = path.read_text()
    assert path.name == "_ffi.py" or "_core_" not in text
