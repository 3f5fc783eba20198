# SPDX-License-Identifier: Apache-2.0
"""Tables over several results of `bench train`: a slow rank, accuracy at equal epochs, rings."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from partialcoll.tools import report

Rows = list[dict[str, Any]]


def table(rows: Rows, columns: Iterable[str]) -> str:
    text = io.StringIO()
    report.table(rows, columns, text)
    return text.getvalue().rstrip()


# Lian et al., ICML 2018, section 5.4, "Robustness against slow computation": seconds per epoch of
# ResNet-20 on CIFAR-10, 16 workers, one of which is so many times slower.
PAPERS: dict[float, dict[str, float]] = {
    1: {"adpsgd": 1.22, "allreduce": 1.47, "dpsgd": 1.45},
    2: {"adpsgd": 1.28, "allreduce": 2.6, "dpsgd": 2.36},
    10: {"adpsgd": 1.33, "allreduce": 11.51, "dpsgd": 11.24},
    100: {"adpsgd": 1.33, "allreduce": 100.4, "dpsgd": 100.4},
}


def slow(docs: Rows) -> str:
    """Steps per second of the others beside those without a slow rank, and the paper's epochs."""
    rates: dict[str, dict[float, float]] = {}
    for doc in docs:
        factor = float(doc["settings"]["pattern"].partition(":")[2] or 1)
        for row in doc["rows"]:
            rates.setdefault(row["strategy"], {})[factor] = row["steps_per_s"]
    rows, names = [], ["rank 0 slower by"]
    for factor in sorted({factor for own in rates.values() for factor in own}):
        line: dict[str, Any] = {"rank 0 slower by": f"{factor:g}"}
        for name, own in rates.items():
            if factor in own:
                line[name] = f"{own[factor]:.2f} ({own[factor] / own[1]:.1%})"
        for name, undelayed in PAPERS[1].items():
            if factor in PAPERS:
                part = undelayed / PAPERS[factor][name]
                line[f"paper's {name}"] = f"{PAPERS[factor][name]:g} s ({part:.1%})"
        names += [name for name in line if name not in names]
        rows.append(line)
    return (
        "Steps per second of a rank, the median (of the rate with no slow rank). The paper's: "
        "seconds per\nepoch of all 16 workers, so that one that does nothing leaves 93.8 % of the "
        "rate.\n" + table(rows, names)
    )


def by_strategy(docs: Iterable[dict[str, Any]]) -> dict[tuple[str, str | None], Rows]:
    """The rows of all seeds."""
    found: dict[tuple[str, str | None], Rows] = {}
    for doc in docs:
        for row in doc["rows"]:
            found.setdefault((row["strategy"], row["topology"]), []).append(row)
    return found


def mean(rows: Rows, field: str) -> float:
    return float(np.mean([row[field] for row in rows]))


def accuracy(docs: Rows) -> str:
    """Percent, and points from the allreduce's."""
    own = by_strategy(docs)
    base = mean(own["allreduce", None], "accuracy")
    rows = []
    for (name, topology), some in own.items():
        found = mean(some, "accuracy")
        rows.append(
            {
                "strategy": name,
                "topology": topology,
                "accuracy %": f"{found * 100:.2f}",
                "points from allreduce": f"{(found - base) * 100:+.2f}",
                "within 1.5": "yes" if found > base - 0.015 else "NO",
                "of seeds": " ".join(f"{row['accuracy'] * 100:.2f}" for row in some),
                "loss": mean(some, "final_loss"),
                "consensus": mean(some, "consensus"),
                "communications": mean(some, "communications"),
            }
        )
    text = table(rows, rows[0])
    eight = own.get(("swarm-8bit", "complete"), [])
    if eight:
        apart = mean(eight, "accuracy") - mean(own["swarm", "complete"], "accuracy")
        text += f"\n8-bit Swarm is {apart * 100:+.2f} points from Swarm (at least -0.5 wanted)"
    return text


def more(docs: Rows) -> str:
    """What one strategy comes to with more steps than the allreduce."""
    steps = min(doc["settings"]["steps"] for doc in docs)
    first = [doc for doc in docs if doc["settings"]["steps"] == steps]
    base = mean(by_strategy(first)["allreduce", None], "accuracy")
    rows = []
    longer = {key for doc in docs if doc["settings"]["steps"] > steps for key in by_strategy([doc])}
    for key in sorted(longer, key=str):
        for count in sorted({doc["settings"]["steps"] for doc in docs}):
            own = by_strategy(doc for doc in docs if doc["settings"]["steps"] == count)
            if key in own:
                found = mean(own[key], "accuracy")
                rows.append(
                    {
                        "strategy": key[0],
                        "steps": count,
                        "times the epochs": f"{count / steps:.2f}",
                        "accuracy %": f"{found * 100:.2f}",
                        "points from allreduce": f"{(found - base) * 100:+.2f}",
                    }
                )
    return table(rows, rows[0])


def rings(docs: Rows) -> str:
    """Consensus distance, root mean square over the run, over its second half, and all seeds."""
    rows = []
    for doc in docs:
        own: dict[str, Rows] = {}
        for run in doc["runs"]:
            own.setdefault(run["strategy"], []).append(run)
        for name, runs in own.items():
            late = [run["course"]["consensus"] for run in runs]
            values = np.concatenate([some[len(some) // 2 :] for some in late])
            whole = np.concatenate(late)
            some = [row for row in doc["rows"] if row["strategy"] == name]
            rows.append(
                {
                    "ranks": doc["env"]["ranks"],
                    "data": doc["settings"]["data"],
                    "strategy": name,
                    "consensus": float(np.sqrt(np.mean(whole**2))),
                    "second half": float(np.sqrt(np.mean(values**2))),
                    "in the end": mean(some, "consensus"),
                    "communications of a rank": f"{mean(some, 'communications'):.1f}",
                    "accuracy %": f"{mean(some, 'accuracy') * 100:.2f}",
                }
            )
    return table(rows, rows[0])


def of(docs: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The tables over several results, by name, of whose results there are any."""
    made = {
        "train-worker": (slow, r"train-worker-(allreduce-)?\d+"),
        "train-accuracy": (accuracy, r"train-accuracy-\d+"),
        "train-more": (more, r"train-(accuracy|more)-\d+"),
        "train-ring": (rings, r"train-ring-\d+-\w+"),
    }
    for name, (table_of, pattern) in made.items():
        some = [doc for each, doc in docs.items() if re.fullmatch(pattern, each)]
        if some and (name != "train-more" or any("more" in each for each in docs)):
            yield name, table_of(some)
