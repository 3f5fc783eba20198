# SPDX-License-Identifier: Apache-2.0
"""Choose the hardening flags of the compiler and the linker, for every build.

The flags make a process end when memory is corrupted: stack canaries, checked variants of the C
library's functions, landing pads for indirect branches, shadow stacks, a stack that cannot be
executed, and symbol tables that are read-only before the first call.

Compilers differ in the flags that they know, and some only warn about an unknown one. Each flag is
therefore tried on a library of one function. It is used if the compiler succeeds and prints nothing
more than without the flag.

The Makefile gets the flags of its C tests by `python csrc/hardening.py compile CC` and `link CC`.
"""

import functools
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

# The first alternative of each group that works is used. Some distributions' compilers define
# _FORTIFY_SOURCE themselves, so it is undefined first. It needs optimization: every build that uses
# these flags has -O3.
COMPILE = (
    (("-fstack-protector-strong",),),
    (
        ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=3"),
        ("-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"),
    ),
    (("-fcf-protection",),),
)
# The linker marks a library as fit for shadow stacks only if all objects are, the C library's start
# files included. Some distributions do not mark those, although they only call and return, so the
# mark is set explicitly.
LINK = (
    (("-Wl,-z,relro",),),
    (("-Wl,-z,now",),),
    (("-Wl,-z,noexecstack",),),
    (("-fcf-protection", "-Wl,-z,shstk"),),
)

PROBE = """
#include <string.h>
int probe(char *to, const char *from)
{
    char copy[64];
    strcpy(copy, from);
    strcpy(to, copy);
    return (int)strlen(copy);
}
"""


class Flags(NamedTuple):
    """Flags for every compilation, and for every link."""

    compile: "list[str]"
    link: "list[str]"


@functools.cache
def flags(command):
    """Return the flags that this compiler command accepts."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.c"
        source.write_text(PROBE)
        library = ("-O2", "-fPIC", "-shared", source, "-o", Path(folder) / "probe.so")

        def compile_with(words):
            """Return the exit status and the output, without names of temporary files."""
            words = [*shlex.split(command), *map(str, library), *words]
            done = subprocess.run(words, capture_output=True, text=True)
            return done.returncode, re.sub(r"/cc\w+\.[os]", "", done.stdout + done.stderr)

        def accepted(groups):
            found = []
            for alternatives in groups:
                found += next((w for w in alternatives if compile_with(w) == without), ())
            return found

        without = compile_with(())
        if without[0]:
            raise SystemExit(f"partialcoll: {command} cannot link a library: {without[1].strip()}")
        return Flags(accepted(COMPILE), accepted(LINK))


if __name__ == "__main__":
    print(*getattr(flags(sys.argv[2]), sys.argv[1]))
