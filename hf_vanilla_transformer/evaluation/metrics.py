"""Compute translation metrics: BLEU, chrF and TER with sacreBLEU, and the token error rate with jiwer.

To add a metric, write a subclass of [`SacreBleuMetric`] and add it to [`METRICS`]. Evaluations, logs, model cards and
results files then contain it. You do not need to change any other code, unless users have to ask for the metric. Then,
like the token error rate, it also needs an option in `scoring_arguments.py` and an argument of `evaluate()`. Without a
change in `apps/cli/evaluate.py` and `training/after_training.py`, which pass the option to `evaluate()`, the option has
no effect. `git grep token_error_rate` finds these places.

The classes are metrics of the Hugging Face library `evaluate`. They need no network access.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, NamedTuple, NotRequired, Protocol, TypedDict, cast

import datasets
import evaluate
import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.metrics.base import Metric
from sacrebleu.significance import PairedTest
from transformers import PreTrainedTokenizerBase

from ..support.argument_checks import check_strings
from ..support.user_errors import InputError, needing
from .bleu_tokenization import UNSPACED_CHARACTER, References, choose_bleu_tokenization, flatten_references


if TYPE_CHECKING:
    from transformers import EvalPrediction


IGNORED_LABEL = -100

# Matches one character of Japanese kana, or one of their marks. sacreBLEU's TER splits text at each kanji, but counts
# consecutive kana as one word.
_KANA = "[\u3041-\u3096\u309d-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f]"
_UNSPACED_CHARACTER_OR_KANA = re.compile(f"{UNSPACED_CHARACTER.pattern}|{_KANA}")
_TEXT = datasets.Value("string")
# The two accepted formats: one reference for each prediction, or several. The library `evaluate` uses the first format
# that fits the data.
_FEATURES = [
    datasets.Features({"predictions": _TEXT, "references": _TEXT}),
    datasets.Features({"predictions": _TEXT, "references": datasets.Sequence(_TEXT)}),
]

# Token ids as the Trainer passes them to `compute_metrics`: one array of shape `(sentences, length)`; a list of arrays,
# one for each batch; or a tuple whose first item is one of these.
TokenIds = NDArray[np.int64] | list["TokenIds"] | tuple["TokenIds", ...]
# The result of `score_translations`, which is saved as JSON: the number of sentences, the exact match, and for each
# metric a score, a signature and possibly a `Comparison`. The keys depend on METRICS, so no TypedDict can list them.
Scores = dict[str, Any]


class Comparison(TypedDict):
    """Comparison of a system with a baseline by sacreBLEU's paired bootstrap resampling.

    `mean` is the mean score of 1,000 resamples, and `ci` is half the width of their 95 % confidence interval. Keys that
    begin with `other_` belong to the baseline.
    """

    score: float
    p_value: float
    mean: float
    ci: float
    other_score: float
    other_mean: float
    other_ci: float
    signature: str


class MetricScore(TypedDict):
    """A metric's score, usually in percent, and its signature, which states how the score was computed."""

    score: float
    signature: str
    against: NotRequired[Comparison]


class CorpusScore(Protocol):
    """The result of [`Scorer.corpus_score`]: one score for all hypotheses together."""

    @property
    def score(self) -> float:
        """The score of all hypotheses, in percent."""


class Scorer(Protocol):
    """Interface of the objects that compute a metric for [`SacreBleuMetric`]. sacreBLEU's scorers implement it."""

    def corpus_score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], /) -> CorpusScore:
        """Score all hypotheses together. Each item of `references` contains one reference for every hypothesis."""

    def get_signature(self) -> object:
        """Return an object whose string form is the signature of the scores."""


