# SPDX-License-Identifier: Apache-2.0
"""Calls between folders of the core form no circle. The files of a subject, which share a header,
may call each other."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

ROOT = Path(__file__).resolve()
while not (ROOT / "setup.py").exists():
    ROOT = ROOT.parent
DEFINITION = re.compile(r"^(\w[\w\s*]*?)\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)


def code_of(path):
    """Return the code without comments and strings."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.DOTALL)
    return re.sub(r'"(\\.|[^"\\])*"', '""', text)


def calls_between(files):
    """Return for each file the files that define the functions that it calls. MPI_… is MPI's,
    whoever replaces it."""
    owner = {
        name: file
        for file, code in files.items()
        for before, name in DEFINITION.findall(code)
        if not {"static", "typedef"} & {*before.split()}
    }
    names = {f: set(re.findall(r"\b[a-z_]\w*", code)) for f, code in files.items()}
    return {f: {owner[n] for n in used if n in owner} - {f} for f, used in names.items()}


def reached(edges, file):
    """Return everything that a file needs, directly or indirectly."""
    found, todo = set(), [file]
    while todo:
        new = edges[todo.pop()] - found
        found |= new
        todo += new
    return found


def on_circles(edges):
    """Return those that need themselves, with their direct needs on the circle."""
    every = {f: reached(edges, f) for f in edges}
    return {f: sorted(n for n in edges[f] if f in every[n]) for f in edges if f in every[f]}


def test_no_circles():
    root = ROOT / "csrc"
    folders = {}
    for path in sorted(root.rglob("*.c")):
        folder = path.parent.relative_to(root).as_posix()
        folders[folder] = folders.get(folder, "") + code_of(path)
    edges = calls_between(folders)
    assert sum(map(len, edges.values())) > 40  # calls are found
    assert on_circles(edges) == {}


def test_a_circle_is_seen():
    files = {
        "a.c": "int a(void)\n{\n    return b();\n}\n",
        "b.c": "int b(void)\n{\n    return c();\n}\n",
        "c.c": "int c(void)\n{\n    return a();\n}\n",
        "d.c": "int d(void)\n{\n    return a();\n}\n",
    }
    assert set(on_circles(calls_between(files))) == {"a.c", "b.c", "c.c"}
    del files["c.c"]
    assert on_circles(calls_between(files)) == {}
