# SPDX-License-Identifier: Apache-2.0
"""The interposer: programs that do not use the library, with it and without."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import c_users
import device
import pytest

from partialcoll.tools import installed, launcher

PROGRAMS = c_users.PROGRAMS / "pmpi"
ROOT = Path(__file__).resolve().parents[2]
COMPAT = ROOT / "csrc" / "compat"


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Compile a program of tests/compat/pmpi. Return its path."""
    folder = tmp_path_factory.mktemp("pmpi")

    def compile_program(name):
        path = folder / name
        if not path.exists():
            c_users.compile_program(f"pmpi/{name}.c", path)
        return str(path)

    return compile_program


@pytest.fixture
def run(clean_environment, tmp_path):
    """Start a program on some ranks, with the interposer if any settings are given. Complete rounds
    are ours even if slower, unless the settings say otherwise."""

    def start(*words, ranks=3, settings=None):
        defaults = {"PARTIALCOLL_REPORT": "1", "PARTIALCOLL_ALGORITHM": "auto"}
        return c_users.run(
            words,
            clean_environment,
            tmp_path,
            ranks,
            {**defaults, **(settings or {})},
            preload=settings is not None,
        )

    return start


def report(done):
    """Return the interposer's report: calls taken over, and passed by reason."""
    assert done.returncode == 0, done.stdout + done.stderr
    total = re.search(r"(\d+) taken over, (\d+) passed to MPI", done.stderr)
    assert total, done.stderr
    reasons = {why: int(n) for n, why in re.findall(r"passed: (\d+) \((.*)\)", done.stderr)}
    assert sum(reasons.values()) == int(total[2])
    return int(total[1]), reasons


# Calls that are never eligible.
NOT_ELIGIBLE = {
    "no elements",
    "arguments for MPI to judge",
    "inter-communicator",
    "operation that does not commute",
    "datatype with gaps",
}


FIRST = "first call of its kind, partial"
FASTER = "complete round, MPI is faster"
NOTHING_ASKED = {"PARTIALCOLL_ALGORITHM": "", "PARTIALCOLL_DOMAIN": ""}


def assert_taken(taken, reasons):
    """Check that at least 90 % of the eligible calls were taken over."""
    eligible = taken + sum(n for why, n in reasons.items() if why not in NOT_ELIGIBLE)
    assert taken >= 0.9 * eligible > 0, (taken, reasons)


@pytest.mark.in_turns
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["kinds", "odd"])
def test_full_is_what_mpi_does(build, run, name, ranks):
    """Every legal call has the same result, error class and side effects."""
    plain = run(build(name), ranks=ranks)
    ours = run(build(name), ranks=ranks, settings={})
    assert plain.returncode == 0, plain.stderr
    taken, reasons = report(ours)
    assert ours.stdout == plain.stdout and plain.stdout
    assert_taken(taken, reasons)
    assert set(reasons) <= NOT_ELIGIBLE, reasons
    assert reasons["operation that does not commute"] == {"kinds": 3, "odd": 2}[name] * ranks


@pytest.mark.parametrize("name", ["kinds", "odd", "threads"])
def test_complete_rounds_are_mpis(build, run, name):
    """Without settings MPI makes short calls, and the program sees no difference."""
    plain = run(build(name), ranks=2)
    ours = run(build(name), ranks=2, settings=NOTHING_ASKED)
    taken, reasons = report(ours)
    assert ours.stdout == plain.stdout
    assert taken == 0 and reasons[FASTER] > 0


def test_long_complete_rounds_become_ours(build, run):
    """They become ours when the saved time would have paid for a handle, on all ranks at once. MPI
    keeps short calls, those with a user op, and persistent requests."""
    done = run(build("full"), ranks=2, settings=NOTHING_ASKED)
    taken, reasons = report(done)
    assert done.stdout == "full\n"
    assert 0 < taken < 2 * 100 and set(reasons) == {FASTER}


