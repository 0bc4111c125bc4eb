"""Two processes train with Eq. 3 by FSDP2 and by DDP, from the start and after a resume."""

import torch
from torch import distributed
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerCallback

from hf_vanilla_transformer import PaperSchedule
from hf_vanilla_transformer.training import run_setup
from hf_vanilla_transformer.training.run_arguments import RunArguments
from tests.parallel.fsdp import let_accelerate_share_on_cpu
from tests.parallel.models import TRAINED, whole
from tests.parallel.training import SAVED_AT, make_trainer


WARMUP = 3
RATE_FACTOR = 0.5
# The gradients of the biases of keys are 0 up to rounding, which Adam would scale up to whole steps. With this epsilon,
# their steps stay 0.
OPTIMIZATION = {"warmup_steps": WARMUP, "adam_epsilon": 1e-3}
SAVING = {"save_strategy": "steps", "save_steps": SAVED_AT}
ENGINES = {
    "DDP": {"use_cpu": True},
    "FSDP2": {"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT"}},
}


class RecordRates(TrainerCallback):
    """Records the learning rate with which each update is computed, by the number of the update."""

    def __init__(self):
        self.rates = {}

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        (rate,) = {group["lr"] for group in optimizer.param_groups}
        self.rates[state.global_step + 1] = rate


def load_model(folder):
    """The model, with all embeddings in one module, which FSDP2 needs."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    model.set_input_embeddings(model.get_input_embeddings())
    return model


def train(folder, output, checkpoint=None, processes=2, **arguments):
    """Rates and weights of a training with `PaperSchedule.use_in`."""
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    trainer = make_trainer(load_model(folder), tokenizer, output, processes, **OPTIMIZATION, **SAVING, **arguments)
    PaperSchedule.use_in(trainer)
    record = RecordRates()
    trainer.add_callback(record)
    trainer.train(resume_from_checkpoint=checkpoint)
    weights = {name: whole(weight).detach().clone() for name, weight in trainer.model.named_parameters()}
    engine = str(trainer.accelerator.distributed_type)
    return {"engine": engine, "rates": record.rates, "weights": weights}


def train_as_the_verb(folder, output, rate_factor):
    """Rates of the Trainer that the verb `train` makes, with FSDP2."""
    tokenizer = AutoTokenizer.from_pretrained(TRAINED)
    args = RunArguments(
        str(output),
        **ENGINES["FSDP2"],
        **OPTIMIZATION,
        rate_factor=rate_factor,
        max_steps=2,
        save_strategy="no",
        bf16=False,
    )
    data = make_trainer(load_model(folder), tokenizer, output).train_dataset
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    trainer = run_setup.make_run_trainer(args, tokenizer, model, {"train": data})
    record = RecordRates()
    trainer.add_callback(record)
    trainer.train()
    return {"engine": str(trainer.accelerator.distributed_type), "rates": record.rates}


def main(folder):
    """Train with each engine; each process writes a file of its own."""
    results = {}
    for engine, arguments in ENGINES.items():
        if engine == "FSDP2":
            let_accelerate_share_on_cpu()
        output = folder / engine
        results[engine] = train(folder / "model", output, **arguments)
        checkpoint = str(output / f"checkpoint-{SAVED_AT}")
        results[f"{engine}, resumed"] = train(folder / "model", folder / f"{engine} resumed", checkpoint, **arguments)
    results["verb"] = train_as_the_verb(folder / "model", folder / "verb", RATE_FACTOR)
    torch.save(results, folder / f"rank{distributed.get_rank()}.pt")
    # The second process connects through the first one, which therefore must not end before it.
    distributed.barrier()
    distributed.destroy_process_group()
