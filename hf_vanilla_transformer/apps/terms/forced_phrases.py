"""`ForcedPhrases`: force phrases into translations, by `generate(custom_generate=...)` of transformers."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedTokenizerBase, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from ...model.beam_search import BeamSearch
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ...model.generation_vanilla_transformer import new_beam_search, search_options
from ...support.user_errors import InputError
from .constrained_beam_search import ConstrainedBeamSearch, Phrase, check_number_of_lists


_SHAPE = "give a list of phrases for each sentence; a phrase is a list of token ids, or a list of such alternatives"


class ForcedPhrases:
    """A search for hypotheses that contain the phrases of their sentence.

    ```python
    model.generate(**inputs, custom_generate=ForcedPhrases([[[5, 6], [[7], [8, 9]]], []]), num_beams=10)
    ```

    `generate()` calls it with the prepared inputs of the model. It needs beam search, and a model of this package or an
    [`~hf_vanilla_transformer.Ensemble`] of such models.

    Args:
        phrases (`Sequence[Sequence]`): for each sentence of the batch, the phrases that its hypotheses must contain. A
            phrase is a list of token ids, or a list of alternatives, each a list of token ids, of which one must occur.
        letter_edges (`torch.BoolTensor` of shape `(3, vocabulary)`, *optional*): for each token, whether it begins with
            a letter, whether it ends with a letter, and whether it has no text. If it is given, phrases occur only as
            whole words; see [`~hf_vanilla_transformer.apps.terms.constrained_beam_search.PhraseStates`].

    Attributes:
        phrases (`list[list[Phrase]]`): the phrases of each sentence. A `Phrase` is a tuple of alternatives.

    Raises:
        TypeError: if `phrases` has a different shape, or a token id is not a whole number.
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
        """Run the model's beam search with phrases. The arguments and the result are those of `generate()`.

        Raises:
            ValueError: if a token id is out of range or ends a sentence; if `bad_words_ids` or `suppress_tokens` forbid
                all alternatives of a phrase; if the model or its settings have no beam search; if `letter_edges`
                belongs to another vocabulary; if the number of lists of phrases differs from the number of sentences;
                or if the phrases of a sentence may not fit into its length limit.
        """
        model_type = model.config.model_type
        if model_type != VanillaTransformerConfig.model_type:
            raise InputError(f'forced phrases do not work with a model of the type "{model_type}"; leave them out.')
        check_is_beam_search(generation_config)
        vocab_size = model.config.vocab_size
        letter_edges = _check_letter_edges(self._letter_edges, vocab_size)
        phrases = _usable_phrases(self.phrases, vocab_size, generation_config)

        def new_search(prompts: torch.Tensor, settings: Any) -> BeamSearch:
            check_number_of_lists(phrases, prompts)
            if not any(phrases):
                return new_beam_search(prompts, settings)
            eos = settings._eos_token_tensor
            if eos is None:
                eos = prompts.new_empty(0)
            return ConstrainedBeamSearch(
                settings.num_beams,
                phrases=phrases,
                letter_edges=letter_edges.to(prompts.device),
                prompts=prompts,
                eos=eos,
                **search_options(prompts, settings),
            )

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


def check_is_beam_search(settings: GenerationConfig) -> None:
    """Raise ValueError unless the settings choose beam search."""
    fault = None
    if settings.do_sample:
        fault = "do_sample is True"
    elif settings.num_beams is None or settings.num_beams < 2:
        fault = f"num_beams is {settings.num_beams or 1}"
    if fault is not None:
        raise InputError(
            f"forced phrases and glossaries need beam search, but {fault}; give num_beams of 2 or more, no sampling."
        )


def _check_letter_edges(letter_edges: torch.Tensor | None, vocab_size: int) -> torch.Tensor:
    """Check the shape and dtype of `letter_edges`, or make edges by which no token has a letter if there are none."""
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
    """Return one of the nested lists of `phrases`; raise TypeError unless it is a list or a similar sequence."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise TypeError(f"phrases contains {value!r}; {_SHAPE}.")
    return value


def _read_phrase(phrase: object) -> Phrase:
    """Read a phrase, which is a list of token ids or of alternatives, and drop repeated alternatives.

    Raises:
        TypeError: if the phrase has a different shape, or a token id is not a whole number.
        ValueError: if the phrase or an alternative is empty.
    """
    items = _check_sequence(phrase)
    is_one_alternative = all(isinstance(item, int) for item in items)
    alternatives = [items] if is_one_alternative else items
    distinct = tuple(dict.fromkeys(tuple(_check_sequence(alternative)) for alternative in alternatives))

    # Each token is checked once, because phrases may be long. 1 and True are equal, so their types tell them apart.
    distinct_tokens = dict.fromkeys((token, type(token)) for token in chain.from_iterable(distinct))
    for token, _ in distinct_tokens:
        if not isinstance(token, int) or isinstance(token, bool):
            raise TypeError(f"phrases contains {token!r} in the place of a token id; {_SHAPE}.")
    if not all(distinct):
        raise InputError(f"phrases contains an empty phrase, {phrase!r}; give at least one token.")
    return distinct


def _usable_phrases(phrases: list[list[Phrase]], vocab_size: int, settings: GenerationConfig) -> list[list[Phrase]]:
    """Return phrases without the alternatives that the settings forbid.

    Raises:
        ValueError: if a token id is out of range or ends a sentence, or the settings forbid all alternatives.
    """
    eos = settings.eos_token_id if isinstance(settings.eos_token_id, list) else [settings.eos_token_id]
    ending_tokens = {settings.pad_token_id, *eos}
    forbidden = [tuple(tokens) for tokens in settings.bad_words_ids or []]
    forbidden += [(token,) for token in settings.suppress_tokens or []]
    usable = []
    for phrases_of_sentence in phrases:
        for phrase in phrases_of_sentence:
            _check_tokens(phrase, vocab_size, ending_tokens)
        usable.append([_without_forbidden(phrase, forbidden) for phrase in phrases_of_sentence])
    return usable


def _check_tokens(phrase: Phrase, vocab_size: int, ending_tokens: set[int | None]) -> None:
    """Raise ValueError if a token of a phrase is not in the vocabulary, or ends a sentence."""
    for token in set(chain.from_iterable(phrase)):
        if not 0 <= token < vocab_size or token in ending_tokens:
            raise InputError(
                f"phrases contains token {token}; give ids from 0 to {vocab_size - 1} without </s> and padding."
            )


def _without_forbidden(phrase: Phrase, forbidden: Sequence[tuple[int, ...]]) -> Phrase:
    """Return a phrase without the alternatives that contain a forbidden sequence of tokens.

    Raises:
        ValueError: if no alternative is left.
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
    """Return True if tokens contain a sequence of tokens in a row."""
    return any(tokens[start : start + len(sequence)] == sequence for start in range(len(tokens)))
