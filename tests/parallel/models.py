"""Models that several processes share, their inputs, and what one process makes of them."""

from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM

from tests.models import FIRST_WORD_ID, IMPORTED, pad, sentences, small_model


TRAINED = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
# d_k, d_v and d_model / h are all different in the small models; half of 61 words are not a whole number.
SMALL_MODELS = {
    "tied": {"seed": 2},
    "two-vocabularies": {"seed": 2, "source_vocab_size": 66},
    "of-another-system": {"seed": 2, **IMPORTED},
    "untied": {
        "tie_word_embeddings": False,
        "vocab_size": 61,
        "position_embedding_type": "learned",
        "attention_bias": False,
        "attn_implementation": "eager",
    },
}
NAMES = ["trained", *SMALL_MODELS]
TIED_TO_THE_SOFTMAX = {
    "trained": ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens"],
    "tied": ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens"],
    "two-vocabularies": ["model.decoder.embed_tokens"],
    "of-another-system": ["model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens"],
    "untied": [],
}
BEAMS = (1, 4)
# Most of these models end no sentence, and a few tokens more than the source has show as much as fifty.
OFFSET = 5
PROCESSES = 2


def save_models(folder):
    """Save all models under their names."""
    AutoModelForSeq2SeqLM.from_pretrained(TRAINED).save_pretrained(folder / "trained")
    for name, fields in SMALL_MODELS.items():
        small_model(dropout=0.0, **fields).save_pretrained(folder / name)


def inputs():
    """Four sentence pairs of different lengths, with padding, whose words all models know."""
    input_ids, attention_mask = pad(sentences(5, 9, 3, 7), side="left")
    labels, label_mask = pad(sentences(7, 4, 6, 2, seed=1))
    assert input_ids.max() > FIRST_WORD_ID
    labels[label_mask == 0] = -100
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def train_once(model, batch, **arguments):
    """Logits and loss in training mode, so with smoothed labels, and its gradients."""
    outputs = model.train()(**batch, skip_logits=False, **arguments)
    outputs.loss.backward()
    return {"logits": outputs.logits.detach(), "loss": outputs.loss.detach()}


def whole(tensor):
    """A tensor of which a process may have a part only."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gradients(model):
    """By name; all processes must ask."""
    return {name: whole(parameter.grad).clone() for name, parameter in model.named_parameters()}


def translations(model, batch):
    """Generated tokens, for each number of beams."""
    model.eval()
    source = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return {beams: model.generate(**source, num_beams=beams, max_length_offset=OFFSET) for beams in BEAMS}


def tied_names(model):
    """Modules whose weight is the softmax's."""
    return [
        name
        for name, module in model.named_modules(remove_duplicate=False)
        if getattr(module, "weight", None) is model.lm_head.weight and name != "lm_head"
    ]


def alone(folder):
    """What one process computes with the model in a folder."""
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    results = train_once(model, inputs())
    return {
        **results,
        "weights": model.state_dict(),
        "gradients": gradients(model),
        "translations": translations(model, inputs()),
    }


def load_results(folder):
    """What each of the processes wrote."""
    return [torch.load(path, weights_only=True) for path in sorted(folder.glob("rank*.pt"))]