def test_ranks_that_share_a_core(build, run):
    """A rank that waits in MPICH below MPI_THREAD_MULTIPLE keeps the core. So all rounds are ours,
    also short ones and those with a user op."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        done = run(build("full"), ranks=2, settings=NOTHING_ASKED)
    finally:
        os.sched_setaffinity(0, cores)
    taken, reasons = report(done)
    assert done.stdout == "full\n" and set(reasons) <= {FASTER}
    if launcher.flavor() == "mpich":
        assert taken >= 0.9 * 2 * 300
    else:
        assert 0 < taken < 2 * 100


@pytest.mark.parametrize("quorum", ["full", "solo"])
def test_communicators_are_freed_in_any_order(build, run, quorum):
    """MPI_Comm_free waits for no other rank, also with persistent requests."""
    settings = {"PARTIALCOLL_QUORUM": quorum, "PARTIALCOLL_ALL": "1"}
    done = run(build("free"), settings=settings)
    assert done.stdout == "freed\n", done.stderr
    assert report(done)[0] >= 3 * 4 * 24 * 2


def test_more_communicators_than_have_handles(build, run):
    """The others are MPI's, on all ranks."""
    settings = {"PARTIALCOLL_QUORUM": "solo", "PARTIALCOLL_ALL": "1"}
    taken, reasons = report(run(build("free"), "many", "260", ranks=2, settings=settings))
    assert taken == 2 * 2 * 256
    assert reasons == {FIRST: 2 * 260, "too many communicators": 2 * 2 * 4}


def test_no_communicator_left(build, run):
    """If MPI cannot duplicate a communicator, MPI makes the call, whatever the error handler is."""
    settings = {"PARTIALCOLL_QUORUM": "solo", "PARTIALCOLL_ALL": "1"}
    taken, reasons = report(run(build("free"), "none", ranks=2, settings=settings))
    refused = reasons.pop("no handle could be made", 0)
    assert (taken + refused, reasons) == (2 * 2, {FIRST: 2})


def test_finalize_reports_the_missing_ranks(build, run, tmp_path):
    """Rank 0 has freed a communicator, the others have not yet."""
    path = tmp_path / "stderr"
    settings = {"PARTIALCOLL_ALL": "1", "PARTIALCOLL_STALL_WARN": "0.1", "PARTIALCOLL_REPORT": ""}
    done = run(build("free"), str(path), settings={"PARTIALCOLL_QUORUM": "solo", **settings})
    assert (done.returncode, done.stdout) == (0, "freed\n"), done.stderr
    said = "MPI_Finalize: a handle is freed on this rank, and not on rank 1, 2"
    assert said in path.read_text()


@pytest.mark.parametrize(("lines", "taken"), [("2 1 ours", 1), ("2 never ours", 0)])
def test_table_of_bench_tune_decides(build, run, tmp_path, lines, taken):
    """Whatever the built-in table says: here for long calls, of which 100 pay for a handle."""
    table = tmp_path / "table"
    table.write_text(f"{lines}\n2 0 recdbl\n")
    settings = {**NOTHING_ASKED, "PARTIALCOLL_TUNE": str(table)}
    done = run(build("full"), ranks=2, settings=settings)
    assert (report(done)[0] > 0) == taken and done.stdout == "full\n"
    assert "table" not in done.stderr


def test_tables_of_bench_tune_that_differ(build, run, tmp_path):
    """Ranks have different tables, as nodes may: reported once, and the built-in one decides on
    all. The rank that reads an invalid line names it."""
    table = tmp_path / "table"
    table.write_text("2 1 ours\n")
    done = run(build("differ"), "table", str(table), ranks=2, settings=NOTHING_ASKED)
    assert report(done) == (0, {FASTER: 6}) and done.stdout == "table\n"
    assert done.stderr.count("rank 0: the ranks have different tables of bench tune") == 1
    table.write_text("2 often ours\n")
    done = run(build("differ"), "table", str(table), ranks=2, settings=NOTHING_ASKED)
    assert report(done) == (0, {FASTER: 6}) and done.stdout == "table\n"
    (line,) = re.findall("rank 0: ignored: .*", done.stderr)
    assert "line 1" in line and "2 often ours" in line


