# SPDX-License-Identifier: Apache-2.0
"""Repetitions of the papers' measurements."""
