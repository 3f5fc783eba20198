# SPDX-License-Identifier: Apache-2.0
"""The same code in virtual time, for any number of ranks: behind ``partialcoll sim``. Drives
csrc/simulator; `averaging` and `moshpit` are arithmetic, without messages."""