def test_calls_inside_finalize_are_mpis(build, run):
    """Calls in the delete callback of an attribute, set before or after the first call."""
    for quorum, taken in (("full", 8), ("solo", 4)):
        settings = {"PARTIALCOLL_QUORUM": quorum, "PARTIALCOLL_ALL": "1"}
        for when in ("before", "after"):
            done = run(build("finalize"), when, ranks=2, settings=settings)
            assert report(done)[0] == taken
            assert done.stdout == "reduced\n", done.stderr


@pytest.mark.in_turns
@pytest.mark.parametrize("algorithm", ["recdbl", "rabenseifner", "ring", "native"])
def test_full_by_each_algorithm(build, run, algorithm):
    """The same with an algorithm set in the environment. Elements of 24 bytes, which Rabenseifner's
    algorithm cannot cut, use the ring. MPI's own takes no user op."""
    plain = run(build("kinds"))
    ours = run(
        build("kinds"), settings={"PARTIALCOLL_ALGORITHM": algorithm, "PARTIALCOLL_DOMAIN": "rank"}
    )
    taken, reasons = report(ours)
    assert ours.stdout == plain.stdout and plain.stdout
    of_users = {"too many or too large signatures to keep"} if algorithm == "native" else set()
    assert set(reasons) - of_users <= NOT_ELIGIBLE, reasons
    assert_taken(taken, {why: n for why, n in reasons.items() if why not in of_users})


def test_ranks_that_differ_in_their_environment(build, run):
    """If one rank reports, all do. Without a common domain setting all calls are MPI's."""
    for what in ("report", "domain"):
        done = run(build("differ"), what, settings={"PARTIALCOLL_REPORT": ""})
        assert (done.returncode, done.stdout) == (0, f"{what}\n"), done.stderr
        taken, reasons = report(done)
        assert taken == (9 if what == "report" else 0)
        assert reasons == ({} if what == "report" else {FASTER: 9})
        assert ("disagree about PARTIALCOLL_ALGORITHM" in done.stderr) == (what == "domain")


def test_two_threads_begin_with_native(build, run):
    """Each on its own communicator, in another order on each rank."""
    settings = {"PARTIALCOLL_ALGORITHM": "native", "PARTIALCOLL_DOMAIN": "rank"}
    done = run(build("differ"), "order", ranks=2, settings=settings)
    assert done.stdout == "order\n" and report(done) == (4, {}), done.stderr


@pytest.mark.parametrize("value", ("no", "2", "yes"))
def test_invalid_switch(build, run, value):
    """An invalid value is reported once, and means off."""
    settings = {"PARTIALCOLL_QUORUM": "solo", "PARTIALCOLL_ALL": value}
    done = run(build("partial"), "none", settings=settings)
    report(done)
    assert done.stdout == "full\n"
    assert done.stderr.count("rank 0: PARTIALCOLL_ALL is ignored: expected 0 or 1") == 1


def test_unknown_algorithm(build, run):
    done = run(build("kinds"), settings={"PARTIALCOLL_ALGORITHM": "fastest"})
    report(done)
    assert done.stderr.count("rank 0: PARTIALCOLL_ALGORITHM is ignored") == 1


def test_quorum_full_is_full(build, run):
    """PARTIALCOLL_ALL alone, and the policy "full", change nothing."""
    plain = run(build("kinds"), ranks=2)
    ours = run(build("kinds"), ranks=2, settings={"PARTIALCOLL_ALL": "1"})
    full = {"PARTIALCOLL_ALL": "1", "PARTIALCOLL_QUORUM": "full"}
    assert report(ours)[0] and ours.stdout == plain.stdout
    assert run(build("kinds"), ranks=2, settings=full).stdout == plain.stdout


def test_threads(build, run):
    taken, reasons = report(run(build("threads"), settings={}))
    assert taken == 3 * 4 * 200 and not reasons


PERSISTENT = """wait waitall waitany waitsome test testall testany testsome get_status
    while_receiving mixed dup after_free"""


