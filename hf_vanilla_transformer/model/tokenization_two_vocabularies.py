"""A tokenizer with separate vocabularies of source and target, which travels with its model."""

from pathlib import Path
from typing import Any

from transformers import TokenizersBackend

from .input_checks import InputError, sides_of


_SPECIAL_TOKENS = ("pad_token", "bos_token", "eos_token", "unk_token")


class TwoVocabularyTokenizer(TokenizersBackend):
    """Encodes sources with one vocabulary and targets with another, and decodes targets.

    `tokenizer(sentences)` and all methods about tokens are of the source's vocabulary, `tokenizer(text_target=...)` and
    `decode` of the target's; `source_tokenizer` and `target_tokenizer` are those of one side. A saved folder has
    `source_tokenizer.json` and `target_tokenizer.json` and no `tokenizer.json`, so that no other class loads half of
    it, and this file, for `trust_remote_code=True`.

    Args:
        source_file, target_file (`str`): files of the tokenizers library.
        source_object, target_object (`tokenizers.Tokenizer`): instead of files; see `of`.
        **kwargs: of `TokenizersBackend`, for both sides.

    Raises:
        ValueError: if a side is missing, or a special token has different ids.
    """

    vocab_files_names = {"source_file": "source_tokenizer.json", "target_file": "target_tokenizer.json"}
    model_input_names = ["input_ids", "attention_mask"]
    _auto_class = "AutoTokenizer"

    def __init__(
        self,
        source_file: str | None = None,
        target_file: str | None = None,
        *,
        source_object: Any = None,
        target_object: Any = None,
        **kwargs: Any,
    ):
        for side, given in {"source": source_file or source_object, "target": target_file or target_object}.items():
            if given is None:
                raise InputError(f"there is no {side}_tokenizer.json; a tokenizer with two vocabularies needs both.")
        # A tokenizer.json would be of another model.
        kwargs = {name: value for name, value in kwargs.items() if name not in ("tokenizer_file", "tokenizer_object")}
        of_both = {name: kwargs[name] for name in (*_SPECIAL_TOKENS, "split_special_tokens") if name in kwargs}
        self.source_tokenizer = TokenizersBackend(tokenizer_file=source_file, tokenizer_object=source_object, **of_both)
        self.target_tokenizer = TokenizersBackend(tokenizer_file=target_file, tokenizer_object=target_object, **of_both)
        self._encodes_targets = False
        super().__init__(tokenizer_object=self.source_tokenizer.backend_tokenizer, **kwargs)
        for token in (name for name in _SPECIAL_TOKENS if getattr(self, name) is not None):
            ids = [getattr(side, f"{token}_id") for side in (self, self.target_tokenizer)]
            if ids[0] != ids[1]:
                raise InputError(
                    f"{token} is {ids[0]} in the vocabulary of the source and {ids[1]} in that of the target; train "
                    "both tokenizers with the same special tokens."
                )

    @classmethod
    def of(cls, source: TokenizersBackend, target: TokenizersBackend) -> "TwoVocabularyTokenizer":
        """A tokenizer from one of each side, such as two of `train_tokenizer`.

        Args:
            source, target (`TokenizersBackend`): with the same ids of special tokens; padding side and special tokens
                are the source's.
        """
        tokens = {name: getattr(source, name) for name in _SPECIAL_TOKENS if getattr(source, name) is not None}
        return cls(
            source_object=source.backend_tokenizer,
            target_object=target.backend_tokenizer,
            padding_side=source.padding_side,
            split_special_tokens=source.split_special_tokens,
            **tokens,
        )

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """The arguments as they are: transformers would look for one file that describes all."""
        return kwargs

    def _switch_to_input_mode(self) -> None:
        self._encodes_targets = False

    def _switch_to_target_mode(self) -> None:
        self._encodes_targets = True

    def _encode_plus(self, *args: Any, **kwargs: Any) -> Any:
        if not self._encodes_targets:
            return super()._encode_plus(*args, **kwargs)
        self.target_tokenizer.padding_side = self.padding_side
        return self.target_tokenizer._encode_plus(*args, **kwargs)

    def _decode(self, *args: Any, **kwargs: Any) -> str:
        return self.target_tokenizer._decode(*args, **kwargs)

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        for side in sides_of(self):
            vocabulary = side.backend_tokenizer.get_vocab(with_added_tokens=False)
            of_text = vocabulary.keys() - side.added_tokens_encoder.keys()
            for token in of_text.intersection(map(str, new_tokens)) if special_tokens else ():
                raise InputError(f"{token!r} is a token of text already, so it is no special token; give another name.")
            side._add_tokens(new_tokens, special_tokens)
        return super()._add_tokens(new_tokens, special_tokens)

    def _save_pretrained(
        self, save_directory: Any, file_names: tuple[str, ...], legacy_format: Any = None, filename_prefix: Any = None
    ) -> tuple[str, ...]:
        backends = (self.backend_tokenizer, self.target_tokenizer.backend_tokenizer)
        for backend, name in zip(backends, self.vocab_files_names.values(), strict=True):
            # Settings of the last call.
            backend.no_padding()
            backend.no_truncation()
            path = str(Path(save_directory) / (f"{filename_prefix}-{name}" if filename_prefix else name))
            backend.save(path)
            file_names = (*file_names, path)
        return file_names
