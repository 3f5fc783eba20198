# SPDX-License-Identifier: Apache-2.0
"""Ranks are killed in training, and newcomers take their places. Newcomers and the ranks that start
them may die at each kill point (docs/faults.md)."""

import json

import pytest
from test_torch_goes_on import NO_COMPILER
from ulfm import needs_ulfm

pytest.importorskip("torch")
pytestmark = [
    needs_ulfm,
    pytest.mark.one_domain,  # test_growth runs in each domain
    pytest.mark.in_turns,
]

# A fate is the kill point of a process: that of the i-th newcomer is fates[i], others live. Those
# of the first ranks are by number; `kills` says which ranks die before which step.
PREPARE = (
    """
    import faulthandler, json, signal
    faulthandler.dump_traceback_later(110, exit=True)
    import torch
    import partialcoll.torch as pct
    from partialcoll import elastic
    from partialcoll.torch import loop, optimizer, rounds, world
    kills, fates, own_fates = map(json.loads, sys.argv[1:4])
    new = MPI.Comm.Get_parent() != MPI.COMM_NULL

    def die(*_, **__):
        os.kill(os.getpid(), signal.SIGKILL)

    def number():  # of this newcomer
        for i in range(99):
            try:
                return open(f"newcomer {i}", "x").close() or i
            except FileExistsError:
                pass

    if new:
        mine = number()
        fate = fates[mine] if mine < len(fates) else ""
    else:
        fate = own_fates.get(str(comm.rank), "")

    def meet_fate():
        if fate.startswith("entering"):  # a handle of the world
            os.environ["PARTIALCOLL_DIE"] = fate
        elif fate:
            where = {
                "spawning": (elastic, "Spawned"), "merged": (elastic, "_merge"),
                "forming": (world.Replacing, "formed"), "comparing": (loop, "check_alike"),
                "making": (rounds, "Allreduce_init"), "made": (loop, "all_have"),
                "syncing": (pct.elastic, "broadcast_optimizer_state"),
                "saying": (pct.elastic.ObjectState, "sync"),
            }.get(fate)
            if where:
                setattr(*where, die)
            if fate == "comparing":
                optimizer.check_alike = die

    if new:
        fate != "imported" or die()
        fate != "slow" or hear("newcomer 1")  # it loads until the next one has finished
        fate != "slower" or hear("trained")
        meet_fate()
"""
    + NO_COMPILER
)

# The gradients are 1 everywhere, so no death changes the result, in numbers that float32 represents
# exactly. Newcomers start with other ones.
TRAIN = """
    STEPS, LEAST = int(sys.argv[4]), int(sys.argv[6])
    pct.init(on_failure="continue", respawn="overlap" if LEAST else True)
    model = torch.nn.Linear(3, 3)
    for p in model.parameters():
        torch.nn.init.constant_(p, 7.0 if new else 0.0)
    inner = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    quorum = sys.argv[5]
    strategy = pct.Eager(quorum, on_failure="continue") if quorum != "none" else None
    opt = pct.DistributedOptimizer(inner, model.named_parameters(), strategy=strategy)
    state = pct.elastic.TorchState(model, opt, batch=0)
    resets, steps = [], []
    state.register_reset_callbacks([lambda: resets.append((state.batch, pct.size()))])

    @pct.elastic.run
    def train(state):
        if not new and not steps:
            meet_fate()
        while state.batch < STEPS or pct.size() < LEAST:
            time.sleep(0.005 * (LEAST > 0))  # leaves the cores to the loading newcomers
            steps.append(state.batch)
            opt.zero_grad()
            sum(p.sum() for p in model.parameters()).backward()
            if not new and comm.rank in kills.get(str(state.batch), ()) or fate == "stepping":
                die()
            opt.step()
            state.batch += 1
            if state.batch % 2 == 0:
                strategy is None or opt.join()
                state.commit()

    train(state)
    tell("trained")
    alone = torch.zeros(1, requires_grad=True)
    same = torch.optim.SGD([alone], lr=0.125, momentum=0.5)
    for _ in range(state.batch):
        alone.grad = torch.ones(1)
        same.step()
    value = alone.item()
    if quorum in ("none", "full"):
        assert all((p == value).all() for p in model.parameters()), (value, *model.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).tolist()
    assert len(set(map(str, pct.allgather_object((opt.round, opt.metrics().failed, flat))))) == 1
    assert new or steps == list(range(state.batch)), steps  # nothing twice
    say("end", pct.size(), *("old", resets) if not new else ("new", mine))
    opt.close()
    pct.shutdown()
"""


def trained(run, ranks, left, kills, fates=(), own=None, steps=8, quorum="none", least=0, env=None):
    """Return the reports of the remaining ranks with their number, the survivors' and all output.
    least: training continues while newcomers load, until there are this many ranks."""
    given = [json.dumps(kills), json.dumps(fates), json.dumps(own or {}), str(steps), quorum]
    given.append(str(least))
    options = ["--with-ft", "ulfm", "--prtemca", "state_base_recoverable", "1"]
    done = run(PREPARE + TRAIN, ranks=ranks, arguments=given, launcher_options=options, env=env)
    ends = [line for line in done.stdout.splitlines() if line.startswith("end")]
    said = f"{done.stdout}\n{done.stderr}"
    assert len(ends) == left and all(end.startswith(f"end {left} ") for end in ends), said
    assert done.returncode == 0, said
    return [end for end in ends if "old" in end], said


