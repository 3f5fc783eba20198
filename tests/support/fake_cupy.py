# SPDX-License-Identifier: Apache-2.0
"""As much of cupy as a page of the docs shows, over the fake device; put into sys.modules."""

import contextlib
import types

import numpy as np
from device import DeviceArray, Fake, build

path = build()
fake = Fake(path)
path.unlink()
streams = [fake.stream(), fake.stream()]
current = [streams[0]]


class Array(DeviceArray):
    """What works on it, works in the current stream."""

    def set(self, value, late_us=500):
        super().set(value, current[0], late_us)

    def get(self):
        return super().get(current[0])

    def __itruediv__(self, number):
        self.set(self.get() / number)
        return self


def ones(count):
    return Array(fake, np.ones(count))


def zeros(count):
    return Array(fake, np.zeros(count))


def _device(number):
    assert number == 0
    return contextlib.nullcontext()


cuda = types.SimpleNamespace(Device=_device, get_current_stream=lambda: current[0])
