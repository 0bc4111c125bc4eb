"""Metrics of translations: BLEU, chrF and TER by sacrebleu, the token error rate by jiwer, and the table of them all.

To add a metric, write a subclass of [`SacreBleuMetric`] and add it to [`METRICS`]. Evaluations, logs, model cards and
files of results then contain it. The metric needs no code elsewhere.

The classes are metrics of the library `evaluate` that need no network access.
"""

import re
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

# A character of Japanese kana or one of their marks. sacrebleu's TER divides text at each kanji, but takes a run of
# kana for one word.
_KANA = "[\u3041-\u3096\u309d-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f]"
_UNSPACED_CHARACTER_OR_KANA = re.compile(f"{UNSPACED_CHARACTER.pattern}|{_KANA}")
_TEXT = datasets.Value("string")
# The library `evaluate` takes the first entry that the data match: one reference for each prediction, or several.
_FEATURES = [
    datasets.Features({"predictions": _TEXT, "references": _TEXT}),
    datasets.Features({"predictions": _TEXT, "references": datasets.Sequence(_TEXT)}),
]

# Token ids as the Trainer passes them to `compute_metrics`: one array of shape `(sentences, length)`; a list of arrays,
# one for each batch; or a tuple whose first item is one of these.
TokenIds = NDArray[np.int64] | list["TokenIds"] | tuple["TokenIds", ...]
# What `score_translations` returns, and what is saved as JSON: the number of sentences, the exact match, and for each
# metric a score, a signature and possibly a `Comparison`. The keys depend on METRICS, so no TypedDict can list them.
Scores = dict[str, Any]


