# SPDX-License-Identifier: Apache-2.0
"""For ranks that stop themselves at a kill point of the core (PARTIALCOLL_DIE="moment:1:stop"). As
a program, wait until the process with this number is stopped, and continue it two seconds later.
The files "stood still" and "went on" record both."""

import os
import signal
import sys
import time
from pathlib import Path

# For the program of a rank: start this program for itself.
GO_ON_LATER = f"""
    import subprocess

    def go_on_later():
        subprocess.Popen([sys.executable, "-S", {__file__!r}, str(os.getpid())])
"""


def stands_still(pid):
    """Return whether the process has been stopped."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def main(pid):
    """Return after the process has been continued."""
    while not stands_still(pid):
        time.sleep(0.01)
    Path("stood still").touch()
    time.sleep(2)
    os.kill(pid, signal.SIGCONT)
    Path("went on").touch()


if __name__ == "__main__":
    main(int(sys.argv[1]))
