# SPDX-License-Identifier: Apache-2.0
"""Files that the package writes where a user wants them: timelines, results, pictures, tables.

The folder may be one that other users can write to. A link that another user has made is not
followed, and a file of another user is not emptied. What fails in a write or in the close is an
OSError, for whoever opened the file.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from pathlib import Path
from typing import IO


def _refuse(path: Path, what: str) -> OSError:
    message = f"expected a file of this user, got {what} of another user"
    return OSError(errno.EPERM, message, str(path))


def _open(path: Path) -> int:
    """Raises OSError if the path is a link that is neither this user's nor root's."""
    link = path
    for _ in range(40):
        if not link.is_symlink():
            break
        if link.lstat().st_uid not in (os.geteuid(), 0):
            raise _refuse(link, "a link")
        link = link.parent / link.readlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
    followed = path.resolve() if path.is_symlink() else path
    if str(followed).startswith("/proc/"):  # of /dev/stdout, say
        return os.open(path, flags)
    return os.open(followed, flags | os.O_NOFOLLOW, 0o666)


def create(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for writing, empty: a new one, or one of this user."""
    path = Path(path)
    file = open(path, "wb", opener=lambda *_: _open(path))  # noqa: SIM115
    try:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode):
            if status.st_uid != os.geteuid():
                raise _refuse(path, "a file")
            file.truncate(0)
    except BaseException:
        file.close()
        raise
    return file


def create_text(path: str | os.PathLike[str]) -> IO[str]:
    return io.TextIOWrapper(create(path), encoding="utf-8")
