# SPDX-License-Identifier: Apache-2.0
"""Common to the tests of the C library and the interposer: compile a program as a user does, and
run it on some ranks."""

import subprocess
import sys
from pathlib import Path

from partialcoll.tools import installed, launcher

PROGRAMS = Path(__file__).resolve().parents[1] / "compat"
LIMIT_S = 120


def mpicc():
    """Return the compiler wrapper of the MPI in use."""
    return str(Path(launcher.find(launcher.flavor())).parent / "mpicc")


def compile_program(source, program, *flags):
    """Compile a program. Warnings are errors."""
    words = [mpicc(), "-Wall", "-Wextra", "-Werror", "-pthread", str(PROGRAMS / source), *flags]
    subprocess.run([*words, "-o", str(program)], check=True)
    return str(program)


def config(*words):
    """Run `partialcoll config`."""
    command = [sys.executable, "-m", "partialcoll", "config", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)


def config_flags():
    """Return the flags to compile and link with the library."""
    flags = config("--cflags", "--libs")
    assert flags.returncode == 0, flags.stderr
    return flags.stdout.split()


def run(words, environment, folder, ranks=3, settings=None, preload=False):
    """Run a program to its end. `settings` and the interposer are passed in mpiexec's environment,
    as a user does."""
    launched = launcher.environment()
    env = {**environment, **(settings or {})}
    env.update({k: v for k, v in launched.items() if "ALLOW_RUN_AS_ROOT" in k})
    env.update(launcher.files(Path(folder)))
    if preload:
        env["LD_PRELOAD"] = installed.preload()
    return subprocess.run(
        [*launcher.command(ranks), *words],
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
    )
