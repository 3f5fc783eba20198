# SPDX-License-Identifier: Apache-2.0
"""``python -m partialcoll.tour``: five minutes on this machine; see tools/cli/tour.py."""

import sys

from . import _signals

if __name__ == "__main__":
    _signals.end_quietly()

    from .tools.cli.tour import main

    sys.exit(main())
