import json
import logging
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu
from datasets import Dataset
from sacrebleu.metrics import BLEU, CHRF
from transformers import EvalPrediction

from hf_vanilla_transformer import Bleu, ChrF, Ter, make_compute_metrics, score_translations
from hf_vanilla_transformer.evaluation.bleu_tokenization import find_bleu_tokenization
from hf_vanilla_transformer.evaluation.curve_files import write_curve
from hf_vanilla_transformer.evaluation.evaluate import describe_scores, evaluate
from hf_vanilla_transformer.evaluation.metrics import (
    METRICS,
    SacreBleuMetric,
    describe_exact_match,
    select_metrics,
)
from hf_vanilla_transformer.hub.model_card import About, fill_model_card
from tests.models import small_model


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
HYPOTHESES = ["the small house is old .", "two dogs run through the field"]
REFERENCES = ["the small house is very old .", "Two dogs run across the field"]


@pytest.mark.parametrize("options", [{}, {"tokenize": "none"}, {"lowercase": True}, {"tokenize": "char"}])
def test_bleu_equals_sacrebleu(options):
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], force=True, **options)
    result = Bleu().compute(predictions=HYPOTHESES, references=REFERENCES, **options)
    assert result["score"] == pytest.approx(expected.score)
    assert f"tok:{options.get('tokenize', '13a')}" in result["signature"]
    assert ("case:lc" in result["signature"]) == options.get("lowercase", False)


def test_chrf_equals_sacrebleu():
    expected = sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES])
    result = ChrF().compute(predictions=HYPOTHESES, references=REFERENCES)
    assert result["score"] == pytest.approx(expected.score)
    assert "nc:6" in result["signature"]


def test_ter_equals_sacrebleu():
    expected = sacrebleu.corpus_ter(HYPOTHESES, [REFERENCES])
    result = Ter().compute(predictions=HYPOTHESES, references=REFERENCES)
    assert result["score"] == pytest.approx(expected.score)
    assert result["score"] > 0
    assert "tok:tercom" in result["signature"]


@pytest.mark.parametrize(("tokenize", "asian"), [("13a", "no"), ("char", "no"), ("zh", "yes")])
def test_ter_counts_edits_of_characters_in_text_without_spaces(tokenize, asian):
    scores = score_translations(["他喜欢读书"], ["他喜欢看书"], tokenize=tokenize)
    assert scores["ter"] == (20 if asian == "yes" else 100)
    assert f"asian:{asian}" in scores["ter_signature"]


# A translation and its reference, which differ in one word.
UNSPACED = {
    "th": ("ฉันรักแมวและสุนัขมาก", "ฉันรักแมวและหมามาก"),
    "lo": ("ຂ້ອຍຮັກແມວຫຼາຍ", "ຂ້ອຍຮັກໝາຫຼາຍ"),
    "km": ("ខ្ញុំស្រឡាញ់ឆ្មាណាស់", "ខ្ញុំស្រឡាញ់ឆ្កែណាស់"),
    "my": ("ကျွန်တော်ကြောင်ကိုချစ်တယ်", "ကျွန်တော်ခွေးကိုချစ်တယ်"),
    "bo": ("ང་བྱི་ལ་ལ་དགའ།", "ང་ཁྱི་ལ་དགའ།"),
    "ja": ("これはほんですよね", "これはほんでしたね"),
}


@pytest.mark.parametrize("language", UNSPACED)
def test_score_translations_without_spaces_counts_characters(language):
    translation, reference = UNSPACED[language]
    divided_translation = " ".join(translation)
    divided_reference = " ".join(reference)
    options = {}
    if language == "ja":
        options = {"metrics": ["ter"], "tokenize": "ja-mecab"}
    scores = score_translations([translation], [[reference, reference]], **options, against=[reference])
    expected = sacrebleu.corpus_ter([divided_translation], [[divided_reference]])
    assert scores["ter"] == pytest.approx(expected.score)
    assert 0 < scores["ter"] < 70
    assert scores["ter_signature"].endswith("|chars:yes")
    assert scores["ter_against"]["signature"].endswith("|chars:yes")
    assert scores["ter_against"]["other_score"] == 0
    if language != "ja":  # BLEU of Japanese needs mecab.
        expected = sacrebleu.corpus_bleu([divided_translation], [[divided_reference]], force=True)
        assert scores["bleu"] == pytest.approx(expected.score)
        assert Bleu().compute(predictions=[translation], references=[reference])["score"] == scores["bleu"]
        assert Ter().compute(predictions=[translation], references=[reference])["score"] == scores["ter"]
        assert find_bleu_tokenization(language) == "char"


