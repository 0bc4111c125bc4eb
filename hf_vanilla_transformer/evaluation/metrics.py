"""BLEU, chrF and TER of sacrebleu as metrics of `evaluate`, without network access, and the registry of metrics."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import datasets
import evaluate
import numpy as np
from sacrebleu.metrics import BLEU, CHRF, TER
from sacrebleu.significance import PairedTest
from transformers import PreTrainedTokenizerBase

from ..support.argument_checks import check_strings
from ..support.language_codes import language_of
from ..support.user_errors import InputError, needing


if TYPE_CHECKING:
    from transformers import EvalPrediction


IGNORED_LABEL = -100

# Tokenizations of sacrebleu for languages that write no spaces between words.
_TOKENIZATION_OF = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    # Chinese languages without a code of two letters.
    **dict.fromkeys(("cdo", "gan", "hak", "hsn", "lzh", "nan", "wuu", "yue"), "zh"),
    **dict.fromkeys(("th", "lo", "km", "my", "bo", "dz"), "char"),
}
# Characters of Thai, Lao, Tibetan, Burmese and Khmer, which write no spaces between words, and for which sacrebleu has
# no tokenization of words.
_UNSPACED = re.compile(
    "[\u0e00-\u0e7f\u0e80-\u0eff\u0f00-\u0fff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff\u19e0-\u19ff]"
)
# Characters of Japanese: kana and their marks. sacrebleu's TER divides kanji only, and takes a run of kana for a word.
_KANA = re.compile("[\u3041-\u3096\u309d-\u309f\u30a1-\u30ff\u31f0-\u31ff\uff66-\uff9f]")
# The script of a test set is found from this many references; more would take longer and hardly change it.
ENOUGH_FOR_SCRIPT = 1_000
_TEXT = datasets.Value("string")
# A prediction has one reference, or several.
_FEATURES = [
    datasets.Features({"predictions": _TEXT, "references": references})
    for references in (_TEXT, datasets.Sequence(_TEXT))
]


class SacreBleuMetric(evaluate.Metric):
    """A metric of sacrebleu: `compute(predictions=[...], references=[...])` returns `score` and `signature`.

    Each prediction has one reference string, or a list of them, of the same length for all predictions. Options are
    those of the scorer.

    Attributes:
        scorer: the class in sacrebleu.
        label, hub_type (`str`): the metric's name for readers, and its type on the Hub.
        options (`tuple[str, ...]`): those of the scorer that [`score_translations`] sets.
        higher_is_better (`bool`): whether the highest score is the best; only then it is computed during training.
        is_on_request (`bool`): whether it is computed only where it is asked for.
    """

    scorer: Any
    citation: str
    label: str
    hub_type: str
    options: tuple[str, ...] = ("lowercase",)
    higher_is_better = True
    is_on_request = False

    def __init__(self, keep_in_memory: bool = True, **kwargs: Any):
        super().__init__(keep_in_memory=keep_in_memory, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(self.__doc__), citation=self.citation, inputs_description="", features=_FEATURES
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """As `evaluate.Metric.add_batch`, which would take the letters of a string for sentences.

        Raises:
            ValueError: if predictions or references are no list or empty, or differ in number.
        """
        for name, texts in (("predictions", predictions), ("references", references)):
            if isinstance(texts, str) or not isinstance(texts, Sequence) or not texts:
                raise InputError(f"{name} is {texts!r}; give a list of sentences.")
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def _compute(self, predictions: Sequence[str], references: Sequence[Any], **options: Any) -> dict[str, Any]:
        # A list of sacrebleu has one reference of each prediction.
        lists = [[each] if isinstance(each, str) else each or [] for each in references]
        if not lists[0] or len({*map(len, lists)}) > 1:
            raise InputError("each prediction needs a reference, and all as many; give strings, or lists of strings.")
        streams, against = [[*stream] for stream in zip(*lists, strict=True)], options.pop("against", None)
        scorer = self.scorer(**options)
        result = scorer.corpus_score(predictions, streams)
        found = {"score": result.score, "signature": str(scorer.get_signature())}
        if against is None or isinstance(scorer, TokenEdits):  # Which sacrebleu cannot resample.
            return found
        signatures, results = PairedTest([("", against), ("predictions", predictions)], {"": scorer}, streams, "bs")()
        ((name, signature),) = signatures.items()
        other, this = map(vars, results[name])
        figures = {**this, **{f"other_{key}": other[key] for key in ("score", "mean", "ci")}}
        return {**found, "against": {key: float(each) for key, each in figures.items()} | {"signature": str(signature)}}


class TokenEdits:
    """A scorer, with the methods of sacrebleu's, around jiwer: edits for each token of the nearest references."""

    def __init__(self) -> None:
        with needing("g2p", "the token error rate needs"):
            import jiwer

        self._jiwer = jiwer

    def corpus_score(self, predictions: Sequence[str], streams: Sequence[Sequence[str]]) -> Any:
        """The result, whose `score` is in percent; each stream has a reference for each prediction."""
        edits = tokens = 0
        for prediction, *references in zip(predictions, *streams, strict=True):
            found = [self._jiwer.process_words(reference, prediction) for reference in references]
            nearest = min(found, key=lambda each: each.wer)
            edits += nearest.substitutions + nearest.deletions + nearest.insertions
            tokens += len(nearest.references[0])
        return SimpleNamespace(score=100 * edits / (tokens or 1))

    def get_signature(self) -> str:
        """The version of jiwer."""
        return f"jiwer:{version('jiwer')}"


