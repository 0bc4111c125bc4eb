"""Compute the details of translations: scores, tokens, word alignments, and flags that warn of likely errors.

Scores and alignments come from forced decoding, which is an additional forward pass over the translations.
"""

import math
import re
from collections.abc import Callable, Hashable, Sequence
from enum import StrEnum
from typing import NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from ..data.vocabularies import longest_training_source
from ..model.generation_settings import length_penalty_of
from ..model.input_checks import sides_of
from ..support.user_errors import InputError
from .alignment import Aligner
from .hypothesis_ends import HypothesisEnds
from .inference import Inference, TokenizedText, forced_decoding
from .words_of_tokens import WORDS


# The meaning of each flag of a translation, worded to complete a sentence such as "2 of the translations are ...".
# It is shown by the command `translate`, by the server's page, and by the record of a distillation, which is saved in
# results files and model cards.
FLAG_MEANINGS = {
    "longer_than_training": "longer than any source of the training",
    "truncated": "truncated at the length limit",
    "repetition": "caught in a loop",
}


class DetailLevel(StrEnum):
    """The level of detail that `translate()` returns for each translation.

    Users choose between `TEXT` and `ALL` with `return_details`. Commands and the server pass `FLAGS` if they need no
    scores, because `ALL` takes one more forward pass per batch.
    """

    # Only the text, as a string.
    TEXT = "text"
    # A `Translation` with text, tokens and flags. Its score is minus infinity, and its other fields are empty.
    FLAGS = "flags"
    # A `Translation` with all of its fields.
    ALL = "all"

    @classmethod
    def from_argument(cls, return_details: bool | str) -> "DetailLevel":
        """Convert the argument `return_details` into a level: True into `ALL`, and False into `TEXT`.

        A level, or a string with the value of one, is accepted as well. Raises ValueError for any other string.
        """
        # A `DetailLevel` is also a `str`, so this branch accepts both levels and their values.
        if isinstance(return_details, str):
            names_of_levels = [level.value for level in cls]
            if return_details not in names_of_levels:
                raise InputError(f'return_details is "{return_details}"; give True or False.')
            return cls(return_details)
        if return_details:
            return cls.ALL
        return cls.TEXT


class Translation(NamedTuple):
    """A translation and its details, as returned by `translate(..., return_details=True)`.

    Args:
        text (`str`): the translation.
        score (`float`): log P(Y | X) / lp(Y), by which beam search ranks hypotheses, with the call's length penalty
            (section 6.1). It is minus infinity if the search found no hypothesis.
        tokens (`list[str]`): the generated tokens, including `</s>` unless the translation is truncated. `score()`
            tokenizes the text instead, which may result in different tokens for the same text.
        log_probs (`list[float]`): the log-probability of each token given the tokens before it, in nats. They come from
            the model alone, without logits processors such as `repetition_penalty`.
        alignment (`list` of pairs of `int`, *optional*): links between the words of the source and the words of the
            translation, as `align` returns them. In documents, each letter of a script without spaces counts as a word.
            None if the model provides no attention weights.
        alternatives (`tuple[Translation, ...]`): the other hypotheses, best first; `num_return_sequences` - 1 of them.
        flags (`frozenset[str]`): signs that the translation may be wrong: `"truncated"` if the length limit ended it,
            `"repetition"` if tokens repeat in a row in the translation but not in the source, `"longer_than_training"`
            if the source has more tokens than the longest source that the model was trained on, and `"split"` if the
            source was split for this reason.
    """

    text: str
    score: float
    tokens: list[str]
    log_probs: list[float]
    alignment: list[tuple[int, int]] | None
    alternatives: tuple["Translation", ...] = ()
    flags: frozenset[str] = frozenset()


def untranslated(text: str, words: re.Pattern[str] = WORDS) -> Translation:
    """Return a [`Translation`] that copies a text, used for texts that are not given to the model.

    Each word is aligned with itself.

    Args:
        text (`str`): the text.
        words (`re.Pattern[str]`): matches the words that the alignment links.
    """
    num_words = len(words.findall(text))
    alignment = [(word, word) for word in range(num_words)]
    return Translation(text, score=0.0, tokens=[], log_probs=[], alignment=alignment)


