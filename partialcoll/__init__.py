# SPDX-License-Identifier: Apache-2.0
"""partialcoll: MPI collectives for ranks that do not arrive together.

>>> from mpi4py import MPI
>>> import numpy as np, partialcoll as pc
>>> x = np.ones(4); total = np.empty(4)
>>> rnd = pc.Allreduce(MPI.COMM_WORLD, x, total, quorum="majority")
"""

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

from . import _command
from ._core.version import __version__ as __version__

if TYPE_CHECKING or not _command.only_starts():
    from . import _public
    from ._public import *  # noqa: F403

    __all__ = sorted(["__version__", *(name for name in vars(_public) if name[0] != "_")])


def __getattr__(name: str) -> Any:
    """Return a public name that importing the package did not load.

    The command loads no MPI until it needs the library, and without MPI there is nothing to load:
    a public name then raises NoMpiError, any other name AttributeError.
    """
    asked = name[0] != "_" or name == "__all__"  # which `import *` asks for
    asked = asked and _command.only_starts()
    if asked and importlib.util.find_spec(f"{__name__}.{name}") is None:  # not a module
        public = importlib.import_module("._public", __name__)
        names = ["__version__", *(known for known in vars(public) if known[0] != "_")]
        if name == "__all__":
            return sorted(names)
        if name in names:
            return getattr(public, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