class SacreBleuMetric(evaluate.Metric, ABC):
    """Base class of translation metrics. Call `metric.compute(predictions=[...], references=[...])` to get a score.

    `compute` returns a dict with the keys `score` and `signature`. Each prediction has one reference string or a list
    of references. The lists must have the same length for all predictions. The other arguments of `compute` are the
    scorer's options, and `against`, the translations of a baseline.

    A subclass overrides `make_scorer` and sets these class attributes:

    Attributes:
        citation (`str`): the publication that describes the metric.
        label (`str`): name of the metric in logs and model cards.
        hub_type (`str`): type of the metric on the Hub.
        options (`tuple[str, ...]`): the scorer options that [`score_translations`] sets.
        higher_is_better (`bool`): True if higher scores are better.
        is_computed_during_training (`bool`): True if the metric is also computed in the evaluations of a training run.
        is_on_request (`bool`): True if the metric is computed only if the caller names it.
        can_be_resampled (`bool`): True if sacreBLEU can compare two systems by paired bootstrap resampling. Only
            sacreBLEU's own scorers can.
    """

    citation: str
    label: str
    hub_type: str
    options: tuple[str, ...] = ("lowercase",)
    higher_is_better = True
    is_computed_during_training = True
    is_on_request = False
    can_be_resampled = True

    def __init__(self, keep_in_memory: bool = True, **kwargs: Any):
        super().__init__(keep_in_memory=keep_in_memory, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        # The constructor of `evaluate.Metric` calls this method.
        return evaluate.MetricInfo(
            description=str(self.__doc__), citation=self.citation, inputs_description="", features=_FEATURES
        )

    def add_batch(
        self,
        *,
        predictions: Sequence[str] | None = None,
        references: Sequence[References] | None = None,
        **kwargs: Any,
    ) -> None:
        """Check that predictions and references are lists, and add them to the texts to score.

        Raises:
            ValueError: if predictions or references are not a list, are empty, or differ in number. Without this check,
                `evaluate` would treat each letter of a string as a sentence.
        """
        _check_sentences("predictions", predictions)
        _check_sentences("references", references)
        super().add_batch(predictions=predictions, references=references, **kwargs)

    @abstractmethod
    def make_scorer(self, **options: Any) -> Scorer:
        """Make the object that computes this metric with the given options, such as a scorer of sacreBLEU."""

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[References],
        *,
        against: Sequence[str] | None = None,
        **scorer_options: Any,
    ) -> MetricScore:
        """Compute the score of the predictions, and compare it with that of a baseline if there is one.

        `evaluate.Metric.compute` calls this method.

        Args:
            references: one reference, or a list of references, for each prediction.
            against: translations of the baseline. They are ignored if `can_be_resampled` is False.
            **scorer_options: arguments of `make_scorer`.
        """
        reference_streams = _make_reference_streams(references)
        scorer = self.make_scorer(**scorer_options)
        corpus_score = scorer.corpus_score(predictions, reference_streams)
        metric_score: MetricScore = {"score": corpus_score.score, "signature": str(scorer.get_signature())}
        if against is not None and self.can_be_resampled:
            # If `can_be_resampled` is True, `make_scorer` returns one of sacreBLEU's own scorers.
            sacrebleu_scorer = cast("Metric", scorer)
            metric_score["against"] = _compare_by_resampling(sacrebleu_scorer, predictions, against, reference_streams)
        return metric_score


def _check_sentences(name: str, texts: object) -> None:
    """Raise ValueError unless an argument is a nonempty list of sentences."""
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise InputError(f"{name} is {texts!r}; give a list of sentences.")


def _make_reference_streams(references: Sequence[References | None]) -> list[list[str]]:
    """Transpose the references of each prediction into the lists that sacreBLEU expects.

    These are a list of the predictions' first references, a list of their second references, and so on. For example,
    `[["a1", "a2"], ["b1", "b2"]]` becomes `[["a1", "b1"], ["a2", "b2"]]`.

    Raises:
        ValueError: if a prediction has no reference, or the predictions have different numbers of references.
    """
    references_by_prediction = [_list_alternatives(alternatives) for alternatives in references]
    counts = {len(alternatives) for alternatives in references_by_prediction}
    counts_differ = len(counts) > 1
    lacks_reference = 0 in counts
    if counts_differ or lacks_reference:
        raise InputError("each prediction needs a reference, and all as many; give strings, or lists of strings.")
    return [list(stream) for stream in zip(*references_by_prediction, strict=True)]


