"""Each of two processes has a part of every layer."""

import torch
from transformers import AutoModel, AutoModelForSeq2SeqLM, set_seed
from transformers.distributed import DistributedConfig

from tests.parallel.models import NAMES, OFFSET, gradients, inputs, tied_names, train_once, translations


BOTH = DistributedConfig(tp_size=2)


def measure(folder, saved):
    """What this process computes with its part of a model; the whole model is saved."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, distributed_config=BOTH)
    results = train_once(model, inputs())
    results |= {
        "parts": {name: part_of(parameter) for name, parameter in model.named_parameters()},
        "tied": tied_names(model),
        "gradients": gradients(model),
        "translations": translations(model, inputs()),
    }
    model.save_pretrained(saved)
    return results


def part_of(parameter):
    """Sizes of what this process has, and of the whole."""
    local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
    return [list(local.shape), list(parameter.shape)]


def without_head(folder):
    """The last hidden state, and the weights of attention of the heads of this process."""
    model = AutoModel.from_pretrained(folder, distributed_config=BOTH)
    batch = inputs()
    batch["decoder_input_ids"] = batch.pop("labels").clamp(min=0)
    with torch.no_grad():
        outputs = model.eval()(**batch, output_attentions=True)
    return {"last_hidden_state": outputs.last_hidden_state, "cross_attentions": outputs.cross_attentions[0]}


def static_cache_and_sampling(folder):
    """Tokens of two other ways to generate."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, distributed_config=BOTH)
    return other_translations(model)


def other_translations(model):
    """With a static cache, and drawn at random, for which all processes need the same seed."""
    batch = inputs()
    del batch["labels"]
    settings = {"num_beams": 1, "max_length_offset": OFFSET}
    set_seed(0)
    return {
        "static cache": model.generate(**batch, **settings, cache_implementation="static"),
        "sampling": model.generate(**batch, **settings, do_sample=True),
    }


def message(folder):
    """Why a model cannot be shared."""
    try:
        AutoModelForSeq2SeqLM.from_pretrained(folder, distributed_config=BOTH)
    except ValueError as error:
        return str(error)
    return ""


def main(folder):
    """Measure all models of a folder; each process writes a file of its own."""
    models = folder / "models"
    results = {name: measure(models / name, folder / "saved" / name) for name in NAMES}
    results["without head"] = without_head(models / "tied")
    results["other translations"] = static_cache_and_sampling(models / "trained")
    results["message"] = message(folder / "three-heads")
    torch.save(results, folder / f"rank{torch.distributed.get_rank()}.pt")
    # Through the first process they all find each other, so it must not end before the second.
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