def test_one_is_replaced(run):
    ends, _ = trained(run, 3, 3, {3: [1]}, steps=6)
    assert ends == ["end 3 old [(4, 3)]"] * 2


@pytest.mark.parametrize("kills", [{1: [0, 2], 5: [1]}, {3: [1, 2, 3]}])
def test_several_are_replaced(run, kills):
    ends, _ = trained(run, 4, 4, kills)
    assert len(ends) == 1


# Two newcomers die, one after the other, and the third comes.
@pytest.mark.parametrize(
    "fates",
    [
        ("imported", "entering:1"),
        ("forming", "entering:9"),
        ("comparing", "making"),
        ("made", "saying"),
        ("syncing", "stepping"),
    ],
)
def test_a_newcomer_dies(run, fates):
    ends, _ = trained(run, 3, 3, {3: [1]}, fates, steps=10)
    assert len(ends) == 2 and all(end.endswith("(8, 3)]") for end in ends), ends


@pytest.mark.parametrize("moment", ["spawning", "forming", "comparing", "making", "made"])
def test_a_survivor_dies_meanwhile(run, moment):
    ends, _ = trained(run, 4, 4, {3: [1]}, own={2: moment})
    assert len(ends) == 2 and all(end.endswith("(6, 4)]") for end in ends), ends


def test_the_sender_of_the_state_dies(run):
    ends, _ = trained(run, 4, 4, {3: [1]}, own={0: "syncing"})
    assert ends == ["end 4 old [(4, 4), (4, 3), (6, 4)]"] * 2


def test_not_for_ever(run):
    ends, said = trained(run, 2, 1, {1: [1]}, ["forming"] * 9, steps=12)
    assert ends == ["end 1 old [(2, 1), (4, 1), (6, 1)]"]
    assert "1 of 2 ranks are there after 3 tries" in said


@pytest.mark.parametrize("quorum", ["full", "solo"])
def test_with_eager(run, quorum):
    trained(run, 3, 3, {3: [1]}, quorum=quorum)


@pytest.mark.parametrize(
    "ranks, kills, fates, sizes",
    [
        (3, {3: [1]}, [], [2, 3]),
        (3, {3: [1]}, ["imported"], [2, 2, 3]),
        (4, {3: [1], 40: [2]}, ["slow"], [3, 2, 4]),  # and while the first one loads
    ],
)
def test_training_continues_meanwhile(run, ranks, kills, fates, sizes):
    ends, _ = trained(run, ranks, ranks, kills, fates, least=ranks)
    assert len(ends) == ranks - len(kills)
    resets = json.loads(ends[0].partition(" old ")[2].replace("(", "[").replace(")", "]"))
    assert [size for _, size in resets] == sizes
    assert resets[0][0] == 4 and resets[-1][0] > 10, "no rank has waited"


def test_training_ends_before_they_come(run):
    soon = {"PARTIALCOLL_TIMEOUT": "2"}  # six times that, if the end were not noticed in time
    ends, said = trained(run, 3, 2, {3: [1]}, ["slower"], least=2, env=soon)
    assert ends == ["end 2 old [(4, 2)]"] * 2, said


REFUSED = """
    def refused(kind, call, *words):
        try:
            call()
        except kind as error:
            assert all(word in str(error) for word in words), error
        else:
            raise AssertionError(words)

    pct.init(on_failure="continue", respawn=True)
    torch.manual_seed(1)
    model = torch.nn.Linear(3, 4 if new else 3)
    sgd = torch.optim.SGD(model.parameters(), lr=0.125)
    if not new:
        wrap = pct.DistributedOptimizer
        refused(ValueError, lambda: wrap(sgd, strategy=pct.ADPSGD(on_failure="continue")), "ADPSGD")
        refused(ValueError, lambda: wrap(sgd, strategy=pct.Allreduce()), "on_failure='continue'")
        refused(pc.StateError, lambda: pct.add_process_set([0]), "respawn")
        try:
            opt = wrap(sgd)
            state = pct.elastic.TorchState(model, opt)
            opt.zero_grad()
            model(torch.ones(3)).sum().backward()
            comm.rank != 1 or die()
            opt.step()
        except Exception as error:
            raise AssertionError from error
        call = pct.elastic.run(lambda state: state.commit())
        refused(pc.MismatchError, lambda: call(state), "shape (3, 3)", "shape (4, 3)", "rank 2")
        assert not pct.is_initialized()
    else:
        call = lambda: pct.DistributedOptimizer(sgd)
        refused(pc.MismatchError, call, "shape (3, 3)", "shape (4, 3)", "rank 2")
    say("end")
    os._exit(0)
"""


def test_other_models_and_strategies_are_refused(run):
    arguments = ["{}", "[]", "{}"]
    options = ["--with-ft", "ulfm"]
    done = run(PREPARE + REFUSED, ranks=3, arguments=arguments, launcher_options=options)
    assert done.stdout.splitlines().count("end") == 3, f"{done.stdout}\n{done.stderr}"