def _list_alternatives(alternatives: References | None) -> Sequence[str]:
    """Return the references of one prediction as a list; an empty one if there are none."""
    if alternatives is None:
        return []
    if isinstance(alternatives, str):
        return [alternatives]
    return alternatives


def _compare_by_resampling(
    scorer: Metric, predictions: Sequence[str], baseline: Sequence[str], reference_streams: list[list[str]]
) -> Comparison:
    """Compare predictions with a baseline by sacreBLEU's paired bootstrap resampling (Koehn 2004, W04-3250)."""
    # sacreBLEU treats the first system as the baseline, and lists the results in the order of the systems.
    systems = [("baseline", baseline), ("predictions", predictions)]
    paired_test = PairedTest(systems, {"metric": scorer}, reference_streams, test_type="bs")
    signatures, results = paired_test()
    # There is one metric. sacreBLEU replaces the key "metric" by its own name for it, such as "BLEU".
    (metric_name,) = signatures
    # The results have the order of `systems`.
    results_of_systems: Any = results[metric_name]
    baseline_result, predictions_result = results_of_systems
    # The names that begin with "other" are the figures of the baseline. The p-value compares the two systems.
    return {
        "score": float(predictions_result.score),
        "p_value": float(predictions_result.p_value),
        "mean": float(predictions_result.mean),
        "ci": float(predictions_result.ci),
        "other_score": float(baseline_result.score),
        "other_mean": float(baseline_result.mean),
        "other_ci": float(baseline_result.ci),
        "signature": str(signatures[metric_name]),
    }


class TokenErrorRateScore(NamedTuple):
    """The token error rate that [`TokenErrorRateScorer`] computes.

    Args:
        score (`float`): number of edits per reference token, in percent.
    """

    score: float


class _EditCounts(NamedTuple):
    """The numbers from which the token error rate is computed: token edits, and tokens of the nearest references."""

    edits: int
    reference_tokens: int


class TokenErrorRateScorer:
    """A [`Scorer`] that computes the token error rate with the library jiwer.

    The scorer counts the token edits between each hypothesis and the reference that is closest to it.

    Raises:
        ImportError: if jiwer is missing; the message names the extra to install.
    """

    def __init__(self) -> None:
        with needing("g2p", "the token error rate needs"):
            import jiwer

        self._jiwer = jiwer

    def corpus_score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> TokenErrorRateScore:
        """Compute the token error rate of all hypotheses together.

        Each item of `references` contains one reference for every hypothesis.
        """
        num_edits = 0
        num_reference_tokens = 0
        references_by_hypothesis = zip(*references, strict=True)
        for hypothesis, alternatives in zip(hypotheses, references_by_hypothesis, strict=True):
            counts = self._count_edits_to_nearest(hypothesis, alternatives)
            num_edits += counts.edits
            num_reference_tokens += counts.reference_tokens
        if num_reference_tokens == 0:
            # Without reference tokens, there is no rate per token, so the result is the number of edits times 100.
            return TokenErrorRateScore(100.0 * num_edits)
        return TokenErrorRateScore(100 * num_edits / num_reference_tokens)

    def _count_edits_to_nearest(self, hypothesis: str, references: Sequence[str]) -> _EditCounts:
        """Count the token edits between a hypothesis and its nearest reference, and the tokens of this reference."""
        alignments = [self._jiwer.process_words(reference, hypothesis) for reference in references]
        nearest = min(alignments, key=lambda alignment: alignment.wer)
        edits = nearest.substitutions + nearest.deletions + nearest.insertions
        # jiwer splits a list of references into tokens. This list has one item, the reference of this alignment.
        (tokens_of_reference,) = nearest.references
        return _EditCounts(edits, len(tokens_of_reference))

    def get_signature(self) -> str:
        """Return jiwer's name and version, such as `"jiwer:4.0.0"`."""
        return f"jiwer:{version('jiwer')}"


