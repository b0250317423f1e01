"""Hugging Face's Trainer with Thinwire: a small GPT-2 learns to count on.
`--resume FOLDER` goes on from a checkpoint.

    torchrun --nproc_per_node 2 examples/with_trainer.py
    torchrun --nproc_per_node 2 examples/with_trainer.py --resume trainer_checkpoints/checkpoint-10
"""
import argparse

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from thinwire.transformers import ThinwireCallback


class Numbers(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, place):
        ids = (torch.arange(16) + 7 * place) % 100
        return {"input_ids": ids, "labels": ids}


parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
parser.add_argument("--spec", default="auto", help="the system (default %(default)s)")
parser.add_argument("--folder", default="trainer_checkpoints")
parser.add_argument("--resume", help="a folder of a checkpoint")
options = parser.parse_args()

torch.manual_seed(1)
model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=64, n_layer=2, n_head=2,
                                   bos_token_id=0, eos_token_id=0))
arguments = TrainingArguments(
    output_dir=options.folder, per_device_train_batch_size=10, gradient_accumulation_steps=2,
    num_train_epochs=4, learning_rate=3e-3, logging_steps=10, save_strategy="epoch", disable_tqdm=True,
    report_to=[], use_cpu=not torch.cuda.is_available(),
)
trainer = Trainer(model, arguments, train_dataset=Numbers())
trainer.add_callback(ThinwireCallback(trainer, options.spec))  # the line
trainer.train(resume_from_checkpoint=options.resume)
