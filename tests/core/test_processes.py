# SPDX-License-Identifier: Apache-2.0
"""Behavior of whole processes: exits, signals, forks, launchers, builds. Each test runs in a
subprocess with a time limit."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from conftest import PREAMBLE
from rows import ROW

from partialcoll.tools import launcher

LIMIT_S = 120


def test_one_process_without_a_launcher(run):
    """In a notebook every collective completes at once."""
    done = run(
        """
        for quorum in ("solo", "majority", "full"):
            x, y = np.ones(3), np.zeros(3)
            with pc.Allreduce_init(comm, x, y, quorum=quorum) as h:
                h.Start()
                assert h.Wait().active == 1 and y[0] == 1
        pc.Allreduce(comm, x, y)
        say("done")
        """
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stderr


def test_finalize_frees_remaining_objects(run):
    """Handles alive at MPI_Finalize, one of them with a round in progress."""
    done = run(
        """
        keep = [pc.Allreduce_init(comm, np.ones(3), quorum=q) for q in ("solo", "full", "majority")]
        for h in keep:
            h.Start()
            h.Wait()
        if comm.rank == 0:
            keep[0].Start()
        y = np.zeros(1)
        pc.Allreduce(comm, np.ones(1), y, quorum="full")
        dup = comm.Dup()
        pc.Allreduce(dup, np.ones(1), y, quorum="full")
        MPI.Finalize()
        try:
            keep[0].Start()
        except pc.StateError as error:
            say("refused:", error)
        keep[1].Free()
        """,
        ranks=3,
    )
    assert done.returncode == 0 and done.stdout.count("refused") == 3, done.stderr


SCHEDULES_LEFT = """
        x, y = np.full(200000, comm.rank + 1.0), np.zeros(200000)
        def ring(comm):
            s = pc.Schedule(comm)
            s.recv(y.copy(), (comm.rank - 1) % comm.size)
            s.after(s.send(x, (comm.rank + 1) % comm.size), s.timer(1e-3))
            return s.commit()
        idle, running, lonely, orphan = (ring(comm) for _ in range(4))
        draft = pc.Schedule(comm)
        draft.nop()
        for s in (idle, running, lonely, orphan):
            s.Start()
            s.Wait()
        h = pc.Allreduce_init(comm, np.ones(3), quorum="full")
        other = ring(comm.Dup())
        running.Start()
        other.Start()
        if comm.rank == 0:
            lonely.Start()  # the other ranks never start
        orphan.Start()
        warnings.simplefilter("ignore")
        del orphan
"""


def test_finalize_with_schedules(run):
    """Schedules alive at MPI_Finalize: idle, in progress, started by one rank only, and one without
    a reference."""
    done = run(
        SCHEDULES_LEFT
        + """
        MPI.Finalize()
        for call in (idle.Start, running.Wait, lonely.to_dot):
            try:
                call()
            except pc.StateError as error:
                say("refused:", error)
        idle.Free()
        """,
        ranks=3,
    )
    assert done.returncode == 0 and done.stdout.count("refused") == 9, done.stderr


def test_exit_with_schedules(run):
    """The same at the end of Python, where objects are destroyed before MPI ends."""
    done = run(SCHEDULES_LEFT + '        say("end")\n', ranks=3)
    assert done.returncode == 0 and done.stdout.count("end") == 3, done.stderr


def test_schedules_end_with_an_exception_elsewhere(run):
    """A rank that fails before its commit makes the others' commits fail, without a hang."""
    done = run(
        """
        with pc.Schedule(comm) as s:
            if comm.rank == 1:
                raise ZeroDivisionError
            s.commit()
        """,
        ranks=3,
    )
    assert done.returncode != 0 and "ZeroDivisionError" in done.stderr, done.stderr
    assert "the schedule of rank 1 is not valid" in done.stderr


def test_first_handles_of_several_threads(run):
    """Threads create the first handles of the process at once, on their own communicators, and
    leave them to MPI_Finalize."""
    done = run(
        """
        import threading
        comms = [comm.Dup() for _ in range(6)]
        handles, errors = [], []
        def work(c):
            try:
                h = pc.Allreduce_init(c, np.ones(2), np.zeros(2), quorum="full")
                for _ in range(5):
                    h.Start()
                    assert h.Wait(timeout=60).active == comm.size
                handles.append(h)
            except BaseException as error:
                errors.append(error)
        order = comms if comm.rank % 2 == 0 else comms[::-1]
        threads = [threading.Thread(target=work, args=(c,)) for c in order]
        for t in threads: t.start()
        for t in threads: t.join()
        assert not errors, errors
        say("done")
        """,
        ranks=3,
    )
    assert done.returncode == 0 and done.stdout.count("done") == 3, done.stderr