def test_ter_of_tokenized_text_counts_words():
    scores = score_translations(["ฉัน รัก แมว"], ["ฉัน รัก หมา"], tokenize="none", metrics=["ter"])
    assert scores["ter"] == pytest.approx(100 / 3)
    assert "chars" not in scores["ter_signature"]


def test_ter_does_not_split_other_scripts():
    references = ["ฉัน Windows 10", "the Thai letter ก", "Häuser"]
    translations = ["ฉัน Linux 10", "a Thai letter ก", "Haus"]
    scores = score_translations(translations, references)
    divided = [["ฉ ั น Linux 10", "a Thai letter ก", "Haus"], ["ฉ ั น Windows 10", "the Thai letter ก", "Häuser"]]
    assert scores["ter"] == pytest.approx(sacrebleu.corpus_ter(divided[0], divided[1:]).score)
    assert "tok:13a" in scores["bleu_signature"]


def test_compute_metrics_without_spaces(tokenizer):
    translation, reference = UNSPACED["th"]
    predictions = np.array([tokenizer(translation).input_ids])
    labels = np.array([tokenizer(reference).input_ids])
    scores = make_compute_metrics(tokenizer)(EvalPrediction(predictions=predictions, label_ids=labels))
    expected = sacrebleu.corpus_bleu([translation], [[reference]], tokenize="char")
    assert scores["bleu"] == pytest.approx(expected.score)


def run_sacrebleu(folder, *options, **texts):
    """What sacrebleu's own command prints for files of lines."""
    for name, lines in texts.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    command = [sys.executable, "-m", "sacrebleu", *options, "-m", "bleu", "chrf", "ter", "-w", "6"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_score_translations_with_several_references_equals_sacrebleu(tmp_path):
    other = ["a small house is old", "two dogs run through the field"]
    files = {"system": HYPOTHESES, "first": REFERENCES, "second": other}
    expected = json.loads(run_sacrebleu(tmp_path, "first", "second", "-i", "system", **files))
    both = [*zip(REFERENCES, other, strict=True)]
    for pairs in (both, [[*pair] for pair in both]):
        scores = score_translations(HYPOTHESES, pairs)
        for name, metric_score in zip(select_metrics(), expected, strict=True):
            assert scores[name] == pytest.approx(metric_score["score"], abs=1e-6)
            assert scores[f"{name}_signature"] == metric_score["signature"]
        assert scores["exact_match"] == 50
    assert score_translations(HYPOTHESES, REFERENCES)["exact_match"] == 0


def test_score_translations_against_a_baseline_equals_sacrebleu(tmp_path):
    who = (("a dog", "Ann"), ("the cat", "Tom")) * 20
    references = [f"{noun} number {row} is in the house of {name}" for row, (noun, name) in enumerate(who)]
    worse = [text.replace("house", "hut") if row % 3 == 0 else text for row, text in enumerate(references)]
    better = [text.replace("house of", "hut") if row % 4 == 0 else text for row, text in enumerate(references)]
    files = {"reference": references, "worse": worse, "better": better}
    # Its JSON fails on numbers of 32 bits.
    printed = run_sacrebleu(tmp_path, "reference", "-i", "worse", "better", "--paired-bs", "-f", "latex", **files)
    cells = [line.split(" & ")[1:] for line in printed.splitlines() if re.match(" *(Baseline: worse|better) ", line)]
    scores = json.loads(json.dumps(score_translations(better, references, against=worse)))
    for name, baseline, system in zip(("bleu", "chrf", "ter"), *cells, strict=True):
        comparison = scores[f"{name}_against"]
        *expected, p_value = map(float, re.findall(r"\d+\.\d+", system))
        assert [comparison[key] for key in ("score", "mean", "ci")] == pytest.approx(expected, abs=1e-6)
        assert comparison["p_value"] == pytest.approx(p_value, abs=5e-5)
        expected = [float(number) for number in re.findall(r"\d+\.\d+", baseline)]
        assert [comparison[f"other_{key}"] for key in ("score", "mean", "ci")] == pytest.approx(expected, abs=1e-6)
        assert f"{comparison['signature']}\n" in printed
        assert comparison["score"] == pytest.approx(scores[name])
    assert 0.001 < scores["bleu_against"]["p_value"] < 1
    assert not [name for name in score_translations(better, references) if name.endswith("_against")]
    with pytest.raises(ValueError, match=r"against has 1 .*40 hypotheses"):
        score_translations(better, references, against=worse[:1])


def test_bleu_with_several_references():
    other = ["a little house", "two dogs run through the field"]
    expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES, other], force=True).score
    pairs = [list(pair) for pair in zip(REFERENCES, other, strict=True)]
    assert Bleu().compute(predictions=HYPOTHESES, references=pairs)["score"] == pytest.approx(expected)


