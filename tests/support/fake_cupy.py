# SPDX-License-Identifier: Apache-2.0
"""The part of cupy that a page of the docs uses, over the fake device; put into sys.modules."""

import contextlib
import types

import numpy as np
from device import DeviceArray, Fake, build

path = build()
fake = Fake(path)
path.unlink()
current = [fake.stream()]
float32 = np.float32


class Array(DeviceArray):
    """An array whose operations run in the current stream."""

    def set(self, value, late_us=500):
        super().set(value, current[0], late_us)

    def get(self):
        return super().get(current[0])

    def __setitem__(self, key, value):
        assert key == slice(None)
        self.set(value)

    def __itruediv__(self, number):
        self.set(self.get() / number)
        return self


def ones(count):
    return Array(fake, np.ones(count))


def zeros(count, dtype=float):
    return Array(fake, np.zeros(count, dtype))


class Device(contextlib.nullcontext):
    def __init__(self, number):
        super().__init__()
        assert number == 0

    def use(self):
        """Do nothing."""


@contextlib.contextmanager
def Stream(non_blocking):
    assert non_blocking
    current.insert(0, fake.stream())
    yield current[0]
    current.pop(0)


cuda = types.SimpleNamespace(
    Device=Device,
    Stream=Stream,
    get_current_stream=lambda: current[0],
    runtime=types.SimpleNamespace(getDeviceCount=lambda: 1),
)
