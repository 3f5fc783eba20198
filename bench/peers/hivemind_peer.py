# SPDX-License-Identifier: Apache-2.0
"""A peer of hivemind's swarm, in an interpreter that has hivemind; obeys standard input."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

PEER = {"min_matchmaking_time": 1.0, "request_timeout": 0.5}  # seconds
LOCAL = {
    "host_maddrs": ["/ip4/127.0.0.1/tcp/0"],
    "nat_port_map": False,
    "auto_nat": False,
    "use_relay": False,
    "use_ipfs": False,
}


def say(**what: Any) -> None:
    print("@" + json.dumps(what), flush=True)


def begin_at(moment: float) -> float:
    time.sleep(max(0.0, moment - time.time()))
    return moment


def peer(index: int, ranks: int, count: int, initial: str) -> None:
    """Run one process of the swarm. Each line of standard input is a moment to begin at."""
    import hivemind
    import torch

    torch.set_num_threads(1)

    class Timed(hivemind.DecentralizedAverager):  # type: ignore[misc]
        """An averager that knows when its allreduce began and ended; another process runs it."""

        def __init__(self, *words: Any, **how: Any) -> None:
            import multiprocessing

            self.span = multiprocessing.Array("d", 2)
            super().__init__(*words, **how)

        async def _aggregate_with_group(self, *words: Any, **how: Any) -> Any:
            self.span[0] = time.time()
            try:
                return await super()._aggregate_with_group(*words, **how)
            finally:
                self.span[1] = time.time()

    dht = hivemind.DHT(initial_peers=[initial] if initial else None, start=True, **LOCAL)
    x = torch.zeros(count)
    averager = Timed(
        [x], dht, start=True, prefix="bench", target_group_size=ranks, min_group_size=ranks, **PEER
    )
    say(ready=[str(a) for a in dht.get_visible_maddrs()], version=hivemind.__version__)
    for step, line in enumerate(sys.stdin):
        with averager.get_tensors() as tensors:
            tensors[0].fill_(float(index + step))
        begin = begin_at(float(line))
        averager.step(timeout=60)
        end = time.time()
        with averager.get_tensors() as tensors:
            expected = (ranks - 1) / 2 + step
            exact = bool((tensors[0] == expected).all())
        say(step=end - begin, span=list(averager.span), exact=exact)
    averager.shutdown()
    dht.shutdown()


if __name__ == "__main__":
    peer(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
