# SPDX-License-Identifier: Apache-2.0
"""Allowed includes and imports. A file may use only layers to its left."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "csrc"))
from layers import read as read_c_layers  # noqa: E402

C_LAYERS = read_c_layers()

# Packages and modules of partialcoll, lowest first: each knows only those above it in this list.
PY_LAYERS = [
    {"errors", "_command", "_signals"},
    {"_core"},
    {"policy", "round", "grid"},
    {"topology", "codec", "elastic"},
    {"collectives", "newcomer"},
    {"decentralized"},
    {"_public"},
    {"__init__"},
    {"torch"},
    {"tools"},
    {"__main__", "tour"},
]
TOOLS_LAYERS = [
    {"job"},
    {"environment", "launcher", "report"},
    {"installed", "plots"},
    {"doctor", "skewed"},
    {"bench"},
    {"sim"},
    {"cli"},
]
# Modules that only these packages may import, because the rest serves all frameworks.
FRAMEWORKS = {"torch": [("torch",), ("tools", "bench")], "cupy": []}


def c_files():
    return sorted((ROOT / "csrc").rglob("*.[ch]"))


def folder_of(path):
    return path.parent.relative_to(ROOT / "csrc").as_posix()


def name_of(path):
    return path.relative_to(ROOT / "csrc").as_posix()


def test_every_folder_is_listed():
    folders = {folder_of(path) for path in c_files()}
    assert folders == {*C_LAYERS, "include"}


def test_folders_are_layers():
    """A folder may include only folders above it in layers.txt."""
    above = set()
    for folder, layer in C_LAYERS.items():
        assert layer.may_include <= above, folder
        above.add(folder)


@pytest.mark.parametrize("path", c_files(), ids=name_of)
def test_includes(path):
    """Paths start at csrc, so that a reader sees the folder."""
    folder = folder_of(path)
    if folder == "include":
        return
    for target in re.findall(r'#include "([^"]+)"', path.read_text()):
        assert (ROOT / "csrc" / target).exists(), f"{path} includes {target}"
        other = str(Path(target).parent)
        allowed = C_LAYERS[folder].may_include | {folder, "include"}
        assert other in allowed, f"{path} includes {target}"


@pytest.mark.parametrize("path", c_files(), ids=name_of)
def test_only_some_call_mpi(path):
    folder = folder_of(path)
    if folder == "include":
        return
    part = C_LAYERS[folder].part
    code = re.sub(r"/\*.*?\*/|\"(\\.|[^\"])*\"", "", path.read_text(), flags=re.DOTALL)
    calls = re.findall(r"\bMPI_\w+\s*\(|<mpi\.h>", code)
    assert part in {"mpi", "c", "linked", "interposer"} or not calls, calls
    if part == "pure":
        assert not re.search(r"<pthread\.h>|<unistd\.h>|<time\.h>", path.read_text())


@pytest.mark.parametrize("path", c_files(), ids=name_of)
def test_only_one_reads_the_environment(path):
    """A program with privileges must not trust its caller's environment (base/file.h)."""
    code = re.sub(r"/\*.*?\*/|\"(\\.|[^\"])*\"", "", path.read_text(), flags=re.DOTALL)
    reads = re.findall(r"\b\w*getenv\b|\benviron\b|\benvp\b", code)
    assert not reads or name_of(path) == "base/file.h", reads


def python_files():
    """Return module -> syntax tree. The name of a package is that of its folder."""
    package = ROOT / "partialcoll"
    return {
        path.relative_to(package).with_suffix("").parts: ast.parse(path.read_text())
        for path in sorted(package.rglob("*.py"))
        if not path.name.startswith("_core_")
    }


MODULES = {tuple(p for p in m if p != "__init__"): tree for m, tree in python_files().items()}
PACKAGES = {m[:-1] for m in python_files() if m[-1] == "__init__"}


def without_type_checking(tree):
    """Yield all nodes except those that only a type checker sees."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        yield node
        yield from without_type_checking(node)


def imported(module):
    """Yield modules of partialcoll that a module imports, at the top or inside functions."""
    package = module if module in PACKAGES else module[:-1]
    for node in without_type_checking(MODULES[module]):
        if isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
            yield from (name[1:] for name in names if name[0] == "partialcoll")
        elif isinstance(node, ast.ImportFrom):
            path = tuple(node.module.split(".")) if node.module else ()
            if node.level:
                path = package[: len(package) - node.level + 1] + path
            elif path[0] == "partialcoll":
                path = path[1:]
            else:
                continue
            for alias in node.names:
                yield (*path, alias.name) if (*path, alias.name) in MODULES else path


def level(name, layers):
    for i, names in enumerate(layers):
        if name in names:
            return i
    raise AssertionError(f"{name} is not listed in {layers}")


@pytest.mark.parametrize("module", MODULES, ids=".".join)
def test_imports(module):
    """A package uses only lower ones. The same applies to folders within tools."""
    for other in imported(module):
        layers, own, theirs = PY_LAYERS, module or ("__init__",), other or ("__init__",)
        if own[0] == theirs[0] == "tools":
            layers, own, theirs = TOOLS_LAYERS, own[1:], theirs[1:]
        below = level(theirs[0], layers) < level(own[0], layers)
        assert below or own[0] == theirs[0], f"{module} imports {other}"


def reachable(module, graph):
    found, left = set(), [module]
    while left:
        for other in graph[left.pop()] - found:
            found.add(other)
            left.append(other)
    return found


def test_no_import_goes_in_a_circle():
    graph = {module: set(imported(module)) for module in MODULES}
    circles = [".".join(module) for module in graph if module in reachable(module, graph)]
    assert not circles


@pytest.mark.parametrize("module", MODULES, ids=".".join)
def test_frameworks_stay_with_their_packages(module):
    for node in ast.walk(MODULES[module]):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [node.module]
        for name in names:
            allowed = FRAMEWORKS.get(name.split(".")[0], [()])
            assert any(module[: len(p)] == p for p in allowed), f"{module} imports {name}"


@pytest.mark.parametrize("module", MODULES, ids=".".join)
def test_mpi_is_imported_when_it_is_used(module):
    """Importing mpi4py.MPI initializes MPI, which importing the package must not do."""
    for node in MODULES[module].body:
        text = ast.unparse(node) if isinstance(node, (ast.Import, ast.ImportFrom)) else ""
        assert "mpi4py" not in text, text


@pytest.mark.parametrize("module", MODULES, ids=".".join)
def test_only_two_modules_import_the_compiled_core(module):
    text = ast.unparse(MODULES[module])
    assert module == ("_core", "ffi") or "_core_" not in text
    assert module == ("_core", "pure") or "partialcoll._simulator" not in text


def test_the_simulator_has_no_mpi():
    """Neither the simulator nor its loader uses MPI, and all functions that it calls exist."""
    code = "import sys, partialcoll._core.pure; print(*sys.modules); "
    code += "print(open('/proc/self/maps').read())"
    command = [sys.executable, "-c", f"import sys; sys.argv = ['partialcoll']; {code}"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "OMPI"))}
    environment["LD_BIND_NOW"] = "1"
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd="/", timeout=60, check=True
    )
    assert "_simulator" in done.stdout
    assert "mpi4py" not in done.stdout and "libmpi" not in done.stdout