def test_interrupt_in_wait(run):
    """Ctrl-C is raised while a rank waits, and the handle can be waited for again."""
    done = run(
        """
        import signal
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
        if comm.rank == 0:
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            h.Start()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.3)
                h.Wait()
            except KeyboardInterrupt:
                say("interrupted")
            comm.Barrier()
            say("active", h.Wait().active)
        else:
            comm.Barrier()
            h.Start()
            h.Wait()
        h.Free()
        """,
        ranks=2,
    )
    assert done.returncode == 0 and "interrupted" in done.stdout and "active 2" in done.stdout, (
        done.stderr
    )


def test_forked_child(run):
    """In a data-loader worker, handles report that they belong to the parent, which continues."""
    done = run(
        """
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="solo")
        h.Start()
        h.Wait()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                h.Start()
            except pc.StateError as error:
                code = 0 if "fork" in str(error) else 2
            os._exit(code)
        _, status = os.waitpid(child, 0)
        assert status == 0, status
        h.Start()
        h.Wait()
        h.Free()
        say("done")
        """
    )
    assert done.returncode == 0 and "done" in done.stdout, done.stderr


def test_below_thread_multiple(run):
    """The agent is refused with an error. Manual progress works. One domain needs no agent, unless
    there are timers."""
    done = run(
        """
        for options in ({"domain": "rank"}, {"quorum": "full,deadline=1"}):
            try:
                pc.Allreduce_init(comm, np.ones(1), **{"quorum": "full", **options})
            except pc.StateError as error:
                assert "MPI_THREAD_MULTIPLE" in str(error) and "manual" in str(error)
                say("refused")
        x, y = np.ones(1), np.zeros(1)
        for options in ({"domain": "rank", "progress": "manual"}, {"domain": "node"}):
            with pc.Allreduce_init(comm, x, y, quorum="full", **options) as h:
                h.Start()
                say("active", h.Wait().active)
        with pc.Allreduce_init(comm, x, y, quorum="solo", domain="node") as h:
            for _ in range(50):
                h.Start()
                h.Wait()
        """,
        ranks=2,
        before="import mpi4py; mpi4py.rc.thread_level = 'serialized'",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused") == 4 and done.stdout.count("active 2") == 4


# Only rank 0 warns, once it is told to. The warning lets others continue, so no rank needs to be
# late by a fixed time.
WARNING = """
        import logging

        class Heard(logging.Handler):
            def __init__(self, text, ranks):
                super().__init__()
                self.text, self.ranks, self.texts, self.sent = text, ranks, [], []

            def emit(self, record):
                if self.sent:
                    return  # from now on ranks are late only by chance
                self.texts.append(record.getMessage())
                say(self.texts[-1])
                if self.text in self.texts[-1] and not self.sent:
                    self.sent = [comm.isend(None, rank) for rank in self.ranks]

        def warn(text, ranks):
            os.environ["PARTIALCOLL_STALL_WARN"] = "0.1"
            heard = Heard(text, ranks)
            logging.getLogger("partialcoll").addHandler(heard)
            return heard
"""
QUIET = {"PARTIALCOLL_STALL_WARN": "1000"}


def test_exception_on_one_rank_is_named(run):
    """One rank leaves by an exception. The others report which one is missing."""
    done = run(
        WARNING
        + """
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
        h.Start()
        h.Wait()
        if comm.rank == 2:
            raise SystemExit  # its MPI_Finalize waits for the others
        heard = warn("", [])
        h.Start()
        while not any("rank 2 has left its loop" in text for text in heard.texts):
            try:
                h.Wait(timeout=0.3)
            except TimeoutError:
                pass
        say("timed out")
        # The program can only end, which must work with the round still open.
        """,
        ranks=3,
        env=QUIET,
    )
    assert done.returncode == 0 and done.stdout.count("timed out") == 2, done.stderr


@pytest.mark.parametrize("domain", ["node", "rank"])
def test_a_missing_rank_is_named(run, domain):
    """The warning about a late rank names it, its next round, and the missing message."""
    done = run(
        WARNING
        + """
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
        late = "rank 1 has not arrived: its next call is for round 0"
        if comm.rank == 1:
            comm.recv(source=0)
        h.Start()
        if comm.rank == 2:
            comm.send(None, 0)
        if comm.rank == 0:
            comm.recv(source=2)
            heard = warn(late, [1])
        h.Wait()
        h.Free()
        """,
        ranks=3,
        env={**QUIET, "PARTIALCOLL_DOMAIN": domain},
    )
    assert done.returncode == 0, done.stderr
    assert "rank 1 has not arrived: its next call is for round 0" in done.stdout, done.stdout
    assert "rank 2 has" not in done.stdout
    pending = re.search(r"pending here: 1 (RECV from|SEND to) rank [012]", done.stdout)
    assert pending or domain == "node", done.stdout  # one domain has no messages


@pytest.mark.parametrize("domain", ["node", "rank"])
def test_rank_that_does_not_collect_is_named(run, domain):
    """The rank's call is outstanding for a completed round, and the next round waits for it."""
    done = run(
        WARNING
        + """
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="full")
        h.Start()
        if comm.rank == 1:
            comm.recv(source=0)
        h.Wait()
        h.Start()
        if comm.rank == 2:
            comm.send(None, 0)
        if comm.rank == 0:
            comm.recv(source=2)
            heard = warn("round 1: rank 1 has not collected round 0", [1])
        h.Wait()
        h.Free()
        """,
        ranks=3,
        env={**QUIET, "PARTIALCOLL_DOMAIN": domain},
    )
    assert done.returncode == 0, done.stderr
    assert "round 1: rank 1 has not collected round 0" in done.stdout, done.stdout
    assert "rank 2 has" not in done.stdout and "rank 0 has" not in done.stdout, done.stdout


def test_only_drawn_ranks_are_named(run):
    """Two of four ranks are late: last_of:1 waits for the drawn one, not for the other."""
    done = run(
        WARNING
        + """
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="last_of:1", history=64)
        if comm.rank == 0:
            heard = warn("has not arrived", [2, 3])
        if comm.rank >= 2:
            comm.recv(source=0)
        for t in range(16):
            h.Start()
            if comm.rank == 1:
                comm.send(None, 0)
            if comm.rank == 0:
                comm.recv(source=1)  # it is not late
            h.Wait()
        h.Free()
        """,
        ranks=4,
        env=QUIET,
    )
    assert done.returncode == 0, done.stderr
    named = set(re.findall(r"round \d+: (?:rank|.*?; rank) (\d) has not arrived", done.stdout))
    assert named and named <= {"2", "3"}, done.stdout
    for line in done.stdout.splitlines():
        assert not ("rank 2 has not arrived" in line and "rank 3 has not arrived" in line), line


def test_only_the_drawn_rank_is_named(run):
    """majority waits for one rank. The warning names only that one, whichever others are late."""
    done = run(
        WARNING
        + """
        with pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="majority") as h:
            h.Start()
            drawn = h.Wait().initiator  # a new handle in its place draws the same rank
        h = pc.Allreduce_init(comm, np.ones(1), np.zeros(1), quorum="majority")
        first = min({0, 1, 2} - {drawn})
        if comm.rank == first:
            heard = warn("has not arrived", sorted({0, 1, 2} - {first}))
        else:
            comm.recv(source=first)
        h.Start()
        h.Wait()
        h.Free()
        say("drawn", drawn)
        """,
        ranks=3,
        env=QUIET,
    )
    assert done.returncode == 0, done.stderr
    drawn = done.stdout.split("drawn ")[1][0]
    named = {line.split(": rank ")[1][0] for line in done.stdout.splitlines() if ": rank " in line}
    assert named == {drawn}, done.stdout


def test_bad_environment(run):
    done = run(
        """
        for name, value in (("PROGRESS", "fast"), ("DOMAIN", "galaxy"), ("ALGORITHM", "magic")):
            os.environ["PARTIALCOLL_" + name] = value
            try:
                pc.Allreduce_init(comm, np.ones(1), quorum="full")
            except ValueError as error:
                assert "PARTIALCOLL_" + name in str(error) and value in str(error), error
                say("refused")
            del os.environ["PARTIALCOLL_" + name]
        """
    )
    assert done.returncode == 0 and done.stdout.count("refused") == 3, done.stderr


def test_processes_of_a_launcher_that_does_not_fit(run):
    """P jobs of one rank each are detected by the launcher's environment variables."""
    other = {"openmpi": "PMI_SIZE", "mpich": "OMPI_COMM_WORLD_SIZE"}[launcher.flavor()]
    done = run(
        """
        try:
            pc.Allreduce_init(comm, np.ones(1))
        except pc.Error as error:
            print(error)
        """,
        before=f"os.environ['{other}'] = '4'",
    )
    assert "4 processes were started" in done.stdout, done.stdout + done.stderr


SEVERAL = ["mpich", "openmpi", "mpiabi"]  # the cores in the wheel


@pytest.mark.parametrize("cores", (["mpich"], SEVERAL), ids=("one core", "several"))
def test_a_launcher_that_mpich_would_not_survive(clean_environment, cores):
    """Reported before MPI begins, if the program has not initialized it."""
    code = f"""if True:
        import sys
        from partialcoll._core import launch, mpi
        from partialcoll import Error
        launch.built = lambda: {cores}
        try:
            launch.check_before_mpi()
        except Error as error:
            assert not mpi.has_begun()
            print(error)
    """
    fits = cores == SEVERAL and launcher.flavor() == "openmpi"
    for more, said in (({}, False), ({"OMPI_COMM_WORLD_SIZE": "2"}, not fits)):
        env = {**clean_environment, **more}
        words = [sys.executable, "-c", code]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        assert ("2 processes were started by Open MPI's mpiexec" in done.stdout) == said


def test_a_launcher_that_fits_one_of_several_cores(run):
    """MPI is initialized as mpi4py does, and ends with the program."""
    done = run(
        "say(comm.size, MPI.Query_thread() == MPI.THREAD_MULTIPLE)",
        ranks=2,
        before="from partialcoll._core import launch\n"
        f"launch.built = lambda: {SEVERAL}\n"
        "launch.check_before_mpi()",
    )
    assert done.returncode == 0 and done.stdout.split() == ["2", "True"] * 2, done.stderr


def test_processes_of_torchrun(run):
    """torchrun starts no MPI job."""
    done = run(
        """
        try:
            pc.Allreduce_init(comm, np.ones(1))
        except pc.Error as error:
            print(error)
        """,
        env={"TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": "4"},
    )
    assert "4 processes were started by torchrun" in done.stdout, done.stdout + done.stderr
    assert "partialcoll run -n 4 python" in done.stdout


def test_wrong_mpiexec(clean_environment, tmp_path):
    """The launcher on PATH belongs to another MPI, or is missing: reported before anything runs."""
    vendor = launcher.flavor()
    says = {"openmpi": "HYDRA build details", "mpich": "mpiexec (Open MPI) 5.0"}[vendor]
    fake = tmp_path / "mpiexec"
    fake.write_text(f"#!/bin/sh\necho '{says}'\n")
    fake.chmod(0o755)
    code = textwrap.dedent(
        """
        import sys
        from partialcoll.tools import launcher
        sys.executable = "/nowhere/python"
        try:
            launcher.find(launcher.flavor())
        except RuntimeError as error:
            print(error)
        """
    )
    for path, expected in (
        (str(tmp_path), "belongs to"),
        (str(tmp_path / "empty"), "no mpiexec found"),
    ):
        env = {**clean_environment, "PATH": path}
        done = subprocess.run(
            [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60
        )
        assert expected in done.stdout, done.stdout + done.stderr


def test_core_of_another_mpi(clean_environment, tmp_path):
    """The package has a core for the other MPI only: the import fails and says what to do."""
    import partialcoll

    package = tmp_path / "partialcoll"
    shutil.copytree(
        os.path.dirname(partialcoll.__file__), package, ignore=shutil.ignore_patterns("_core_*")
    )
    env = {**clean_environment, "PYTHONPATH": str(tmp_path)}
    code = "from mpi4py import MPI; import partialcoll"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert "AbiError" in done.stderr and "not compiled" in done.stderr and "MPICC" in done.stderr
    other = {"openmpi": "mpich", "mpich": "openmpi"}[launcher.flavor()]
    (package / f"_core_{other}.py").write_text("")
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert "AbiError" in done.stderr and f"built for {other}" in done.stderr


def test_command_line(clean_environment, tmp_path):
    """bench skew starts MPI itself and writes the rows of the interface."""
    env = {**clean_environment}
    command = [sys.executable, "-m", "partialcoll"]
    out = subprocess.run(
        [*command, "bench", "skew", "-n", "2", "--iters", "3", "--warmup", "1", "--json", "-",
         "--domain", "rank",
         "--plot", str(tmp_path / "skew.png")],
        env=env, capture_output=True, text=True, timeout=LIMIT_S,
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    doc = json.loads(out.stdout)
    assert doc["schema"] == 1 and doc["command"] == "bench skew"
    assert set(doc["env"]) == {"mpi", "ranks", "cores", "version"} and doc["env"]["ranks"] == 2
    rows = doc["rows"]
    assert [r["collective"] for r in rows] == ["mpi", "solo", "majority", "full"]
    for row in rows:
        assert set(row) == set(ROW)
        assert row["wrong"] == 0 and row["ranks"] == 2 and row["bytes"] == 4096
        assert 1 <= row["active_mean"] <= 2 and row["latency_us_avg"] > 0
    assert (tmp_path / "skew.png").read_bytes().startswith(b"\x89PNG")
    info = subprocess.run(
        [*command, "info", "--json"], env=env, capture_output=True, text=True, timeout=LIMIT_S
    )
    facts = json.loads(info.stdout)
    assert facts["domains"] == ["node", "rank"]
    assert facts["abi match"] and facts["core built with"] == launcher.flavor()
    assert facts["cuda devices"] >= 0 and facts["cuda driver"]
    for words in (
        ["bench", "skew", "-n", "0"],
        ["bench", "skew", "--collectives", "mpi,some"],
        ["dance"],
    ):
        refused = subprocess.run(
            [*command, *words], env=env, capture_output=True, text=True, timeout=60
        )
        assert refused.returncode == 2 and "usage" in refused.stderr


def test_build_without_mpicc(clean_environment, tmp_path):
    """Without mpicc one sentence says what to do. Tested from a checkout only."""
    builder = str(Path(__file__).resolve().parents[2] / "csrc" / "ffibuilder.py")
    code = (
        "import sys; sys.executable = sys.prefix = sys.base_prefix = '/nowhere'; "
        f"exec(open({builder!r}).read())"
    )
    env = {**clean_environment, "PATH": str(tmp_path)}
    env.pop("MPICC", None)
    done = subprocess.run(
        [sys.executable, "-c", f"__file__ = {builder!r}; {code}"],
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0 and "no mpicc found" in done.stderr, done.stderr
    done = subprocess.run(
        [sys.executable, "-c", f"__file__ = {builder!r}; {code}"],
        env={**env, "MPICC": "/bin/false"}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0 and "/bin/false does not work" in done.stderr, done.stderr


def test_a_stopped_rank_continues(job, tmp_path):
    """SIGSTOP of one rank during rounds: they wait for it, and are right afterwards."""
    script, pid_file = tmp_path / "script.py", tmp_path / "pid"
    script.write_text(
        PREAMBLE.format(before="")
        + textwrap.dedent(
            """
            send, recv = np.full(10, comm.rank + 1.0), np.zeros(10)
            h = pc.Allreduce_init(comm, send, recv, quorum="solo", late="drop")
            if comm.rank == 1:
                with open(sys.argv[1], "w") as file:
                    file.write(str(os.getpid()))
            for t in range(400):
                while t == 200 and comm.rank == 1 and os.path.exists(sys.argv[1]):
                    time.sleep(0.002)  # it has not been stopped yet
                time.sleep(0.002)
                h.Start()
                r = h.Wait(timeout=60)
                assert recv[0] == (np.flatnonzero(r.mask) + 1).sum()
            h.Free()
            say("rounds", t + 1)
            """
        )
    )
    words, env = job(script, 3, str(pid_file))
    running = subprocess.Popen(
        words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < limit:
        time.sleep(0.02)
    pid = int(pid_file.read_text())
    os.kill(pid, signal.SIGSTOP)
    pid_file.unlink()
    time.sleep(0.5)  # the time that it is away, about which nothing is asserted
    os.kill(pid, signal.SIGCONT)
    out, err = running.communicate(timeout=LIMIT_S)
    assert running.returncode == 0 and out.count("rounds 400") == 3, err


@pytest.mark.parametrize("ranks", [None, 2])
def test_gossip_buffers_are_left_to_finalize(run, ranks):
    done = run(
        """
        g = pc.GossipBuffer(comm, like=np.ones(1000))
        h = pc.GossipBuffer(comm, like=np.ones(10))
        g.publish(np.ones(1000))
        say("done")
        """,
        ranks=ranks,
    )
    assert done.returncode == 0 and done.stdout.count("done") == (ranks or 1), done.stderr


@pytest.mark.parametrize(
    "words",
    (
        ["--help"],
        ["--version"],
        ["bench", "--help"],
        ["bench", "skew", "--help"],
        ["config", "--cflags", "--libs"],
        ["preload"],
        ["bench", "skew", "-n", "0"],
    ),
)
def test_commands_that_start_jobs_do_not_load_mpi(clean_environment, words):
    """It works on login nodes, where MPI may not start."""
    code = (
        "import sys; sys.argv[0] = '/some/bin/partialcoll'\n"
        "from partialcoll.tools.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'mpi4py.MPI' not in sys.modules\n"
        "import partialcoll; assert partialcoll.Allreduce"
    )
    words = [sys.executable, "-c", code, *words]
    done = subprocess.run(words, env=clean_environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_library_does_not_load_what_the_command_line_needs(clean_environment):
    code = (
        "import sys, partialcoll\n"
        "assert partialcoll.Allreduce and partialcoll.__version__\n"
        "assert not {'click', 'matplotlib', 'tqdm', 'torch'} & set(sys.modules)\n"
    )
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=clean_environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def in_a_process(clean_environment, words, **more):
    words = [sys.executable, *words]
    done = subprocess.run(
        words, env=clean_environment, capture_output=True, text=True, timeout=60, **more
    )
    assert done.returncode == 0, done.stderr


def test_names_without_mpi(clean_environment, tmp_path):
    """A public name raises an error that says what is missing. Other names do not exist."""
    (tmp_path / "mpi4py").mkdir()
    (tmp_path / "mpi4py/__init__.py").write_text("rc = type('rc', (), {})\n")
    (tmp_path / "mpi4py/MPI.py").write_text("raise RuntimeError('cannot load MPI library')")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import partialcoll as pc\n"
        "assert not hasattr(pc, 'x') and not hasattr(pc, '_x') and not hasattr(pc, 'torch')\n"
        "import numpy as np\n"
        "try: pc.Allreduce(None, np.ones(1), np.ones(1))\n"
        "except pc._core.mpi.NoMpiError as error: assert 'pip install mpich' in str(error)\n"
        "else: raise AssertionError('Allreduce')\n"
        "from partialcoll import topology\n"
    )
    in_a_process(clean_environment, ["-c", code, str(tmp_path)])


def test_a_module_of_a_package_that_imports_all_names(clean_environment, tmp_path):
    """While Python looks for the module of -m, sys.argv[0] is the same as the command's."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg/__init__.py").write_text("from partialcoll import *\n")
    (tmp_path / "pkg/mod.py").write_text("import pkg\nassert pkg.Allreduce and pkg.Topology\n")
    in_a_process(clean_environment, ["-m", "pkg.mod"], cwd=tmp_path)


def test_importing_any_module_begins_no_mpi(clean_environment):
    """A child of multiprocessing imports the program, and must not initialize MPI."""
    code = """if True:
        import importlib, os, pkgutil, sys, partialcoll
        before = dict(os.environ)
        for module in pkgutil.walk_packages(partialcoll.__path__, "partialcoll."):
            last = module.name.rpartition(".")[2]
            if last not in ("__main__", "tour") and not last.startswith("_core_"):
                importlib.import_module(module.name)
                assert "mpi4py.MPI" not in sys.modules, module.name
        assert "partialcoll.torch.world" in sys.modules and os.environ == before
    """
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=clean_environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


CHILDREN = """
import concurrent.futures, multiprocessing, os, sys
import partialcoll

def use():
    import partialcoll._core.communicator
    try:
        partialcoll._core.communicator.check_running("use")
    except partialcoll.StateError as error:
        return "child process of a rank" in str(error)

if __name__ == "__main__":
    from mpi4py import MPI
    for how in ("spawn", "forkserver"):
        context = multiprocessing.get_context(how)
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
            assert pool.submit(use).result(), how
        assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size
    os.write(1, b"done\\n")
"""


def test_children_of_a_rank_begin_no_mpi(job, tmp_path):
    """Children have the rank's identity: a second process of it would break the job."""
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    words, env = job(script, 2)
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0 and done.stdout.count("done") == 2, done.stderr
