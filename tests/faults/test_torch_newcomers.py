# SPDX-License-Identifier: Apache-2.0
"""Ranks are killed in training, and newcomers take their places; who comes or starts them may die
in each moment of that (docs/faults.md)."""

import json

import pytest
from test_torch_goes_on import NO_COMPILER
from ulfm import needs_ulfm

pytest.importorskip("torch")
pytestmark = [
    needs_ulfm,
    pytest.mark.in_turns,
]

# A fate is the moment in which a process dies: that of the i-th newcomer is fates[i], others live.
# Those of the first ranks are by their numbers; so is who dies before which step.
PREPARE = (
    """
    import faulthandler, json, signal
    faulthandler.dump_traceback_later(110, exit=True)
    import torch
    import partialcoll.torch as pct
    from partialcoll import elastic
    from partialcoll.torch import _meeting, newcomers, optimizer, replicated
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
                "spawning": (elastic, "spawn_and_merge"), "merged": (elastic, "_merge"),
                "forming": (newcomers.Replacing, "formed"), "comparing": (optimizer, "check_alike"),
                "making": (replicated, "Allreduce_init"), "made": (_meeting, "all_have"),
                "syncing": (pct.elastic, "broadcast_optimizer_state"),
                "saying": (pct.elastic.ObjectState, "sync"),
            }.get(fate)
            if where:
                setattr(*where, die)

    if new:
        fate != "imported" or die()
        meet_fate()
"""
    + NO_COMPILER
)

# The gradients are 1 everywhere, so nobody's death changes what comes out; in numbers that float32
# has exactly. Newcomers begin with other ones.
TRAIN = """
    STEPS = int(sys.argv[4])
    pct.init(on_failure="continue", respawn=True)
    model = torch.nn.Linear(3, 3)
    for p in model.parameters():
        torch.nn.init.constant_(p, 7.0 if new else 0.0)
    inner = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    STRATEGY = eval(sys.argv[5])
    opt = pct.DistributedOptimizer(inner, model.named_parameters(), strategy=STRATEGY)
    state = pct.elastic.TorchState(model, opt, batch=0)
    resets, steps = [], []
    state.register_reset_callbacks([lambda: resets.append((state.batch, pct.size()))])

    @pct.elastic.run
    def train(state):
        if not new and not steps:
            meet_fate()
        while state.batch < STEPS:
            steps.append(state.batch)
            opt.zero_grad()
            sum(p.sum() for p in model.parameters()).backward()
            if not new and comm.rank in kills.get(str(state.batch), ()) or fate == "stepping":
                die()
            opt.step()
            state.batch += 1
            if state.batch % 2 == 0:
                opt.join() if STRATEGY else None
                state.commit()

    train(state)
    value = speed = 0.0
    for _ in range(STEPS):
        speed = 0.5 * speed + 1
        value -= 0.125 * speed
    assert all((p == value).all() for p in model.parameters()), (value, *model.parameters())
    assert new or steps == list(range(STEPS)), steps
    assert len(set(pct.allgather_object((opt.updates if 0 else opt.round, value)))) == 1
    say("end", pct.size(), *("old", resets) if not new else ("new", mine))
    opt.close()
    pct.shutdown()
    os._exit(0)
"""


def trained(run, ranks, size, kills, fates=(), own=None, steps=8, strategy="None"):
    """All who are left say so, and how many they are; what the survivors have said."""
    given = [json.dumps(kills), json.dumps(fates), json.dumps(own or {}), str(steps), strategy]
    options = ["--with-ft", "ulfm"]
    done = run(PREPARE + TRAIN, ranks=ranks, arguments=given, launcher_options=options)
    ends = [line for line in done.stdout.splitlines() if line.startswith("end")]
    said = f"{done.stdout}\n{done.stderr}"
    assert len(ends) == size and all(e.startswith(f"end {size} ") for e in ends), said
    return [end for end in ends if "old" in end]


def test_one_is_replaced(run):
    ends = trained(run, 3, 3, {3: [1]}, steps=6)
    assert set(ends) == {"end 3 old [(4, 3)]"}, ends
