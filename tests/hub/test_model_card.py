"""Metadata of a model card: only values that the Hub knows, in its format."""

import ast
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import model_index_to_eval_results

from hf_vanilla_transformer import Int8Config, PaperTrainingArguments
from hf_vanilla_transformer.hub.model_card import About, argument_facts, fill_model_card, location_of
from tests.hub.card_rules import card_errors
from tests.models import small_model


SCORES = {
    "sentences": 10,
    "data": "user/pairs (test)",
    "decoding": "greedy search",
    "bleu": 12.345,
    "bleu_signature": "nrefs:1|tok:13a",
    "chrf": 45.678,
    "chrf_signature": "nrefs:1|nc:6",
    "ter": 56.789,
    "ter_signature": "nrefs:1|tok:tercom",
    "exact_match": 10.0,
}


def make_card(tmp_path, **about) -> ModelCard:
    model = small_model()
    return fill_model_card(About("name", **about), model.config, model.num_parameters(), {})


def test_all_metadata(tmp_path):
    facts = {"dataset": "user/pairs", "dataset_config": "en-de", "source_language": "en", "target_language": "de"}
    card = make_card(tmp_path, **facts, scores=SCORES, base_model="user/base", license="cc-by-4.0")
    assert card_errors(card.content) == []
    assert "\n| exact match | 10.0 % (1 of 10) |\n" in card.content
    metadata = card.data.to_dict()
    index = metadata.pop("model-index")
    assert metadata == {
        "language": ["en", "de"],
        "license": "cc-by-4.0",
        "library_name": "transformers",
        "pipeline_tag": "translation",
        "tags": ["translation", "vanilla-transformer", "arxiv:1706.03762"],
        "datasets": ["user/pairs"],
        "metrics": ["sacrebleu", "chrf", "ter"],
        "base_model": "user/base",
    }
    name, results = model_index_to_eval_results(index)
    assert name == "name"
    assert [(r.metric_type, r.metric_value, r.metric_args) for r in results] == [
        ("sacrebleu", 12.35, {"signature": "nrefs:1|tok:13a"}),
        ("chrf", 45.68, {"signature": "nrefs:1|nc:6"}),
        ("ter", 56.79, {"signature": "nrefs:1|tok:tercom"}),
    ]
    assert {(r.dataset_type, r.dataset_config, r.dataset_split) for r in results} == {("user/pairs", "en-de", "test")}
    assert ModelCardData(**card.data.to_dict()).to_dict() == card.data.to_dict()


def test_what_differs_from_the_paper_is_in_the_card():
    cards = []
    for fields in ({}, {"activation_function": "swish", "lm_head_bias": True, "source_vocab_size": 50}):
        model = small_model(**fields)
        cards.append(fill_model_card(About("name"), model.config, model.num_parameters(), {}).content)
    rows = ["| activation_function | swish |", "| lm_head_bias | True |", "| source_vocab_size | 50 |"]
    assert [[row in card for row in rows] for card in cards] == [[False] * 3, [True] * 3]


def test_the_example_of_int8_weights_imports_the_package():
    for quantization, imports in ((None, False), (Int8Config(), True), (Int8Config().to_dict(), True)):
        model = small_model()
        if quantization is not None:
            model.config.quantization_config = quantization
        card = fill_model_card(About("name"), model.config, model.num_parameters(), {}).content
        example = card.partition("```python\n")[2].partition("```")[0]
        assert ("import hf_vanilla_transformer\n" in example) == imports
        assert ("trust_remote_code" in example) != imports
        compile(example, "example", "exec")


@pytest.mark.parametrize(("folder", "named"), [("runs/mine", "runs/mine"), ("/home/me/runs/mine", "mine")])
def test_the_path_in_the_example(folder, named):
    assert location_of(Path(folder)) == named


def test_the_example_is_python_for_any_sentence(tmp_path):
    sentence = 'She said "no"\nand left.'
    card = make_card(tmp_path, example_source=sentence).text
    example = card.partition("```python\n")[2].partition("```")[0]
    constants = [node.value for node in ast.walk(ast.parse(example)) if isinstance(node, ast.Constant)]
    assert sentence in constants


@pytest.mark.parametrize(
    ("source", "target", "languages", "words"),
    [
        ("en_US", "pt_BR", ["en", "pt"], "from en_US to pt_BR"),
        ("en", "en", ["en"], "from en to en"),
        ("xx", "de", ["de"], "one language to another"),
        ("source", "target", None, "one language to another"),
        (None, None, None, "one language to another"),
    ],
)
def test_unknown_languages_are_omitted(tmp_path, source, target, languages, words):
    card = make_card(tmp_path, source_language=source, target_language=target)
    assert card.data.language == languages
    assert f"It translates {words}." in card.content


def test_names_that_are_not_on_the_hub_are_omitted(tmp_path, monkeypatch):
    (tmp_path / "runs" / "base").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for dataset, dataset_type in (("numbers", "numbers"), (None, "own-files"), ("runs/base", "own-files")):
        metadata = About("name", dataset, base_model="runs/base", scores=SCORES).metadata().to_dict()
        assert not {"datasets", "base_model", "license", "language"} & set(metadata)
        assert metadata["model-index"][0]["results"][0]["dataset"]["type"] == dataset_type
    for folder in ("/home/me/base", "marian"):
        assert "base_model" not in About("name", base_model=folder).metadata().to_dict()
    assert "model-index" not in About("name").metadata().to_dict()


def test_facts_of_the_training(tmp_path):
    options = {"output_dir": tmp_path, "use_cpu": True, "learning_rate": 0.1}
    for changes, rows in (
        ({}, {"warm-up updates": 4000, "beta_1, beta_2, epsilon": "0.9, 0.98, 1e-09"}),
        ({"warmup_steps": 0.1}, {"warm-up updates": "0.1 of all"}),
        ({"label_smoothing_factor": 0.2}, {"label smoothing by the Trainer": 0.2}),
    ):
        facts = argument_facts(PaperTrainingArguments(**options, **changes))
        assert facts | rows == facts
    assert not {"beta_1, beta_2, epsilon", "label smoothing by the Trainer"} & set(
        argument_facts(PaperTrainingArguments(**options, optim="sgd"))
    )
    model = small_model(label_smoothing=0.1)
    card = fill_model_card(About("name"), model.config, model.num_parameters(), facts)
    assert "| label smoothing | 0.1 |" in card.content
    assert "| label smoothing by the Trainer | 0.2 |" in card.content


@pytest.mark.parametrize(("revision", "said"), [(None, ""), ("small", ', revision="small"')])
def test_the_example_names_the_repository(tmp_path, revision, said):
    card = make_card(tmp_path, location="user/name", revision=revision)
    assert card.content.count(f'.from_pretrained("user/name"{said}, trust_remote_code=True)\n') == 2


@pytest.mark.parametrize(
    "metadata",
    [
        "language: English",
        "license: my own",
        "base_model: /home/me/base",
        "datasets: [a data set]",
        "metrics: sacrebleu",
        "model-index: {name: a}",
        "model-index: [{name: a, results: [{task: {type: translation}, metrics: []}]}]",
        "model-index: [{name: a, results: [{task: {type: t}, dataset: {type: d, name: d}, metrics: [{type: m}]}]}]",
    ],
)
def test_the_rules_find_errors(metadata):
    assert card_errors(f"---\n{metadata}\n---\n")
