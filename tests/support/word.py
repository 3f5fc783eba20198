# SPDX-License-Identifier: Apache-2.0
"""Hold ranks until another one has logged a warning, however long that takes."""

import contextlib
import logging

from mpi4py import MPI

TAG = 4242


class _Messenger(logging.Handler):
    """Notifies these ranks at the first warning with this end."""

    def __init__(self, comm, ranks, said):
        super().__init__(logging.WARNING)
        self._comm, self._ranks, self._said = comm, ranks, said
        self.requests = []

    def emit(self, record):
        if not self.requests and record.getMessage().endswith(self._said):
            self.requests = [self._comm.isend(None, rank, TAG) for rank in self._ranks]


@contextlib.contextmanager
def sending_word(comm, ranks, said):
    """Run the body until `ranks` continue, which they do after this rank's warning."""
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
    """Wait for the warning of that rank."""
    comm.recv(source=rank, tag=TAG)