class Bleu(SacreBleuMetric):
    """Corpus BLEU (Papineni et al. 2002) in percent. Scores are comparable if their signatures are equal.

    The metric accepts sacreBLEU's options, such as `tokenize="13a"` and `lowercase=False`. By default,
    [`choose_bleu_tokenization`] chooses the tokenization.
    """

    citation = "Post 2018, A Call for Clarity in Reporting BLEU Scores, W18-6319"
    label = "BLEU"
    hub_type = "sacrebleu"
    options = ("tokenize", "lowercase")

    def make_scorer(self, **options: Any) -> BLEU:
        """Make sacreBLEU's scorer for BLEU."""
        return BLEU(**options)

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[References],
        *,
        tokenize: str | None = None,
        force: bool | None = None,
        **options: Any,
    ) -> MetricScore:
        """Compute BLEU. Raise ValueError if sacreBLEU has no tokenization with the name `tokenize`.

        Args:
            predictions, references, **options: see [`SacreBleuMetric`].
            tokenize: name of a tokenization. The default depends on the script of the references.
            force: whether sacreBLEU should not warn about text that looks tokenized. The default depends on `tokenize`.
        """
        if not tokenize:
            tokenize = choose_bleu_tokenization(references)
        if tokenize not in BLEU.TOKENIZERS:
            known_names = ", ".join(str(name) for name in BLEU.TOKENIZERS)
            raise InputError(f"tokenize is {tokenize!r}; choose one of: {known_names}.")
        if force is None:
            # With these tokenizations, users are expected to pass tokenized text.
            force = tokenize in ("none", "char")
        return super()._compute(predictions, references, tokenize=tokenize, force=force, **options)


class ChrF(SacreBleuMetric):
    """chrF, a character n-gram F-score (Popovic 2015), in percent. The metric accepts sacreBLEU's options."""

    citation = "Popovic 2015, chrF: character n-gram F-score for automatic MT evaluation, W15-3049"
    label = "chrF"
    hub_type = "chrf"

    def make_scorer(self, **options: Any) -> CHRF:
        """Make sacreBLEU's scorer for chrF."""
        return CHRF(**options)


class Ter(SacreBleuMetric):
    """Translation edit rate, TER (Snover et al. 2006), in percent. Lower is better, and case is ignored.

    TER counts word edits. In scripts without spaces between words, it counts character edits instead. These scripts are
    Thai, Lao, Tibetan, Burmese and Khmer, and with `asian_support` also Japanese kana. The signature then contains
    `chars:yes`, because sacreBLEU itself splits only Chinese characters.

    The metric accepts sacreBLEU's options, and `split_characters` (default: True). If `split_characters` is False, TER
    counts word edits in all scripts.
    """

    citation = "Snover et al. 2006, A Study of Translation Edit Rate with Targeted Human Annotation"
    label = "TER"
    hub_type = "ter"
    options = ("normalized", "asian_support", "split_characters")
    higher_is_better = False
    is_computed_during_training = False

    def make_scorer(self, **options: Any) -> TER:
        """Make sacreBLEU's scorer for TER."""
        return TER(**options)

    def _compute(
        self,
        predictions: Sequence[str],
        references: Sequence[References],
        *,
        against: Sequence[str] | None = None,
        asian_support: bool = False,
        split_characters: bool = True,
        **options: Any,
    ) -> MetricScore:
        """Compute TER. In scripts without spaces between words, count each character as a word.

        Args:
            predictions, references, against, **options: see [`SacreBleuMetric`].
            asian_support: True if Japanese kana and Chinese characters are also counted as words.
            split_characters: False if no characters are counted as words, whatever the script is.
        """
        pattern_of_characters = _UNSPACED_CHARACTER_OR_KANA if asian_support else UNSPACED_CHARACTER
        # Only the references decide whether text is split, so that all systems get the same signature.
        has_unspaced_text = any(pattern_of_characters.search(text) for text in flatten_references(references))
        if not split_characters or not has_unspaced_text:
            return super()._compute(predictions, references, against=against, asian_support=asian_support, **options)

        # TER counts words, which are separated by spaces. With spaces around it, a character is a word.
        spaced_baseline = None
        if against is not None:
            spaced_baseline = _put_spaces_around(pattern_of_characters, against)
        metric_score = super()._compute(
            _put_spaces_around(pattern_of_characters, predictions),
            _put_spaces_around_in_references(pattern_of_characters, references),
            against=spaced_baseline,
            asian_support=asian_support,
            **options,
        )
        return _add_characters_to_signatures(metric_score)


