"""Each of two processes keeps a part of every matrix, and has sentences of its own."""

import os

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch import distributed
from torch.distributed.fsdp import register_fsdp_forward_method
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.distributed import DistributedConfig

from tests.parallel.models import NAMES, TRAINED, gradients, inputs, tied_names, train_once, translations
from tests.parallel.training import SAVED_AT, make_trainer, prediction, trajectory


BOTH = DistributedConfig(fsdp_size=2)


def my_half(batch):
    """The sentences of this process."""
    return {name: rows.chunk(2)[distributed.get_rank()] for name, rows in batch.items()}


def measure(folder, saved):
    """What this process computes of its sentences; the whole model is saved."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, distributed_config=BOTH)
    batch = inputs()
    words = (batch["labels"] != -100).sum()
    results = train_once(model, my_half(batch), num_items_in_batch=words)
    # The encoder is called before the whole model is, which would not gather its weights.
    register_fsdp_forward_method(model, "generate")
    results |= {
        "parts": {name: parameter.to_local().numel() for name, parameter in model.named_parameters()},
        "tied": tied_names(model),
        "gradients": gradients(model),
        "translations": translations(model, my_half(batch)),
    }
    model.save_pretrained(saved)
    return results


def train_a_shared_model(folder, output):
    """The Trainer with a model that transformers shared when it was loaded."""
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, distributed_config=BOTH)
    trainer = make_trainer(model, tokenizer, output, processes=2, use_cpu=True)
    trainer.train()
    return {"trajectory": trajectory(trainer), "tied": tied_names(trainer.model)}


def let_accelerate_share_on_cpu():
    """accelerate knows FSDP2 on accelerators only: let it take these processes for such."""
    PartialState._reset_state()
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    PartialState._prepare_backend = lambda *args, **kwargs: ("gloo", DistributedType.MULTI_GPU)


def train_with_accelerate(folder, output, checkpoint=None):
    """The Trainer with `fsdp`: accelerate shares the model."""
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    # accelerate puts two modules with a common matrix into one group, so here all embeddings must be one module.
    model.set_input_embeddings(model.get_input_embeddings())
    sharing = {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}}
    saving = {"save_strategy": "steps", "save_steps": SAVED_AT}
    trainer = make_trainer(model, tokenizer, output, processes=2, **sharing, **saving)
    trainer.train(resume_from_checkpoint=checkpoint)
    results = {
        "engine": str(trainer.accelerator.distributed_type),
        "trajectory": trajectory(trainer),
        "parts": {name: parameter.to_local().numel() for name, parameter in trainer.model.named_parameters()},
        "tied": tied_names(trainer.model),
    }
    if checkpoint is None:
        results["prediction"] = prediction(trainer, tokenizer)
    # Checkpoints are in parts, the model that is trained is whole.
    trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model()
    return results


def main(folder):
    """Measure and train; each process writes a file of its own."""
    tied = folder / "models" / "tied"
    results = {name: measure(folder / "models" / name, folder / "saved" / name) for name in NAMES}
    results["shared when loaded"] = train_a_shared_model(tied, folder / "shared")
    let_accelerate_share_on_cpu()
    results["accelerate"] = train_with_accelerate(tied, folder / "accelerate")
    checkpoint = str(folder / "accelerate" / f"checkpoint-{SAVED_AT}")
    results["resumed"] = train_with_accelerate(tied, folder / "resumed", checkpoint)
    torch.save(results, folder / f"rank{distributed.get_rank()}.pt")
    # Through the first process they all find each other, so it must not end before the second.
    distributed.barrier()
    distributed.destroy_process_group()
