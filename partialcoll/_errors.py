# SPDX-License-Identifier: Apache-2.0
"""What can go wrong, as exceptions."""


class Error(RuntimeError):
    """Base of the errors that are partialcoll's own."""


class MismatchError(Error):
    """The ranks disagree about an argument; raised on all of them, naming it and the ranks."""


class StateError(Error):
    """The right call at the wrong moment: a freed handle, a second start, a second thread."""


class AbiError(ImportError):
    """The compiled core does not fit the MPI that mpi4py has loaded; says how to mend it."""