def _add_characters_to_signatures(metric_score: MetricScore) -> MetricScore:
    """Return a score of TER whose signatures say that characters were counted, which sacreBLEU does not know."""
    marked_score: MetricScore = {**metric_score, "signature": metric_score["signature"] + "|chars:yes"}
    if "against" in metric_score:
        comparison = metric_score["against"]
        marked_score["against"] = {**comparison, "signature": comparison["signature"] + "|chars:yes"}
    return marked_score


def _put_spaces_around(pattern: re.Pattern[str], texts: Iterable[str]) -> list[str]:
    """Put a space before and after each match of a pattern in the texts."""
    # `\g<0>` is the match. If the pattern matches a and b, "ab" becomes " a  b ".
    return [pattern.sub(r" \g<0> ", text) for text in texts]


def _put_spaces_around_in_references(
    pattern: re.Pattern[str], references: Sequence[References]
) -> list[str | list[str]]:
    """Put a space before and after each match of a pattern in the references of each prediction."""
    spaced_references: list[str | list[str]] = []
    for alternatives in references:
        if isinstance(alternatives, str):
            spaced_references.extend(_put_spaces_around(pattern, [alternatives]))
        else:
            spaced_references.append(_put_spaces_around(pattern, alternatives))
    return spaced_references


class TokenErrorRate(SacreBleuMetric):
    """Token error rate in percent: the number of edits to the closest reference, per reference token. Lower is better.

    Tokens are separated by spaces. If they are phonemes, this metric is the phoneme error rate. It is computed only on
    request, because it needs jiwer.
    """

    citation = "Morris et al. 2004, From WER and RIL to MER and WIL: improved evaluation measures"
    label = "token error rate"
    hub_type = "wer"
    options = ()
    higher_is_better = False
    is_computed_during_training = False
    is_on_request = True
    can_be_resampled = False

    def make_scorer(self, **options: Any) -> TokenErrorRateScorer:
        """Make the scorer that uses jiwer."""
        return TokenErrorRateScorer(**options)


# All translation metrics, by their names in scores, logs, model cards and results files.
METRICS: dict[str, type[SacreBleuMetric]] = {
    "bleu": Bleu,
    "chrf": ChrF,
    "ter": Ter,
    "token_error_rate": TokenErrorRate,
}


def select_metrics(*requested: str) -> list[str]:
    """Return the names of the metrics to compute: the default metrics, and the requested additional metrics."""
    names = []
    for name, metric in METRICS.items():
        is_default = not metric.is_on_request
        if is_default or name in requested:
            names.append(name)
    return names


def make_compute_metrics(
    tokenizer: PreTrainedTokenizerBase, **options: Any
) -> "Callable[[EvalPrediction], dict[str, float]]":
    """Make a `compute_metrics` function for a `Seq2SeqTrainer`, so that its evaluations include BLEU and chrF.

    The Trainer needs `predict_with_generate=True`. The function computes all metrics with
    `is_computed_during_training`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): decodes predictions and labels.
        **options: the arguments `tokenize` and `lowercase` of [`score_translations`].

    Returns:
        A function from `EvalPrediction` to `{"bleu": percent, "chrf": percent}`.
    """
    metric_names = [name for name, metric in METRICS.items() if metric.is_computed_during_training]

    def compute_metrics(prediction: "EvalPrediction") -> dict[str, float]:
        """Decode the Trainer's predictions and labels, and score the predictions."""
        hypotheses = _decode(tokenizer, prediction.predictions)
        references = _decode(tokenizer, prediction.label_ids)
        scores = score_translations(hypotheses, references, metrics=metric_names, **options)
        # `scores` also contains signatures and counts, which the Trainer could not log.
        return {name: scores[name] for name in metric_names}

    return compute_metrics


