# SPDX-License-Identifier: Apache-2.0
"""Check whether a job survives the death of its ranks here."""

import pytest
from mpi4py import MPI

from partialcoll.tools import launcher

outlives = launcher.flavor() == "openmpi" and MPI.Get_library_version().split()[2] >= "v5"
needs_ulfm = pytest.mark.skipif(not outlives, reason="this MPI ends the job when a rank dies")
