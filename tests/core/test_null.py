# SPDX-License-Identifier: Apache-2.0
"""NULL for every pointer argument of every function of the C interface: the call behaves as the
header says, without a signal."""

import re
from pathlib import Path

import pytest

INCLUDE = Path(__file__).resolve().parents[2] / "csrc/include"
COMMENT_OR_FUNCTION = re.compile(
    r"/\*(?P<comment>.*?)\*/|^[\w *]+?\b(?P<name>(?:pcoll|PCOLL)_\w+)\((?P<arguments>[^;{]*)\);",
    re.DOTALL | re.MULTILINE,
)


def allowed(comment):
    """Return the pointers that a comment allows to be NULL, each with its condition or ""."""
    found = re.search(r"May be NULL: ([^.]*)\.", re.sub(r"\s*\n \*\s*", " ", comment))
    items = re.findall(r"(\w+)(?: \(([^)]*)\))?(?:, |$)", found[1]) if found else []
    assert ", ".join(n + f" ({c})" * bool(c) for n, c in items) == (found[1] if found else "")
    return dict(items)


def functions(header):
    """Return by name, for each pointer argument, the condition under which it may be NULL ("":
    always), or None if it must not be. A comment describes the functions up to the next one."""
    found, block, nullable = {}, set(), {}
    for match in COMMENT_OR_FUNCTION.finditer((INCLUDE / header).read_text()):
        if match["comment"]:
            assert set(nullable) <= block, (nullable, "are no arguments of", sorted(found)[-1:])
            nullable, block = allowed(match["comment"]), set()
            continue
        arguments = re.findall(r"[^,]+\*[^,]*?(\w+)\s*(?:,|$)", match["arguments"])
        found[match["name"]] = {name: nullable.get(name) for name in arguments}
        block |= set(arguments)
    return found


