# SPDX-License-Identifier: Apache-2.0
"""Threads that continue operations in the background."""

import threading

import pytest

from partialcoll._core.worker import Worker

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

LIMIT_S = 30


class Job:
    """A job that fails the first time."""

    def __init__(self):
        self.calls, self.failed, self.done = 0, threading.Event(), threading.Event()

    def work(self):
        self.calls += 1
        if self.calls == 1:
            self.failed.set()
            raise ZeroDivisionError("the first time")
        self.done.set()

    def fail(self):
        """No operation is in progress."""


def test_a_worker_continues_after_an_error(caplog):
    job = Job()
    worker = Worker("test", job.work, job.fail)
    worker.wake()
    assert job.failed.wait(LIMIT_S)
    worker.wake()
    assert job.done.wait(LIMIT_S), "its thread has ended with its lock"
    worker.stop()
    assert "ZeroDivisionError: the first time" in caplog.text
