# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: accepted values, and messages that name argument, expectation and value."""

import numpy as np
import pytest

from partialcoll._core import checks

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "call, value",
    [
        (lambda: checks.integer("x", np.int64(3)), 3),
        (lambda: checks.integer("x", -3, at_most=0), -3),
        (lambda: checks.count("x", 1), 1),
        (lambda: checks.number("x", np.float32(0.5), 0, 1), 0.5),
        (lambda: checks.number("x", 7), 7.0),
        (lambda: checks.real("x", INF), INF),
        (lambda: checks.seconds("x", None, 2.0), 2.0),
        (lambda: checks.seconds("x", 1, 2.0), 1.0),
        (lambda: checks.time_limit("x", 0), None),
        (lambda: checks.rank("x", 2, 3), 2),
        (lambda: checks.flag("x", np.True_), True),
        (lambda: checks.one_of("x", "a", "ab"), "a"),
        (lambda: checks.code("x", "a", {"a": 5}), 5),
        (lambda: checks.instance("x", 1.5, float, "a float"), 1.5),
    ],
)
def test_taken(call, value):
    found = call()
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: checks.integer("x", 2.0), TypeError, "x: expected a whole number, got 2.0"),
        (lambda: checks.integer("x", True), TypeError, "x: expected a whole number, got True"),
        (lambda: checks.integer("x", np.False_), TypeError, "x: expected a whole number, got"),
        (lambda: checks.integer("x", np.zeros(2)), TypeError, "x: expected a whole number, got"),
        (lambda: checks.integer("x", 9, 1, 8), ValueError, "x: expected 1 to 8, got 9"),
        (lambda: checks.integer("x", -1, 0, 2**64 - 1), ValueError, "x: expected 0 to 2^64-1, got"),
        (
            lambda: checks.integer("x", 0, 1, 8, what="a number of rounds"),
            ValueError,
            "x: expected a number of rounds of 1 to 8, got 0",
        ),
        (lambda: checks.count("x", 0), ValueError, "x: expected at least 1, got 0"),
        (lambda: checks.number("x", "1"), TypeError, "x: expected a number, got '1'"),
        (lambda: checks.number("x", 1j), TypeError, "x: expected a number, got 1j"),
        (lambda: checks.number("x", False), TypeError, "x: expected a number, got False"),
        (lambda: checks.number("x", NAN, 0), ValueError, "x: expected at least 0, got nan"),
        (lambda: checks.number("x", NAN), ValueError, "x: expected a finite number, got nan"),
        (lambda: checks.number("x", INF, 0), ValueError, "x: expected a finite number, got inf"),
        (lambda: checks.number("x", 2, 0, 1), ValueError, "at least 0 and at most 1, got 2"),
        (lambda: checks.number("x", 0, above=0), ValueError, "x: expected a number above 0, got 0"),
        (lambda: checks.seconds("x", 0), ValueError, "x: expected seconds above 0, got 0"),
        (lambda: checks.time_limit("x", -1), ValueError, "x: expected None or a number of seconds"),
        (lambda: checks.time_limit("x", NAN), ValueError, "x: expected None or a number of sec"),
        (lambda: checks.rank("x", 3, 3), ValueError, "x: expected a rank from 0 to 2, got 3"),
        (lambda: checks.rank("x", "0", 3), TypeError, "x: expected a rank, got '0'"),
        (lambda: checks.flag("x", 1), TypeError, "x: expected True or False, got 1"),
        (lambda: checks.one_of("x", 3, ["a", "b"]), ValueError, "one of 'a', 'b', got 3"),
        (lambda: checks.instance("x", 1, float, "a float"), TypeError, "a float, got int"),
    ],
)
def test_refused(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value) and str(caught.value).startswith("x: expected ")
