# SPDX-License-Identifier: Apache-2.0
"""Vectors in few bits, for readers who have a similar vector of their own: the key.

>>> codec = Lattice(bits=8)
>>> payload = codec.encode(x, key=what_they_had)        # about a quarter of float32
>>> y = Lattice.decode(payload, key=what_i_have)        # x to within half a step

Distance-based lattice quantization (Davies et al., "New Bounds for Distributed Mean Estimation and
Variance Reduction"; SwarmSGD, section 2). docs/quantization.md says what is guaranteed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ._core import buffers, checks
from ._core.buffers import Array, Buffer
from ._core.pure import answer, call, check, ffi, lib, simulator
from .errors import DecodeError


def _seed(value: Any) -> int:
    return checks.integer("seed", value, 0, 2**64 - 1, what="a whole number")


def _vector(argument: str, given: Any, writable: bool = False) -> Buffer:
    buffer = buffers.as_floats(argument, given, writable)
    if not buffer.array.flags.aligned:
        raise ValueError(f"{argument}: expected aligned elements, got an array that is not")
    return buffer


def _key_like(x: Buffer, key: Any) -> Array | None:
    if key is None:
        return None
    buffer = _vector("key", key)
    if buffer.dtype != x.dtype:
        raise TypeError(f"key: expected dtype {x.name} as in x, got {buffer.name}")
    if buffer.array.shape != x.array.shape:
        raise ValueError(f"key: expected shape {x.array.shape} as x, got {buffer.array.shape}")
    return buffer.array


class _Payload:
    """A payload whose header has been checked. Raises DecodeError."""

    def __init__(self, payload: Any) -> None:
        try:
            self.memory = memoryview(payload).cast("B")
        except TypeError as error:
            raise TypeError(
                "payload: expected bytes, or a contiguous buffer of them, "
                f"got {type(payload).__name__} ({error})"
            ) from None
        # from_buffer takes no empty one of some kinds.
        self.address = ffi.from_buffer(self.memory) if self.memory.nbytes else ffi.NULL
        self.lattice = ffi.new("pcoll_lattice *")
        _check_payload(lib.pcoll_lattice_look(self.address, self.memory.nbytes, self.lattice))
        self.failed = np.zeros(-(-self.count // Lattice.BLOCK), np.uint8)

    @property
    def count(self) -> int:
        return int(self.lattice.count)

    def check_fits(self, argument: str, buffer: Buffer) -> None:
        if buffer.dtype != self.lattice.dtype:
            ours = buffers.dtype_name(self.lattice.dtype)
            raise TypeError(
                f"{argument}: expected dtype {ours} as in the payload, got {buffer.name}"
            )
        if buffer.count != self.count:
            raise ValueError(
                f"{argument}: expected {self.count} elements as in the payload, got {buffer.count}"
            )

    def run(self, function: Any, *arguments: Any) -> None:
        given = (self.address, self.memory.nbytes, *arguments, self.failed)
        if not answer("uint64_t", function, *given, check=_check_payload):
            return
        blocks = np.flatnonzero(self.failed).tolist()
        first = ", ".join(map(str, blocks[:8])) + (", …" if len(blocks) > 8 else "")
        plane = "" if self.lattice.high else " or high=True"
        raise DecodeError(
            f"{len(blocks)} of {len(self.failed)} blocks of {Lattice.BLOCK} elements do not "
            f"decode: {first}. The key is further from what was encoded than was allowed for, or "
            f"these blocks are damaged. Encode with a larger distance or margin, with more "
            f"bits{plane}; or decode with a key that is nearer",
            blocks,
        )


def _check_payload(code: int) -> None:
    if code == lib.PCOLL_EPROTOCOL:
        raise DecodeError(simulator.last_error())
    check(code)


@dataclass(frozen=True, init=False)
class Lattice:
    """A codec: bits for each element instead of 16, 32 or 64.

    A vector is cut into blocks of 1024 elements. Each is rounded to multiples of a step, at random
    so that nothing is lost on average, and of the multiple only the last ``bits`` bits are kept; a
    reader whose key is near enough knows the others. One that is not finds out and gets a
    DecodeError, never a wrong vector.

    `bits` of each element, an int from 2 to 16: one bit more halves the step, and so the error.
    `rotate`: rotate each block at random first (signs, then a Hadamard transform), which takes time
    on both sides. Pays where a few elements of a block are much further away than the others: their
    distance is spread over the block, the step is that much smaller. `seed`: of the random numbers,
    0 to 2^64-1; encode() takes one for each vector. `margin`: how many times the stated or measured
    distance keys may be away, a float of at least 1; 1 for keys whose distance is known, more for
    readers whose keys move on meanwhile. The step, and so the error, grows as it does.
    docs/quantization.md has what was measured.
    """

    bits: int
    rotate: bool
    seed: int
    margin: float

    BLOCK: ClassVar[int] = 1024

    def __init__(
        self, bits: int = 8, *, rotate: bool = False, seed: int = 0, margin: float = 2.0
    ) -> None:
        values = {
            "bits": checks.integer("bits", bits, 2, 16, what="a whole number"),
            "rotate": checks.flag("rotate", rotate),
            "seed": _seed(seed),
            "margin": checks.number("margin", margin, 1, what="a number"),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def _describe(self, count: int, dtype: int, seed: int | None, high: bool) -> Any:
        described = ffi.new("pcoll_lattice *")
        described.count, described.dtype = count, dtype
        described.seed = self.seed if seed is None else _seed(seed)
        described.bits, described.high, described.rotate = self.bits, high, self.rotate
        return described

    @staticmethod
    def _size(described: Any) -> tuple[int, int]:
        answers = ffi.new("uint64_t[2]")  # bytes, blocks
        check(lib.pcoll_lattice_size(described, answers, answers + 1))
        return answers[0], answers[1]

    def nbytes(self, count: int, *, high: bool = False) -> int:
        """Return the bytes of the payload of `count` elements (0 to 2^48), whatever their dtype;
        with `high` as for `encode`."""
        count = checks.integer("count", count, 0, 2**48, what="a number of elements")
        return self._size(self._describe(count, lib.PCOLL_FLOAT32, None, high))[0]

    def distances(self, x: Any, key: Any = None, *, seed: int | None = None) -> Array:
        """Return how far x is from a key, block by block: max|x - key|, an array of float32. With
        rotate, between the rotated blocks: the distance that counts then, which depends on the
        seed. `x` and `key` as in encode(), `seed` that of the encode() it is for."""
        ours = _vector("x", x)
        theirs = _key_like(ours, key)
        described = self._describe(ours.count, ours.dtype, seed, False)
        out = np.empty(self._size(described)[1], np.float32)
        call(lib.pcoll_lattice_distances, described, ours.array, theirs, out)
        return out

    def encode(
        self,
        x: Any,
        *,
        key: Any = None,
        distance: Any = None,
        seed: int | None = None,
        high: bool = False,
    ) -> bytes:
        """Encode a vector for readers with a key near it. Returns bytes that describe themselves:
        dtype, count, bits, rotate and seed are in them. See nbytes().

        `x`: an array of float32, float64 (kept to the precision of float32), float16 or bfloat16,
        any shape, C-contiguous, finite as float32. `key`: one like x, a key that readers have, or
        one as far from x as theirs. Each block's step follows from its distance. Default: zeros, so
        that payloads decode without a key. `distance`: instead of a key, how far theirs are from x,
        as distances() says; a float of at least 0, or an array of one for each block. `seed`: of
        this payload's random numbers, 0 to 2^64-1; default: the codec's, the same for every
        payload. Give each its own where their errors are to be independent. `high`: write the other
        16 - bits bits as well, apart from the first: they are used for blocks that do not decode
        without them.

        ValueError for elements that are not finite, or beyond about 2^125 (rotated: 2^117, so that
        no sum of them overflows); and for both key and distance.
        """
        ours = _vector("x", x)
        if key is not None and distance is not None:
            raise ValueError("distance: expected a key or a distance, got both")
        theirs = _key_like(ours, key)
        described = self._describe(ours.count, ours.dtype, seed, high)
        size, blocks = self._size(described)
        limits = None if distance is None else self._limits(distance, blocks)
        out = bytearray(size)
        into = ffi.from_buffer(out)
        call(lib.pcoll_lattice_encode, described, ours.array, theirs, limits, self.margin, into)
        return bytes(out)

    @staticmethod
    def _limits(distance: Any, blocks: int) -> Array:
        try:
            given = np.asarray(distance, np.float64)
        except (TypeError, ValueError):
            raise TypeError(
                f"distance: expected a number, or one for each block, got {distance!r}"
            ) from None
        if given.ndim and given.shape != (blocks,):
            raise ValueError(
                f"distance: expected one number, or one for each of {blocks} blocks, "
                f"got shape {given.shape}"
            )
        wrong = given[~(np.isfinite(given) & (given >= 0))]
        if wrong.size:
            raise ValueError(f"distance: expected finite numbers of at least 0, got {wrong[0]}")
        with np.errstate(over="ignore"):  # the core refuses infinity
            return np.ascontiguousarray(np.broadcast_to(given.astype(np.float32), (blocks,)))

    @staticmethod
    def decode(payload: Any, key: Any = None) -> Array:
        """Decode a payload of any codec. Returns a new array of the key's shape (flat without one).
        `payload`: bytes, or any contiguous buffer. `key`: an array near what was encoded, with its
        dtype and count; default: zeros. Each element is the one encoded to within half its block's
        step and float rounding; with rotate, so is each element of the rotated block. DecodeError
        for truncated, damaged or foreign bytes, and blocks for which the key is too far."""
        opened = _Payload(payload)
        known = None if key is None else _vector("key", key)
        if known is None:
            dtype: Any = buffers.dtype_name(opened.lattice.dtype)
            out = np.empty(opened.count, buffers.bfloat16() if dtype == "bfloat16" else dtype)
        else:
            opened.check_fits("key", known)
            out = np.empty_like(known.array)
        opened.run(lib.pcoll_lattice_decode, None if known is None else known.array, out)
        return out

    @staticmethod
    def average(x: Any, payload: Any, *, weight: float = 0.5) -> None:
        """Move x towards what a payload decodes to with x as key: x -= weight (x - y), in place.
        `x`: as in encode(); written to. `payload`: what encode() has returned. `weight`: how far;
        0.5 is the mean of the two. DecodeError as of decode(): blocks that do not decode stay as
        they are; the others have moved."""
        weight = checks.number("weight", weight, what="a finite number")
        opened = _Payload(payload)
        ours = _vector("x", x, writable=True)
        opened.check_fits("x", ours)
        opened.run(lib.pcoll_lattice_average, weight, ours.array)