class Comparison(TypedDict):
    """The result of sacrebleu's paired bootstrap resampling for a system and a baseline.

    `mean` and `ci` are the mean of 1,000 resamples and half of their 95 % confidence interval. The keys that begin with
    `other_` belong to the baseline.
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
    """The score of a metric, usually in percent, and the signature that says how it was computed."""

    score: float
    signature: str
    against: NotRequired[Comparison]


class CorpusScore(Protocol):
    """The result of a [`Scorer`]."""

    @property
    def score(self) -> float:
        """The score of all hypotheses, in percent."""


class Scorer(Protocol):
    """An object with those methods of a sacrebleu scorer that [`SacreBleuMetric`] calls."""

    def corpus_score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]], /) -> CorpusScore:
        """Score all hypotheses together. Each item of `references` has one reference for each hypothesis."""

    def get_signature(self) -> object:
        """Return an object whose string is the signature of the scores."""


class SacreBleuMetric(evaluate.Metric):
    """A metric whose `compute(predictions=[...], references=[...])` returns `score` and `signature`.

    Each prediction has one reference string, or a list of them that has the same length for all predictions. The other
    arguments of `compute` are the options of the scorer, and `against`, the translations of a baseline.

    Attributes:
        scorer: class or function that makes a [`Scorer`] from its options. It is a scorer of sacrebleu, or an object
            with the same methods.
        citation (`str`): publication of the metric.
        label (`str`): name of the metric for readers.
        hub_type (`str`): type of the metric on the Hub.
        options (`tuple[str, ...]`): options of the scorer that [`score_translations`] sets.
        higher_is_better (`bool`): if True, the metric is also computed during training, where the highest score is the
            best.
        is_on_request (`bool`): if True, the metric is computed only if the caller names it.
        can_be_resampled (`bool`): if True, sacrebleu can compare two systems by paired bootstrap resampling.
    """

    scorer: Callable[..., Scorer]
    citation: str
    label: str
    hub_type: str
    options: tuple[str, ...] = ("lowercase",)
    higher_is_better = True
    is_on_request = False
    can_be_resampled = True

    def __init__(self, keep_in_memory: bool = True, **kwargs: Any):
        super().__init__(keep_in_memory=keep_in_memory, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
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
        """Add predictions and their references, as `evaluate.Metric.add_batch` does.

        Raises:
            ValueError: if predictions or references are not a list, are empty, or differ in number. Without this check,
                `evaluate` would take the letters of a string for sentences.
        """
        _check_sentences("predictions", predictions)
        _check_sentences("references", references)
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def _compute(self, predictions: Sequence[str], references: Sequence[References], **options: Any) -> MetricScore:
        """Compute the score, and compare it with the baseline `against` if that is among the options."""
        against = options.pop("against", None)
        reference_streams = _make_reference_streams(references)
        scorer = self.scorer(**options)
        result = scorer.corpus_score(predictions, reference_streams)
        metric_score: MetricScore = {"score": result.score, "signature": str(scorer.get_signature())}
        if against is not None and self.can_be_resampled:
            # Only the scorers of sacrebleu can be resampled.
            sacrebleu_scorer = cast("Metric", scorer)
            metric_score["against"] = _compare(sacrebleu_scorer, predictions, against, reference_streams)
        return metric_score


def _check_sentences(name: str, texts: object) -> None:
    """Raise ValueError unless an argument is a list of sentences that is not empty."""
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
        raise InputError(f"{name} is {texts!r}; give a list of sentences.")


def _make_reference_streams(references: Sequence[References | None]) -> list[list[str]]:
    """Return the references in the order that sacrebleu needs.

    Args:
        references: for each prediction one reference, or a list of them.

    Returns:
        `list[list[str]]`: first the first references of all predictions, then all second references, and so on.

    Raises:
        ValueError: if a prediction has no reference, or the predictions have different numbers of references.
    """
    references_by_prediction: list[Sequence[str]] = []
    for alternatives in references:
        if isinstance(alternatives, str):
            references_by_prediction.append([alternatives])
        else:
            references_by_prediction.append(alternatives or [])
    counts = {len(alternatives) for alternatives in references_by_prediction}
    if len(counts) > 1 or 0 in counts:
        raise InputError("each prediction needs a reference, and all as many; give strings, or lists of strings.")
    return [list(stream) for stream in zip(*references_by_prediction, strict=True)]


def _compare(
    scorer: Metric, predictions: Sequence[str], baseline: Sequence[str], reference_streams: list[list[str]]
) -> Comparison:
    """Compare predictions with a baseline by sacrebleu's paired bootstrap resampling (Koehn 2004, W04-3250)."""
    # sacrebleu takes the first system for the baseline.
    systems = [("baseline", baseline), ("predictions", predictions)]
    signatures, results = PairedTest(systems, {"metric": scorer}, reference_streams, "bs")()
    # sacrebleu replaces the name of the metric by the name in its scores.
    ((metric_name, signature),) = signatures.items()
    baseline_figures, figures = map(vars, results[metric_name])
    return {
        "score": float(figures["score"]),
        "p_value": float(figures["p_value"]),
        "mean": float(figures["mean"]),
        "ci": float(figures["ci"]),
        "other_score": float(baseline_figures["score"]),
        "other_mean": float(baseline_figures["mean"]),
        "other_ci": float(baseline_figures["ci"]),
        "signature": str(signature),
    }


class TokenErrorRateScore(NamedTuple):
    """The result of [`TokenEdits`].

    Args:
        score (`float`): edits for each token of the references, in percent.
    """

    score: float


