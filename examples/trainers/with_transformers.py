# SPDX-License-Identifier: Apache-2.0
"""The Trainer of Transformers on MPI: DDP over the backend, or with a communication hook that does
not wait for late ranks. The model is made from a configuration, and the data is generated: a
sentence is of class 1 if it has a certain word.

mpiexec -n 4 python examples/trainers/with_transformers.py [--backend gloo]
mpiexec -n 4 python examples/trainers/with_transformers.py --quorum majority --late 50
"""

import argparse
import tempfile
import time

import torch
import torch.distributed as dist
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import partialcoll.torch as pct

parser = argparse.ArgumentParser()
parser.add_argument("--backend", default="partialcoll")
parser.add_argument("--quorum", help="of the rounds; without: all ranks")
parser.add_argument("--late", type=float, default=0, help="ms, one rank in each step")
options = parser.parse_args()
pct.init()
torch.set_num_threads(1)
dist.init_process_group(options.backend)  # before TrainingArguments; leave ddp_backend out


class Late(TrainerCallback):
    def on_step_begin(self, arguments, state, control, **more):
        if state.global_step % pct.size() == pct.rank():
            time.sleep(options.late / 1000)


class Partial(TrainerCallback):
    """Registers the hook with the model that the Trainer has wrapped."""

    def on_train_begin(self, arguments, state, control, **more):
        self.rounds = pct.PartialState(trainer.model_wrapped, options.quorum)

    def on_epoch_end(self, arguments, state, control, optimizer=None, **more):
        self.rounds.join(optimizer)  # before evaluation and checkpoints, so that nothing is late


set_seed(1)
sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
shape = BertConfig(vocab_size=20, num_hidden_layers=1, max_position_embeddings=16, **sizes)
model = BertForSequenceClassification(shape)
words = torch.randint(20, (512, 8))
data = [{"input_ids": one, "labels": int(7 in one)} for one in words]

with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        num_train_epochs=6,
        learning_rate=3e-3,
        per_device_train_batch_size=64 // pct.size(),
        ddp_find_unused_parameters=False,
        ddp_broadcast_buffers=False,
        report_to="none",
        disable_tqdm=True,
    )
    callbacks = [Late(), *([Partial()] if options.quorum else [])]
    trainer = Trainer(model, arguments, train_dataset=data, callbacks=callbacks)
    trainer.train()
    loss = trainer.evaluate(data)["eval_loss"]
sums = pct.allgather_object([p.sum().item() for p in model.parameters()])
assert all(one == sums[0] for one in sums), "the replicas differ"
if pct.rank() == 0:
    print(f"loss {loss:.6f}; all ranks have the same model")
