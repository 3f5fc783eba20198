# SPDX-License-Identifier: Apache-2.0
"""``python -m partialcoll.tour``: five minutes on this machine; see tools/cli/tour.py."""

import sys

from .tools.cli.tour import main

if __name__ == "__main__":
    sys.exit(main())
