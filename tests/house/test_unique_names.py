# SPDX-License-Identifier: Apache-2.0
"""A name of an internal C function, or of a struct, is defined in one file of csrc.

Then grep, a debugger and a profile show one definition. REPEATED_FUNCTIONS and REPEATED_STRUCTS are
the names that are still defined in several files. Only remove entries: remove a name when its last
repetition is renamed. `python tests/house/test_unique_names.py` prints the current values of both.
"""

import re
import textwrap
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

CSRC = Path(__file__).resolve().parents[2] / "csrc"

REPEATED_FUNCTIONS = """

"""
REPEATED_STRUCTS = """

"""

# Comments, strings, characters, preprocessor lines, attributes.
NO_CODE = re.compile(
    r"/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*|__attribute__\(\(.*?\)\)",
    re.MULTILINE | re.DOTALL,
)
# A definition begins in the first column, and a brace follows its arguments.
FUNCTION = re.compile(r"^[A-Za-z_][\w *]*?\b(\w+)\([^;{}]*\)\s*\{", re.MULTILINE)
STRUCT = re.compile(r"\bstruct (\w+) \{")
PUBLIC = ("pcoll_", "PCOLL_", "MPI_", "PMPI_")


def code(text):
    return NO_CODE.sub(" ", text)


def repeated(pattern):
    """Return the names that the pattern finds in several files, each with the files."""
    found = {}
    for path in sorted(CSRC.rglob("*.[ch]")):
        for name in sorted(set(pattern.findall(code(path.read_text())))):
            if not name.startswith(PUBLIC):
                found.setdefault(name, []).append(path.relative_to(CSRC).as_posix())
    assert len(found) > 100
    return {name: files for name, files in sorted(found.items()) if len(files) > 1}


@pytest.mark.parametrize(
    "pattern, known",
    [(FUNCTION, REPEATED_FUNCTIONS.split()), (STRUCT, REPEATED_STRUCTS.split())],
    ids=["functions", "structs"],
)
def test_names_are_defined_once(pattern, known):
    found = repeated(pattern)
    new = {name: files for name, files in found.items() if name not in known}
    assert not new, f"give these the prefix of their module: {new}"
    unique = [name for name in known if name not in found]
    assert not unique, f"defined once by now, take these out of the list: {unique}"


def test_definitions_are_found():
    text = """
#define MADE(x) \\
    static int x(void) { return 0; }
static inline const struct a *one(int (*each)(void *), /* brace( { */
                                  void *arg)
{
    return each(arg) ? "f() {" : 0;
}
int declared(struct b *);
static void __attribute__((noinline)) two(void)
{
    if (declared(0)) {
    }
}
struct a {
    struct b *next;
};
"""
    assert FUNCTION.findall(code(text)) == ["one", "two"]
    assert STRUCT.findall(code(text)) == ["a"]


if __name__ == "__main__":
    for name, pattern in ("FUNCTIONS", FUNCTION), ("STRUCTS", STRUCT):
        print(f'REPEATED_{name} = """')
        print("\n".join(textwrap.wrap(" ".join(repeated(pattern)), 99)), end='\n"""\n')
