# SPDX-License-Identifier: Apache-2.0
"""PCOLL_Allreduce after the death of a rank."""

import c_users
from ulfm import needs_ulfm

pytestmark = needs_ulfm


def test_it_is_no_success(clean_environment, tmp_path):
    flags = c_users.config_flags()
    program = c_users.compile_program("capi/death.c", tmp_path / "death", *flags)
    options = ["--with-ft", "ulfm"]
    done = c_users.run([*options, program], clean_environment, tmp_path, ranks=3)
    said = sorted(done.stdout.splitlines())
    assert [line.split(",")[0] for line in said] == ["0: told"] * 3 + ["2: told"] * 3, done
    assert all("died" in line for line in said), said
