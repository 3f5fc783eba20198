# SPDX-License-Identifier: Apache-2.0
"""The same protocol in virtual time, for any number of ranks: behind ``partialcoll sim``."""
