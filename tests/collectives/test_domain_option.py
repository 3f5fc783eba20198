# SPDX-License-Identifier: Apache-2.0
"""The domain option: the argument, the environment, and what the handle reports."""

import numpy as np
import pytest

import partialcoll as pc

pytestmark = pytest.mark.mpi

ONE = np.ones(3)


def planes(comm, domain=None, **options):
    """Return what a handle reports, after a round with the correct result."""
    with pc.Allreduce_init(comm, ONE, quorum="full", domain=domain, **options) as h:
        h.Start()
        assert h.Wait().active == comm.size and list(h.result) == [comm.size] * 3
        return h.domain, h.domains


def test_rank(comm):
    assert planes(comm, "rank") == ("rank", comm.size)


@pytest.mark.parametrize("domain", ("node:1", "auto:1"))
def test_one_rank_to_a_domain(comm, domain):
    """No ranks share memory with domain "rank"."""
    assert planes(comm, domain) == ("rank", comm.size)


@pytest.mark.parametrize("domain", ("node", "auto", "node:2", "auto:1000"))
def test_the_answer_fits(comm, domain):
    """The answer is "node" exactly if there are fewer domains than ranks, on all ranks."""
    answer, domains = planes(comm, domain)
    assert (answer == "node") == (domains < comm.size) and 1 <= domains <= comm.size
    assert set(comm.allgather((answer, domains))) == {(answer, domains)}


def test_native_is_messages_only(comm):
    assert planes(comm, "node", algorithm="native") == ("rank", comm.size)


def test_environment(comm, monkeypatch):
    """Without an argument the environment decides. The argument has priority."""
    monkeypatch.setenv("PARTIALCOLL_DOMAIN", "rank")
    assert planes(comm) == ("rank", comm.size)
    by_argument = planes(comm, "node")
    monkeypatch.setenv("PARTIALCOLL_DOMAIN", "node")
    assert planes(comm) == by_argument and planes(comm, "rank") == ("rank", comm.size)
    monkeypatch.delenv("PARTIALCOLL_DOMAIN")
    assert planes(comm) == by_argument  # the default
    monkeypatch.setenv("PARTIALCOLL_DOMAIN", "galaxy")
    with pytest.raises(ValueError, match=r'^domain \(from PARTIALCOLL_DOMAIN\): .* got "galaxy"'):
        planes(comm)


@pytest.mark.parametrize(
    "wrong", ("", "Node", "rank:2", "node:", "node:0", "node:-1", "node:x", "node:99999999999", "n")
)
def test_refused(comm, wrong):
    with pytest.raises(ValueError, match=r'^domain: expected "node", .* got "'):
        planes(comm, wrong)


@pytest.mark.parametrize("wrong", (3, True, b"node", ["node"]))
def test_no_text(comm, wrong):
    with pytest.raises(TypeError, match=r"^domain: expected a text"):
        planes(comm, wrong)


@pytest.mark.parametrize("theirs", ("node", "rank:1", "node:2"))
def test_ranks_disagree(comm, theirs):
    """A difference is found on every rank when the handle is created."""
    if comm.size < 2:
        pytest.skip("takes two ranks")
    last = comm.rank == comm.size - 1
    error = ValueError if last and theirs == "rank:1" else pc.MismatchError
    text = "domain" if theirs != "rank:1" or last else f"rank {comm.size - 1}"
    with pytest.raises(error, match=text):
        planes(comm, theirs if last else "rank")
    assert planes(comm, "rank") == ("rank", comm.size)


def test_memory_estimate(comm):
    for domain in ("node", "rank"):
        with pc.Allreduce_init(comm, ONE, domain=domain) as h:
            assert h.memory == pc.memory_estimate(comm, ONE, domain=domain)
    with pytest.raises(ValueError, match="domain"):
        pc.memory_estimate(comm, ONE, domain="galaxy")


def test_drop_in(comm):
    """One place with a handle for each domain: each counts from round 0 and continues."""
    recv = np.zeros(3)
    for t in range(3):
        for domain in ("node", "rank", None):
            rnd = pc.Allreduce(comm, ONE, recv, quorum="full", domain=domain)
            assert rnd.index == t and list(recv) == [comm.size] * 3
    with pytest.raises(ValueError, match="like"):
        pc.Allreduce(comm, ONE, recv, quorum="full", like=ONE)
