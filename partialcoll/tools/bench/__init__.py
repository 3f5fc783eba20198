# SPDX-License-Identifier: Apache-2.0
"""The benchmarks behind ``partialcoll bench``."""
