# SPDX-License-Identifier: Apache-2.0
"""The stand-in for cupy of the tests, under cupy's name: for a rehearsal (visit.sh --fake)."""

from fake_cupy import cuda, float32, ones, zeros

__all__ = ["cuda", "float32", "ones", "zeros"]