def test_persistent(build, run):
    """Persistent requests are completed by every function of MPI, alone and among others."""
    done = run(build("persistent"), "all", settings={})
    taken, reasons = report(done)
    assert done.stdout.split() == PERSISTENT.split()
    assert taken == 3 * 3 * 42 and not reasons


@pytest.mark.parametrize(
    "settings",
    [None, {}, {"PARTIALCOLL_ALL": "1", "PARTIALCOLL_QUORUM": "full,linger=20us"}],
    ids=["MPI alone", "full", "by the place of the call"],
)
def test_ranks_that_are_not_in_step(build, run, settings):
    done = run(build("ends"), settings=settings)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["request", "key", "places", "persistent"]
    assert settings is None or report(done)[0] > 60


def test_a_table_that_one_node_lacks(build, run, tmp_path):
    """The other ranks do not know: the rank reports it, and MPI makes the call on all."""
    done = run(build("ends"), str(tmp_path / "nowhere"), settings={})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["request", "key", "places", "persistent"]
    assert set(report(done)[1]) == {"no handle could be made"}


@pytest.mark.parametrize("quorum", ["full", "solo"])
def test_buffers_on_a_device(build, run, tmp_path, quorum):
    """Buffers of some ranks are on a device, after the driver was loaded. The host reads none."""
    settings = {"PARTIALCOLL_CUDA_LIBRARY": str(device.build(tmp_path))}
    if quorum == "solo":  # of one rank: it gets its own data
        settings.update(PARTIALCOLL_ALL="1", PARTIALCOLL_QUORUM="solo")
        taken, reasons = report(run(build("device"), ranks=1, settings=settings))
        assert taken + reasons.pop(FIRST) == 3 + 4 * 4 + 3 and not reasons
    else:
        taken, reasons = report(run(build("device"), "persistent", settings=settings))
        assert taken == 3 * (3 + 4 * 4 + 1 + 3) and not reasons


def test_mpi4py_script(run):
    """An unmodified script, which calls the large-count variants if MPI has them."""
    words = [sys.executable, str(PROGRAMS / "script.py")]
    plain, ours = run(*words), run(*words, settings={})
    assert plain.returncode == 0, plain.stderr
    taken, reasons = report(ours)
    assert ours.stdout == plain.stdout == "script\n"
    assert_taken(taken, reasons)


@pytest.mark.parametrize("where", ["dup", "idup", "set", "split"])
def test_info_key(build, run, where):
    """Rounds are partial on communicators with the key. Over all rounds nothing is lost."""
    done = run(build("partial"), where, settings={"PARTIALCOLL_QUORUM": "solo"})
    taken, reasons = report(done)
    assert done.stdout == "partial\n" and (taken, reasons) == (3 * 2 * 41, {FIRST: 3 * 2})


def test_op_of_the_user_and_a_key(build, run):
    """The op might be freed before late data is reduced: MPI makes these calls."""
    done = run(build("partial"), "own", settings={"PARTIALCOLL_QUORUM": "solo"})
    taken, reasons = report(done)
    assert taken == 3 * 41
    assert reasons == {FIRST: 3, "operation of the user, partial or persistent": 3 * 42}


def test_only_with_the_key(build, run):
    """The environment's quorum alone makes no call partial."""
    done = run(build("partial"), "none", settings={"PARTIALCOLL_QUORUM": "solo"})
    assert report(done)[0] == 3 * 2 * 42 and done.stdout == "full\n"
    assert "set PARTIALCOLL_ALL=1" in done.stderr


def test_all(build, run):
    settings = {"PARTIALCOLL_QUORUM": "solo", "PARTIALCOLL_ALL": "1"}
    done = run(build("partial"), "none", settings=settings)
    assert report(done)[0] == 3 * 2 * 41 and done.stdout == "partial\n"


def test_the_key_wins(build, run):
    settings = {"PARTIALCOLL_QUORUM": "solo", "PARTIALCOLL_ALL": "1"}
    done = run(build("partial"), "dup", "full", settings=settings)
    assert report(done)[0] == 3 * 2 * 42 and done.stdout == "full\n"


