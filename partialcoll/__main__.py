# SPDX-License-Identifier: Apache-2.0
"""``python -m partialcoll`` is the console script."""

import sys

from .tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
