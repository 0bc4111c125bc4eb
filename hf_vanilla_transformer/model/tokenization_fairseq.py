"""The tokenizer of models that fairseq trained: Moses, byte-pair encoding, and a vocabulary for each side."""

from typing import Any

from transformers import FSMTTokenizer


class FairseqTokenizer(FSMTTokenizer):
    """transformers' `FSMTTokenizer`, extended to encode targets.

    Targets have their own vocabulary and language. The byte-pair merges are the same for both languages, as in fairseq.
    `</s>` is set as the EOS token. The tokenizer needs sacremoses.
    """

    _auto_class = "AutoTokenizer"

    def __init__(self, *args: Any, eos_token: str = "</s>", **kwargs: Any):
        super().__init__(*args, eos_token=eos_token, **kwargs)
        self.source_encoder = self.encoder
        self.target_encoder = {token: index for index, token in self.decoder.items()}
        self._source_language = self.src_lang

    def _switch_to_input_mode(self) -> None:
        """Encode sources from now on."""
        self.encoder = self.source_encoder
        self.src_lang = self._source_language

    def _switch_to_target_mode(self) -> None:
        """Encode targets from now on. `FSMTTokenizer` reads the language of its input from `src_lang`."""
        self.encoder = self.target_encoder
        self.src_lang = self.tgt_lang