class Bleu(SacreBleuMetric):
    """Corpus BLEU (Papineni et al. 2002) in percent, comparable by its signature.

    Options are sacrebleu's, such as `tokenize="13a"` and `lowercase=False`. By default the tokenization is that of
    [`choose_bleu_tokenization`].
    """

    scorer = BLEU
    citation = "Post 2018, A Call for Clarity in Reporting BLEU Scores, W18-6319"
    label, hub_type = "BLEU", "sacrebleu"
    options = ("tokenize", "lowercase")

    def _compute(self, predictions: Sequence[str], references: Sequence[Any], **options: Any) -> dict[str, Any]:
        tokenize = options.get("tokenize") or choose_bleu_tokenization(references)
        options["tokenize"] = tokenize
        if tokenize not in BLEU.TOKENIZERS:
            raise InputError(f"tokenize is {tokenize!r}; choose one of: {', '.join(map(str, BLEU.TOKENIZERS))}.")
        # Turns sacrebleu's warning about tokenized text off where such text is expected.
        options.setdefault("force", tokenize in ("none", "char"))
        return super()._compute(predictions, references, **options)


class ChrF(SacreBleuMetric):
    """chrF (Popovic 2015) in percent; options are sacrebleu's."""

    scorer = CHRF
    citation = "Popovic 2015, chrF: character n-gram F-score for automatic MT evaluation, W15-3049"
    label, hub_type = "chrF", "chrf"


class Ter(SacreBleuMetric):
    """TER (Snover et al. 2006) in percent, without regard to case. Lower is better.

    Options are sacrebleu's, and `split_characters`, by default True: TER counts edits of words, and in scripts that
    write no spaces between words, edits of characters. These are Thai, Lao, Tibetan, Burmese and Khmer, and with
    `asian_support` Japanese kana. The signature then has `chars:yes`, because sacrebleu alone divides only Chinese
    characters.
    """

    scorer = TER
    citation = "Snover et al. 2006, A Study of Translation Edit Rate with Targeted Human Annotation"
    label, hub_type = "TER", "ter"
    options = ("normalized", "asian_support", "split_characters")
    higher_is_better = False

    def _compute(self, predictions: Sequence[str], references: Sequence[Any], **options: Any) -> dict[str, Any]:
        is_split = options.pop("split_characters", True)
        patterns = [_UNSPACED, _KANA] if options.get("asian_support") else [_UNSPACED]
        # By the references alone, so that scores of several systems have the same signature.
        has_unspaced_text = any(pattern.search(text) for pattern in patterns for text in _flat(references))
        if not is_split or not has_unspaced_text:
            return super()._compute(predictions, references, **options)

        def put_spaces_around_characters(text: str) -> str:
            for pattern in patterns:
                text = pattern.sub(r" \g<0> ", text)
            return text

        if options.get("against") is not None:
            options["against"] = [put_spaces_around_characters(text) for text in options["against"]]
        split_references: list[str | list[str]] = []
        for reference in references:
            if isinstance(reference, str):
                split_references.append(put_spaces_around_characters(reference))
            else:
                split_references.append([put_spaces_around_characters(text) for text in reference])
        split_predictions = [put_spaces_around_characters(text) for text in predictions]
        scores = super()._compute(split_predictions, split_references, **options)
        scores["signature"] += "|chars:yes"
        if "against" in scores:
            scores["against"]["signature"] += "|chars:yes"
        return scores


