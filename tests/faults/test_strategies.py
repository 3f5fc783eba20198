# SPDX-License-Identifier: Apache-2.0
"""Ranks die, and training in pairs or groups continues (``on_failure="continue"``)."""

import dataclasses
import json

import numpy as np
import pytest
from ulfm import needs_ulfm

from partialcoll import decentralized

pytestmark = pytest.mark.one_domain

# A quadratic whose minimum is about the mean of the live ranks' targets.
PROGRAM = """
    import faulthandler, json, os, random, signal, threading
    faulthandler.dump_traceback_later(60, exit=True)
    from partialcoll import decentralized as d
    from partialcoll.decentralized.process import GlobalSum
    given = json.loads(sys.argv[1])
    victims = given["victims"]
    world = MPI.COMM_WORLD.Dup()
    options = getattr(d, given["options"])(on_failure="continue", **given["how"])
    options.check(comm)
    x = np.zeros(1000)
    setup = options.build(x, comm, learning_rate=0.05, total=GlobalSum.over(comm))
    process, buffer = setup.process, setup.owned[0]
    process.start()
    comm.Barrier()
    if comm.rank in victims:
        threading.Timer(0.1 + 0.2 * random.random(), os.kill, (os.getpid(), signal.SIGKILL)).start()
    target = 10.0 * comm.rank

    def some_steps(count):
        for _ in range(count):
            process.step(process.model - target)
            time.sleep(0.001)

    begin = time.monotonic()
    while buffer.failed.sum() < len(victims) and time.monotonic() < begin + 30:
        some_steps(1)
    assert sorted(np.flatnonzero(buffer.failed)) == victims
    communications = process.stats.communications
    folder, told = given["folder"], False
    while len(os.listdir(folder)) < comm.size - len(victims) and time.monotonic() < begin + 50:
        some_steps(1)  # while others need this rank as a partner
        if not told and process.stats.communications > communications + 10:
            told = open(f"{folder}/{comm.rank}", "w").close() is None
    if hasattr(process, "leave"):
        process.leave()  # group averaging does not wait for ranks that are here
    assert process.stats.communications > communications + 10, process.stats
    model = process.model
    # Elements may differ: the model is averaged while gradients are computed, and a dead rank may
    # have averaged some.
    assert (-1 <= model).all() and (model <= 10.0 * comm.size).all(), model
    left = world.Shrink()
    left.Barrier()
    process.stop()
    say("end", model[0])
"""

KINDS = {
    "ADPSGD": {"topology": "ring", "on_disconnect": "bridge"},
    "A2CiD2": {"topology": "complete", "pairing": "available"},
    "Swarm": {"topology": "star", "on_disconnect": "bridge", "local_steps": 2},
    "Moshpit": {"grid": [2, 3], "timeout": 100.0},
}


def takes_on_failure(options):
    return "on_failure" in {field.name for field in dataclasses.fields(options)}


def test_all_strategies_are_here():
    known = {name: getattr(decentralized, name) for name in decentralized.strategies.__all__}
    assert {name for name, one in known.items() if takes_on_failure(one)} == set(KINDS)


@needs_ulfm
@pytest.mark.parametrize("options", KINDS)
def test_steps_continue(run, tmp_path, options):
    victims, folder = [0, 3], tmp_path / "enough"
    folder.mkdir()
    given = {"options": options, "how": KINDS[options], "victims": victims, "folder": str(folder)}
    given = json.dumps(given)
    done = run(PROGRAM, ranks=6, arguments=[given], launcher_options=["--with-ft", "ulfm"])
    ended = [line for line in done.stdout.splitlines() if line.startswith("end")]
    assert len(ended) == 6 - len(victims), f"{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, done.stderr


# The world loses a rank with each strategy, at a random point of its steps. The last strategy
# raises the error.
OPTIMIZERS = """
    import dataclasses, faulthandler, os, random, signal, threading, types
    faulthandler.dump_traceback_later(110, exit=True)
    import torch
    torch._dynamo = sys.modules["torch._dynamo"] = types.SimpleNamespace(  # takes a second to load
        disable=lambda function=None, *_, **__: function, graph_break=lambda: None
    )
    import partialcoll.torch as pct
    from partialcoll._core.failures import failed_ranks
    from partialcoll.decentralized import LocalStrategy

    def takes_on_failure(kind):
        strategy = dataclasses.is_dataclass(kind) and issubclass(kind, LocalStrategy)
        return strategy and "on_failure" in {field.name for field in dataclasses.fields(kind)}

    kinds = sorted(filter(takes_on_failure, vars(pct).values()), key=lambda kind: kind.__name__)
    jobs = [(kind, "continue") for kind in kinds] + [(pct.Moshpit, "raise")]
    torch.set_num_threads(1)
    for died, (kind, on_failure) in enumerate(jobs):
        pct.init(on_failure="continue")
        model = torch.nn.Linear(20, 4)
        inner = torch.optim.SGD(model.parameters(), 0.01)
        opt = pct.DistributedOptimizer(inner, strategy=kind(on_failure=on_failure), model=model)

        def some_steps(count):
            for _ in range(count):
                opt.zero_grad()
                model(torch.ones(8, 20)).square().mean().backward()
                opt.step()

        some_steps(10)
        if pct.rank() == pct.size() - 1:
            die = os.getpid(), signal.SIGKILL
            threading.Timer(0.05 * random.random(), os.kill, die).start()
        try:
            while len(failed_ranks(MPI.COMM_WORLD)) <= died:
                some_steps(1)
            some_steps(50)
            while on_failure == "raise":
                some_steps(1)
        except pc.RankFailedError as error:
            assert on_failure == "raise", error
        else:
            opt.join()
            assert opt.metrics().failed == (pct.size() - 1,), (kind, opt.metrics())
            assert len(set(pct.allgather_object(str(model.weight.tolist())))) == 1
            opt.close()
            pct.shutdown()
    say("end", len(kinds))
"""


@needs_ulfm
def test_optimizers_continue(run):
    pytest.importorskip("torch")
    ranks = len(KINDS) + 3  # each strategy loses one; two are left
    done = run(OPTIMIZERS, ranks=ranks, launcher_options=["--with-ft", "ulfm"])
    said = f"{done.stdout}\n{done.stderr}"
    assert done.stdout.splitlines().count(f"end {len(KINDS)}") == 2, said
    assert done.returncode == 0, said


@pytest.mark.parametrize("options", KINDS)
def test_refused_where_deaths_are_not_reported(comm, options):
    if comm.size == 1 and options != "Moshpit":
        return  # no partner to gossip with
    given = getattr(decentralized, options)(on_failure="continue")
    with pytest.raises(ValueError, match=r'on_failure: "continue" needs (the agent|an MPI)'):
        total = decentralized.GlobalSum.over(comm)
        try:
            given.build(np.zeros(8), comm, learning_rate=0.1, total=total)
        finally:
            total.Free()
