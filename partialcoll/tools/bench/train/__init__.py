# SPDX-License-Identifier: Apache-2.0
"""``bench train``: the same training with each strategy, side by side."""
