# SPDX-License-Identifier: Apache-2.0
"""Ranks that are held until another one has warned of something, however long that takes."""

import contextlib
import logging

from mpi4py import MPI

TAG = 4242


class _Messenger(logging.Handler):
    """Sends word to these ranks at the first warning that ends so."""

    def __init__(self, comm, ranks, said):
        super().__init__(logging.WARNING)
        self._comm, self._ranks, self._said = comm, ranks, said
        self.requests = []

    def emit(self, record):
        if not self.requests and record.getMessage().endswith(self._said):
            self.requests = [self._comm.isend(None, rank, TAG) for rank in self._ranks]


@contextlib.contextmanager
def sending_word(comm, ranks, said):
    """What is done in here is over once `ranks` go on; they do when this rank has said so."""
    messenger = _Messenger(comm, ranks, said)
    logger = logging.getLogger("partialcoll")
    logger.addHandler(messenger)
    try:
        yield
    finally:
        logger.removeHandler(messenger)
    assert not ranks or messenger.requests, f"not said: {said}"
    MPI.Request.waitall(messenger.requests)


def await_word(comm, rank):
    """What that one is to say has been said."""
    comm.recv(source=rank, tag=TAG)
