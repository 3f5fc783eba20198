# SPDX-License-Identifier: Apache-2.0
"""The base of all collectives: the compiled core, buffers, ops, waiting, settings."""