def describe(
    inference: Inference,
    aligner: Aligner | None,
    sources: list[TokenizedText],
    sequences: torch.Tensor,
    settings: GenerationConfig,
) -> list[Translation]:
    """Convert the hypotheses that a search has found into translations with details.

    The result has the best hypothesis of each sentence, with the others as its alternatives.

    Args:
        aligner: aligns the words of translations. Without it, there is no forced decoding, so scores are minus
            infinity, and there are no log-probabilities, alignments or alternatives.
        sequences: the result of the search, `(sentences, hypotheses, target)`, with the best hypothesis of each
            sentence first.
        settings: the search settings.
    """
    ends = HypothesisEnds(settings, inference.tokenizer.pad_token_id)
    # Without an aligner, there are no alternatives.
    num_hypotheses = 1 if aligner is None else sequences.shape[1]
    hypotheses = _decode_sequences(inference.tokenizer, ends, sources, sequences[:, :num_hypotheses])
    translations = _describe_texts(inference.tokenizer, ends, hypotheses)
    # This raises an error if the settings are wrong, even if no score is computed.
    length_penalty = length_penalty_of(settings)
    if aligner is not None:
        translations = _add_scores_and_alignments(translations, hypotheses, inference, aligner, length_penalty)
    return _group_alternatives(translations, num_hypotheses)


class _Hypothesis(NamedTuple):
    """A hypothesis of the search (`target`), and the sentence that it translates (`source`)."""

    source: TokenizedText
    target: TokenizedText


def _decode_sequences(
    tokenizer: PreTrainedTokenizerBase, ends: HypothesisEnds, sources: list[TokenizedText], sequences: torch.Tensor
) -> list[_Hypothesis]:
    """Decode all hypotheses, and return them in one list. The hypotheses of a sentence are next to each other.

    Args:
        ends: removes start tokens and padding.
        sequences: the result of the search, `(sentences, hypotheses, target)`.
    """
    num_hypotheses = sequences.shape[1]
    source_of_hypothesis: list[TokenizedText] = []
    for source in sources:
        source_of_hypothesis += [source] * num_hypotheses
    token_ids_of_hypothesis = [ends.trim(sequence) for sequence in sequences.flatten(0, 1).tolist()]
    # A single call decodes all hypotheses.
    texts = tokenizer.batch_decode(token_ids_of_hypothesis, skip_special_tokens=True)

    hypotheses = []
    for source, text, token_ids in zip(source_of_hypothesis, texts, token_ids_of_hypothesis, strict=True):
        hypotheses.append(_Hypothesis(source, TokenizedText(text, token_ids)))
    return hypotheses


def _describe_texts(
    tokenizer: PreTrainedTokenizerBase, ends: HypothesisEnds, hypotheses: list[_Hypothesis]
) -> list[Translation]:
    """Convert each hypothesis into a translation that has only text, tokens and flags.

    The score, the log-probabilities and the alignment are placeholders until [`_add_scores_and_alignments`].
    """
    _, target_tokenizer = sides_of(tokenizer)
    longest_source = longest_training_source(tokenizer)
    translations = []
    for source, target in hypotheses:
        translation = Translation(
            text=target.text,
            score=-math.inf,
            tokens=target_tokenizer.convert_ids_to_tokens(target.token_ids),
            log_probs=[],
            alignment=None,
            flags=_find_flags(source, target, ends, longest_source),
        )
        translations.append(translation)
    return translations


def _add_scores_and_alignments(
    translations: list[Translation],
    hypotheses: list[_Hypothesis],
    inference: Inference,
    aligner: Aligner,
    length_penalty: Callable[[int], float],
) -> list[Translation]:
    """Compute scores, log-probabilities and alignments by forced decoding, and return the translations with them.

    Translations without tokens stay as they are, because forced decoding needs at least one token.

    Args:
        translations: one translation per hypothesis.
        length_penalty: returns the number by which the score of a hypothesis of the given length is divided.
    """
    # The indices of the hypotheses that have tokens: [0, 2] if the second of three hypotheses has none.
    indices_with_tokens = [index for index, hypothesis in enumerate(hypotheses) if hypothesis.target.token_ids]
    sources = [hypotheses[index].source for index in indices_with_tokens]
    targets = [hypotheses[index].target for index in indices_with_tokens]

    described_translations = list(translations)
    # A row is an index of `sources` and `targets`. The longest rows come first.
    for row, forced_target in forced_decoding(inference, sources, targets, aligner.has_attention):
        index = indices_with_tokens[row]
        log_probs = forced_target.log_probs
        described_translations[index] = translations[index]._replace(
            score=sum(log_probs) / length_penalty(len(log_probs)),
            log_probs=log_probs,
            alignment=_align_if_possible(aligner, hypotheses[index], forced_target.attention),
        )
    return described_translations