def count_edits(prediction, reference):
    """Levenshtein's distance of two lists of tokens, by its recursion, row by row."""
    row = list(range(len(reference) + 1))
    for number, token in enumerate(prediction, start=1):
        next_row = [number]
        for column, reference_token in enumerate(reference):
            substituted = row[column] + int(token != reference_token)
            next_row.append(min(row[column + 1] + 1, next_row[column] + 1, substituted))
        row = next_row
    return row[-1]


def test_token_error_rate_counts_edits_to_the_nearest_reference():
    pytest.importorskip("jiwer")
    predictions = ["AE B IY", "HH AH L", "T EH S T", "EY"]
    references = [["AE B IY", "EY"], ["HH AH L OW", "HH EH L OW"], ["T EH K S T", "B EH S T IH D"], ["B", "B IY"]]
    edits = 0
    reference_tokens = 0
    for prediction, alternatives in zip(predictions, references, strict=True):
        # The error rate of each reference, with its numbers of edits and tokens.
        rates = []
        for reference in alternatives:
            tokens = reference.split()
            distance = count_edits(prediction.split(), tokens)
            rates.append((distance / len(tokens), distance, len(tokens)))
        _rate, distance, length = min(rates)
        edits += distance
        reference_tokens += length
    expected = 100 * edits / reference_tokens
    token_error_rate = score_translations(predictions, references, metrics=["token_error_rate"])["token_error_rate"]
    assert token_error_rate == pytest.approx(expected) != 0
    assert "token_error_rate" not in score_translations(predictions, references)
    pairs = Dataset.from_dict({"source": ["a"] * 4, "target": ["x"] * 4, "references": references})
    scores = evaluate(None, pairs, translations=predictions, token_error_rate=True).scores
    assert scores["token_error_rate"] == token_error_rate
    assert scores["exact_match"] == 25
    assert any(line.startswith("token error rate: ") for line in describe_scores(scores))
    options = {"translations": predictions, "against": predictions[::-1], "token_error_rate": True}
    assert evaluate(None, pairs, **options).scores.items() >= scores.items()
    assert score_translations(["a"], [" "], metrics=["token_error_rate"])["token_error_rate"] == 100


def test_add_batch():
    bleu = Bleu()
    for hypothesis, reference in zip(HYPOTHESES, REFERENCES, strict=True):
        bleu.add_batch(predictions=[hypothesis], references=[reference])
    expected = Bleu().compute(predictions=HYPOTHESES, references=REFERENCES)
    assert bleu.compute() == expected
    with pytest.raises(ValueError, match="predictions is 'a'; give a list of sentences"):
        bleu.add_batch(predictions="a", references="a")


def test_score_translations_counts_exact_matches():
    scores = score_translations([*HYPOTHESES, "same"], [*REFERENCES, "same"])
    assert scores["exact_match"] == pytest.approx(100 / 3)
    assert scores["sentences"] == 3
    assert scores["bleu_signature"].startswith("nrefs:1|case:mixed")


@pytest.mark.parametrize(
    ("exact", "total", "expected"),
    [
        (2999, 3000, "99.9 % (2,999 of 3,000)"),
        (3000, 3000, "100.0 % (3,000 of 3,000)"),
        (1, 3, "33.3 % (1 of 3)"),
        (0, 1, "0.0 % (0 of 1)"),
    ],
)
def test_describe_exact_match(exact, total, expected):
    scores = score_translations(["a"] * exact + ["b"] * (total - exact), ["a"] * total)
    assert describe_exact_match(scores) == expected


