"""Force phrases into translations: `ForcedPhrases` is a search to pass to `generate(custom_generate=...)`."""

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import torch
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    StoppingCriteriaList,
)
from transformers.generation.streamers import BaseStreamer

from ...model.beam_search import BeamSearch
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.generation_vanilla_transformer import new_beam_search, search_options
from ...support.user_errors import InputError
from .constrained_beam_search import ConstrainedBeamSearch, Phrase, check_number_of_lists


_SHAPE = "give a list of phrases for each sentence; a phrase is a list of token ids, or a list of such alternatives"


class ForcedPhrases:
    """A beam search for translations that contain given phrases. You pass it to `generate(custom_generate=...)`.

    ```python
    model.generate(**inputs, custom_generate=ForcedPhrases([[[5, 6], [[7], [8, 9]]], []]), num_beams=10)
    ```

    `generate()` calls this object with the prepared model inputs. The settings must choose beam search, and the model
    must be a model of this package or an [`~hf_vanilla_transformer.Ensemble`] of such models.

    Args:
        phrases (`Sequence[Sequence]`): for each sentence of the batch, the phrases that its hypotheses must contain. A
            phrase is a list of token ids, or a list of alternatives. Each alternative is a list of token ids, and one
            of them must occur.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`, *optional*): for each token, whether it begins with
            a letter, whether it ends with a letter, and whether it has no text. If it is given, only whole words count
            as phrases; see [`~hf_vanilla_transformer.apps.terms.constrained_beam_search.PhraseStates`].

    Attributes:
        phrases (`list[list[Phrase]]`): the phrases of each sentence. A `Phrase` is a tuple of alternatives.

    Raises:
        TypeError: if `phrases` is not nested in this way, or a token id is not an integer.
        ValueError: if a phrase is empty.
    """

    def __init__(self, phrases: Sequence[Sequence], letter_edges: torch.Tensor | None = None):
        self.phrases: list[list[Phrase]] = []
        for phrases_of_sentence in _check_sequence(phrases):
            self.phrases.append([_read_phrase(phrase) for phrase in _check_sequence(phrases_of_sentence)])
        self._letter_edges = letter_edges

    def __call__(
        self,
        model: Any,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Run the model's beam search with the phrases as constraints; `generate()` calls this method.

        Its arguments are the ones that `generate()` passes to `custom_generate`, and it returns what `generate()`
        returns.

        Raises:
            ValueError: if a token id is out of range or ends a sentence; if `bad_words_ids` or `suppress_tokens` forbid
                all alternatives of a phrase; if the model does not support this search, or the settings do not choose
                beam search; if `letter_edges` has a different vocabulary size; if the number of phrase lists differs
                from the number of sentences; or if the phrases of a sentence may exceed its length limit.
        """
        _check_model_type(model.config)
        check_is_beam_search(generation_config)
        vocab_size = model.config.vocab_size
        letter_edges = _check_letter_edges(self._letter_edges, vocab_size)
        phrases = _usable_phrases(self.phrases, vocab_size, generation_config)
        # The model calls this with the prompts and the prepared settings.
        new_search = partial(_new_search, phrases=phrases, letter_edges=letter_edges)
        return model._beam_search(
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            synced_gpus=synced_gpus,
            new_search=new_search,
            streamer=streamer,
            **model_kwargs,
        )


def _new_search(
    prompts: torch.Tensor, settings: Any, phrases: list[list[Phrase]], letter_edges: torch.Tensor
) -> BeamSearch:
    """Start a search for hypotheses that contain the phrases, or an ordinary beam search if there are no phrases.

    Args:
        prompts (`torch.LongTensor` of shape `(batch, length)`): tokens before the first generated one.
        settings (`GenerationConfig`): the search settings, to which `generate()` has added the EOS tokens as a tensor.
        phrases (`list[list[Phrase]]`): the phrases of each sentence.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`): see [`ForcedPhrases`].
    """
    check_number_of_lists(phrases, prompts)
    has_phrases = any(phrases)
    if not has_phrases:
        return new_beam_search(prompts, settings)
    return ConstrainedBeamSearch(
        settings.num_beams,
        phrases=phrases,
        letter_edges=letter_edges.to(prompts.device),
        prompts=prompts,
        eos=_eos_or_empty_tensor(settings, prompts),
        **search_options(prompts, settings),
    )


def _eos_or_empty_tensor(settings: Any, prompts: torch.Tensor) -> torch.Tensor:
    """Return the tokens that end a hypothesis, `(num_eos,)`; an empty tensor if there are none."""
    eos = settings._eos_token_tensor
    if eos is None:
        return prompts.new_empty(0)
    return eos


def _check_model_type(config: PreTrainedConfig) -> None:
    """Raise InputError unless the model is of this package, or an ensemble of such models."""
    model_type = config.model_type
    if model_type != VanillaTransformerConfig.model_type:
        raise InputError(f'forced phrases do not work with a model of the type "{model_type}"; leave them out.')


def check_is_beam_search(settings: GenerationConfig) -> None:
    """Raise ValueError unless the settings choose beam search: two or more beams, and no sampling."""
    # generate() searches with one beam if `num_beams` is None.
    num_beams = 1 if settings.num_beams is None else settings.num_beams
    if settings.do_sample:
        fault = "do_sample is True"
    elif num_beams < 2:
        fault = f"num_beams is {num_beams}"
    else:
        return
    raise InputError(
        f"forced phrases and glossaries need beam search, but {fault}; give num_beams of 2 or more, no sampling."
    )


def _check_letter_edges(letter_edges: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Return `letter_edges` after checking its shape and dtype.

    The three rows say whether a token begins with a letter, ends with a letter, and has no text. If `letter_edges` is
    None, the result is False everywhere. No token has a letter at its edges then, so phrases may occur inside words.
    """
    if letter_edges is None:
        return torch.zeros(3, vocab_size, dtype=torch.bool)
    edges = torch.as_tensor(letter_edges)
    if edges.shape != (3, vocab_size) or edges.dtype != torch.bool:
        raise InputError(
            f"letter_edges is of shape {tuple(edges.shape)} and {edges.dtype}; give a bool tensor of shape "
            f"(3, {vocab_size})."
        )
    return edges


def _check_sequence(value: object) -> Sequence:
    """Return the given part of `phrases` unchanged. Raises TypeError if it is a string, or not a sequence."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"phrases contains {value!r}; {_SHAPE}.")
    return value


def _read_phrase(phrase: object) -> Phrase:
    """Convert a phrase into a tuple of its distinct alternatives. A phrase is a list of token ids or of alternatives.

    Raises:
        TypeError: if the phrase is not nested in this way, or a token id is not an integer.
        ValueError: if the phrase or an alternative is empty.
    """
    items = _check_sequence(phrase)
    # A phrase with a single alternative may be given as a list of tokens. An empty phrase also becomes such a list, and
    # is rejected below.
    is_list_of_tokens = all(isinstance(item, int) for item in items)
    lists_of_tokens = [items] if is_list_of_tokens else items
    alternatives = [tuple(_check_sequence(tokens)) for tokens in lists_of_tokens]

    _check_token_types(chain.from_iterable(alternatives))
    has_empty_alternative = () in alternatives
    if has_empty_alternative:
        raise InputError(f"phrases contains an empty phrase, {phrase!r}; give at least one token.")
    # The keys of a dict are distinct, and keep their order.
    distinct_alternatives = dict.fromkeys(alternatives)
    return tuple(distinct_alternatives)


def _check_token_types(tokens: Iterable[object]) -> None:
    """Raise TypeError if a token is not an int. Booleans are rejected."""
    # Each distinct token is checked once, because phrases may be long. The types are part of the keys, because 1 and
    # True are equal.
    distinct_tokens = dict.fromkeys((token, type(token)) for token in tokens)
    for token, _ in distinct_tokens:
        if not isinstance(token, int) or isinstance(token, bool):
            raise TypeError(f"phrases contains {token!r} in the place of a token id; {_SHAPE}.")


def _usable_phrases(phrases: list[list[Phrase]], vocab_size: int, settings: GenerationConfig) -> list[list[Phrase]]:
    """Return the phrases of each sentence without the alternatives that the search settings forbid.

    Raises:
        ValueError: if a token id is out of range or ends a sentence, or the settings forbid all alternatives.
    """
    ending_tokens = _collect_ending_tokens(settings)
    forbidden_sequences = _list_forbidden_sequences(settings)
    usable = []
    for phrases_of_sentence in phrases:
        for phrase in phrases_of_sentence:
            _check_tokens(phrase, vocab_size, ending_tokens)
        usable.append([_without_forbidden(phrase, forbidden_sequences) for phrase in phrases_of_sentence])
    return usable


def _collect_ending_tokens(settings: GenerationConfig) -> set[int | None]:
    """Return the tokens that end a sentence, and padding. An id is None if the model has no such token."""
    ending_tokens: set[int | None] = {settings.pad_token_id}
    if isinstance(settings.eos_token_id, list):
        ending_tokens.update(settings.eos_token_id)
    else:
        ending_tokens.add(settings.eos_token_id)
    return ending_tokens


def _list_forbidden_sequences(settings: GenerationConfig) -> list[tuple[int, ...]]:
    """Return the token sequences that no hypothesis may contain. A suppressed token is a sequence of length 1."""
    forbidden: list[tuple[int, ...]] = []
    if settings.bad_words_ids is not None:
        forbidden.extend(tuple(tokens) for tokens in settings.bad_words_ids)
    if settings.suppress_tokens is not None:
        forbidden.extend((token,) for token in settings.suppress_tokens)
    return forbidden


def _check_tokens(phrase: Phrase, vocab_size: int, ending_tokens: set[int | None]) -> None:
    """Raise ValueError if a phrase contains a token that is not in the vocabulary, or that ends a sentence."""
    for token in set(chain.from_iterable(phrase)):
        if not 0 <= token < vocab_size or token in ending_tokens:
            raise InputError(
                f"phrases contains token {token}; give ids from 0 to {vocab_size - 1} without </s> and padding."
            )


def _without_forbidden(phrase: Phrase, forbidden: Sequence[tuple[int, ...]]) -> Phrase:
    """Return a phrase without the alternatives that contain a forbidden token sequence.

    Raises:
        ValueError: if no alternative remains.
    """
    allowed = []
    for alternative in phrase:
        if not any(_contains(alternative, tokens) for tokens in forbidden):
            allowed.append(alternative)
    if not allowed:
        raise InputError(
            f"phrases contains {[list(alternative) for alternative in phrase]}, which bad_words_ids or suppress_tokens "
            "forbids; remove it from one of them."
        )
    return tuple(allowed)


def _contains(tokens: tuple[int, ...], sequence: tuple[int, ...]) -> bool:
    """Return True if `tokens` contains `sequence` as a contiguous subsequence."""
    return any(tokens[start : start + len(sequence)] == sequence for start in range(len(tokens)))
