"""BLEU and chrF of sacrebleu as metrics of `evaluate`, without network access."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import datasets
import evaluate
import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from transformers import PreTrainedTokenizerBase

from .metric_names import METRICS


if TYPE_CHECKING:
    from transformers import EvalPrediction


IGNORED_LABEL = -100

# Tokenizations of sacrebleu for languages that write no spaces between words.
_TOKENIZATION_OF = {
    "zh": "zh",
    "ja": "ja-mecab",
    "ko": "ko-mecab",
    **dict.fromkeys(("th", "lo", "km", "my"), "char"),
}
_FEATURES = [
    datasets.Features({"predictions": datasets.Value("string"), "references": datasets.Value("string")}),
    datasets.Features(
        {"predictions": datasets.Value("string"), "references": datasets.Sequence(datasets.Value("string"))}
    ),
]


class _SacreBleuMetric(evaluate.Metric):
    """A metric of sacrebleu: `compute(predictions=[...], references=[...])` returns `score` and `signature`.

    Each prediction has one reference string, or a list of them, of the same length for all predictions.
    """

    scorer: type[BLEU] | type[CHRF]
    citation: str

    def __init__(self, keep_in_memory: bool = True, **kwargs: Any):
        super().__init__(keep_in_memory=keep_in_memory, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=str(self.__doc__), citation=self.citation, inputs_description="", features=_FEATURES
        )

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> Any:
        """As `evaluate.Metric.compute`, whose own checks need a first pair.

        Raises:
            TypeError: if anything but strings, or lists of strings as references, is given.
            ValueError: if the numbers of predictions and references differ or are 0, or an option is unknown.
        """
        # Without both, what `add_batch` collected is computed.
        if predictions is not None or references is not None:
            _check_texts(predictions, references)
        return super().compute(predictions=predictions, references=references, **kwargs)

    def _compute(self, predictions: Sequence[str], references: Sequence[Any], **options: Any) -> dict[str, float | str]:
        _check_texts(predictions, references)
        if options.get("tokenize", "13a") not in BLEU.TOKENIZERS:
            known = ", ".join(map(str, BLEU.TOKENIZERS))
            raise ValueError(f"tokenize is {options['tokenize']!r}; choose one of: {known}.")
        scorer = self.scorer(**options)
        per_prediction = [[reference] if isinstance(reference, str) else list(reference) for reference in references]
        streams = [list(stream) for stream in zip(*per_prediction, strict=True)]
        result = scorer.corpus_score(list(predictions), streams)
        return {"score": result.score, "signature": str(scorer.get_signature())}


class Bleu(_SacreBleuMetric):
    """Corpus BLEU (Papineni et al. 2002) in percent, comparable by its signature.

    Options are sacrebleu's, such as `tokenize="13a"` and `lowercase=False`.
    """

    scorer = BLEU
    citation = "Post 2018, A Call for Clarity in Reporting BLEU Scores, W18-6319"


class ChrF(_SacreBleuMetric):
    """chrF (Popovic 2015) in percent; options are sacrebleu's."""

    scorer = CHRF
    citation = "Popovic 2015, chrF: character n-gram F-score for automatic MT evaluation, W15-3049"


def bleu_tokenization(language: str | None) -> str | None:
    """The tokenization for BLEU in a target language that writes no spaces between words; None for other languages.

    Args:
        language (`str`, *optional*): a code such as `"ja"`, `"zh_CN"` or `"zh-Hans"`.

    Returns:
        `str`: a value for `tokenize` of [`score_translations`], whose default `"13a"` suits all other languages.
    """
    return _TOKENIZATION_OF.get(re.split("[_-]", language or "")[0])


def make_compute_metrics(
    tokenizer: PreTrainedTokenizerBase, **options: Any
) -> "Callable[[EvalPrediction], dict[str, float]]":
    """`compute_metrics` for `Seq2SeqTrainer` with `predict_with_generate`: BLEU and chrF of the decoded text.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): decodes predictions and labels.
        **options: `tokenize` and `lowercase` of [`score_translations`].

    Returns:
        A function from `EvalPrediction` to `{"bleu": percent, "chrf": percent}`.
    """

    def compute_metrics(prediction: "EvalPrediction") -> dict[str, float]:
        hypotheses, references = (_decode(tokenizer, ids) for ids in (prediction.predictions, prediction.label_ids))
        scores = score_translations(hypotheses, references, **options)
        return {name: scores[name] for name in METRICS}

    return compute_metrics


def score_translations(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = "13a", lowercase: bool = False
) -> dict[str, Any]:
    """Compute BLEU, chrF and exact match of translations.

    Args:
        hypotheses, references (`Sequence[str]`): translations and their references, of equal length.
        tokenize (`str`): sacrebleu's tokenization for BLEU: `"13a"` for plain text, `"none"` for text that is already
            tokenized, `"char"` for sentences with fewer than four words.
        lowercase (`bool`): whether BLEU and chrF ignore case.

    Returns:
        `dict`: `bleu` and `chrf` (percent), `bleu_signature` and `chrf_signature`, `exact_match` (percent of
        hypotheses equal to their reference) and `sentences` (their number).

    Raises:
        TypeError: if anything but strings is given.
        ValueError: if the numbers of hypotheses and references differ or are 0, or `tokenize` is unknown.
    """
    _check_texts(hypotheses, references)
    corpus = {"predictions": hypotheses, "references": references}
    # Turns sacrebleu's warning about tokenized text off where such text is expected.
    force = tokenize in ("none", "char")
    bleu = Bleu().compute(**corpus, tokenize=tokenize, lowercase=lowercase, force=force)
    chrf = ChrF().compute(**corpus, lowercase=lowercase)
    exact = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return {
        "bleu": bleu["score"],
        "bleu_signature": bleu["signature"],
        "chrf": chrf["score"],
        "chrf_signature": chrf["signature"],
        "exact_match": 100 * exact / len(references),
        "sentences": len(references),
    }


def _check_texts(hypotheses: Any, references: Any) -> None:
    for name, texts in (("translations", hypotheses), ("references", references)):
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise TypeError(f"{name} is {texts!r}; give a list of sentences.")
    for name, text in [("translations", text) for text in hypotheses] + [("references", text) for text in references]:
        parts = text if name == "references" and isinstance(text, (list, tuple)) and text else [text]
        if not all(isinstance(part, str) for part in parts):
            raise TypeError(f"{name} contains {text!r}; give strings.")
    if len(hypotheses) != len(references) or not hypotheses:
        raise ValueError(
            f"{len(hypotheses)} translations and {len(references)} references were given; give a reference for each."
        )


def _decode(tokenizer: PreTrainedTokenizerBase, ids: Any) -> list[str]:
    ids = ids[0] if isinstance(ids, tuple) else ids
    if isinstance(ids, list):  # One item per batch, with eval_do_concat_batches=False.
        return [text for batch in ids for text in _decode(tokenizer, batch)]
    if np.asarray(ids).ndim != 2:
        raise ValueError("BLEU needs translations, but the predictions are logits; set predict_with_generate=True.")
    # The Trainer pads with the label that losses ignore, which is not a token id.
    ids = np.where(np.asarray(ids) == IGNORED_LABEL, tokenizer.pad_token_id, ids)
    return tokenizer.batch_decode(ids, skip_special_tokens=True)
