# SPDX-License-Identifier: Apache-2.0
"""Ranks die, and training in pairs or groups goes on (``on_failure="continue"``)."""

import json

import pytest
from ulfm import needs_ulfm

pytestmark = needs_ulfm

# A quadratic with its minimum at the mean of the targets of those who live, about.
PROGRAM = """
    import faulthandler, json, os, random, signal, threading
    faulthandler.dump_traceback_later(60, exit=True)
    from partialcoll import decentralized as d
    from partialcoll.decentralized.global_sum import GlobalSum
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
        some_steps(1)  # as long as others need this rank to average with
        if not told and process.stats.communications > communications + 10:
            told = open(f"{folder}/{comm.rank}", "w").close() is None
    if hasattr(process, "leave"):
        process.leave()  # who averages in groups waits for nobody who has come here
    assert process.stats.communications > communications + 10, process.stats
    model = process.model
    # Not all elements alike: gradients are of a model that is averaged meanwhile, and who dies may
    # have averaged some.
    assert (-1 <= model).all() and (model <= 10.0 * comm.size).all(), model
    left = world.Shrink()
    left.Barrier()
    process.stop()
    say("end", model[0])
    left.Barrier()
    os._exit(0)
"""

KINDS = {
    "ADPSGDOptions": {"topology": "ring", "on_disconnect": "bridge"},
    "A2CiD2Options": {"topology": "complete", "pairing": "available"},
    "SwarmOptions": {"topology": "star", "on_disconnect": "bridge", "local_steps": 2},
    "MoshpitOptions": {"grid": [2, 3], "timeout": 100.0},
}


@pytest.mark.parametrize("options", KINDS)
def test_steps_go_on(run, tmp_path, options):
    victims, folder = [0, 3], tmp_path / "enough"
    folder.mkdir()
    given = {"options": options, "how": KINDS[options], "victims": victims, "folder": str(folder)}
    given = json.dumps(given)
    done = run(PROGRAM, ranks=6, arguments=[given], launcher_options=["--with-ft", "ulfm"])
    ended = [line for line in done.stdout.splitlines() if line.startswith("end")]
    assert len(ended) == 6 - len(victims), f"{done.stdout}\n{done.stderr}"
