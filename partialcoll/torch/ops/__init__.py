# SPDX-License-Identifier: Apache-2.0
"""Ordered collectives on tensors: what lies under Horovod's names and the c10d process group.

A `Call` says what this rank is about to do and how its data moves; a `Queue` carries calls out in
their order, on all ranks alike.
"""
