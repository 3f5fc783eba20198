# SPDX-License-Identifier: Apache-2.0
"""Each argument of the public calls gets values of each wrong type. The call must accept the value
or refuse it with our message that names the argument. Nothing crashes, and no caller gets only an
error of Python or numpy."""

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

MISUSE = """
    import itertools, fractions, decimal, datetime, pathlib

    comm, x, out = MPI.COMM_SELF, np.ones(4), np.ones(4)
    strange = np.ones(4)
    strange.flags.writeable = False
    VALUES = {
        "None": None, "True": True, "-1": -1, "0": 0, "3": 3, "0.5": 0.5, "nan": float("nan"),
        "inf": float("inf"), "10**30": 10**30, "-10**30": -(10**30), "1j": 1j, "text": "x",
        "'3'": "3",
        "empty text": "", "line break": "a\\nb", "nul": "a\\0b", "surrogate": "\\udcff",
        "bytes": b"x",
        "list": [1], "no list": [], "tuple": (2, 2), "dict": {}, "set": {1}, "object": object(),
        "class": int, "function": len, "lambda": lambda *a: None, "range": range(3),
        "np.int64": np.int64(2), "np.float32": np.float32(2), "np.bool": np.True_,
        "fraction": fractions.Fraction(1, 2), "decimal": decimal.Decimal(1),
        "time": datetime.timedelta(1), "path": pathlib.Path("x"),
        "0-d": np.array(2.0), "big-endian": np.ones(4, ">f8"), "objects": np.array([None] * 4),
        "texts": np.array(["a"] * 4), "dates": np.zeros(4, "M8[s]"), "records": np.zeros(4,
        "i4,f4"),
        "read-only": strange, "strided": np.ones(8)[::2], "empty": np.empty(0),
        "2-d": np.ones((2, 2)),
        "other size": np.ones(5), "other dtype": np.ones(4, "f4"), "matrix": np.ones((4, 4)),
        "COMM_NULL": MPI.COMM_NULL, "COMM_SELF": MPI.COMM_SELF, "SUM": MPI.SUM,
        "OP_NULL": MPI.OP_NULL,
        "DATATYPE_NULL": MPI.DATATYPE_NULL, "IN_PLACE": MPI.IN_PLACE,
        "REQUEST_NULL": MPI.REQUEST_NULL,
        "topology": pc.Topology.make("ring", 4), "policy": pc.Solo(), "lattice": pc.Lattice(8),
    }

    def made(kind, *given, **how):
        return lambda name: lambda value: kind(*given, **{**how, name: value}).Free()

    def buffer(**how):
        return pc.GossipBuffer(comm, like=x, **how)

    def call(target, method, *before):
        return lambda name: lambda value: getattr(target, method)(*before, **{name: value})

    handle = pc.Allreduce_init(comm, x.copy(), out.copy(), quorum="solo")
    gossip, states = buffer(), pc.StateExchange(comm)
    group = pc.GroupAllreduce_init(comm, x.copy(), out.copy(), grid=(1,))
    schedule = pc.Schedule(comm)
    topology, codec = pc.Topology.make("ring", 4), pc.Lattice(8)
    CALLS = {
        "Allreduce_init": (
            made(pc.Allreduce_init, comm=comm, sendbuf=x, recvbuf=out),
            "comm sendbuf recvbuf op quorum deliver history late missed progress algorithm domain "
            "seed name like",
        ),
        "Allreduce": (
            lambda name: lambda value: pc.Allreduce(
                **{"comm": comm, "sendbuf": x, "recvbuf": out, "name": name, name: value}
            ),
            "comm sendbuf recvbuf op quorum late algorithm domain progress",
        ),
        "GossipBuffer": (
            made(pc.GossipBuffer, comm=comm, like=x),
            "comm like topology codec max_uncollected progress",
        ),
        "GroupAllreduce_init": (
            made(pc.GroupAllreduce_init, comm=comm, sendbuf=x, recvbuf=out, grid=(1,)),
            "comm sendbuf recvbuf grid keys bandwidth timeout window",
        ),
        "StateExchange": (made(pc.StateExchange, comm=comm), "comm timeout patience"),
        "Schedule": (made(pc.Schedule, comm=comm), "comm"),
        "handle.Wait": (call(handle, "Wait"), "timeout"),
        "handle.until": (lambda name: lambda value: next(handle.until(value), 0), "rounds"),
        "handle.Pready": (call(handle, "Pready"), "buffer"),
        "Startall": (lambda name: pc.Startall, "handles"),
        "Waitall": (lambda name: pc.Waitall, "handles"),
        "Waitany": (lambda name: pc.Waitany, "handles"),
        "group.Wait": (call(group, "Wait"), "timeout"),
        "gossip.publish": (call(gossip, "publish"), "x"),
        "gossip.read": (call(gossip, "read"), "peer"),
        "gossip.read ": (call(gossip, "read", 0), "key out"),
        "gossip.average": (call(gossip, "average", x.copy()), "peer"),
        "gossip.collect": (call(gossip, "collect"), "x"),
        "gossip.collect ": (call(gossip, "collect", x.copy()), "momentum ratio"),
        "gossip.push": (call(gossip, "push", 0), "x"),
                "gossip.drain": (call(gossip, "drain"), "key"),
        "gossip.peek": (call(gossip, "peek", 0), "key out"),
        "states.serve": (lambda name: lambda value: states.serve(value, {}), "round"),
        "states.ask": (call(states, "ask"), "peers"),
        "schedule.send": (lambda name: lambda v: schedule.send(**{"buf": x, "dest": 0, name: v}),
            "buf dest tag label"),
        "schedule.recv": (lambda name: lambda v: schedule.recv(**{"buf": out, "source": 0,
            name: v}),
            "buf source tag label"),
        "schedule.reduce": (
            lambda name: lambda v: schedule.reduce(**{"buf": x, "into": out, name: v}),
                "buf into op"
        ),
        "schedule.copy": (
            lambda name: lambda v: schedule.copy(**{"buf": x, "into": out, name: v}), "buf into"
        ),
        "schedule.timer": (lambda name: schedule.timer, "seconds"),
        "Lattice": (lambda name: lambda v: pc.Lattice(**{name: v}), "bits margin seed rotate"),
        "Lattice.encode": (lambda name: codec.encode, "x"),
        "Grid": (lambda name: pc.Grid, "grid"),
        "Grid ": (lambda name: lambda v: pc.Grid((2, 2), v), "peers"),
        "Topology.make": (lambda name: lambda v: pc.Topology.make(v, 4), "topology"),
        "Topology.make ": (lambda name: lambda v: pc.Topology.make("ring", v), "n"),
        "topology.neighbors": (lambda name: topology.neighbors, "rank"),
        "topology.a2cid2": (lambda name: topology.a2cid2, "rate"),
        "Quorum": (lambda name: pc.Quorum, "quorum"),
        "FirstOf": (lambda name: pc.FirstOf, "m"),
        "Solo": (
            lambda name: lambda v: pc.Solo(**{name: v}), "linger deadline max_staleness"
        ),
    }
    OURS = (TypeError, ValueError, NotImplementedError, MemoryError, TimeoutError, pc.Error)
    NOT_THE_ARGUMENT = (pc.StateError, MemoryError, TimeoutError)
    RAW = (
        "must be real number", "cannot be interpreted", "has no attribute", "not iterable",
        "unexpected keyword", "positional argument", "not subscriptable", "unhashable",
        "could not convert", "object is not", "unsupported operand", "not supported between",
        "truth value", "an integer is required", "ufunc", "initializer for ctype", "has no len",
        "can't encode", "embedded null", "too big to convert", "invalid literal", "not callable",
        "broadcast", "Cannot cast", "codec can't",
    )
    def complain(label, name, kind, error):
        text = repr(str(error)[:150])
        say(f"{label.strip()}({name}: {kind}): {type(error).__name__}: {text}")

    cases = 0
    for label, (prepare, names) in CALLS.items():
        for name, (kind, value) in itertools.product(names.split(), VALUES.items()):
            cases += 1
            try:
                prepare(name)(value)
                continue
            except OURS as error:
                text = str(error)
                unnamed = name not in text and not isinstance(error, NOT_THE_ARGUMENT)
                raw = any(words in text for words in RAW)
                if unnamed or raw or not text or chr(10) in text:
                    complain(label, name, kind, error)
            except Exception as error:
                complain(label, name, kind, error)
    say("cases", cases)
"""


def test_misuse(run):
    done = run(MISUSE)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    *complaints, last = done.stdout.splitlines()
    assert not complaints, f"{len(complaints)}\n" + "\n".join(complaints[:200])
    assert int(last.split()[1]) > 3000