class WordChrF(SacreBleuMetric):
    """chrF++, with words."""

    citation = "Popovic 2017"
    label = "chrF++"
    hub_type = "chrf"

    def make_scorer(self, **options):
        return CHRF(word_order=2, **options)


def test_metrics_with_a_new_metric(monkeypatch, tokenizer, tmp_path):
    monkeypatch.setitem(METRICS, "chrf++", WordChrF)
    pairs = Dataset.from_dict({"source": ["one", "two"], "target": ["eins", "zwanzig"]})
    scores, translations = evaluate(FIXTURE, pairs, show_progress=False)
    expected = sacrebleu.corpus_chrf(translations, [pairs["target"]], word_order=2)
    assert [name for name in scores if f"{name}_signature" in scores] == ["bleu", "chrf", "ter", "chrf++"]
    assert (scores["chrf++"], expected.score > 0) == (expected.score, True)
    assert f"chrF++: {expected.score:.2f}  {scores['chrf++_signature']}" in describe_scores(scores)
    ids = np.array(tokenizer(REFERENCES, padding=True).input_ids)
    measured = make_compute_metrics(tokenizer)(EvalPrediction(predictions=ids, label_ids=ids))
    assert measured == dict.fromkeys(("bleu", "chrf", "chrf++"), pytest.approx(100))
    card = fill_model_card(About("name", scores=scores), small_model().config, 1, {})
    assert f"\n| chrF++ | {expected.score:.2f} |\n| exact match" in card.content
    assert f"\n- chrF++: `{scores['chrf++_signature']}`\n" in card.content
    assert [result.metric_type for result in card.data.eval_results] == ["sacrebleu", "chrf", "ter", "chrf"]
    points = [{"step": 1, "eval_chrf++": 3.0, "eval_loss": 2.0}]
    assert write_curve(tmp_path, points)["points"] == [{"updates": 1, "loss": 2.0, "chrf++": 3.0}]


def test_evaluate_existing_translations():
    pairs = Dataset.from_dict({"source": ["one", "two"], "target": REFERENCES})
    scores, translations = evaluate(None, pairs, translations=HYPOTHESES, against=REFERENCES)
    assert translations == HYPOTHESES
    expected = score_translations(HYPOTHESES, REFERENCES, against=REFERENCES)
    assert scores == {**expected, "data": "the given data set"}
    lines = describe_scores(scores)
    bleu_row = next(row for row, line in enumerate(lines) if line.startswith("BLEU: "))
    assert lines[bleu_row + 1].startswith("  paired bootstrap: ")
    assert "the other: 100.00, 100.00 ± 0.00; p = " in lines[bleu_row + 1]
    equal = evaluate(None, pairs, translations=HYPOTHESES, against=HYPOTHESES).scores
    assert [line.endswith("; equal scores") for line in describe_scores(equal)[2:]] == [False, True] * 3
    both = [list(alternatives) for alternatives in zip(REFERENCES, HYPOTHESES, strict=True)]
    assert evaluate(None, pairs, translations=HYPOTHESES, references=both).scores["exact_match"] == 100
    for model, translations in ((None, None), (FIXTURE, HYPOTHESES)):
        with pytest.raises(ValueError, match=r"--model_name_or_path.*--translations_file"):
            evaluate(model, pairs, translations=translations)


@pytest.mark.parametrize(
    ("language", "tokenization"),
    [
        ("zh", "zh"),
        ("zh-Hans", "zh"),
        ("ja", "ja-mecab"),
        ("ko_KR", "ko-mecab"),
        ("zho_Hant", "zh"),
        ("cmn", "zh"),
        ("chi", "zh"),
        ("yue_Hant", "zh"),
        ("jpn_Jpan", "ja-mecab"),
        ("kor", "ko-mecab"),
        ("tha_Thai", "char"),
        ("th", "char"),
        ("de", None),
        (None, None),
    ],
)
def test_find_bleu_tokenization(language, tokenization):
    assert find_bleu_tokenization(language) == tokenization
    assert tokenization in (None, *BLEU.TOKENIZERS)


