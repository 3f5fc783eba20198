# SPDX-License-Identifier: Apache-2.0
"""Users of the backend inside torch: DDP's hooks, options and compiled models, sharded models and
optimizers, meshes, pipelines, checkpoints. Each is compared with one process or with gloo."""

import copy
import tempfile

import pytest

torch = pytest.importorskip("torch")
dist = pytest.importorskip("torch.distributed")

import torch.distributed._functional_collectives as functional  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed import checkpoint, optim  # noqa: E402
from torch.distributed.algorithms.ddp_comm_hooks import (  # noqa: E402
    default_hooks,
    post_localSGD_hook,
)
from torch.distributed.algorithms.join import Join  # noqa: E402
from torch.distributed.algorithms.model_averaging import averagers  # noqa: E402
from torch.distributed.checkpoint import state_dict as states  # noqa: E402
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: E402

import partialcoll.torch as pct  # noqa: E402, F401

torch.set_num_threads(1)
pytestmark = [
    pytest.mark.mpi,
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.one_domain,
    pytest.mark.few_ranks,
    pytest.mark.one_mpi,
    pytest.mark.in_turns,
]


@pytest.fixture(scope="module")
def backend():
    dist.init_process_group("partialcoll")
    yield
    dist.destroy_process_group()


@pytest.fixture
def world(comm, backend):
    """The ranks of MPI. At most four, because each loads torch's compiler for seconds."""
    if comm.size > 4:
        pytest.skip("few ranks are enough")
    return comm


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8))


def mesh_of(*shape, names=("data",)):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", shape, mesh_dim_names=names)


def train(model, world, part=0, parts=1, steps=4, optimizer=None):
    """Train on the given part of the batch. Return the model."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        x, y = batch(world, step)
        each = len(x) // parts
        mine = slice(part * each, (part + 1) * each)
        optimizer.zero_grad()
        (model(x[mine]) - y[mine]).square().mean().backward()
        optimizer.step()
    return model


def batch(world, step):
    return torch.randn(2, 4 * world.size, 8, generator=torch.Generator().manual_seed(step))


def parameters(model):
    return [p.full_tensor() if hasattr(p, "full_tensor") else p for p in model.parameters()]


def check_same(ours, theirs, tolerance=1e-5):
    for one, other in zip(parameters(ours), parameters(theirs)):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def check_replicas(world, model):
    for theirs in world.allgather([p.detach() for p in model.parameters()]):
        assert all(map(torch.equal, theirs, model.parameters()))


# DistributedDataParallel


def test_compiled_model(world):
    """The first steps, in which DDP rebuilds its buckets, and later ones."""
    model = DDP(network())
    train(torch.compile(model, backend="aot_eager"), world, world.rank, world.size)
    check_same(model, train(network(), world))


HOOKS = {
    "allreduce": lambda group: (group, default_hooks.allreduce_hook),
    "fp16": lambda group: (group, default_hooks.fp16_compress_hook),
    "fp16 of another": lambda group: (
        group,
        default_hooks.fp16_compress_wrapper(default_hooks.allreduce_hook),
    ),
    "post-local": lambda group: (
        post_localSGD_hook.PostLocalSGDState(group, group, 2),
        post_localSGD_hook.post_localSGD_hook,
    ),
}


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_as_with_gloo(world, name):
    """With post-local SGD the ranks train alone, and average their parameters every other step."""
    gloo = dist.new_group(backend="gloo")
    models = []
    for group in (dist.group.WORLD, gloo):
        model = DDP(network(), process_group=group)
        model.register_comm_hook(*HOOKS[name](group))
        optimizer = optim.PostLocalSGDOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            averagers.PeriodicModelAverager(2, 2 if name == "post-local" else 1000, group),
        )
        models.append(train(model, world, world.rank, world.size, 6, optimizer))
    check_same(*models, tolerance=1e-2 if "fp16" in name else 1e-5)
    dist.destroy_process_group(gloo)


OPTIONS = {
    "buffers of ranks": {"broadcast_buffers": False},
    "views of a static graph": {"gradient_as_bucket_view": True, "static_graph": True},
    "not synchronized": {"init_sync": False},
    "a mesh": {"device_mesh": lambda world: mesh_of(world.size)},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(world, name):
    options = {key: one(world) if callable(one) else one for key, one in OPTIONS[name].items()}
    check_same(
        train(DDP(network(), **options), world, world.rank, world.size), train(network(), world)
    )


def test_ranks_that_differ_raise_in_backward(world):
    """With and without a hook: DDP looks for tensors in the contents of a future."""
    if world.size == 1:
        pytest.skip("no other rank to differ from")
    for hook in (None, default_hooks.fp16_compress_hook):
        model = DDP(network())
        if hook is not None:
            model.register_comm_hook(None, hook)
        with pytest.raises(Exception, match=r"rank 0: all_reduce of \d+ elements of float.*int8"):
            if world.rank == 0:
                model(torch.ones(1, 8)).sum().backward()
            else:
                dist.all_reduce(torch.ones(3, dtype=torch.int8))


def test_uneven_data(world):
    """Ranks run out of data one after the other. The optimizer's state is sharded."""
    model = DDP(network(), gradient_as_bucket_view=True)
    optimizer = optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    with Join([model, optimizer]):
        train(model, world, world.rank, world.size, 1 + world.rank, optimizer)
    check_replicas(world, model)