SCRIPT = """
{choice}

keep = []

def memory(text=b""):
    keep.append(ffi.new("char[]", text.ljust(1 << 16, bytes(1))))
    return keep[-1]

def initialized(kind, **members):
    keep.append(ffi.new(f"pcoll_{{kind}} *"))
    init = getattr(lib, f"pcoll_{{kind}}_init", None)
    if init:
        init(keep[-1])
    for name, value in members.items():
        setattr(keep[-1], name, value)
    return keep[-1]

def made(kind, *arguments):
    place = ffi.new(f"pcoll_{{kind}} **")
    keep.append(place)
    name = "allreduce" if kind == "handle" else kind
    rc = getattr(lib, f"pcoll_{{name}}_create")(comm_at, *arguments, place)
    assert rc == lib.PCOLL_OK, (kind, ffi.string(lib.pcoll_last_error()))
    return place

comm_at = ffi.cast("void *", MPI._addressof(comm)) if of_core else memory()
places = {{}}
if of_core:
    gossip_options = initialized("gossip_options", count=8)
    group_options = initialized("group_options", count=8)

def values(empty):
    # By the name of an argument, or by its type.
    count = 0 if empty else 4
    buffer = ffi.new("pcoll_buffer *", dict(count=count))
    keep.append(buffer)
    options = initialized("options", owned_send=empty)
    if of_core:
        places["handle"] = made("handle", buffer, 1, options)
        places["schedule"] = made("schedule")
        places["gossip"] = made("gossip", gossip_options)
        places["group"] = made("group", group_options)
    lattice = initialized("lattice", count=count, dtype=lib.PCOLL_FLOAT32)
    keep.append(ffi.new("void *[]", [memory()]))
    by_type = {{
        "pcoll_options": options, "pcoll_policy": initialized("policy"), "pcoll_lattice": lattice,
        "pcoll_buffer": buffer, "pcoll_network": initialized("network") if not of_core else None,
        "void * *": keep[-1],
        **{{f"pcoll_{{kind}}": place[0] for kind, place in places.items()}},
    }}
    if of_core:
        by_type |= {{"pcoll_gossip_options": gossip_options, "pcoll_group_options": group_options}}
    by_name = {{
        "comm": comm_at, "format": memory(b"text"), "why": memory(b"why"),
        "count": count, "bytes": count, "nbuffers": 1, "ranks": 1, "axes": 1, "members": 1,
        "capacity": 64, "rounds": 1, "margin": 2.0, "weight": 0.5,
    }}
    return by_type, by_name

def argument(kind, name, by_type, by_name):
    if kind.kind != "pointer":
        return by_name.get(name, 0) if name != "comm" else 0
    of = kind.item.cname.removeprefix("struct ").removeprefix("const ")
    if of in by_type:
        return by_type[of]
    value = by_name.get(name, 0)
    return ffi.cast(kind, value if isinstance(value, ffi.CData) else memory())

def call(name, order, null, by_type, by_name):
    function = getattr(lib, name)
    kind = ffi.typeof(function)
    given = [
        ffi.NULL if n in null else argument(k, n, by_type, by_name)
        for k, n in zip(kind.args, order)
    ]
    say("calling", name, "with NULL for", *null)
    rc = function(*given)
    if kind.result.kind != "void" and rc == lib.PCOLL_EINVAL:
        return ffi.string(lib.pcoll_last_error()).decode()
    return None

wrong = []
full, empty = values(False), values(True)
for name, (order, pointers) in table.items():
    void = ffi.typeof(getattr(lib, name)).result.cname in ("void", "uint64_t")
    for pointer, condition in pointers.items():
        message = call(name, order, [pointer], *full)
        if void or condition == "":
            good = message is None or not message.startswith(f"{{pointer}}: expected an address")
        else:
            good = message == f"{{pointer}}: expected an address, got NULL"
        if not good:
            wrong.append((name, pointer, condition, message))
    null = [pointer for pointer, condition in pointers.items() if condition]
    if null and (message := call(name, order, null, *empty)) and "got NULL" in message:
        wrong.append((name, null, "none has elements", message))
for kind, place in places.items():
    getattr(lib, f"pcoll_{{kind}}_free")(place, 10000000)
say("wrong", wrong)
"""
CORE = "from partialcoll._core.ffi import ffi, lib\nof_core = True"
SIMULATOR = "from partialcoll._simulator import ffi, lib\nof_core = False"


def table(header):
    """Return the table for the script: the names of all arguments, and the pointers among them."""
    text = re.sub(r"/\*.*?\*/", "", (INCLUDE / header).read_text(), flags=re.DOTALL)
    result = {}
    for name, pointers in functions(header).items():
        arguments = re.search(rf"\b{name}\(([^;{{]*)\);", text)[1]
        if pointers and name.startswith("pcoll_"):
            order = [re.search(r"(\w+)\s*$", one)[1] for one in arguments.split(",")]
            result[name] = order, pointers
    return result


@pytest.mark.parametrize(
    "header, choice, at_least",
    [("partialcoll.h", CORE, 100), ("simulator.h", SIMULATOR, 10)],
    ids=["core", "simulator"],
)
def test_null_for_every_pointer(run, header, choice, at_least):
    known = table(header)
    assert len(known) >= at_least
    done = run(f"table = {known!r}\n" + SCRIPT.format(choice=choice))
    assert done.returncode == 0, (done.stdout.splitlines()[-1:], done.stderr)
    assert done.stdout.splitlines()[-1] == "wrong []"


@pytest.mark.one_mpi
def test_null_in_functions_shaped_like_mpi():
    """tests/compat/capi/dropin.c calls these."""
    shaped = {n: p for n, p in functions("partialcoll.h").items() if n.startswith("PCOLL_")}
    assert shaped == {
        "PCOLL_Allreduce": {"sendbuf": "count 0", "recvbuf": "count 0"},
        "PCOLL_Comm_set_quorum": {"quorum": ""},
    }
