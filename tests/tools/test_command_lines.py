# SPDX-License-Identifier: Apache-2.0
"""Arbitrary command lines: each option of each command with each kind of value, and combinations.
The command ends by itself, names the wrong option in one sentence, and shows no traceback. Jobs are
not started; simulations run for a moment. The parser provides the lines, with new options too.
"""

import json
import random
import subprocess
import sys
import textwrap

import click
import pytest

from partialcoll.tools import cli

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

PARTS = 4
LIMIT_S = 300
VALUES = (
    "",
    " ",
    "x",
    "-",
    "--",
    "-1",
    "0",
    "1",
    "2",
    "0.5",
    "1e-300",
    "1e300",
    "nan",
    "-inf",
    "9" * 20,
    "9" * 5000,
    "True",
    "None",
    ",",
    "1,2",
    "1,,x",
    "8:4",
    "4K",
    "2x2",
    "0x0",
    "ring",
    "solo,linger=1ms",
    "mpi,full",
    "a\nb",
    "\x1b[31m\t",
    "é☃",
    "\udcff",  # a byte that is no text
    "%s%n{0}",
    "'\"",
    "$(false)",
    "/",
    ".",
    "/nonexistent/x.json",
    "/dev/full",
    "/dev/null/x.png",
)
QUICK = {  # short simulations; the tried options follow
    ("run",): ["-n", "2"],
    ("sim", "skew"): ["--ranks", "8", "--iters", "2"],
    ("sim", "gossip"): ["--ranks", "4", "--time", "2", "--samples", "2"],
    ("sim", "moshpit"): ["--peers", "16", "--restarts", "1", "--rounds", "2"],
}
AFTER = {("run",): ["true"]}  # required after the options
# Runs each command line in its own process; prints its end and its output.
DRIVER = """
    import json, os, resource, select, signal, sys, time
    from partialcoll.tools import cli, launcher
    from partialcoll.tools.cli import bench, sim, start
    from partialcoll.tools.bench.faults import killing
    from partialcoll.tools.sim import gossip, moshpit, skew

    def run(words, end):
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(end, 2)
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, 0.5)
        launcher.Launch.run = lambda *job, **how: 0
        killing.run = lambda options: []
        status = 70
        try:
            status = cli.main(words)
        except SystemExit as done:
            status = done.code
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)

    for line in sys.stdin:
        words = json.loads(line)
        begin, end = os.pipe()
        child = os.fork()
        if child == 0:
            run(words, end)
        os.close(end)
        said, until, ended = b"", time.monotonic() + 60, False
        while not ended and select.select([begin], [], [], max(0, until - time.monotonic()))[0]:
            piece = os.read(begin, 1 << 16)
            said, ended = said + piece, not piece
        os.close(begin)
        if not ended:
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(json.dumps([words, status if ended else "HANGS", said.decode(errors="replace")]))
"""


def leaves(command, path=()):
    """Return the commands without subcommands, by their words."""
    if not isinstance(command, click.Group):
        return {path: command}
    found = {}
    for name in command.list_commands(None):
        found |= leaves(command.get_command(None, name), (*path, name))
    return found


COMMANDS = {path: command for path, command in leaves(cli.commands).items() if path != ("info",)}
OPTIONS = [
    (path, param)
    for path, command in COMMANDS.items()
    for param in command.params
    if isinstance(param, click.Option)
]


def words_of(param, value):
    return [param.opts[-1]] if param.is_flag else [param.opts[-1], value]


def singles():
    for path, param in OPTIONS:
        for value in VALUES[:1] if param.is_flag else VALUES:
            words = [*path, *QUICK.get(path, []), *words_of(param, value)]
            yield words + AFTER.get(path, [])


def several(count):
    """Yield two to four options of one command at once, and invalid words."""
    draw = random.Random(7)
    for _ in range(count):
        path, _ = draw.choice(OPTIONS)
        words = [*path, *QUICK.get(path, [])]
        for _ in range(draw.randint(2, 4)):
            param = draw.choice([param for which, param in OPTIONS if which == path])
            words += words_of(param, draw.choice(VALUES))
        if draw.random() < 0.2:
            words.insert(draw.randint(0, len(words)), draw.choice(VALUES))
        yield words + AFTER.get(path, [])


def ended_well(words, status, said):
    """Return a description of what is wrong, or ""."""
    if "Traceback" in said or "Exception ignored" in said:
        return "a traceback"
    if status in (0, -27):  # success, or its half second is over: SIGPROF
        return ""
    lines = said.splitlines()
    if status == 1:
        lines = [line for line in lines if not line.startswith("A2CiD2 has no momentum")]  # warns
        return "" if len(lines) == 1 else f"{len(lines)} lines instead of a sentence"
    if status != 2:
        return f"it ended with {status}"
    if len(lines) != 2 or not lines[0].startswith("usage: "):
        return f"{len(lines)} lines instead of usage and a sentence"
    named = any(word in lines[1] for word in words if word.startswith("-") and len(word) > 1)
    misplaced = ("argument", "command", "No such option")
    return "" if named or any(word in lines[1] for word in misplaced) else "no option is named"


def complaints(cases, folder):
    """Return what is wrong with each case. Files that it writes are in the folder."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DRIVER)],
        input="".join(json.dumps(case) + "\n" for case in cases),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == len(cases)
    return [(what, *row) for row in rows if (what := ended_well(*row))]


def show(found):
    return "\n".join(
        f"{what}: {words} -> {status}\n  {said[-600:]}" for what, words, status, said in found[:40]
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_typed(part, tmp_path):
    cases = [*singles(), *several(200)]
    assert len(cases) > 3000
    found = complaints(cases[part::PARTS], tmp_path)
    assert not found, f"{len(found)}\n{show(found)}"