def _decode(tokenizer: PreTrainedTokenizerBase, ids: TokenIds) -> list[str]:
    """Decode the predictions or labels that the Trainer passes to `compute_metrics`.

    Raises:
        ValueError: if the predictions are logits instead of token ids.
    """
    if isinstance(ids, tuple):
        # A model with several outputs. The first one contains the predictions.
        return _decode(tokenizer, ids[0])
    if isinstance(ids, list):
        # With eval_do_concat_batches=False, the list has one item for each batch.
        texts = []
        for batch in ids:
            texts += _decode(tokenizer, batch)
        return texts
    return _decode_array(tokenizer, np.asarray(ids))


def _decode_array(tokenizer: PreTrainedTokenizerBase, ids: NDArray[np.int64]) -> list[str]:
    """Decode token ids of shape `(sentences, length)`. Raise ValueError if they are logits, which have a third axis."""
    if ids.ndim != 2:
        raise InputError("BLEU needs translations, but the predictions are logits; set predict_with_generate=True.")
    # The Trainer pads with the label that the loss ignores, which is not a token id.
    token_ids = np.where(ids == IGNORED_LABEL, tokenizer.pad_token_id, ids)
    return tokenizer.batch_decode(token_ids, skip_special_tokens=True)


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[References],
    tokenize: str | None = None,
    lowercase: bool = False,
    metrics: Iterable[str] | None = None,
    against: Sequence[str] | None = None,
) -> Scores:
    """Compare translations with references. Compute BLEU, chrF, TER, and the percentage of exact matches.

    Args:
        hypotheses (`Sequence[str]`): translations.
        references (`Sequence`): one reference, or a list of references, for each translation. The lists must have the
            same length for all translations.
        tokenize (`str`, *optional*): sacreBLEU's tokenization for BLEU: `"13a"` for plain text, `"none"` for text that
            is already tokenized, `"char"` for sentences with fewer than four words. By default,
            [`choose_bleu_tokenization`] chooses it. With `"zh"` and `"ja-mecab"`, TER counts character edits. In
            scripts without spaces, such as Thai, TER counts character edits with every tokenization except `"none"`.
        lowercase (`bool`): whether BLEU and chrF ignore case. TER always ignores it.
        metrics (`Iterable[str]`, *optional*): names of metrics in `METRICS`. The default is all metrics except those
            that are computed only on request.
        against (`Sequence[str]`, *optional*): translations by a baseline, with which the scores are compared by
            sacreBLEU's paired bootstrap resampling (Koehn 2004, W04-3250).

    Returns:
        `dict`: the scores and how they were computed.

            - `bleu`, `chrf`, `ter`: the score of each metric, in percent.
            - `bleu_signature`, ...: the signature of each score.
            - `exact_match`: percentage of hypotheses that equal a reference.
            - `sentences`: number of hypotheses.
            - `bleu_against`, ...: only with `against`, the [`Comparison`] with the baseline.

    Raises:
        TypeError: if an argument contains anything other than strings or lists of strings.
        ValueError: if the numbers of hypotheses and references differ or are 0, or if `tokenize` is unknown.
    """
    checked_hypotheses = list(check_strings("hypotheses", hypotheses))
    reference_lists = _list_references(references)
    baseline = None
    if against is not None:
        baseline = _check_baseline(against, len(checked_hypotheses))
    if metrics is None:
        metrics = select_metrics()
    options_of_all_metrics = _choose_metric_options(tokenize, lowercase)

    scores: Scores = {}
    for name in metrics:
        metric_score = _compute_metric(name, checked_hypotheses, reference_lists, baseline, options_of_all_metrics)
        scores.update(_name_entries(name, metric_score))

    num_exact_matches = _count_exact_matches(checked_hypotheses, reference_lists)
    scores["exact_match"] = 100 * num_exact_matches / len(reference_lists)
    scores["sentences"] = len(reference_lists)
    return scores


