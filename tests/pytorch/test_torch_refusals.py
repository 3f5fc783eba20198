# SPDX-License-Identifier: Apache-2.0
"""Each collective of partialcoll.torch with an argument that is wrong on one rank only. That rank
raises its error, the others raise within the call, and the next call works."""

import functools

import pytest

torch = pytest.importorskip("torch")

import partialcoll as pc  # noqa: E402
import partialcoll.torch as pct  # noqa: E402

torch.set_num_threads(1)
pytestmark = [pytest.mark.mpi, pytest.mark.one_domain, pytest.mark.few_ranks, pytest.mark.one_mpi]

SET = "an unusable set"
TENSOR = {"tensor": (None, 3, torch.ones(2).to_sparse(), torch.ones(2, device="meta"))}
TENSORS = {"tensors": (None, 3, [], [None], [torch.ones(2), "x"])}
ROWS = {"tensor": (*TENSOR["tensor"], torch.tensor(1.0))}
SEVERAL_ROWS = {"tensors": (*TENSORS["tensors"], [torch.tensor(1.0)])}
NAME = {"name": (3,)}
SETS = {"process_set": ([0], SET)}
COMMON = {**NAME, **SETS}
COMPRESSION = {"compression": (3, "fp16")}
FACTORS = {"prescale_factor": ("x",), "postscale_factor": (None,)}
REDUCED = {**COMMON, **FACTORS, "average": (True,), "op": (max, "sum")}
QUORUM = {"quorum": (3, "all of them")}
SCATTERED = {**COMMON, **FACTORS, "op": (max, pct.Adasum)}
ROOT = {"root_rank": (-1, 99, "x", None)}

# The valid arguments of each function, and the wrong values of each argument.
VERBS = {
    "allgather": ({"tensor": torch.ones(2)}, {**ROWS, **COMMON}),
    "allgather_async": ({"tensor": torch.ones(2)}, {**ROWS, **COMMON}),
    "allgather_object": ({"obj": 1}, {"obj": (lambda: 0,), **COMMON}),
    "allreduce": (
        {"tensor": torch.ones(2), "op": pct.Sum},
        {**TENSOR, **REDUCED, **COMPRESSION, **QUORUM},
    ),
    "allreduce_": ({"tensor": torch.ones(2), "op": pct.Sum}, {**TENSOR, **REDUCED, **QUORUM}),
    "allreduce_async": (
        {"tensor": torch.ones(2), "op": pct.Sum},
        {**TENSOR, **REDUCED, **COMPRESSION, **QUORUM},
    ),
    "allreduce_async_": (
        {"tensor": torch.ones(2), "op": pct.Sum},
        {**TENSOR, **REDUCED, **QUORUM},
    ),
    "alltoall": ({"tensor": torch.ones(60)}, {**ROWS, **COMMON, "splits": (3, ["x"], [9])}),
    "alltoall_async": ({"tensor": torch.ones(60)}, {**ROWS, **COMMON, "splits": (3, ["x"], [9])}),
    "barrier": ({}, SETS),
    "broadcast": ({"tensor": torch.ones(2), "root_rank": 0}, {**TENSOR, **ROOT, **COMMON}),
    "broadcast_": ({"tensor": torch.ones(2), "root_rank": 0}, {**TENSOR, **ROOT, **COMMON}),
    "broadcast_async": ({"tensor": torch.ones(2), "root_rank": 0}, {**TENSOR, **ROOT, **COMMON}),
    "broadcast_async_": ({"tensor": torch.ones(2), "root_rank": 0}, {**TENSOR, **ROOT, **COMMON}),
    "broadcast_object": ({"obj": 1, "root_rank": 0}, {**ROOT, **COMMON}),
    "broadcast_optimizer_state": (
        {"optimizer": torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)},
        {"optimizer": (None, 3), **ROOT},
    ),
    "broadcast_parameters": (
        {"params": {"a": torch.ones(2)}},
        {"params": (None, [1], [("a", 1)], {"a": torch.ones(2).to_sparse()}), **ROOT},
    ),
    "add_process_set": ({"process_set": "ranks"}, {"process_set": (3, [99], [], [True])}),
    "grouped_allgather": ({"tensors": [torch.ones(2)]}, {**SEVERAL_ROWS, **COMMON}),
    "grouped_allgather_async": ({"tensors": [torch.ones(2)]}, {**SEVERAL_ROWS, **COMMON}),
    "grouped_allreduce": (
        {"tensors": [torch.ones(2)], "op": pct.Sum},
        {**TENSORS, **REDUCED, **COMPRESSION},
    ),
    "grouped_allreduce_": ({"tensors": [torch.ones(2)], "op": pct.Sum}, {**TENSORS, **REDUCED}),
    "grouped_allreduce_async": (
        {"tensors": [torch.ones(2)], "op": pct.Sum},
        {**TENSORS, **REDUCED},
    ),
    "grouped_allreduce_async_": (
        {"tensors": [torch.ones(2)], "op": pct.Sum},
        {**TENSORS, **REDUCED},
    ),
    "grouped_reducescatter": (
        {"tensors": [torch.ones(2)], "compression": pct.Compression.fp16},
        {**SEVERAL_ROWS, **SCATTERED, **COMPRESSION},
    ),
    "grouped_reducescatter_async": ({"tensors": [torch.ones(2)]}, {**SEVERAL_ROWS, **SCATTERED}),
    "reducescatter": (
        {"tensor": torch.ones(2), "compression": pct.Compression.fp16},
        {**ROWS, **SCATTERED, **COMPRESSION},
    ),
    "reducescatter_async": ({"tensor": torch.ones(2)}, {**ROWS, **SCATTERED}),
    "remove_process_set": ({"process_set": "one of rank 0"}, {"process_set": (None, 3, SET)}),
    "sparse_allreduce_async": (
        {"tensor": torch.ones(2).to_sparse()},
        {"tensor": (None, torch.ones(2)), **COMMON, "op": (pct.Max, 3)},
    ),
    "DistributedOptimizer": (
        {"optimizer": "of its own"},
        {
            "optimizer": (None, 3),
            "named_parameters": (3, [("a", 3)]),
            **{"compression": (3,), "backward_passes_per_step": (0,), "op": (pct.Max,)},
            **{"strategy": ("eager",), "clip_norm": (-1,), "on_round": (3,), **SETS},
        },
    ),
}
# These create or end the world; a joined rank keeps waiting when others are refused.
OTHERS = {"init", "shutdown", "join", "is_homogeneous"}


