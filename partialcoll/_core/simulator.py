# SPDX-License-Identifier: Apache-2.0
"""The compiled simulator: the objects of the core over simulated ranks, and the core's arithmetic.
Has no MPI and loads none.

The only module that touches it.
"""

from __future__ import annotations

import importlib

from .library import Library

simulator = Library(lambda: importlib.import_module("partialcoll._simulator"))