class TokenErrorRate(SacreBleuMetric):
    """Edits to the nearest reference for each token between spaces, in percent, by jiwer; computed on request only.

    Of phonemes it is the phoneme error rate. Lower is better.
    """

    scorer = TokenEdits
    citation = "Morris et al. 2004, From WER and RIL to MER and WIL: improved evaluation measures"
    label, hub_type = "token error rate", "wer"
    options = ()
    higher_is_better = False
    is_on_request = True


# The metrics of translations, by the name that scores, logs, cards and files of results give them. An entry with its
# class is all that another metric needs.
METRICS: dict[str, type[SacreBleuMetric]] = {"bleu": Bleu, "chrf": ChrF, "ter": Ter}
METRICS["token_error_rate"] = TokenErrorRate


def select_metrics(*requested: str) -> list[str]:
    """Names of `METRICS`: all but those that are computed on request only, which are added if they are given here."""
    return [name for name, metric in METRICS.items() if name in requested or not metric.is_on_request]


def find_bleu_tokenization(language: str | None) -> str | None:
    """The tokenization for BLEU in a target language that writes no spaces between words; None for other languages.

    Args:
        language (`str`, *optional*): a code such as `"ja"`, `"zh_CN"`, `"zho_Hans"` or `"cmn"`.

    Returns:
        `str`: a value for `tokenize` of [`score_translations`], whose default suits all other languages.
    """
    return _TOKENIZATION_OF.get(language_of(language) or "")


def choose_bleu_tokenization(references: Sequence[Any]) -> str:
    """Return BLEU's tokenization for references in an unknown language, each a string or a list of strings.

    It is `"char"` if most of their letters are of Thai, Lao, Tibetan, Burmese or Khmer, which write no spaces between
    words, or else `"13a"`.
    """
    letters = 0
    unspaced_letters = 0
    for text in _flat(references[:ENOUGH_FOR_SCRIPT]):
        letters += sum(map(str.isalpha, text))
        unspaced_letters += sum(map(str.isalpha, _UNSPACED.findall(text)))
    return "char" if 2 * unspaced_letters > letters else "13a"


def _flat(references: Iterable[Any]) -> list[str]:
    """List all references of predictions that have one reference each, or a list of them."""
    texts: list[str] = []
    for reference in references:
        texts += [reference] if isinstance(reference, str) else reference or []
    return texts


def make_compute_metrics(
    tokenizer: PreTrainedTokenizerBase, **options: Any
) -> "Callable[[EvalPrediction], dict[str, float]]":
    """`compute_metrics` for `Seq2SeqTrainer` with `predict_with_generate`: the metrics of the decoded text.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): decodes predictions and labels.
        **options: `tokenize` and `lowercase` of [`score_translations`].

    Returns:
        A function from `EvalPrediction` to `{"bleu": percent, "chrf": percent}`.
    """
    names = [name for name, metric in METRICS.items() if metric.higher_is_better]

    def compute_metrics(prediction: "EvalPrediction") -> dict[str, float]:
        hypotheses, references = (_decode(tokenizer, ids) for ids in (prediction.predictions, prediction.label_ids))
        scores = score_translations(hypotheses, references, metrics=names, **options)
        return {name: scores[name] for name in names}

    return compute_metrics


