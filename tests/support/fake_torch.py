# SPDX-License-Identifier: Apache-2.0
"""PyTorch tensors on the fake device (tests/fake_torch). Use them in a separate process, because
torch accepts one additional device for good."""

import contextlib
import os
import subprocess
import types
from pathlib import Path

import device
import torch

SOURCE = Path(__file__).resolve().parents[1] / "fake_torch" / "fake_torch.cpp"
NAME = "late"


def build(folder):
    """Compile it and the driver. Return the environment for a process that calls `load`."""
    torch_at, library = Path(torch.__path__[0]), Path(folder) / "libfake_torch.so"
    include = torch_at / "include"
    flags = ["-std=c++20", "-O0", "-shared", "-fPIC", f"-I{include}"]
    flags += [f"-I{include / 'torch' / 'csrc' / 'api' / 'include'}", f"-L{torch_at / 'lib'}"]
    words = ["c++", *flags, str(SOURCE), "-ltorch_cpu", "-lc10", "-o", str(library)]
    subprocess.run(words, check=True)
    return {"PARTIALCOLL_CUDA_LIBRARY": str(device.build(folder)), "FAKE_TORCH": str(library)}


def load():
    """Return the driver, already opened as in a torch program, and the device's name."""
    fake = device.Fake(os.environ["PARTIALCOLL_CUDA_LIBRARY"])
    torch.ops.load_library(os.environ["FAKE_TORCH"])
    torch.utils.rename_privateuse1_backend(NAME)
    stream = types.SimpleNamespace(  # the default stream, the only one
        wait_event=lambda event: None,
        record_event=lambda: None,
        synchronize=lambda: None,
    )
    module = types.SimpleNamespace(
        Stream=lambda device: stream,
        current_stream=lambda device: stream,
        stream=lambda one: contextlib.nullcontext(),
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 1,
        current_device=lambda: 0,
        manual_seed_all=lambda seed: None,
        _is_in_bad_fork=lambda: False,
    )
    torch._register_device_module(NAME, module)
    cloned = torch.UntypedStorage.clone

    def clone(storage):  # torch's own knows only its devices
        if storage.device.type != NAME:
            return cloned(storage)
        size = storage.nbytes()
        there = torch.empty(0, dtype=torch.uint8, device=NAME).set_(storage, 0, (size,), (1,))
        return there.clone().untyped_storage()

    torch.UntypedStorage.clone = clone
    return fake, NAME
