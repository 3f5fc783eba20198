# SPDX-License-Identifier: Apache-2.0
"""Draw the pictures of README and docs from the stored results.

    python docs/make/pictures.py

docs/img/skew-32.png and docs/img/train-hyperplane-300.png use MPICH, docs/img/quorums.png both.
"""

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

from partialcoll.tools import skewed
from partialcoll.tools.bench.train import plots

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs/img"


def kept(name: str, mpi: str = "mpich") -> Any:
    """Return the document of a result."""
    return json.loads((ROOT / f"bench/results/{name}/{mpi}.json").read_text())


def quorums() -> None:
    """Draw latency over the number of ranks in the sum, for both MPIs."""
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    for mpi, mark in (("mpich", "o"), ("openmpi", "s")):
        rows = kept("skew-32-quorums", mpi)["rows"]
        for row in (row for row in rows if row["domain"] in ("-", "node")):
            there, late = row["active_mean"], row["latency_us_avg"] / 1e3
            color = "tab:red" if row["collective"] == "mpi" else "tab:blue"
            least, most = row.get("spread", {}).get("latency_us_avg", [late * 1e3] * 2)
            axes.vlines(there, least / 1e3, most / 1e3, colors=color)
            axes.plot(there, late, mark, color=color)
            if mpi == "mpich":
                below = -14 if row["collective"] == "full" else 6
                axes.annotate(
                    row["collective"],
                    (there, late),
                    (-2, below),
                    textcoords="offset points",
                    ha="right",
                )
    axes.set(xlabel="ranks in the sum", ylabel="mean latency in ms", xlim=(0, 34))
    axes.set_ylim(bottom=0)
    axes.plot([], [], "ok", label="MPICH")
    axes.plot([], [], "sk", label="Open MPI")
    axes.legend(loc="upper left")
    figure.savefig(IMAGES / "quorums.png", dpi=130)


def main() -> None:
    quorums()
    rows = kept("skew-32")["rows"]
    skewed.plot(rows, str(IMAGES / "skew-32.png"), "32 ranks arriving 1 ms apart, 4 KiB")
    name = "train-hyperplane-300"
    plots.plot(kept(name), str(IMAGES / f"{name}.png"))


if __name__ == "__main__":
    main()