def test_how_far_a_rank_may_lag(build, run):
    """With deliver=all no rank waits for one that makes no call, and its next call returns all
    missed rounds. Rounds that history= does not keep are reported."""
    settings = {"PARTIALCOLL_QUORUM": "solo"}
    done = run(build("ahead"), "solo,history=1000,deliver=all", settings=settings)
    assert report(done) == (2 * (2 * 49 + 1 + 3 * 2), {FIRST: 2 * 3}) and done.stdout == "ahead\n"
    assert "lost" not in done.stderr
    done = run(build("ahead"), "solo,deliver=all,history=2", "lost", settings=settings)
    assert done.stdout == "ahead\n" and "a call with deliver=all lost" in done.stderr
    done = run(build("partial"), "dup", "solo,deliver=one,history=1", settings=settings)
    assert report(done)[0] == 3 * 2 * 41 and done.stdout == "partial\n"


LAGS = [
    "history=1",
    "solo,history=0",
    "solo,history=2,history=2",
    "solo,deliver=",
    "solo,,history=1",
]


@pytest.mark.parametrize("value", ["nonsense", "quorum:0", "x" * 200, *LAGS])
def test_key_that_is_no_policy(build, run, value):
    """Reported once, by rank 0, and ignored."""
    done = run(build("partial"), "dup", value, settings={"PARTIALCOLL_QUORUM": "solo"})
    report(done)
    assert done.stdout == "full\n"
    assert done.stderr.count("rank 0: the info key partialcoll_quorum is ignored") == 1


def test_environment_that_is_no_policy(build, run):
    settings = {"PARTIALCOLL_QUORUM": "most", "PARTIALCOLL_ALL": "1"}
    done = run(build("partial"), "none", settings=settings)
    report(done)
    assert done.stdout == "full\n"
    assert done.stderr.count("rank 0: PARTIALCOLL_QUORUM is ignored") == 1


def test_key_on_one_rank_only(build, run):
    """The ranks detect it, report it, and wait for each other."""
    done = run(build("partial"), "differ", settings={"PARTIALCOLL_QUORUM": "solo"})
    assert report(done)[0] == 3 * 2 * 42 and done.stdout == "full\n"
    assert "set PARTIALCOLL_ALL=1" in done.stderr
    assert done.stderr.count("the ranks of a communicator disagree") == 1


def test_thread_level_too_low(build, run):
    """The key is set in a program without threads, and the environment does not request them."""
    done = run(build("partial"), "dup", settings={})
    taken, reasons = report(done)
    assert done.stdout == "full\n" and taken == 0
    assert reasons == {"needs MPI_THREAD_MULTIPLE": 3 * 2 * 42}
    assert done.stderr.count("a quorum needs MPI_THREAD_MULTIPLE") == 1


@pytest.fixture(scope="session")
def other_mpi(tmp_path_factory):
    """Return a program of another MPI, a file that needs it, and a program that loads the file."""
    folder = tmp_path_factory.mktemp("other")
    library, program, loads = folder / "libmpi.so.7", folder / "program", folder / "loads"
    words = ["gcc", "-fPIC", str(PROGRAMS / "other_mpi.c"), f"-Wl,-rpath,{folder}"]
    soname = ["-shared", f"-Wl,-soname,{library.name}"]
    for more in (
        ["-DLIBRARY", *soname, "-o", library],
        ["-DPROGRAM", library, "-o", program],
        ["-DPROGRAM", "-shared", library, "-o", folder / "file.so"],
        ["-ldl", "-o", loads],
    ):
        subprocess.run([*words, *map(str, more)], check=True)
    return {"linked": [program], "loaded": [loads, folder / "file.so"]}


