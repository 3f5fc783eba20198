# SPDX-License-Identifier: Apache-2.0
"""Run tests twice where bytes are moved: counted one by one, and as elements of a datatype."""

import pytest


@pytest.fixture(params=(None, 7), ids=("bytes", "a datatype"))
def operations(request, monkeypatch):
    from partialcoll.torch.ops import transfer

    if request.param is not None:
        monkeypatch.setattr(transfer, "LARGEST", request.param)
        monkeypatch.setattr(transfer, "_MANY", 4)
