# SPDX-License-Identifier: Apache-2.0
"""Concurrent collective calls of several objects, in threads."""

import threading

import pytest

from partialcoll._core.worker import side_by_side

pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]


def test_side_by_side():
    """Calls may wait for each other. An error is raised although another call still waits."""
    first, second, never = threading.Event(), threading.Event(), threading.Event()

    def fail():
        for _ in range(2):
            assert waiting.acquire(timeout=60)
        raise KeyError("on purpose")

    def forward():
        first.set()
        assert second.wait(60)

    def backward():
        assert first.wait(60)
        second.set()

    def wait_for_ever():
        try:
            waiting.release()
            while not never.wait(0.01):
                pass
        finally:
            left.append(threading.current_thread())

    left, waiting = [], threading.Semaphore(0)
    side_by_side([forward, backward])
    side_by_side([])
    with pytest.raises(KeyError, match="on purpose"):
        side_by_side([wait_for_ever, fail, wait_for_ever])
    assert len(left) == 2  # no call continues


def test_interrupted_while_a_thread_starts(monkeypatch):
    """Ctrl-C before the thread runs for the first time: the thread then does nothing."""

    Thread = threading.Thread

    class Late(Thread):
        def start(self):
            threads.append(Thread(target=lambda: go.wait() and self.run()))
            threads[-1].start()
            raise KeyboardInterrupt

    threads, go, called = [], threading.Event(), []
    monkeypatch.setattr(threading, "Thread", Late)
    with pytest.raises(KeyboardInterrupt):
        side_by_side([lambda: called.append(1), lambda: called.append(2)])
    monkeypatch.undo()
    go.set()
    for thread in threads:
        thread.join()
    assert len(threads) == 1 and not called
