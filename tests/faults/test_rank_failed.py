# SPDX-License-Identifier: Apache-2.0
"""Ranks are killed, on an MPI that notifies the others (Open MPI 5, ``mpiexec --with-ft ulfm``):
every waiting call, and every later one, raises RankFailedError with their numbers. Nothing hangs,
and the others continue with a communicator of the survivors."""

import pytest
from ulfm import needs_ulfm

pytestmark = needs_ulfm

# Each scenario gets a communicator and the victim. All other ranks return when the death is known.
SCENARIOS = """
    import faulthandler, os, signal
    from partialcoll._core.ffi import lib
    faulthandler.dump_traceback_later(60, exit=True)

    def all_come(comm, victim, delay=0):
        comm.Barrier()
        if comm.rank == victim:
            time.sleep(delay)
            # Not in the middle of a message: Open MPI may never recover (docs/faults.md).
            lib.pcoll_mpi_enter(True)
            os.kill(os.getpid(), signal.SIGKILL)

    def until_known(victim, call):
        begin = time.monotonic()
        while time.monotonic() < begin + 30:
            try:
                call()
            except pc.RankFailedError as error:
                assert error.ranks == (victim,), error.ranks
                assert f"rank {{victim}} has died" in str(error)
                return
        raise AssertionError("no rank was notified")

    def start_and_wait(handle):
        handle.Start()
        handle.Wait()

    def of_handle(quorum, domain):
        def scenario(comm, victim):
            h = pc.Allreduce_init(comm, np.ones(99), np.zeros(99), quorum=quorum, domain=domain)
            for step in range(5):
                start_and_wait(h)
            all_come(comm, victim)
            until_known(victim, lambda: start_and_wait(h))
            for again in (h.Wait, h.Test, h.Start, h.join, h.leave, h.progress):
                until_known(victim, again)
            h.Free()
        return scenario

    def creation(comm, victim):
        all_come(comm, victim)
        until_known(victim, lambda: pc.Allreduce_init(comm, np.ones(3), np.zeros(3)))

    def creation_beside_another(comm, victim):
        h = pc.Allreduce_init(comm, np.ones(3), np.zeros(3))
        all_come(comm, victim)
        until_known(victim, lambda: pc.GossipBuffer(comm, like=np.ones(3)))
        until_known(victim, lambda: start_and_wait(h))

    def drop_in(comm, victim):
        call = lambda: pc.Allreduce(comm, np.ones(3), np.zeros(3), quorum="solo", name="a")
        call()
        all_come(comm, victim)
        until_known(victim, call)

    def group(comm, victim):
        t = pc.GroupAllreduce_init(comm, MPI.IN_PLACE, np.ones(99), grid=(comm.size,))
        start_and_wait(t)
        all_come(comm, victim)
        until_known(victim, lambda: start_and_wait(t))
        t.Free()

    def gossip(comm, victim):
        x = np.ones(99)
        g = pc.GossipBuffer(comm, like=x, topology="complete")
        g.publish(x)
        all_come(comm, victim)
        until_known(victim, lambda: g.average(x, (comm.rank + 1) % comm.size))
        g.Free()

    def schedule(comm, victim):
        x = np.zeros(3)
        with pc.Schedule(comm) as s:
            for rank in range(comm.size):
                if comm.rank == victim != rank:
                    s.send(x, rank)
            if comm.rank != victim:
                s.recv(x, victim)
            s.commit()
            start_and_wait(s)
            all_come(comm, victim)
            until_known(victim, lambda: start_and_wait(s))

    def joining(comm, victim):
        h = pc.Allreduce_init(comm, np.ones(3), np.zeros(3), quorum="solo")
        all_come(comm, victim, delay=0.2)
        until_known(victim, h.join)

    def freeing(comm, victim):
        h = pc.Allreduce_init(comm, np.ones(3), np.zeros(3), quorum="solo")
        all_come(comm, victim, delay=0.2)
        h.Free()  # waits for the victim, until its death is known
        until_known(victim, lambda: pc.Allreduce_init(comm, np.ones(3), np.zeros(3)))

    def bystanders(comm, victim):
        near = comm.Split(comm.rank == victim)
        others = pc.Allreduce_init(near, np.ones(3), np.zeros(3), quorum="full")
        h = pc.Allreduce_init(comm, np.ones(3), np.zeros(3))
        all_come(comm, victim)
        until_known(victim, lambda: start_and_wait(h))
        for step in range(20):  # the survivors' handles do not notice
            start_and_wait(others)
        others.Free()

    comm = MPI.COMM_WORLD.Dup()
    for scenario in ({names}):
        victim = comm.size // 2
        scenario(comm, victim)
        comm = comm.Shrink()
        total = np.zeros(3)
        with pc.Allreduce_init(comm, np.ones(3), total, quorum="full") as h:
            start_and_wait(h)
        assert total[0] == comm.size
    comm.Barrier()
    say("end")
    os._exit(0)  # Open MPI's MPI_Finalize sometimes hangs after a death
"""


