# SPDX-License-Identifier: Apache-2.0
"""For ranks that stop themselves at a moment of the core (PARTIALCOLL_DIE="moment:1:stop"): as a
program, it waits until the process of that number stands still, and has it go on two seconds later;
the files "stood still" and "went on" say that it has."""

import os
import signal
import sys
import time
from pathlib import Path

# What the program of a rank calls for itself.
GO_ON_LATER = f"""
    import subprocess

    def go_on_later():
        subprocess.Popen([sys.executable, "-S", {__file__!r}, str(os.getpid())])
"""


def stands_still(pid):
    """Has it been stopped?"""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def main(pid):
    """Until it goes on."""
    while not stands_still(pid):
        time.sleep(0.01)
    Path("stood still").touch()
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    Path("went on").touch()


if __name__ == "__main__":
    main(int(sys.argv[1]))