def _align_if_possible(
    aligner: Aligner, hypothesis: _Hypothesis, attention: torch.Tensor | None
) -> list[tuple[int, int]] | None:
    """Return the alignment of a hypothesis, or None if the model provides no attention weights."""
    if attention is None:
        return None
    return aligner(hypothesis.source, hypothesis.target, attention)


def _group_alternatives(translations: list[Translation], num_hypotheses: int) -> list[Translation]:
    """Return the best hypothesis of each sentence, with the sentence's other hypotheses as its alternatives.

    Args:
        translations (`list[Translation]`): all hypotheses; each sentence has `num_hypotheses` of them in a row, the
            best one first.
        num_hypotheses (`int`): the number of hypotheses per sentence.
    """
    best_translations = []
    for start in range(0, len(translations), num_hypotheses):
        best, *others = translations[start : start + num_hypotheses]
        # If a search finds fewer hypotheses than were requested, the missing ones have no tokens.
        alternatives = tuple(hypothesis for hypothesis in others if hypothesis.tokens)
        best_translations.append(best._replace(alternatives=alternatives))
    return best_translations


def _find_flags(
    source: TokenizedText, hypothesis: TokenizedText, ends: HypothesisEnds, longest_source: float
) -> frozenset[str]:
    """Return the flags that warn of likely errors in a hypothesis. The class [`Translation`] explains each flag.

    Args:
        source (`TokenizedText`): the source.
        hypothesis (`TokenizedText`): the hypothesis.
        ends (`HypothesisEnds`): determines whether the length limit ended the hypothesis.
        longest_source (`float`): number of tokens of the longest source in the training data; infinite if unknown.
    """
    source_length = len(source.token_ids)
    flags = set()
    if ends.is_truncated(hypothesis.token_ids, hypothesis.text, source_length):
        flags.add("truncated")
    if has_loop(hypothesis.token_ids) and not has_loop(source.token_ids):
        flags.add("repetition")
    if source_length > longest_source:
        flags.add("longer_than_training")
    return frozenset(flags)


def has_loop(tokens: Sequence[Hashable], most_tokens: int = 8, least_times: int = 4) -> bool:
    """Return True if a run of tokens repeats so often that the model was probably caught in a loop.

    Args:
        tokens (`Sequence[Hashable]`): the tokens of a text.
        most_tokens (`int`): length of the longest run whose repetitions are counted.
        least_times (`int`): number of times that a run must occur, without other tokens in between. For runs of one or
            two tokens, this number is tripled, because ordinary text has such repetitions, for example rows of dots.
    """
    for run_length in range(1, most_tokens + 1):
        needed_times = 3 * least_times if run_length <= 2 else least_times
        # In a loop, each token equals the token one run earlier, except in the first occurrence of the run. For
        # example, "a b c" must occur 4 times, so the last 9 of the 12 tokens equal the token 3 positions before.
        needed_tokens = run_length * (needed_times - 1)
        if _repeats_tokens(tokens, run_length, needed_tokens):
            return True
    return False


def _repeats_tokens(tokens: Sequence[Hashable], distance: int, needed_tokens: int) -> bool:
    """Return True if `needed_tokens` tokens in a row are equal to the tokens `distance` positions before them."""
    repeated_tokens = 0
    for position in range(distance, len(tokens)):
        if tokens[position] == tokens[position - distance]:
            repeated_tokens += 1
        else:
            repeated_tokens = 0
        if repeated_tokens >= needed_tokens:
            return True
    return False