class TokenEdits:
    """A [`Scorer`] that counts the edits between the tokens of a hypothesis and of its nearest reference, by jiwer.

    Raises:
        ImportError: if jiwer is missing; the message names the extra to install.
    """

    def __init__(self) -> None:
        with needing("g2p", "the token error rate needs"):
            import jiwer

        self._jiwer = jiwer

    def corpus_score(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> TokenErrorRateScore:
        """Compute the token error rate of all hypotheses together.

        Each item of `references` has one reference for each hypothesis.
        """
        edits = 0
        tokens = 0
        for hypothesis, *alternatives in zip(hypotheses, *references, strict=True):
            alignments = [self._jiwer.process_words(reference, hypothesis) for reference in alternatives]
            nearest = min(alignments, key=lambda alignment: alignment.wer)
            edits += nearest.substitutions + nearest.deletions + nearest.insertions
            tokens += len(nearest.references[0])
        # If no reference has a token, the edits are divided by 1.
        return TokenErrorRateScore(100 * edits / max(tokens, 1))

    def get_signature(self) -> str:
        """Return the version of jiwer."""
        return f"jiwer:{version('jiwer')}"


class Bleu(SacreBleuMetric):
    """Corpus BLEU (Papineni et al. 2002) in percent. Scores with equal signatures are comparable.

    The options are those of sacrebleu, such as `tokenize="13a"` and `lowercase=False`. By default,
    [`choose_bleu_tokenization`] chooses the tokenization.
    """

    scorer = BLEU
    citation = "Post 2018, A Call for Clarity in Reporting BLEU Scores, W18-6319"
    label = "BLEU"
    hub_type = "sacrebleu"
    options = ("tokenize", "lowercase")

    def _compute(self, predictions: Sequence[str], references: Sequence[References], **options: Any) -> MetricScore:
        """Compute BLEU; raise ValueError if sacrebleu has no tokenization with the name `tokenize`."""
        tokenize = options.get("tokenize") or choose_bleu_tokenization(references)
        options["tokenize"] = tokenize
        if tokenize not in BLEU.TOKENIZERS:
            raise InputError(f"tokenize is {tokenize!r}; choose one of: {', '.join(map(str, BLEU.TOKENIZERS))}.")
        # sacrebleu warns of text that looks tokenized. With these tokenizations, such text is expected.
        options.setdefault("force", tokenize in ("none", "char"))
        return super()._compute(predictions, references, **options)


class ChrF(SacreBleuMetric):
    """chrF (Popovic 2015) in percent. The options are those of sacrebleu."""

    scorer = CHRF
    citation = "Popovic 2015, chrF: character n-gram F-score for automatic MT evaluation, W15-3049"
    label = "chrF"
    hub_type = "chrf"


class Ter(SacreBleuMetric):
    """TER (Snover et al. 2006) in percent, without regard to case. Lower is better.

    TER counts edits of words. In scripts that write no spaces between words, it counts edits of characters instead.
    These scripts are Thai, Lao, Tibetan, Burmese and Khmer, and with `asian_support` also Japanese kana. The signature
    then contains `chars:yes`, because sacrebleu alone divides only Chinese characters.

    The options are those of sacrebleu, and `split_characters` (default: True). If it is False, TER counts edits of
    words in all scripts.
    """

    scorer = TER
    citation = "Snover et al. 2006, A Study of Translation Edit Rate with Targeted Human Annotation"
    label = "TER"
    hub_type = "ter"
    options = ("normalized", "asian_support", "split_characters")
    higher_is_better = False

    def _compute(self, predictions: Sequence[str], references: Sequence[References], **options: Any) -> MetricScore:
        """Compute TER, with spaces around the characters of scripts that write no spaces between words."""
        splits_characters = options.pop("split_characters", True)
        pattern = _UNSPACED_CHARACTER_OR_KANA if options.get("asian_support") else UNSPACED_CHARACTER
        # Only the references decide, so that the scores of several systems have the same signature.
        has_unspaced_text = any(pattern.search(text) for text in flatten_references(references))
        if not splits_characters or not has_unspaced_text:
            return super()._compute(predictions, references, **options)

        split_predictions = _put_spaces_around(pattern, predictions)
        split_references: list[References] = []
        for alternatives in references:
            if isinstance(alternatives, str):
                split_references += _put_spaces_around(pattern, [alternatives])
            else:
                split_references.append(_put_spaces_around(pattern, alternatives))
        if options.get("against") is not None:
            options["against"] = _put_spaces_around(pattern, options["against"])

        metric_score = super()._compute(split_predictions, split_references, **options)
        metric_score["signature"] += "|chars:yes"
        if "against" in metric_score:
            metric_score["against"]["signature"] += "|chars:yes"
        return metric_score


def _put_spaces_around(pattern: re.Pattern[str], texts: Iterable[str]) -> list[str]:
    """Return the texts with a space before and after each match of a pattern."""
    return [pattern.sub(r" \g<0> ", text) for text in texts]


class TokenErrorRate(SacreBleuMetric):
    """Edits to the nearest reference for each of its tokens between spaces, in percent. Lower is better.

    For phonemes it is the phoneme error rate. It is computed on request only, because it needs jiwer.
    """

    scorer = TokenEdits
    citation = "Morris et al. 2004, From WER and RIL to MER and WIL: improved evaluation measures"
    label = "token error rate"
    hub_type = "wer"
    options = ()
    higher_is_better = False
    is_on_request = True
    can_be_resampled = False


# All metrics of translations, by the names that they have in scores, logs, model cards and files of results.
METRICS: dict[str, type[SacreBleuMetric]] = {
    "bleu": Bleu,
    "chrf": ChrF,
    "ter": Ter,
    "token_error_rate": TokenErrorRate,
}


def select_metrics(*requested: str) -> list[str]:
    """Return the names of the metrics to compute: those that are always computed, and the requested ones."""
    names = []
    for name, metric in METRICS.items():
        if not metric.is_on_request or name in requested:
            names.append(name)
    return names


def make_compute_metrics(
    tokenizer: PreTrainedTokenizerBase, **options: Any
) -> "Callable[[EvalPrediction], dict[str, float]]":
    """Make a `compute_metrics` function for a `Seq2SeqTrainer` with `predict_with_generate`.

    It decodes predictions and labels, and computes the metrics for which higher scores are better.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): decodes predictions and labels.
        **options: `tokenize` and `lowercase` of [`score_translations`].

    Returns:
        A function from `EvalPrediction` to `{"bleu": percent, "chrf": percent}`.
    """
    names = [name for name, metric in METRICS.items() if metric.higher_is_better]

    def compute_metrics(prediction: "EvalPrediction") -> dict[str, float]:
        hypotheses = _decode(tokenizer, prediction.predictions)
        references = _decode(tokenizer, prediction.label_ids)
        scores = score_translations(hypotheses, references, metrics=names, **options)
        return {name: scores[name] for name in names}

    return compute_metrics


def _decode(tokenizer: PreTrainedTokenizerBase, ids: TokenIds) -> list[str]:
    """Decode predictions or labels of the Trainer.

    Raises:
        ValueError: if the predictions are logits instead of token ids.
    """
    if isinstance(ids, tuple):
        return _decode(tokenizer, ids[0])
    if isinstance(ids, list):
        # With eval_do_concat_batches=False there is one item for each batch.
        texts = []
        for batch in ids:
            texts += _decode(tokenizer, batch)
        return texts
    id_array = np.asarray(ids)
    if id_array.ndim != 2:
        raise InputError("BLEU needs translations, but the predictions are logits; set predict_with_generate=True.")
    # The Trainer pads with the label that losses ignore, which is not a token id.
    token_ids = np.where(id_array == IGNORED_LABEL, tokenizer.pad_token_id, id_array)
    return tokenizer.batch_decode(token_ids, skip_special_tokens=True)


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[References],
    tokenize: str | None = None,
    lowercase: bool = False,
    metrics: Iterable[str] | None = None,
    against: Sequence[str] | None = None,
) -> Scores:
    """Compute BLEU, chrF, TER, other metrics of `METRICS`, and the exact match of translations.

    Args:
        hypotheses (`Sequence[str]`): translations.
        references (`Sequence`): for each translation one reference, or a list of references that has the same length
            for all translations.
        tokenize (`str`, *optional*): sacrebleu's tokenization for BLEU: `"13a"` for plain text, `"none"` for text that
            is already tokenized, `"char"` for sentences with fewer than four words. By default,
            [`choose_bleu_tokenization`] chooses it. With `"zh"` and `"ja-mecab"`, TER counts edits of characters. In
            scripts without spaces, such as Thai, it does so with every tokenization but `"none"`.
        lowercase (`bool`): whether BLEU and chrF ignore case, as TER does.
        metrics (`Iterable[str]`, *optional*): names of `METRICS`; by default all that are not on request.
        against (`Sequence[str]`, *optional*): translations by a different system, the baseline of sacrebleu's paired
            bootstrap resampling (Koehn 2004, W04-3250).

    Returns:
        `dict`: for each metric the score in percent (`bleu`, `chrf`, `ter`) and the signature (`bleu_signature`, ...);
        `exact_match` (percent of hypotheses that equal a reference) and `sentences` (number of hypotheses). With
        `against` also `bleu_against`, ...: `score`, `p_value`, and of 1,000 resamples `mean` and `ci`, half of the 95 %
        confidence interval; for the baseline `other_score`, `other_mean` and `other_ci`; and the `signature`.

    Raises:
        TypeError: if an argument contains anything but strings or lists of strings.
        ValueError: if the numbers of hypotheses and references differ or are 0, or `tokenize` is unknown.
    """
    checked_hypotheses = list(check_strings("hypotheses", hypotheses))
    reference_lists = _list_references(references)
    baseline = None
    if against is not None:
        baseline = list(check_strings("against", against))
        if len(baseline) != len(checked_hypotheses):
            raise InputError(
                f"against has {len(baseline)} translations, but there are {len(checked_hypotheses)} hypotheses; give "
                "one for each."
            )

    counts_characters = tokenize in ("zh", "ja-mecab")
    options = {
        "tokenize": tokenize,
        "lowercase": lowercase,
        "normalized": counts_characters,
        "asian_support": counts_characters,
        "split_characters": tokenize != "none",
    }
    names = select_metrics() if metrics is None else metrics
    scores: Scores = {}
    for name in names:
        metric = METRICS[name]()
        metric_options = {option: options[option] for option in metric.options}
        metric_score = metric.compute(
            predictions=checked_hypotheses, references=reference_lists, against=baseline, **metric_options
        )
        for key, value in metric_score.items():
            score_name = name if key == "score" else f"{name}_{key}"
            scores[score_name] = value

    exact_matches = 0
    for hypothesis, alternatives in zip(checked_hypotheses, reference_lists, strict=True):
        if hypothesis in alternatives:
            exact_matches += 1
    scores["exact_match"] = 100 * exact_matches / len(reference_lists)
    scores["sentences"] = len(reference_lists)
    return scores


def _list_references(references: Sequence[References]) -> list[list[str]]:
    """Return a list of references for each translation; raise TypeError unless all of them are strings."""
    is_nested = isinstance(references, Sequence) and any(isinstance(item, (list, tuple)) for item in references)
    if not is_nested:
        # `check_strings` raises TypeError for an item that is not a string.
        strings = cast("Sequence[str]", references)
        return [[reference] for reference in check_strings("references", strings)]
    return [list(check_strings("references", alternatives)) for alternatives in references]


def describe_exact_match(scores: Mapping[str, Any]) -> str:
    """Return the exact match in percent and as a count, such as `"33.3 % (1 of 3)"`.

    The text says 100.0 % only if all translations are exact, so 2,999 of 3,000 are 99.9 %.

    Args:
        scores: `exact_match` and `sentences`, as [`score_translations`] returns them.
    """
    total = scores["sentences"]
    percent = scores["exact_match"]
    exact_matches = round(percent * total / 100)
    if exact_matches < total:
        percent = min(percent, 99.9)
    return f"{percent:.1f} % ({exact_matches:,} of {total:,})"
