# SPDX-License-Identifier: Apache-2.0
"""The command ``partialcoll``: benchmarks, simulations, what C users ask. Not for the library."""
