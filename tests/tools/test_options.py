# SPDX-License-Identifier: Apache-2.0
"""Each option of each command refuses words that are invalid for all of them."""

import click
import pytest

from partialcoll.tools.cli import bench, main, sim, values

pytestmark = [pytest.mark.one_domain, pytest.mark.one_mpi]

TEXTS = ("--json", "--hosts", "--output", "--mpiexec-args")  # any text is valid
# Times for which a process cannot sleep or run if they are as large as a float can hold.
TIMES = ("--skew-ms", "--seconds", "--delay-ms", "--compute-ms", "--slow")
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
    words = ("☃", "-1e400", "nan", "", ",", *(["1e20"] if option in TIMES else []))
    for word in words:
        with pytest.raises(SystemExit) as refused:
            main([group, name, option, word])
        usage, sentence = capsys.readouterr().err.splitlines()
        assert refused.value.code == 2 and usage.startswith(f"usage: partialcoll {group} {name}")
        assert f"{option}: " in sentence, sentence


@pytest.mark.parametrize("option", ("--json", "--output", "--plot"))
@pytest.mark.parametrize("word", ("", "/dev/null/x.json", ".", "/dev"))
def test_outputs_that_cannot_be_written(option, word, capsys, monkeypatch):
    """Refused before a job is started: its ranks would wait for the one that writes."""
    monkeypatch.setattr("partialcoll.tools.launcher.relaunch", None)
    monkeypatch.setattr("partialcoll.tools.launcher.in_job", lambda: False)
    with pytest.raises(SystemExit) as refused:
        main(["bench", "tune" if option == "--output" else "skew", option, word])
    assert refused.value.code == 2 and f"{option}: expected" in capsys.readouterr().err


def test_files_are_those_of_the_first_rank(monkeypatch):
    """Other ranks may be on hosts without the files, and neither read nor write them."""
    for rank in ("1", "0"):
        monkeypatch.setenv("PMI_RANK", rank)
        for kind, text in ((values.JSON, "/nowhere/rows.json"), (values.HOSTS, "/nowhere/hosts")):
            if rank == "0":
                with pytest.raises(click.BadParameter):
                    kind.convert(text, None, None)
            else:
                assert kind.convert(text, None, None) == text


def test_more_hosts_than_a_file_name_can_have():
    hosts = ",".join(f"node{i:04}:64" for i in range(100))
    assert values.HOSTS.convert(hosts, None, None) == hosts


def test_a_table_that_is_still_to_be_made(capsys, monkeypatch, tmp_path):
    """The path is checked before anything is measured, but the file need not exist."""
    started = []
    monkeypatch.setattr("partialcoll.tools.launcher.relaunch", lambda *all: started.append(all))
    monkeypatch.setattr("partialcoll.tools.launcher.in_job", lambda: False)
    monkeypatch.setenv("PARTIALCOLL_TUNE", str(tmp_path / "new.txt"))
    assert main(["bench", "tune", "-n", "2"]) == 0 and len(started) == 1
    monkeypatch.setenv("PARTIALCOLL_TUNE", "/dev/null/new.txt")
    with pytest.raises(SystemExit):
        main(["bench", "tune", "-n", "2"])
    assert "--output: expected a file that can be written" in capsys.readouterr().err
    assert len(started) == 1
