# SPDX-License-Identifier: Apache-2.0
"""The picture of docs/quorum.md, out of results that are kept: python docs/make/quorums.py"""

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for mpi, mark in (("mpich", "o"), ("openmpi", "s")):
        file = ROOT / f"bench/results/skew-32-quorums/{mpi}.json"
        rows = [r for r in json.loads(file.read_text())["rows"] if r["domain"] in ("-", "node")]
        for row in rows:
            there, late = row["active_mean"], row["latency_us_avg"] / 1e3
            axes.plot(
                there, late, mark, color="tab:red" if row["collective"] == "mpi" else "tab:blue"
            )
            if mpi == "mpich":
                below = -14 if row["collective"] == "full" else 6
                axes.annotate(
                    row["collective"],
                    (there, late),
                    (-2, below),
                    textcoords="offset points",
                    ha="right",
                )
    axes.set(xlabel="ranks in the sum", ylabel="mean latency in ms", xlim=(0, 34), ylim=(0, 22))
    axes.plot([], [], "ok", label="MPICH")
    axes.plot([], [], "sk", label="Open MPI")
    axes.legend(loc="upper left")
    figure.savefig(ROOT / "docs/img/quorums.png", dpi=130)


if __name__ == "__main__":
    main()