@pytest.mark.parametrize("how", ["linked", "loaded"])
def test_program_of_another_mpi(other_mpi, clean_environment, how):
    """Refused with a message before its MPI begins, however it is linked."""
    words = list(map(str, other_mpi[how]))
    env = {**clean_environment, "PARTIALCOLL_REPORT": "1"}
    once = {"capture_output": True, "text": True, "timeout": c_users.LIMIT_S}
    plain = subprocess.run(words, env=env, **once)
    assert plain.returncode == 0 and plain.stdout.endswith("the other MPI began\n" * 2)
    refused = subprocess.run(words, env={**env, "LD_PRELOAD": installed.preload()}, **once)
    assert refused.returncode == 1, refused.stderr
    assert refused.stdout == ("loaded\n" if how == "loaded" else "")
    (line,) = refused.stderr.splitlines()
    assert "was built for another MPI than the program's" in line and "libmpi.so.7" in line


def test_mpiexec_of_another_mpi(build, clean_environment):
    """Each process would be alone, and do the work of all."""
    env = {**clean_environment, "LD_PRELOAD": installed.preload(), "OMPI_COMM_WORLD_SIZE": "2"}
    done = subprocess.run(
        [build("full")], env=env, capture_output=True, text=True, timeout=c_users.LIMIT_S
    )
    assert done.returncode == 1 and not done.stdout
    assert "mpiexec has started 2 processes, but each is alone" in done.stderr


def test_calls_that_bypass_the_interposer(build, run):
    """The report says if MPI is initialized without us, and if calls bypass us."""
    done = run(build("unseen"), "all", ranks=2, settings={})
    assert (done.returncode, done.stdout) == (0, "unseen\n"), done.stderr
    assert done.stderr.count("MPI began without passing through this library") == 2
    done = run(build("unseen"), "calls", ranks=2, settings={})
    assert report(done) == (0, {})
    assert done.stderr.count("no call came here") == 1
    for said in ("all", "calls"):
        assert not run(build("unseen"), said, settings={"PARTIALCOLL_REPORT": ""}).stderr


@pytest.mark.parametrize("parent", ["plain", "preloaded"])
@pytest.mark.parametrize("child", ["plain", "preloaded"])
def test_spawned_processes(build, run, parent, child):
    """Spawned and spawning processes may be preloaded or not: MPI makes their common calls."""

    def words(who):
        preload = installed.preload() if who == "preloaded" else ""
        return ["/usr/bin/env", f"LD_PRELOAD={preload}", build("spawn")]

    settings = {"PARTIALCOLL_QUORUM": "full", "PARTIALCOLL_ALL": "1", "PARTIALCOLL_REPORT": "1"}
    done = run(*words(parent), *words(child), ranks=1, settings=settings)
    assert (done.returncode, done.stdout) == (0, "joined\n"), done.stderr
    told = sum(int(n) for n in re.findall(r"passed: (\d+) \(processes of another", done.stderr))
    assert told == 3 * (parent == "preloaded") + 6 * (child == "preloaded")


def test_program_without_mpi(build, clean_environment):
    env = {**clean_environment, "LD_PRELOAD": installed.preload(), "PARTIALCOLL_REPORT": "1"}
    done = subprocess.run(
        [build("quiet")], env=env, capture_output=True, text=True, timeout=c_users.LIMIT_S
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "quiet\n", "")


def test_beside_the_package(run, tmp_path):
    """A script that uses partialcoll itself, under the interposer: two copies of the core."""
    script = tmp_path / "both.py"
    script.write_text(
        "import numpy as np\n"
        "from mpi4py import MPI\n"
        "import partialcoll as pc\n"
        "c = MPI.COMM_WORLD\n"
        "y = np.zeros(3)\n"
        "for i in range(20):\n"
        "    pc.Allreduce(c, np.ones(3), y, quorum='full')\n"
        "    assert y[0] == c.size\n"
        "    c.Allreduce(np.ones(3), y)\n"
        "    assert y[0] == c.size\n"
    )
    assert report(run(sys.executable, str(script), settings={}))[0] == 3 * 20


