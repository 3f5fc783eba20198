# SPDX-License-Identifier: Apache-2.0
"""What comes of a benchmark or a simulation: rows, as table, as JSON and as pictures."""

from .progress import has_bar, progress
from .rows import Row, document, on_job, table, write, writing

__all__ = ["Row", "document", "has_bar", "on_job", "progress", "table", "write", "writing"]
