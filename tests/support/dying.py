# SPDX-License-Identifier: Apache-2.0
"""Jobs of `bench faults` whose ranks die by themselves, each at its kill point (csrc/base/check.h,
in a core with checks), in the loop or, with `after`, after a short loop."""

import json
import sys
import time

from partialcoll.tools.bench.faults import killing

RANK = """
import json, os, sys
from mpi4py import MPI
from partialcoll.tools.bench.faults import worker
moment = json.loads(sys.argv[2]).get(str(MPI.COMM_WORLD.rank))
if moment:
    os.environ["PARTIALCOLL_DIE"] = moment
worker.main()
"""


class DyingJob(killing.KilledJob):
    def __init__(self, ranks, quorum, domain, die, after=False):
        super().__init__(ranks, quorum, domain, str(die), 0)
        self.die, self.after = die, after

    def worker(self):
        return [sys.executable, "-c", RANK, json.dumps(self.given), json.dumps(self.die)]

    def kill(self, job, living):
        limit = time.monotonic() + (0.5 if self.after else 30)
        left = [self.pid(living[rank]) for rank in self.die]
        while left and time.monotonic() < limit:
            time.sleep(0.01)
            left = [pid for pid in left if killing.is_there(pid)]

    def judge(self):
        for life in map(killing.Life, self.die):
            records = killing.read(life.path(self.folder, "log"))
            if not any(record.kind == killing.END for record in records):
                self.killed[life] = 0
        return super().judge()
