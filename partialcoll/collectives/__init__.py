# SPDX-License-Identifier: Apache-2.0
"""The collectives: what is made on a communicator and freed with it."""
