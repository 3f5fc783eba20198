# SPDX-License-Identifier: Apache-2.0
"""What the papers measured, measured again."""
