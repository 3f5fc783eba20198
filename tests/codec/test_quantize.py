# SPDX-License-Identifier: Apache-2.0
"""The lattice codec: errors, bias, distant keys, damaged payloads."""

import contextlib
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import partialcoll as pc
from partialcoll import Lattice

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

BLOCK = Lattice.BLOCK
DTYPES = ("float32", "float64", "float16", "bfloat16")
COUNTS = (0, 1, 2, 17, 1009, 1024, 5000)
BITS = range(2, 17)


def dtype_of(name):
    return pytest.importorskip("ml_dtypes").bfloat16 if name == "bfloat16" else np.dtype(name)


def steps_of(codec, count, distance, magnitude):
    """Return the step of docs/quantization.md, slightly enlarged."""
    least = 2 * codec.margin * distance / (2**codec.bits - 1)
    return np.maximum(least, magnitude * 2**-20) * (1 + 2**-10) + magnitude * 2**-20


def pair(rng, count, dtype="float32", away=0.01):
    """Return a vector, and a key near it, of a dtype."""
    x = rng.normal(size=count)
    key = x + away * rng.uniform(-1, 1, count)
    return x.astype(dtype_of(dtype)), key.astype(dtype_of(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rotate", (False, True))
def test_round_trip(dtype, rotate):
    """For all bit widths and some lengths the error is half a step plus the dtype's rounding."""
    rng = np.random.default_rng(1)
    spacing = {"float16": 2**-11, "bfloat16": 2**-8}.get(dtype, 2**-21)
    for bits in BITS:
        for count in COUNTS:
            codec = Lattice(bits, rotate=rotate, seed=count)
            x, key = pair(rng, count, dtype)
            payload = codec.encode(x, key=key)
            assert len(payload) == codec.nbytes(count)
            y = Lattice.decode(payload, key)
            assert y.dtype == x.dtype and y.shape == x.shape
            away = np.linalg.norm if rotate else lambda v: np.abs(v).max(initial=0)
            error = away(y.astype("f8") - x.astype("f8"))
            blocks = -(-count // BLOCK)
            distance = codec.distances(x, key).max(initial=0)
            largest = np.abs(x.astype("f8")).max(initial=0)
            if rotate:
                step = steps_of(codec, count, distance, 5 * largest)
                limit = 0.5 * step * np.sqrt(BLOCK * blocks) + spacing * np.linalg.norm(
                    x.astype("f8")
                )
            else:
                limit = 0.5 * steps_of(codec, count, distance, largest) + spacing * largest
            assert error <= limit, (bits, count)


def test_error_is_at_most_half_a_step():
    """The error is at most half a step, whatever the seed, the bits and the place in the lattice,
    and nearly reaches it. 2^-21 of the largest element allows for rounding of floats."""
    rng = np.random.default_rng(2)
    for bits in (2, 4, 8):
        codec = Lattice(bits, margin=1)
        worst = 0
        for seed in range(200):
            x, key = pair(rng, BLOCK)
            distance = np.abs(x - key).max()
            step = 2 * distance / (2**bits - 1) * (1 + 2**-10)
            y = Lattice.decode(codec.encode(x, key=key, seed=seed), key)
            rounding = 2**-21 * np.abs(x).max()
            worst = max(worst, (np.abs(y - x).max() - rounding) / step)
        assert 0.48 < worst <= 0.5, bits


@pytest.mark.parametrize("bits", (2, 8))
def test_unbiased(bits):
    """Over 4000 seeds the mean of each element's error is 0 within 6 standard deviations of a mean
    (one false alarm in 500,000 draws of the seeds, which are fixed). The errors are uniform over
    one step, and those of two elements are uncorrelated."""
    trials = 4000
    rng = np.random.default_rng(3)
    x, key = pair(rng, BLOCK)
    codec = Lattice(bits, margin=1)
    errors = np.empty((trials, BLOCK))
    for seed in range(trials):
        payload = codec.encode(x, key=key, seed=seed)
        errors[seed] = Lattice.decode(payload, key).astype("f8") - x.astype("f8")
    step = 2 * np.abs(x - key).max() / (2**bits - 1)
    sigma = step / np.sqrt(12)
    assert np.abs(errors.mean(axis=0)).max() < 6 * sigma / np.sqrt(trials)
    assert abs(errors.mean()) < 6 * sigma / np.sqrt(errors.size)
    assert errors.var(axis=0) == pytest.approx(np.full(BLOCK, sigma**2), rel=0.1)
    correlation = np.corrcoef(errors[:, :64], rowvar=False) - np.eye(64)
    assert np.abs(correlation).max() < 6 / np.sqrt(trials)


def test_keys_within_the_margin_decode():
    """Exactly at the distance, on either side, with every bit width."""
    rng = np.random.default_rng(4)
    for bits in BITS:
        for margin in (1.0, 3.0):
            codec = Lattice(bits, margin=margin)
            x = rng.normal(size=3000).astype("f4")
            payload = codec.encode(x, distance=0.125)
            for key in (x + 0.125 * margin, x - 0.125 * margin):
                # The rounded sum may be further away; the actual distance counts.
                inside = np.abs(key - x) <= 0.125 * margin
                key = np.where(inside, key, x).astype("f4")
                assert np.abs(Lattice.decode(payload, key) - x).max() < 0.125 * margin
    each = np.array([0.5, 1e-3, 2.0])
    payload = Lattice(8, margin=1).encode(x, distance=each)
    key = x + np.repeat(each, BLOCK)[: x.size].astype("f4") * 0.999
    assert np.abs(Lattice.decode(payload, key) - x)[BLOCK : 2 * BLOCK].max() < 1e-5


def spoil(rng, x, jump):
    """Return a key with one to three elements of each block too far, by `jump` or a few times that,
    and the blocks in which these do not cancel."""
    key = x.reshape(-1, BLOCK).copy()
    rows = np.arange(len(key))
    for _ in range(rng.integers(1, 4)):
        times = rng.choice((-2, -1, 1, 1, 3), len(key))
        key[rows, rng.integers(0, BLOCK, len(key))] += (times * jump).astype("f4")
    wrong = np.abs(key - x.reshape(-1, BLOCK)).max(axis=1) > 0.9 * jump
    return key.reshape(-1), wrong


@pytest.mark.parametrize("bits, rounds", ((8, 768), (4, 256), (16, 64)))
def test_wrong_keys_are_detected(bits, rounds):
    """More than a million blocks are decoded with a key that is wrong by whole periods of the
    lattice. At least 99.999 % must be detected; the hash promises all but one in 4e9."""
    rng = np.random.default_rng(5)
    blocks, distance = 1024, 0.25
    trials = missed = 0
    x = rng.normal(size=blocks * BLOCK).astype("f4")
    period = 2 * distance / (2**bits - 1) * 2**bits
    for seed in range(rounds):
        if seed % 8 == 0:
            payload = Lattice(bits, margin=1).encode(x, distance=distance, seed=seed)
        key, wrong = spoil(rng, x, period)
        with pytest.raises(pc.DecodeError) as error:
            Lattice.decode(payload, key)
        found = np.zeros(blocks, bool)
        found[list(error.value.blocks)] = True
        assert not found[~wrong].any()
        trials += int(wrong.sum())
        missed += int((wrong & ~found).sum())
    assert trials > 0.99 * rounds * blocks
    assert missed <= 1e-5 * trials, f"{missed} of {trials}"


def test_failed_blocks_are_named():
    rng = np.random.default_rng(6)
    x, key = pair(rng, 5 * BLOCK + 3)
    codec = Lattice(8)
    payload = codec.encode(x, key=key)
    key[BLOCK] += 1
    key[-1] -= 1
    with pytest.raises(
        pc.DecodeError, match=r"2 of 6 blocks .*: 1, 5\. The key is further"
    ) as error:
        Lattice.decode(payload, key)
    assert error.value.blocks == (1, 5) and isinstance(error.value, pc.Error)
    again = pickle.loads(pickle.dumps(error.value))
    assert again.blocks == (1, 5) and str(again) == str(error.value)
    # With the high plane the same key is near enough.
    y = Lattice.decode(codec.encode(x, distance=codec.distances(x, x + 0.01), high=True), key)
    assert np.abs(x - y).max() < 1e-3


@pytest.mark.parametrize("key", (np.nan, np.inf, -3e38))
def test_non_finite_keys(key):
    x = np.ones(10, "f4")
    payload = Lattice().encode(x, distance=0.1)
    with pytest.raises(pc.DecodeError):
        Lattice.decode(payload, np.full(10, key, "f4"))


def test_without_a_key():
    """Without a key both sides use zeros. Zero blocks are exact with any key."""
    x = np.random.default_rng(7).normal(size=(3, 700)).astype("f4")
    payload = Lattice(12).encode(x)
    assert np.abs(Lattice.decode(payload) - x.ravel()).max() < 0.005
    y = Lattice.decode(payload, np.zeros_like(x))
    assert y.shape == x.shape
    zeros = Lattice(2).encode(np.zeros(3000))
    for key in (None, np.full(3000, 1e20)):
        y = Lattice.decode(zeros, key)
        assert not y.any() and not np.signbit(y).any() and y.dtype == np.float64


@pytest.mark.parametrize("dtype", DTYPES)
def test_average(dtype):
    rng = np.random.default_rng(8)
    x, other = pair(rng, 3000, dtype)
    payload = Lattice(8).encode(other, key=x)
    y = Lattice.decode(payload, x)
    wide = "f8" if dtype == "float64" else "f4"
    expected = x.astype(wide)
    expected = expected - np.dtype(wide).type(0.3) * (expected - y.astype(wide))
    ours = x.copy()
    assert Lattice.average(ours, payload, weight=0.3) is None
    if dtype in ("float32", "float64"):
        assert np.array_equal(ours, expected)
    else:  # decoded values are not rounded to 16 bits in between
        off = np.abs(ours.astype("f4") - expected)
        assert off.max() <= np.abs(expected).max() * {"float16": 2**-10, "bfloat16": 2**-7}[dtype]
    # Failed blocks stay unchanged.
    ours = x.copy()
    ours[1500] += 5
    before = ours.copy()
    with pytest.raises(pc.DecodeError) as error:
        Lattice.average(ours, payload)
    assert error.value.blocks == (1,)
    assert np.array_equal(ours[BLOCK : 2 * BLOCK], before[BLOCK : 2 * BLOCK])
    assert not np.array_equal(ours[:BLOCK], before[:BLOCK])


def test_rotation_helps_with_an_outlier():
    """All other elements pay for the distance of an outlier, unless it is spread."""
    rng = np.random.default_rng(9)
    x = rng.normal(size=BLOCK).astype("f4")
    key = x + 1e-3 * rng.uniform(-1, 1, BLOCK).astype("f4")
    key[77] += 1
    errors = {}
    for rotate in (False, True):
        codec = Lattice(4, rotate=rotate, seed=1)
        y = Lattice.decode(codec.encode(x, key=key), key)
        errors[rotate] = np.linalg.norm(y - x)
    assert errors[True] < errors[False] / 10
    assert Lattice(rotate=True).distances(x, key)[0] < Lattice().distances(x, key)[0] / 10


def test_seeds():
    """One seed gives one payload, another one other dithers. The codec's seed is the default."""
    x, key = pair(np.random.default_rng(10), 2000)
    codec = Lattice(8, seed=3)
    assert codec.encode(x, key=key) == codec.encode(x, key=key, seed=3)
    assert codec.encode(x, key=key) != codec.encode(x, key=key, seed=4)
    y, z = (Lattice.decode(codec.encode(x, key=key, seed=s), key) for s in (3, 2**64 - 1))
    assert np.mean(y == z) < 0.1


# Payloads

PAYLOADS = {
    name: Lattice(bits, rotate=rotate, seed=5).encode(
        np.linspace(-1, 1, count).astype(dtype), high=high
    )
    for name, bits, rotate, count, dtype, high in (
        ("8 bits", 8, False, 1500, "f4", False),
        ("3 bits", 3, True, 1025, "f8", False),
        ("high", 4, False, 40, "f2", True),
        ("empty", 8, False, 0, "f4", False),
    )
}


def check_refused(payload):
    """A payload is never decoded wrongly. An unneeded high plane may contain anything."""
    try:
        y = Lattice.decode(payload)
    except pc.DecodeError:
        return
    assert np.array_equal(y, Lattice.decode(PAYLOADS["high"]))


@pytest.mark.parametrize("name", PAYLOADS)
def test_truncated(name):
    payload = PAYLOADS[name]
    Lattice.decode(payload)
    for size in range(len(payload)):
        with pytest.raises(pc.DecodeError, match=r"expected|damaged"):
            Lattice.decode(payload[:size])
    with pytest.raises(pc.DecodeError, match=r"expected .* bytes by its header, got"):
        Lattice.decode(payload + b"x")


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(PAYLOADS)), st.data())
def test_damaged(name, data):
    """Bytes are changed, cut out, inserted, or taken from another payload."""
    payload = bytearray(PAYLOADS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(payload) - 1))
        kind = data.draw(st.sampled_from(("flip", "cut", "put", "splice")))
        if kind == "flip":
            payload[at] ^= data.draw(st.integers(1, 255))
        elif kind == "cut":
            del payload[at : at + data.draw(st.integers(1, 9))]
        elif kind == "put":
            payload[at:at] = data.draw(st.binary(min_size=1, max_size=9))
        else:
            other = PAYLOADS[data.draw(st.sampled_from(sorted(PAYLOADS)))]
            payload[at:] = other[at:]
        if not payload:
            break
    if payload != PAYLOADS[name] and bytes(payload) not in PAYLOADS.values():
        check_refused(bytes(payload))


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=300))
def test_foreign(noise):
    for payload in (noise, PAYLOADS["8 bits"][:32] + noise, PAYLOADS["8 bits"][:8] + noise):
        with pytest.raises(pc.DecodeError):
            Lattice.decode(payload)


