# SPDX-License-Identifier: Apache-2.0
"""For tests of what moves bytes: as much in one operation as there is, or so little that everything
goes in several."""

import pytest


@pytest.fixture(params=(None, 7), ids=("whole", "in pieces"))
def operations(request, monkeypatch):
    from partialcoll.torch.ops import transfer

    if request.param is not None:
        monkeypatch.setattr(transfer, "LARGEST", request.param)
        monkeypatch.setattr(transfer, "_MANY", 4)