def score_translations(
    hypotheses: Sequence[str],
    references: Sequence[Any],
    tokenize: str | None = None,
    lowercase: bool = False,
    metrics: Iterable[str] | None = None,
    against: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Compute BLEU, chrF, TER and any other metric of `METRICS`, and the exact match of translations.

    Args:
        hypotheses (`Sequence[str]`): translations.
        references (`Sequence`): for each translation one reference, or a list of them, of the same length for all.
        tokenize (`str`, *optional*): sacrebleu's tokenization for BLEU: `"13a"` for plain text, `"none"` for text that
            is already tokenized, `"char"` for sentences with fewer than four words; by default that of
            [`choose_bleu_tokenization`]. With `"zh"` and `"ja-mecab"` TER counts edits of characters, and in scripts
            such as Thai with all but `"none"`.
        lowercase (`bool`): whether BLEU and chrF ignore case, as TER does.
        metrics (`Iterable[str]`, *optional*): names of `METRICS`; by default all that are not on request.
        against (`Sequence[str]`, *optional*): translations by another system, the baseline of sacrebleu's paired
            bootstrap resampling (Koehn 2004, W04-3250).

    Returns:
        `dict`: of each metric the score in percent (`bleu`, `chrf`, `ter`) and the signature (`bleu_signature`, ...);
        `exact_match` (percent of hypotheses equal to a reference) and `sentences` (their number). With `against` also
        `bleu_against`, ...: `score`, `p_value`, and of 1,000 resamples `mean` and `ci`, half of the 95 % confidence
        interval; of the baseline `other_score`, `other_mean` and `other_ci`; and the `signature`.

    Raises:
        TypeError: if anything but strings, or lists of strings, is given.
        ValueError: if the numbers of hypotheses and references differ or are 0, or `tokenize` is unknown.
    """
    hypotheses = [*check_strings("hypotheses", hypotheses)]
    is_nested = isinstance(references, Sequence) and any(isinstance(each, (list, tuple)) for each in references)
    lists: Any = references if is_nested else ([each] for each in check_strings("references", references))
    lists = [[*check_strings("references", each)] for each in lists]
    against = None if against is None else [*check_strings("against", against)]
    if against is not None and len(against) != len(hypotheses):
        raise InputError(
            f"against has {len(against)} translations, but there are {len(hypotheses)} hypotheses; give one for each."
        )
    by_character = tokenize in ("zh", "ja-mecab")
    options = {
        "tokenize": tokenize,
        "lowercase": lowercase,
        "normalized": by_character,
        "asian_support": by_character,
        "split_characters": tokenize != "none",
    }
    scores: dict[str, Any] = {}
    for name in select_metrics() if metrics is None else metrics:
        taken = {option: options[option] for option in METRICS[name].options}
        found = METRICS[name]().compute(predictions=hypotheses, references=lists, against=against, **taken)
        scores |= {name: found.pop("score"), **{f"{name}_{key}": value for key, value in found.items()}}
    exact = sum(hypothesis in each for hypothesis, each in zip(hypotheses, lists, strict=True))
    return {**scores, "exact_match": 100 * exact / len(lists), "sentences": len(lists)}


def describe_exact_match(scores: Mapping[str, Any]) -> str:
    """Exact match of `score_translations` in percent and as a count; only if all are exact, it is 100.0 %."""
    total = scores["sentences"]
    exact = round(scores["exact_match"] * total / 100)
    percent = scores["exact_match"] if exact == total else min(scores["exact_match"], 99.9)
    return f"{percent:.1f} % ({exact:,} of {total:,})"


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Any) -> list[str]:
    ids = ids[0] if isinstance(ids, tuple) else ids
    if isinstance(ids, list):  # One item per batch, with eval_do_concat_batches=False.
        return [text for batch in ids for text in _decode(tokenizer, batch)]
    if np.asarray(ids).ndim != 2:
        raise InputError("BLEU needs translations, but the predictions are logits; set predict_with_generate=True.")
    # The Trainer pads with the label that losses ignore, which is not a token id.
    ids = np.where(np.asarray(ids) == IGNORED_LABEL, tokenizer.pad_token_id, ids)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)
