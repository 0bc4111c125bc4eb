"""A tokenizer with separate vocabularies for source and target.

Saving such a tokenizer copies this file into the saved folder.
"""

from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import BatchEncoding, TokenizersBackend

from .input_checks import InputError, sides_of


_SPECIAL_TOKENS = ("pad_token", "bos_token", "eos_token", "unk_token")


def _check_new_special_tokens(side_tokenizer: TokenizersBackend, new_tokens: Iterable[object]) -> None:
    """Raise ValueError if a new special token is already an ordinary token of the source or target tokenizer."""
    # Special tokens of the trained vocabulary are also in `added_tokens_encoder`, and may be added again.
    vocabulary = side_tokenizer.backend_tokenizer.get_vocab(with_added_tokens=False)
    for token in map(str, new_tokens):
        if token in vocabulary and token not in side_tokenizer.added_tokens_encoder:
            raise InputError(
                f"{token!r} is already a token of text, so it cannot become a special token; give a different name."
            )


class TwoVocabularyTokenizer(TokenizersBackend):
    """A tokenizer that encodes source and target sentences with separate vocabularies, and decodes target tokens.

    `tokenizer(sentences)` and all methods about tokens use the source vocabulary. `tokenizer(text_target=...)` and
    `decode` use the target vocabulary. The attributes `source_tokenizer` and `target_tokenizer` are ordinary tokenizers
    with one vocabulary each.

    A saved folder contains `source_tokenizer.json`, `target_tokenizer.json` and this file, which
    `trust_remote_code=True` loads. It contains no `tokenizer.json`, because other classes would load that file, and
    would then have only one vocabulary.

    Args:
        source_file, target_file (`str`): files in the format of the tokenizers library.
        source_object, target_object (`tokenizers.Tokenizer`): tokenizers to use instead of files; see `of`.
        **kwargs: arguments of `TokenizersBackend`. Special tokens apply to both vocabularies.

    Raises:
        ValueError: if the source or the target is missing, or if a special token has different ids in the two
            vocabularies.
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
        # Both inner tokenizers come before the inherited constructor, which may call `_add_tokens` and then needs them.
        # The check of special tokens comes last, because it reads the ids of both sides.
        has_tokenizer = {
            "source": bool(source_file) or source_object is not None,
            "target": bool(target_file) or target_object is not None,
        }
        for side in ("source", "target"):
            if not has_tokenizer[side]:
                raise InputError(f"there is no {side}_tokenizer.json; a tokenizer with two vocabularies needs both.")
        # These would come from a different model's tokenizer.json. Below, the source tokenizer takes their place.
        kwargs.pop("tokenizer_file", None)
        kwargs.pop("tokenizer_object", None)

        shared_arguments = {}
        for name in (*_SPECIAL_TOKENS, "split_special_tokens"):
            if name in kwargs:
                shared_arguments[name] = kwargs[name]
        self.source_tokenizer = TokenizersBackend(
            tokenizer_file=source_file, tokenizer_object=source_object, **shared_arguments
        )
        self.target_tokenizer = TokenizersBackend(
            tokenizer_file=target_file, tokenizer_object=target_object, **shared_arguments
        )
        self._encodes_targets = False
        # Apart from the overridden methods, this tokenizer is a tokenizer of sources.
        super().__init__(tokenizer_object=self.source_tokenizer.backend_tokenizer, **kwargs)
        self._check_special_tokens()

    def _check_special_tokens(self) -> None:
        """Raise ValueError if a special token has different ids in the two vocabularies."""
        for token in _SPECIAL_TOKENS:
            if getattr(self, token) is None:
                continue
            source_id = getattr(self, f"{token}_id")
            target_id = getattr(self.target_tokenizer, f"{token}_id")
            if source_id != target_id:
                raise InputError(
                    f"{token} is {source_id} in the vocabulary of the source and {target_id} in the vocabulary of the "
                    "target; train both tokenizers with the same special tokens."
                )

    @classmethod
    def of(cls, source: TokenizersBackend, target: TokenizersBackend) -> "TwoVocabularyTokenizer":
        """Combine a source and a target tokenizer whose special tokens have the same ids.

        The new tokenizer gets the padding side and the special tokens of `source`.
        """
        special_tokens = {}
        for name in _SPECIAL_TOKENS:
            if getattr(source, name) is not None:
                special_tokens[name] = getattr(source, name)
        return cls(
            source_object=source.backend_tokenizer,
            target_object=target.backend_tokenizer,
            padding_side=source.padding_side,
            split_special_tokens=source.split_special_tokens,
            **special_tokens,
        )

    @classmethod
    def convert_to_native_format(cls, trust_remote_code: bool = False, **kwargs: Any) -> dict[str, Any]:
        """Return the arguments unchanged, because the inherited method would look for one file of a whole tokenizer."""
        return kwargs

    def _switch_to_input_mode(self) -> None:
        """Encode texts as source sentences until `_switch_to_target_mode` is called."""
        self._encodes_targets = False

    def _switch_to_target_mode(self) -> None:
        """Encode texts as target sentences until `_switch_to_input_mode` is called."""
        self._encodes_targets = True

    def _encode_plus(self, *args: Any, **kwargs: Any) -> BatchEncoding:
        """Encode texts as source sentences, or as target sentences after a call of `_switch_to_target_mode`."""
        if not self._encodes_targets:
            return super()._encode_plus(*args, **kwargs)
        # A caller sets the padding side of this tokenizer only, so it is copied before each call.
        self.target_tokenizer.padding_side = self.padding_side
        return self.target_tokenizer._encode_plus(*args, **kwargs)

    def _decode(self, *args: Any, **kwargs: Any) -> str:
        """Decode token ids of the target vocabulary."""
        return self.target_tokenizer._decode(*args, **kwargs)

    def _add_tokens(self, new_tokens: Any, special_tokens: bool = False) -> int:
        """Add tokens to both vocabularies, and return how many were new in the source vocabulary.

        Raises:
            ValueError: if a new special token is already an ordinary token. The tokenizer should not be used any more,
                because `source_tokenizer` may already have the new tokens.
        """
        for side_tokenizer in sides_of(self):
            if special_tokens:
                _check_new_special_tokens(side_tokenizer, new_tokens)
            side_tokenizer._add_tokens(new_tokens, special_tokens)
        # This tokenizer has its own copy of the source vocabulary, to which the inherited method adds the tokens.
        return super()._add_tokens(new_tokens, special_tokens)

    def _save_pretrained(
        self,
        save_directory: str | PathLike,
        file_names: tuple[str, ...],
        legacy_format: bool | None = None,
        filename_prefix: str | None = None,
    ) -> tuple[str, ...]:
        """Save each side in its own file, and return `file_names` followed by the paths of the two files."""
        # `self.backend_tokenizer` is this tokenizer's own copy of the source tokenizer.
        backends = {
            "source_file": self.backend_tokenizer,
            "target_file": self.target_tokenizer.backend_tokenizer,
        }
        paths = list(file_names)
        for side_file, backend in backends.items():
            # Padding and truncation were set by the last call and do not belong to the tokenizer.
            backend.no_padding()
            backend.no_truncation()
            file_name = self.vocab_files_names[side_file]
            if filename_prefix:
                file_name = f"{filename_prefix}-{file_name}"
            path = str(Path(save_directory, file_name))
            backend.save(path)
            paths.append(path)
        return tuple(paths)
