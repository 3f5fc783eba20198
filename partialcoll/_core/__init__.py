# SPDX-License-Identifier: Apache-2.0
"""What all collectives are made of: the compiled core, buffers, ops, waiting, settings."""
