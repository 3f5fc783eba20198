# SPDX-License-Identifier: Apache-2.0
"""The command ``partialcoll``: benchmarks, simulations, C flags. The library does not use it."""