@pytest.fixture(scope="module")
def world():
    pct.init()
    if pct.size() == 1:
        pct.shutdown()
        pytest.skip("one rank alone has no others that could wait")
    set_of_rank_0()
    yield
    pct.shutdown()


def test_the_table_has_all_collectives():
    functions = {name: getattr(pct, name) for name in pct.__all__}
    collective = {
        name
        for name, function in functions.items()
        if not isinstance(function, type) and "Collective" in (function.__doc__ or "")
    }
    assert collective == set(VERBS) | OTHERS


@functools.cache
def set_of_rank_0():
    return pct.add_process_set([0])


def meant(value):
    """Return the value for a table entry. Tensors are copied, because calls change them."""
    if isinstance(value, torch.Tensor) and not value.is_meta:
        return value.clone()
    if isinstance(value, list):
        return [meant(one) for one in value]
    if isinstance(value, str):
        if value == SET:
            return pct.ProcessSet([0])
        if value == "one of rank 0":
            return set_of_rank_0()
        if value == "ranks":
            return list(range(1, pct.size()))
        if value == "of its own":
            return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    return value


def call(name, /, **arguments):
    """Make a call, and wait for its end."""
    made = getattr(pct, name)(**{key: meant(value) for key, value in arguments.items()})
    if isinstance(made, pct.Call):
        return pct.synchronize(made)
    return made() if name == "sparse_allreduce_async" else made


def check_next(comm):
    """Check that the next call works."""
    assert call("allreduce", tensor=torch.ones(1), op=pct.Sum).item() == comm.size


@pytest.mark.parametrize("name", VERBS)
def test_an_argument_that_is_wrong_on_one_rank(comm, world, name):
    right, wrong = VERBS[name]
    for argument, values in wrong.items():
        for value in values:
            bad = comm.rank == comm.size - 1
            try:
                call(name, **{**right, **({argument: value} if bad else {})})
            except pc.MismatchError as error:
                assert not bad or name == "remove_process_set", error
            except Exception as error:
                assert bad, f"{argument}={value!r}: {error!r}"
            else:
                pytest.fail(f"{argument}={value!r}: nothing was raised")
            check_next(comm)


@pytest.mark.parametrize("name", [name for name in VERBS if "async" in name])
def test_a_call_that_is_matched_by_its_name(comm, world, name):
    """A call with an invalid quorum is not tested: it may be the first of its name, which is
    matched by order."""
    right, wrong = VERBS[name]
    for argument in [one for one in wrong if one not in ("name", "quorum")]:
        for value in wrong[argument]:
            bad = comm.rank == comm.size - 1
            mine = {argument: value} if bad else {}
            with pytest.raises(Exception) as raised:
                call(name, **{**right, "name": "a name", **mine})
            assert bad != isinstance(raised.value, pc.MismatchError), f"{argument}={value!r}"
            check_next(comm)


def test_batch_normalization(comm, world):
    layer = pct.SyncBatchNorm(2)
    bad = comm.rank == comm.size - 1 and comm.size > 1
    with pytest.raises(ValueError if bad or comm.size == 1 else pc.MismatchError):
        layer(torch.ones(2) if bad or comm.size == 1 else torch.ones(4, 2))
    check_next(comm)
