# SPDX-License-Identifier: Apache-2.0
"""Test allreduces while ranks are killed: jobs of real processes, killed at random times, and
judged by the log that each process has written."""
