# SPDX-License-Identifier: Apache-2.0
"""Functions of the C interface about an object, with NULL for it: an error, not a signal."""

SCRIPT = """
from partialcoll._core.ffi import ffi, lib

def argument(kind):
    return ffi.NULL if kind.kind == "pointer" else 0

for name in sorted(dir(lib)):
    kind = ffi.typeof(getattr(lib, name)) if callable(getattr(lib, name)) else None
    if kind is None or not kind.args or kind.args[0].kind != "pointer":
        continue
    of = kind.args[0].item.cname.removeprefix("struct pcoll_")
    if of not in ("handle", "schedule", "gossip", "group"):
        continue
    say("trying", name)
    say(name, getattr(lib, name)(*map(argument, kind.args)))
say("end", lib.PCOLL_EINVAL, lib.PCOLL_OK)
"""


def test_null_for_every_object(run):
    done = run(SCRIPT)
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr)
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("trying")]
    invalid, good = lines[-1][1:]
    said = dict(line for line in lines if len(line) == 2)
    assert len(said) > 50
    fine = {name for name, code in said.items() if code == good}
    assert fine == {"pcoll_handle_free_begin", "pcoll_schedule_free_begin"}  # nothing to free
    assert {code for name, code in said.items() if name not in fine} == {invalid}
