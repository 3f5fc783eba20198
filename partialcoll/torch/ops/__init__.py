# SPDX-License-Identifier: Apache-2.0
"""Ordered collectives on tensors: what lies under Horovod's names and the c10d process group."""
