"""The tokenizer of models that fairseq trained: Moses and byte-pair encoding, with a vocabulary for each side."""

from typing import Any

from transformers import FSMTTokenizer


class FairseqTokenizer(FSMTTokenizer):
    """transformers' `FSMTTokenizer` that encodes targets in their own vocabulary and language, too, and knows `</s>`.

    Needs sacremoses. Byte-pair merges are of both languages, as in fairseq.
    """

    _auto_class = "AutoTokenizer"

    def __init__(self, *args: Any, eos_token: str = "</s>", **kwargs: Any):
        super().__init__(*args, eos_token=eos_token, **kwargs)
        self.target_encoder = {token: index for index, token in self.decoder.items()}
        self._sides = {"source": (self.encoder, self.src_lang), "target": (self.target_encoder, self.tgt_lang)}

    def _switch_to_input_mode(self) -> None:
        self.encoder, self.src_lang = self._sides["source"]

    def _switch_to_target_mode(self) -> None:
        self.encoder, self.src_lang = self._sides["target"]
