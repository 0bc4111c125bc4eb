"""An engine without a runtime: the members of the protocol `Engine`, with constant results."""

import math

import torch
from transformers import AutoConfig, GenerationConfig

from tests.ecosystem.documentation import FIXTURE


PROBABILITY = 0.5


class ConstantEngine:
    """Translates every sentence as "neun", and attends to the first token of the source."""

    device = torch.device("cpu")

    def __init__(self, tokenizer):
        self.config = AutoConfig.from_pretrained(FIXTURE)
        self.generation_config = GenerationConfig.from_pretrained(FIXTURE)
        self.alignment_heads = [(0, 0)]
        self._target = tokenizer("neun").input_ids

    def generate(self, input_ids, attention_mask=None, **kwargs):
        assert input_ids.shape == attention_mask.shape
        return torch.tensor([[self.config.decoder_start_token_id, *self._target]] * len(input_ids))

    def log_probs(self, sources, targets):
        return [[math.log(PROBABILITY)] * len(target) for target in targets]

    def attention(self, sources, targets):
        return [
            torch.eye(1, len(source)).repeat(len(target), 1) for source, target in zip(sources, targets, strict=True)
        ]

    def modules(self):
        return iter(())

    def eval(self):
        return self

    def named_parameters(self):
        return iter(())
