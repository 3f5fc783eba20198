# SPDX-License-Identifier: Apache-2.0
"""The Python blocks of README and docs run as printed: all blocks of a page, in order."""

import re
from pathlib import Path

import pytest

pytestmark = [pytest.mark.one_domain, pytest.mark.in_turns]

ROOT = Path(__file__).resolve().parents[2]
RANKS = 4

# The context that a page assumes.
MODEL = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
make_model = lambda: torch.nn.Linear(4, 2)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
epochs = 2
batches_of = lambda rank, size: [(torch.ones(3, 4), torch.ones(3, 2))] * 3
loss = torch.nn.functional.mse_loss
"""
GRADIENT = "gradient_at = lambda model, batch=None: 0.01 * model\n"
GIVEN = {
    "docs/ddp.md": MODEL,
    "docs/decentralized.md": GRADIENT + "newcomer, m, schedule, step = False, 0, 0, 990\n",
    "docs/gpu.md": f"import sys\nsys.path.insert(0, '{ROOT}/tests/support')\n"
    "import fake_cupy\nsys.modules['cupy'] = fake_cupy\n",
    "docs/horovod.md": MODEL,
    "docs/loops.md": MODEL + "optimizer = None\n",
    "docs/pytorch.md": MODEL,
}
# Code before the block of that number, which begins another program.
BEFORE = {
    "docs/ddp.md": {
        1: "dist.destroy_process_group()\nmodel = make_model()\n",
        2: "model = make_model()\n",
    },
    "docs/horovod.md": {1: "loss = torch.ones(())\n"},
    "docs/pytorch.md": {2: "optimizer.close()\n"},
}
TORCH = {*GIVEN, "README.md", "docs/tutorial-pytorch.md"} - {"docs/gpu.md"}


def pages():
    files = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    found = {str(file.relative_to(ROOT)): blocks(file.read_text()) for file in files}
    return {page: code for page, code in found.items() if code}


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", pages())
def test_blocks_run(run, page):
    if page in TORCH:
        pytest.importorskip("torch")
    script = GIVEN.get(page, "")
    for i, code in enumerate(pages()[page]):
        script += BEFORE.get(page, {}).get(i, "") + code
    done = run(script, RANKS, env={"PYTHONWARNINGS": "error::DeprecationWarning:__main__"})
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr, done.stderr[-3000:]


def test_example_of_cupy_runs(run):
    """On the fake device, in place of cupy itself."""
    done = run(GIVEN["docs/gpu.md"] + (ROOT / "examples/cupy_persistent.py").read_text(), RANKS)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count(f" of {RANKS} ranks") == 10
