# SPDX-License-Identifier: Apache-2.0
"""A communication thread is not inside MPI when MPI is finalized."""


def test_a_thread_that_is_never_idle(run):
    done = run(
        """
        from partialcoll.decentralized import ADPSGDProcess
        graph = pc.Topology.make("complete", comm.size)
        buffer = pc.GossipBuffer(comm, like=np.zeros(1000), topology=graph)
        peers = pc.pairing.make("random", graph, comm.rank)
        process = ADPSGDProcess(np.full(1000, float(comm.rank)), buffer, peers, rate=None)
        process.start()
        for _ in range(20):
            process.apply(np.ones(1000))
        MPI.Finalize()
        say("over")
        """,
        ranks=3,
    )
    assert done.returncode == 0 and done.stdout.split() == 3 * ["over"], done.stdout + done.stderr
