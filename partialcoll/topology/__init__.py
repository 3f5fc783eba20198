# SPDX-License-Identifier: Apache-2.0
"""Topologies: which ranks may average, and the choice of the next partner (`pairing`)."""

from .topology import A2CiD2Parameters, Topology

__all__ = ["A2CiD2Parameters", "Topology"]