def test_score_translations_with_unequal_numbers():
    with pytest.raises(ValueError, match=r"Mismatch in the number of predictions \(2\) and references \(1\)"):
        score_translations(HYPOTHESES, REFERENCES[:1])
    with pytest.raises(ValueError, match=r"predictions is \[\]"):
        score_translations([], [])


def test_compute_metrics_by_arrays_and_batches(tokenizer):
    ids = [tokenizer(text).input_ids for text in REFERENCES]
    length = max(len(row) for row in ids) + 2
    padded = np.array([row + [-100] * (length - len(row)) for row in ids])
    compute_metrics = make_compute_metrics(tokenizer)
    expected = {"bleu": pytest.approx(100), "chrf": pytest.approx(100)}
    assert compute_metrics(EvalPrediction(predictions=padded, label_ids=padded)) == expected
    batches = [padded[:1], padded[1:, :-1]]
    assert compute_metrics(EvalPrediction(predictions=batches, label_ids=batches)) == expected


def test_compute_metrics_passes_options(tokenizer):
    def pad(texts):
        ids = [tokenizer(text).input_ids for text in texts]
        return np.array([row + [-100] * (max(map(len, ids)) - len(row)) for row in ids])

    prediction = EvalPrediction(predictions=pad(HYPOTHESES), label_ids=pad(REFERENCES))
    for options in ({"tokenize": "char"}, {"lowercase": True}):
        expected = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], **options).score
        assert make_compute_metrics(tokenizer, **options)(prediction)["bleu"] == pytest.approx(expected)


def test_compute_metrics_of_logits(tokenizer):
    logits = np.zeros((2, 3, 5))
    labels = np.zeros((2, 3), dtype=int)
    with pytest.raises(ValueError, match=r"logits.*predict_with_generate=True"):
        make_compute_metrics(tokenizer)(EvalPrediction(predictions=logits, label_ids=labels))


@pytest.mark.parametrize(("tokenize", "warns"), [("13a", True), ("none", False), ("char", False)])
def test_score_translations_warns_of_tokenized_text(caplog, tokenize, warns):
    lines = ["a small house is old ."] * 100
    with caplog.at_level("WARNING", logger="sacrebleu"):
        logging.getLogger("sacrebleu").propagate = True
        score_translations(lines, lines, tokenize=tokenize)
    assert ("forgot to detokenize" in caplog.text) == warns


@pytest.mark.parametrize("metric", [Bleu, ChrF, Ter])
@pytest.mark.parametrize(
    ("predictions", "references", "message"),
    [
        ([], [], r"predictions is \[\]; give a list of sentences"),
        (["a"], [], r"references is \[\]; give a list of sentences"),
        ("a", ["a"], "predictions is 'a'; give a list of sentences"),
        (["a"], "a", "references is 'a'; give a list of sentences"),
        (["a"], None, "references is None; give a list of sentences"),
        (["a"], ["b", "c"], r"Mismatch in the number of predictions \(1\) and references \(2\)"),
        ([None], ["a"], "Input predictions: None"),
        (["a"], [[None]], r"Input references: \[None\]"),
        (["a"], [[]], "each prediction needs a reference"),
        (["a", "b"], ["c", None], "each prediction needs a reference"),
        (["a", "b"], [["c"], ["d", "e"]], "each prediction needs a reference, and all as many"),
    ],
)
def test_compute_rejects_texts(metric, predictions, references, message):
    with pytest.raises(ValueError, match=message):
        metric().compute(predictions=predictions, references=references)


@pytest.mark.parametrize("texts", [["a", None], ["a", 3], "ab", None])
def test_score_translations_rejects_other_types(texts):
    with pytest.raises(TypeError, match=r"references (contains|is)"):
        score_translations(["a", "b"], texts)


def test_bleu_with_an_unknown_tokenization():
    with pytest.raises(ValueError, match=r"tokenize is 'foo'; choose one of: .*13a"):
        Bleu().compute(predictions=["a"], references=["a"], tokenize="foo")


def test_a_metric_without_a_scorer_cannot_be_made():
    class Unfinished(SacreBleuMetric):
        """A metric that lacks `make_scorer`."""

    with pytest.raises(TypeError, match="make_scorer"):
        Unfinished()
