# SPDX-License-Identifier: Apache-2.0
"""This library beside what others have."""
