# SPDX-License-Identifier: Apache-2.0
"""Shared code of the experiments: jobs, series of jobs, results, and figures made from results."""
