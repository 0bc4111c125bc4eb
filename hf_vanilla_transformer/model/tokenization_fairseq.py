"""The tokenizer of fairseq models, which combines Moses tokenization with byte-pair encoding.

Source and target have separate vocabularies.
"""

from typing import Any

from transformers import FSMTTokenizer


class FairseqTokenizer(FSMTTokenizer):
    """transformers' `FSMTTokenizer`, extended so that it can also encode target sentences.

    Targets have their own vocabulary and language. The byte-pair merges are the same for both languages, as in fairseq.
    The default EOS token is `</s>`. The tokenizer needs the package sacremoses.
    """

    _auto_class = "AutoTokenizer"

    def __init__(self, *args: Any, eos_token: str = "</s>", **kwargs: Any):
        super().__init__(*args, eos_token=eos_token, **kwargs)
        # FSMTTokenizer encodes every text with the dict `encoder`, which the methods below replace. Its dict `decoder`
        # maps ids to target tokens.
        self.source_encoder = self.encoder
        self.target_encoder = {token: index for index, token in self.decoder.items()}
        self._source_language = self.src_lang

    def _switch_to_input_mode(self) -> None:
        """Encode texts as source sentences until `_switch_to_target_mode` is called."""
        self.encoder = self.source_encoder
        self.src_lang = self._source_language

    def _switch_to_target_mode(self) -> None:
        """Encode texts as target sentences until `_switch_to_input_mode` is called.

        `src_lang` becomes the target language, because `FSMTTokenizer` reads the language of its input from it.
        """
        self.encoder = self.target_encoder
        self.src_lang = self.tgt_lang