def test_every_bit_counts():
    payload = bytearray(PAYLOADS["3 bits"])
    for bit in range(8 * len(payload)):
        payload[bit // 8] ^= 1 << bit % 8
        with pytest.raises(pc.DecodeError):
            Lattice.decode(payload)
        payload[bit // 8] ^= 1 << bit % 8
    Lattice.decode(payload)


def test_payload_kinds():
    payload = PAYLOADS["8 bits"]
    expected = Lattice.decode(payload)
    for kind in (bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)):
        assert np.array_equal(Lattice.decode(kind(payload)), expected)
    odd = bytes(1) + payload
    assert np.array_equal(Lattice.decode(memoryview(odd)[1:]), expected)
    for wrong in (None, 3, "text", np.frombuffer(payload, np.uint8)[::2]):
        with pytest.raises(TypeError, match="payload: expected bytes"):
            Lattice.decode(wrong)


def test_byte_order_and_version():
    payload = bytearray(PAYLOADS["8 bits"])
    with pytest.raises(pc.DecodeError, match="other byte order"):
        Lattice.decode(payload[3::-1] + payload[4:])
    payload[4] = 9
    with pytest.raises(pc.DecodeError, match="version 1, got 9"):
        Lattice.decode(payload)


# Bad input


@pytest.mark.parametrize(
    "options, error, words",
    (
        ({"bits": 1}, ValueError, "bits: expected a whole number of 2 to 16, got 1"),
        ({"bits": 17}, ValueError, "bits: expected a whole number of 2 to 16, got 17"),
        ({"bits": 8.0}, TypeError, r"bits: .* got 8\.0"),
        ({"bits": True}, TypeError, "bits: .* got True"),
        ({"rotate": 1}, TypeError, "rotate: expected True or False, got 1"),
        ({"seed": -1}, ValueError, "seed: .* got -1"),
        ({"seed": 1 << 64}, ValueError, "seed: "),
        ({"seed": None}, TypeError, "seed: .* got None$"),
        ({"margin": 0.5}, ValueError, "margin: expected a number of at least 1, got 0.5"),
        ({"margin": np.nan}, ValueError, "margin: .* got nan"),
        ({"margin": np.inf}, ValueError, "margin: .* got inf"),
        ({"margin": "2"}, TypeError, "margin: .* got '2'"),
    ),
)
def test_bad_options(options, error, words):
    with pytest.raises(error, match=words):
        Lattice(**options)


def test_options_are_frozen():
    codec = Lattice(4, margin=3)
    assert codec == Lattice(4, margin=3) and hash(codec) == hash(Lattice(4, margin=3))
    assert repr(codec) == "Lattice(bits=4, rotate=False, seed=0, margin=3.0)"
    with pytest.raises(AttributeError):
        codec.bits = 9


def ones(*shape, dtype="f4"):
    return np.ones(shape, dtype)


@pytest.mark.parametrize(
    "arguments, error, words",
    (
        ({"x": ones(4, dtype="i4")}, TypeError, "x: expected float16, .* got int32"),
        ({"x": ones(4, dtype="c8")}, TypeError, "x: .* got complex64"),
        ({"x": ones(4, 4)[:, 1]}, ValueError, "x: expected a C-contiguous buffer"),
        ({"x": np.zeros(17, "u1")[1:].view("f4")}, ValueError, "x: expected aligned elements"),
        ({"x": "words"}, TypeError, "x: expected a numpy array"),
        ({"x": ones(4), "key": ones(5)}, ValueError, r"key: expected shape \(4,\) as x, got"),
        ({"x": ones(4), "key": ones(2, 2)}, ValueError, r"key: expected shape \(4,\) as x, got"),
        ({"x": ones(4), "key": ones(4, dtype="f8")}, TypeError, "key: expected dtype float32"),
        ({"x": ones(4), "key": ones(4), "distance": 1}, ValueError, "a key or a distance"),
        ({"x": ones(4), "distance": -1}, ValueError, "distance: .* at least 0, got -1"),
        ({"x": ones(4), "distance": np.nan}, ValueError, "distance: .* got nan"),
        ({"x": ones(4), "distance": [1, 2]}, ValueError, "one for each of 1 blocks"),
        ({"x": ones(4), "distance": "far"}, TypeError, "distance: expected a number"),
        ({"x": ones(4), "distance": 1e300}, ValueError, r"below about 2\^125"),
        ({"x": ones(4), "distance": 3e38}, ValueError, r"below about 2\^125"),
        ({"x": ones(4) * 3e38}, ValueError, r"below about 2\^125"),
        ({"x": ones(4), "seed": -1}, ValueError, "seed: "),
    ),
)
def test_bad_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        Lattice().encode(arguments.pop("x"), **arguments)


@pytest.mark.parametrize("value", (np.nan, np.inf, -np.inf))
@pytest.mark.parametrize("rotate", (False, True))
def test_non_finite_numbers(value, rotate):
    codec = Lattice(rotate=rotate)
    x = ones(3000)
    x[2049] = value
    with pytest.raises(ValueError, match=f"x: .* got {value} at element 2049"):
        codec.encode(x)
    with pytest.raises(ValueError, match=f"x: .* got {value} at element 2049"):
        codec.encode(x, distance=1)
    with pytest.raises(ValueError, match=f"key: .* got {value} at element 2049"):
        codec.encode(ones(3000), key=x)
    assert list(np.isfinite(codec.distances(x))) == [True, True, False]
    with pytest.raises(ValueError, match="finite as float32, got inf at element 0"):
        codec.encode(np.array([1e200]))


@pytest.mark.parametrize("rotate", (False, True))
@pytest.mark.parametrize("count", (1, 1000, 1024))
@pytest.mark.parametrize("exponent", range(100, 128, 3))
def test_large_numbers_are_right_or_refused(rotate, count, exponent):
    """Up to the largest float32, encoded values decode to finite numbers, near for a near key."""
    rng = np.random.default_rng(count)
    encoded = 0
    for draws in (np.ones(count), rng.normal(size=count) / 4, rng.choice([-1.0, 1.0], count)):
        x = (draws * 2.0**exponent).astype(np.float32)
        near = (x * 0.99).astype(np.float32)
        codec = Lattice(8, rotate=rotate, seed=exponent)
        for how in ({}, {"key": x}, {"key": near}, {"distance": 2.0**exponent}):
            try:
                payload = codec.encode(x, **how)
            except ValueError as error:
                assert "below about" in str(error)
                continue
            encoded += 1
            for key in (x, near, None):
                with contextlib.suppress(pc.DecodeError):
                    assert np.isfinite(Lattice.decode(payload, key)).all()
            if how.get("key") is near:
                assert np.abs(Lattice.decode(payload, near) - x).max() < 2.0 ** (exponent - 1)
    assert encoded == 12 or exponent > 110


def test_bad_keys():
    payload = Lattice().encode(ones(4))
    for key, error, words in (
        (ones(5), ValueError, "key: expected 4 elements as in the payload, got 5"),
        (ones(4, dtype="f8"), TypeError, "key: expected dtype float32 .* got float64"),
        (ones(4, dtype="i4"), TypeError, "key: expected float16"),
        (ones(8)[::2], ValueError, "key: expected a C-contiguous"),
    ):
        with pytest.raises(error, match=words):
            Lattice.decode(payload, key)
    fixed = ones(4)
    fixed.flags.writeable = False
    for x, weight, error, words in (
        (fixed, 0.5, ValueError, "x: expected a writable buffer"),
        (ones(5), 0.5, ValueError, "x: expected 4 elements"),
        (ones(4), np.nan, ValueError, "weight: expected a finite number, got nan"),
        (ones(4), None, TypeError, "weight: expected a finite number, got None$"),
    ):
        with pytest.raises(error, match=words):
            Lattice.average(x, payload, weight=weight)


@pytest.mark.parametrize("count", (-1, 1 << 60))
def test_bad_count(count):
    with pytest.raises(ValueError, match="count: expected a number of elements"):
        Lattice().nbytes(count)
