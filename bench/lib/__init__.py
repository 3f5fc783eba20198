# SPDX-License-Identifier: Apache-2.0
"""What experiments have in common: jobs, series of them, results and what is made of those."""
