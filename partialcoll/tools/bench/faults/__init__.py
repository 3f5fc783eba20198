# SPDX-License-Identifier: Apache-2.0
"""What becomes of allreduces when ranks are killed: jobs of real processes, killed at random
moments, and judged by what each of them has written down."""
