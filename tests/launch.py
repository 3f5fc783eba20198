# SPDX-License-Identifier: Apache-2.0
"""Run a script on some ranks with the launcher that fits: python tests/launch.py 4 script.py"""

import subprocess
import sys

from partialcoll import _mpiexec

vendor = _mpiexec.flavour()
command = _mpiexec.command(_mpiexec.find(vendor), vendor, int(sys.argv[1]), None, None)
command += [sys.executable, *sys.argv[2:]]
sys.exit(subprocess.run(command, env=_mpiexec.environment(vendor), timeout=300).returncode)
