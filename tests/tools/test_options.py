# SPDX-License-Identifier: Apache-2.0
"""Each option of each command, given words that make no sense for any of them."""

import pytest

from partialcoll.tools.cli import bench, main, sim

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

TEXTS = ("--json", "--hosts", "--output", "--mpiexec-args")  # that may be any
OPTIONS = [
    (group, name, option.opts[0])
    for group, module in (("bench", bench), ("sim", sim))
    for name, command in module.commands.commands.items()
    for option in command.params
    if not option.is_flag and option.opts[0] not in TEXTS
]


@pytest.mark.parametrize(("group", "name", "option"), OPTIONS, ids=" ".join)
def test_nonsense(group, name, option, capsys, monkeypatch):
    """Refused with the option's name, before anything runs."""
    monkeypatch.setattr("partialcoll.tools.launcher.relaunch", None)
    monkeypatch.setattr("partialcoll.tools.launcher.in_job", lambda: False)
    for word in ("☃", "-1e400", "nan", "", ","):
        with pytest.raises(SystemExit) as refused:
            main([group, name, option, word])
        usage, sentence = capsys.readouterr().err.splitlines()
        assert refused.value.code == 2 and usage.startswith(f"usage: partialcoll {group} {name}")
        assert f"{option}: " in sentence and "expected" in sentence, sentence