def test_fortran(run, tmp_path):
    """If MPI has its Fortran part (PyPI's do not)."""
    mpifort = shutil.which("mpifort", path=os.path.dirname(c_users.mpicc()))
    if mpifort is None:
        pytest.skip("this MPI has no mpifort")
    program = str(tmp_path / "fortran")
    flag = "-fallow-argument-mismatch"  # mpif.h has no interfaces: one buffer, several types
    subprocess.run([mpifort, flag, str(PROGRAMS / "fortran.f90"), "-o", program], check=True)
    done = run(program, settings={})
    assert report(done) == (3 * 40, {}) and done.stdout == "sums\n"


def test_fortran_of_an_extension(run, tmp_path):
    """An extension alone loads MPI's Fortran library, which is replaced by a small one here."""
    library, extension, program = (tmp_path / name for name in ("lib.so", "ext.so", "program"))
    shared = ("-shared", "-fPIC", f"-Wl,-rpath,{tmp_path}")
    c_users.compile_program("pmpi/extension.c", library, *shared, "-DLIBRARY")
    c_users.compile_program("pmpi/extension.c", extension, *shared, "-DEXTENSION", str(library))
    c_users.compile_program("pmpi/extension.c", program, "-ldl")
    done = run(program, extension, settings={})
    assert (done.returncode, done.stdout) == (0, "sums\n"), done.stderr
    assert report(done) == (3 * 5, {})


@pytest.mark.parametrize("library", ["libpartialcoll", "libpartialcoll_preload"])
def test_names(library):
    """The exported names of the libraries. The interposer calls MPI only by its PMPI names."""
    path = str(installed._library(library))
    shown = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    defined = re.findall(r" [TWVBD] (\w+)", shown)
    wanted = re.findall(r" U (\w+)", shown)
    if library == "libpartialcoll":
        ours = {name for name in defined if name.lower().startswith("pcoll_")}
        assert "PCOLL_Allreduce" in ours
        assert set(defined) - ours == {"MPI_Finalize", "MPI_Comm_free"}  # csrc/compat/linked
    else:
        assert {"MPI_Allreduce", "MPI_Init", "mpi_allreduce_"} <= set(defined)
        assert not [name for name in defined if "pcoll" in name.lower()]
        assert not [name for name in wanted if name.startswith("MPI_")]


def page():
    """Return docs/interposer.md, and the functions in the first columns of its two tables."""
    text = (ROOT / "docs" / "interposer.md").read_text()
    taken, never = (
        set(re.findall(r"`(MPI_\w+)`", " ".join(re.findall(r"^\|(.*?)\|", part, re.MULTILINE))))
        for part in re.findall(
            r"^## What is (?:never )?taken over$(.*?)(?=^## )", text, re.M | re.S
        )
    )
    return text, taken, never


def test_the_page_names_what_is_replaced():
    _, taken, never = page()
    sources = "".join(p.read_text() for p in (COMPAT / "interposer").glob("*.c"))
    defined = re.findall(r"^(?:int |[A-Z_]+\()(MPI_\w+)[(,]", sources, re.MULTILINE)
    assert taken == set(defined)
    path = str(installed._library("libpartialcoll_preload"))
    shown = subprocess.run(["nm", "-D", path], capture_output=True, text=True, check=True).stdout
    of_c = set(re.findall(r" T (MPI_[A-Z][a-z]\w*)", shown))  # the others are Fortran's
    assert {"MPI_Allreduce", "MPI_Finalize"} <= of_c <= taken
    assert {"MPI_Iallreduce", "MPI_Reduce", "MPI_Bcast"} <= never and not never & of_c


def test_commands_that_are_shown_make_rounds_partial():
    """Without the setting for all communicators the commands would show no effect."""
    told = subprocess.run(
        [sys.executable, "-m", "partialcoll", "preload", "--help"],
        capture_output=True,
        text=True,
        timeout=c_users.LIMIT_S,
    ).stdout
    for text in (page()[0], (ROOT / "README.md").read_text(), told):
        commands = re.findall(r"^ *(LD_PRELOAD=.*(?:\n  .*)?mpiexec)", text, re.MULTILINE)
        assert commands and all("PARTIALCOLL_ALL=1" in command for command in commands), text
