# SPDX-License-Identifier: Apache-2.0
"""Run a script on some ranks with the matching launcher: python tests/launch.py 4 script.py, or
another program: python tests/launch.py 4 --program ./program"""

import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path


@contextlib.contextmanager
def own_segments():
    """Open MPI leaves a segment behind for each job. Within this context it is removed."""
    from partialcoll.tools import launcher

    with tempfile.TemporaryDirectory(prefix="partialcoll-tests-") as folder:
        os.environ.update(launcher.files(Path(folder)))
        yield


def launch(ranks, words, limit_s=300):
    """Run Python with these arguments, or the program named after --program, on some ranks. Return
    the exit status."""
    from partialcoll.tools import launcher

    command = launcher.command(ranks)
    command += words[1:] if words[0] == "--program" else [sys.executable, *words]
    return subprocess.run(command, env=launcher.environment(), timeout=limit_s).returncode


if __name__ == "__main__":
    with own_segments():
        sys.exit(launch(int(sys.argv[1]), sys.argv[2:]))