def _compute_metric(
    name: str,
    hypotheses: list[str],
    reference_lists: list[list[str]],
    baseline: list[str] | None,
    options_of_all_metrics: Mapping[str, object],
) -> MetricScore:
    """Compute one metric, with those of the options that it uses."""
    metric = METRICS[name]()
    options = {option: options_of_all_metrics[option] for option in metric.options}
    return metric.compute(predictions=hypotheses, references=reference_lists, against=baseline, **options)


def _name_entries(name: str, metric_score: MetricScore) -> Scores:
    """Return the entries of a metric in the result of [`score_translations`], such as `bleu` and `bleu_signature`."""
    entries: Scores = {name: metric_score["score"], f"{name}_signature": metric_score["signature"]}
    if "against" in metric_score:
        entries[f"{name}_against"] = metric_score["against"]
    return entries


def _count_exact_matches(hypotheses: Sequence[str], reference_lists: Sequence[Sequence[str]]) -> int:
    """Return the number of hypotheses that equal one of their references."""
    exact_matches = 0
    for hypothesis, references in zip(hypotheses, reference_lists, strict=True):
        if hypothesis in references:
            exact_matches += 1
    return exact_matches


def _check_baseline(translations: Sequence[str], hypotheses_count: int) -> list[str]:
    """Check the translations of a baseline, and return them as a list.

    Raise TypeError unless they are strings, and ValueError unless there is one for each hypothesis.
    """
    baseline = list(check_strings("against", translations))
    if len(baseline) != hypotheses_count:
        raise InputError(
            f"against has {len(baseline)} translations, but there are {hypotheses_count} hypotheses; give one for each."
        )
    return baseline


def _choose_metric_options(tokenize: str | None, lowercase: bool) -> dict[str, object]:
    """Choose values for all scorer options. The attribute `options` of a metric names those that the metric uses."""
    # For Chinese and Japanese, TER counts character edits, as BLEU's tokenizations for these languages suggest.
    counts_characters = tokenize in ("zh", "ja-mecab")
    return {
        "tokenize": tokenize,
        "lowercase": lowercase,
        "normalized": counts_characters,
        "asian_support": counts_characters,
        # Text with the tokenization "none" is already split into words.
        "split_characters": tokenize != "none",
    }


def _list_references(references: Sequence[References]) -> list[list[str]]:
    """Return a list of references for each translation.

    Raise TypeError unless the references are either strings or lists of strings. They must not be mixed.
    """
    # Only a sequence may contain lists. An iterator of strings is not searched for them, because `any` would use it up.
    has_lists = isinstance(references, Sequence) and any(isinstance(entry, (list, tuple)) for entry in references)
    if has_lists:
        # If strings and lists are mixed, this raises TypeError, because `check_strings` rejects a single string.
        return [list(check_strings("references", alternatives)) for alternatives in references]
    # This raises TypeError for an entry that is not a string.
    single_references = check_strings("references", cast("Sequence[str]", references))
    return [[reference] for reference in single_references]


def describe_exact_match(scores: Mapping[str, Any]) -> str:
    """Format the exact matches as a percentage and a count, such as `"33.3 % (1 of 3)"`.

    The percentage is 100.0 only if all translations match, so 2,999 of 3,000 is formatted as 99.9 %.

    Args:
        scores: the result of [`score_translations`], of which `exact_match` and `sentences` are used.
    """
    total = scores["sentences"]
    percent = scores["exact_match"]
    # `scores` contains only the percentage, so the count is computed from it.
    exact_matches = round(percent * total / 100)
    if exact_matches < total:
        # Otherwise a percentage above 99.95 would be rounded to 100.0.
        percent = min(percent, 99.9)
    return f"{percent:.1f} % ({exact_matches:,} of {total:,})"