@pytest.mark.parametrize(
    "names",
    (
        'of_handle("full", "node"), of_handle("solo", "node"), of_handle("majority", "rank")',
        'of_handle("full", "rank"), of_handle("solo", "rank"), joining, freeing, bystanders',
        "creation, creation_beside_another, drop_in, group, gossip, schedule",
    ),
    ids=("node", "rank", "others"),
)
def test_all_ranks_are_notified(run, names):
    script = SCENARIOS.format(names=names)
    done = run(script, ranks=8, launcher_options=["--with-ft", "ulfm"])
    deaths = len(names.replace('", "', "").split(", "))
    assert done.stdout.splitlines().count("end") == 8 - deaths, f"{done.stdout}\n{done.stderr}"


TORCH = """
    import faulthandler, os, signal
    faulthandler.dump_traceback_later(90, exit=True)
    import threading, types
    import torch
    import partialcoll.torch as pct
    torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(  # takes long to load
        disable=lambda function=None, *_, **__: function, graph_break=lambda: None
    )

    def until_known(call):
        victim, begin = pct.size() - 1, time.monotonic()
        while time.monotonic() < begin + 30:
            try:
                call()
            except pc.RankFailedError as error:
                assert victim in error.ranks and isinstance(error, pct.HorovodInternalError)
                return
        raise AssertionError("no rank was notified")

    pct.init()
    model = torch.nn.Linear(3, 3)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = pct.DistributedOptimizer(inner, model.named_parameters(), strategy=pct.Eager("solo"))
    pct.broadcast_parameters(model.state_dict(), 0)

    def step():
        opt.zero_grad()
        model(torch.ones(3)).sum().backward()
        opt.step()

    step()
    pct.allgather(torch.ones(3))
    pct.barrier()
    if pct.rank() == pct.size() - 1:  # during calls
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGKILL)).start()
    until_known(lambda: pct.{first}(torch.ones(30000)))
    for again in (pct.barrier, lambda: pct.broadcast_object(1), step):
        until_known(again)
    left = pct.size() - 1
    opt.close()
    pct.shutdown()
    pct.init()  # of the live ranks
    assert pct.size() == left == pct.allreduce(torch.ones(1), op=pct.Sum).item()
    say("end")
    comm.Shrink().Barrier()
    os._exit(0)
"""


@pytest.mark.in_turns
@pytest.mark.parametrize("first", ("allreduce", "allgather"))
def test_pytorch_is_notified(run, first):
    pytest.importorskip("torch")
    options = ["--with-ft", "ulfm"]
    done = run(TORCH.format(first=first), ranks=5, launcher_options=options)
    assert done.stdout.splitlines().count("end") == 4, f"{done.stdout}\n{done.stderr}"
