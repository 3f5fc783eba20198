# SPDX-License-Identifier: Apache-2.0
"""Horovod's tests of its PyTorch API, as a `Suite`: `horovod.torch` is `partialcoll.torch`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Sequence
from pathlib import Path

from lib.suite import Side, Suite

_BENCH = Path(__file__).resolve().parents[1]
# What the suite imports of Horovod.
SHIM = {
    "horovod/__init__.py": "",
    # Some tests rely on an earlier one's init().
    "horovod/torch/__init__.py": "from partialcoll.torch import *\n\ninit()\n",
    "horovod/runner/__init__.py": "",
    "horovod/runner/util/__init__.py": "",
    "horovod/runner/util/threads.py": """
import threading


def in_thread(target, args=(), name=None, daemon=True, silent=False):
    thread = threading.Thread(target=target, args=args, name=name, daemon=daemon)
    thread.start()
    return thread
""",
}
_TEST = re.compile(r"^    def (test_\w+)\(self", re.MULTILINE)


def make(folder: Path, scratch: Path) -> Suite:
    """Of Horovod's folder `test`; scratch: for what stands for Horovod."""
    source = folder / "parallel" / "test_torch.py"
    text = source.read_text()
    for name, content in SHIM.items():
        path = scratch / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    pytest = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "peers.suite_horovod_rank"]

    def words(tests: Sequence[str]) -> Sequence[str]:
        return [*pytest, *(f"{source.name}::TorchTests::{test}" for test in tests)]

    paths = (str(scratch), str(_BENCH), os.environ.get("PYTHONPATH"))
    ours = Side(words, scratch, source.parent, {"PYTHONPATH": os.pathsep.join(filter(None, paths))})
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Suite("horovod", _TEST.findall(text), digest, ours)
