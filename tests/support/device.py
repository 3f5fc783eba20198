# SPDX-License-Identifier: Apache-2.0
"""Arrays on the fake device (tests/fake_cuda), which a program can only pass to the library, and
the effects of a program's kernels on them."""

import atexit
import ctypes
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).resolve().parents[1] / "fake_cuda" / "fake_cuda.c"
FLAGS = ["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-fvisibility=hidden", "-shared", "-fPIC"]


class Counts(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_uint64)
        for name in (
            *("to_host", "to_device", "copies", "registrations", "complaints", "live"),
            "questions",
        )
    ]


class Fake:
    """The fake library, loaded as the core loads it."""

    def __init__(self, path):
        os.environ["PARTIALCOLL_CUDA_LIBRARY"] = str(path)
        self.lib = ctypes.CDLL(str(path))
        self.check(self.lib.cuInit(0))
        self.contexts = {}
        for device in range(2):
            self.context(device)
            atexit.register(self.lib.cuDevicePrimaryCtxRelease_v2, device)

    def check(self, result):
        assert result == 0, f"the fake says {result}"

    def context(self, device):
        """Return the primary context of a device, and keep it."""
        if device not in self.contexts:
            context = ctypes.c_void_p()
            self.check(self.lib.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
            self.contexts[device] = context
        return self.contexts[device]

    def within(self, device, call, *arguments):
        """Make a call with this device's context current."""
        own = ctypes.c_void_p()
        self.check(self.lib.cuCtxPushCurrent_v2(self.context(device)))
        try:
            self.check(getattr(self.lib, call)(*arguments))
        finally:
            self.check(self.lib.cuCtxPopCurrent_v2(ctypes.byref(own)))

    def stream(self, device=0):
        """Return a new stream."""
        stream = ctypes.c_void_p()
        self.within(device, "cuStreamCreate", ctypes.byref(stream), 1)
        return Stream(stream.value, device)

    def end_stream(self, stream):
        self.within(stream.device, "cuStreamDestroy_v2", ctypes.c_void_p(stream.ptr))

    def hold(self, stream=0, device=0):
        """Start a kernel that runs until `release`."""
        number = ctypes.c_uint64(getattr(stream, "ptr", stream))
        self.within(device, "fake_cuda_hold", number)

    def release(self):
        self.lib.fake_cuda_release()

    def capture(self, stream, capturing):
        self.lib.fake_cuda_capture(ctypes.c_uint64(stream.ptr), int(capturing))

    def counts(self):
        found = Counts()
        self.lib.fake_cuda_counts(ctypes.byref(found))
        return {name: getattr(found, name) for name, _ in Counts._fields_}


class Stream:
    """A stream like cupy's: its number is ``ptr``."""

    def __init__(self, number, device):
        self.ptr, self.device = number, device


def build(folder=None):
    """Compile the fake driver. Return its path."""
    path = Path(folder or tempfile.gettempdir()) / f"libfake_cuda-{os.getpid()}.so"
    subprocess.run(["cc", *FLAGS, str(SOURCE), "-lpthread", "-o", str(path)], check=True)
    return path


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class DLPackArray:
    """An array that offers only DLPack, over memory that the host cannot access.

    code, bits: of its dtype. strides: in elements; None: it is C-contiguous.
    """

    def __init__(self, array, code, strides=None, bits=None):
        self.array, self.shape = array, (ctypes.c_int64 * len(array.shape))(*array.shape)
        self.code, self.bits = code, bits or 8 * array.dtype.itemsize
        self.strides = None if strides is None else (ctypes.c_int64 * len(strides))(*strides)

    def __dlpack_device__(self):
        return 13 if self.array.managed else 2, self.array.device

    def __dlpack__(self, stream=None):
        assert stream == -1
        place, count = (ctypes.c_int32 * 2)(*self.__dlpack_device__()), len(self.array.shape)
        # The fields of a managed tensor, which starts eight bytes before the data.
        self.managed = DLTensor(
            self.array.address - 8, place, count, self.code, self.bits, 1,
            self.shape, self.strides, 8,
        )  # fmt: skip
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b"dltensor", None)


class DeviceArray:
    """An array with the attributes of cupy's, over memory that the host cannot access."""

    def __init__(self, fake, like, device=0, stream=None, managed=False):
        like = np.asarray(like)
        self.fake, self.device, self.shape, self.dtype = fake, device, like.shape, like.dtype
        self.nbytes, self.strides, self.stream = like.nbytes, None, stream
        address = ctypes.c_uint64(0)
        call, flags = ("cuMemAllocManaged", [1]) if managed else ("cuMemAlloc_v2", [])
        if like.nbytes:
            size = ctypes.c_size_t(self.nbytes)
            fake.within(device, call, ctypes.byref(address), size, *flags)
        self.managed = managed
        self.address = address.value
        self.used = {0}  # streams
        self.set(like)
        self._synchronize(0)  # other streams do not wait for this one

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": self.strides,
            "version": 3,
            "stream": self.stream,
        }

    def set(self, value, stream=0, late_us=0):
        """Start a late kernel in a stream that writes these values."""
        host = np.ascontiguousarray(np.broadcast_to(value, self.shape), self.dtype)
        self._kernel("fake_cuda_write", host, stream, late_us)

    def get(self, stream=0, late_us=0):
        """Return the contents that a kernel in this stream reads after all earlier ones."""
        host = np.empty(self.shape, self.dtype)
        self._kernel("fake_cuda_read", host, stream, late_us)
        self._synchronize(getattr(stream, "ptr", stream))
        return host

    def _synchronize(self, number):
        self.fake.within(self.device, "cuStreamSynchronize", ctypes.c_uint64(number))

    def _kernel(self, name, host, stream, late_us):
        if host.nbytes:
            number = getattr(stream, "ptr", stream)
            self.used.add(number)
            self.fake.within(
                self.device, name, ctypes.c_uint64(number), ctypes.c_uint64(self.address),
                ctypes.c_void_p(host.ctypes.data), ctypes.c_size_t(host.nbytes), late_us,
            )  # fmt: skip

    def free(self):
        """Free it after its kernels have ended, like cupy's pool."""
        if self.address:
            for number in self.used:
                self._synchronize(number)
            self.fake.check(self.fake.lib.cuMemFree_v2(ctypes.c_uint64(self.address)))
        self.address = 0