def test_optimizer_state_that_is_shared_out(world):
    alone, model = network(), DDP(network())
    sharded = optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    train(model, world, world.rank, world.size, 3, sharded)
    check_same(
        model, train(alone, world, steps=3, optimizer=torch.optim.Adam(alone.parameters(), lr=0.01))
    )


# Meshes


def test_sharded_and_tensor_parallel(world):
    """Rows of the mesh share the data and the parameters, columns the layers."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import parallel

    columns = 2 if world.size % 2 == 0 else 1
    mesh = mesh_of(world.size // columns, columns, names=("data", "layers"))
    model = network()
    layers = {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()}
    parallel.parallelize_module(model, mesh["layers"], layers)
    fully_shard(model, mesh=mesh["data"])
    rows = mesh["data"]
    check_same(train(model, world, rows.get_local_rank(), rows.size()), train(network(), world))


def test_checkpoints_of_a_sharded_model(world):
    """Written as shards and read by each rank, and written whole on rank 0 and read back."""
    from torch.distributed.fsdp import fully_shard

    mesh, models = mesh_of(world.size), [network() for _ in range(3)]
    for model in models:
        fully_shard(model, mesh=mesh)
    first, second, third = models
    train(first, world, world.rank, world.size)

    folder = tempfile.TemporaryDirectory() if world.rank == 0 else None
    place = world.bcast(folder and folder.name)
    saved = {"model": states.get_model_state_dict(first)}
    checkpoint.async_save(saved, checkpoint_id=place).result()
    found = {"model": states.get_model_state_dict(second)}
    checkpoint.load(found, checkpoint_id=place)
    states.set_model_state_dict(second, found["model"])
    check_same(first, second, 0)

    options = states.StateDictOptions(full_state_dict=True, cpu_offload=True)
    whole = states.get_model_state_dict(first, options=options)
    assert bool(whole) == (world.rank == 0)
    options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states.set_model_state_dict(third, whole, options=options)
    check_same(first, third, 0)


@pytest.mark.parametrize("schedule", ("ScheduleGPipe", "Schedule1F1B"))
def test_pipeline(world, schedule):
    """Each rank has a stage. Gradients equal those of the whole model."""
    from torch.distributed import pipelining

    torch.manual_seed(0)
    whole = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(world.size)))
    mine, last = copy.deepcopy(whole[world.rank]), world.size - 1
    stage = pipelining.PipelineStage(mine, world.rank, world.size, torch.device("cpu"))
    run = getattr(pipelining, schedule)(stage, 2 * world.size, loss_fn=nn.functional.mse_loss)
    for step in range(2):
        x, y = batch(world, step)
        given = (x,) if world.rank == 0 else ()
        run.step(*given, **({"target": y} if world.rank == last else {}))
        nn.functional.mse_loss(whole(x), y).backward()
        for one, other in zip(mine.parameters(), whole[world.rank].parameters()):
            torch.testing.assert_close(one.grad, other.grad)
        mine.zero_grad()
        whole.zero_grad()


# Functional collectives


def test_functional_collectives(world):
    ranks, me = world.size, world.rank
    group = dist.group.WORLD
    tensor = torch.arange(3.0) + me
    total = functional.all_reduce(tensor, "sum", group)
    assert torch.equal(total + 0, ranks * torch.arange(3.0) + ranks * (ranks - 1) / 2)
    gathered = functional.all_gather_tensor(tensor, 0, group)
    assert gathered.view(ranks, 3)[:, 0].tolist() == list(range(ranks))
    scattered = functional.reduce_scatter_tensor(torch.ones(2 * ranks), "sum", 0, group)
    assert scattered.tolist() == [ranks, ranks]
    swapped = functional.all_to_all_single(torch.full((ranks,), float(me)), None, None, group)
    assert swapped.tolist() == list(range(ranks))
    assert functional.broadcast(tensor, ranks - 1, group)[0].item() == ranks - 1
    both = functional.all_reduce_coalesced([torch.ones(2), tensor], "sum", group)
    assert torch.equal(both[1] + 0, total + 0) and both[0].tolist() == [ranks, ranks]
    next_one = [(rank + 1) % ranks for rank in range(ranks)]
    moved = functional.permute_tensor(torch.tensor([float(me)]), next_one, group)
    assert moved.item() == (me - 1) % ranks


def test_functional_collectives_compiled_and_differentiated(world):
    group = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def doubled(x):
        return functional.all_reduce(2 * x, "sum", group) + 1

    for _ in range(2):
        assert doubled(torch.ones(3)).tolist() == [2 * world.size + 1] * 3
    x = torch.ones(2, requires_grad=True)
    weights = torch.arange(2.0 * world.size) + world.rank
    (functional.all_gather_tensor_autograd(x, 0, group) * weights).sum().backward()
    mine = torch.arange(2.0) + 2 * world.rank
    assert torch.equal(x.grad, world.size * mine + sum(range(world.size)))
