# SPDX-License-Identifier: Apache-2.0
"""Files that the package writes to a user's path."""

import contextlib
import json
import os
import resource
import stat

import pytest

from partialcoll._core import files, timeline
from partialcoll.errors import Error
from partialcoll.tools import report

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")


@contextlib.contextmanager
def full_disk():
    """Limit files to 200 bytes. Not a fixture, because pytest's own output may be a file."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def write(path):
    with files.create_text(path) as file:
        file.write("new")
    return path.read_text()


def test_new_and_own_files(tmp_path):
    path = tmp_path / "file"
    assert write(path) == "new"
    path.write_text("an older one")
    assert write(path) == "new"
    (tmp_path / "link").symlink_to("file")
    assert write(tmp_path / "link") == "new" and (tmp_path / "link").is_symlink()


def test_devices_and_pipes(tmp_path):
    with files.create("/dev/null") as file:
        file.write(b"gone")
    reader, writer = os.pipe()
    with files.create(f"/proc/self/fd/{writer}") as file:
        file.write(b"there")
    assert os.read(reader, 10) == b"there"
    os.close(reader)
    os.close(writer)


@needs_root
@pytest.mark.parametrize("what", ["a link", "a file"])
def test_those_of_other_users(tmp_path, what):
    """Another user's link to a file of ours, and another user's file."""
    precious, path = tmp_path / "precious", tmp_path / "file"
    precious.write_text("precious")
    if what == "a link":
        path.symlink_to(precious)
    else:
        precious.rename(path)
        precious = path
    os.chown(path, 65534, 65534, follow_symlinks=False)
    with pytest.raises(OSError, match=f"expected a file of this user, got {what} of another user"):
        files.create(path)
    assert precious.read_text() == "precious"


def test_results_on_a_full_disk(tmp_path):
    path = tmp_path / "rows.json"
    said = r"--json: .*rows\.json: File too large"
    with full_disk(), pytest.raises(Error, match=said):
        report.write(str(path), {"rows": "x" * 1000}, [], [])


def test_a_timeline_on_a_full_disk(tmp_path, caplog):
    """The recorder warns, and the traced program continues."""
    path = tmp_path / "timeline.json"
    recorder = timeline.Recorder(files.create_text(path), False)
    with full_disk():
        for _ in range(3):
            recorder.call("allreduce of tensor(name='x')", 0.0, None)
        recorder.close()
    said = [record.getMessage() for record in caplog.records]
    assert said == [f"timeline: {path}: File too large. It is incomplete; the run goes on"]


def test_a_timeline_is_whole(tmp_path):
    path = tmp_path / "timeline.json"
    recorder = timeline.Recorder(files.create_text(path), False)
    recorder.call("allreduce of tensor(name='x')", 0.0, None)
    assert json.loads(path.read_text())
    recorder.close()
    assert stat.S_ISREG(path.stat().st_mode)
