"""The command lines, on a corpus and a model so small that nothing is learnt."""

import inspect
import io
import json
import re
import resource
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy
import torch
import yaml
from datasets import Dataset
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from hf_vanilla_transformer import load_pairs, score_translations
from hf_vanilla_transformer import translate as translate_sentences
from hf_vanilla_transformer.cli import average, demo, evaluate, plot, reporting, train, translate
from hf_vanilla_transformer.cli.arguments import DataArguments, ResultArguments, ScoringArguments
from hf_vanilla_transformer.cli.common import describe_search, exact_match_by_digits, load, parse
from hf_vanilla_transformer.training import arguments as training_arguments
from hf_vanilla_transformer.training.checkpoints import mark_complete
from scripts import collect_results
from tests.cli.tiny_run import TINY_RUN, write_recipe
from tests.models import decisive_model, patch_everywhere, small_model
from tests.parity.paper_numpy import learning_rate


ROOT = Path(__file__).parents[2]
TINY = {
    **TINY_RUN,
    "target": "fr",
    "max_steps": 6,
    "save_steps": 3,
}


recipe = partial(write_recipe, TINY)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return train.main(recipe(tmp_path_factory.mktemp("trained")))


@pytest.fixture
def finished(trained, tmp_path) -> Path:
    """What a recipe in the test's own folder has left, without another run."""
    return shutil.copytree(trained, tmp_path / "run")


@pytest.fixture(scope="module")
def decisive(tmp_path_factory, tokenizer) -> Path:
    """A folder with a model whose translations vary with the sentence and the search, as those of `trained` may not."""
    folder = tmp_path_factory.mktemp("decisive")
    decisive_model(vocab_size=len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def lines(translations: list[str]) -> str:
    return "".join(f"{' '.join(translation.splitlines())}\n" for translation in translations)


def test_what_a_trained_folder_holds(trained):
    code = {path.name for path in (ROOT / "hf_vanilla_transformer" / "model").glob("[a-z]*.py")}
    assert {path.name for path in trained.iterdir() if path.is_file()} == code | {
        "README.md",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "scores.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    tokenizer = AutoTokenizer.from_pretrained(trained)
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    assert model.config.vocab_size == len(tokenizer)
    assert model.generation_config.num_beams == 4


def test_the_model_card_is_filled(trained):
    card = ModelCard.load(trained / "README.md")
    scores = json.loads((trained / "scores.json").read_text())
    assert card.data.language == ["en", "fr"]
    assert card.data.pipeline_tag == "translation"
    assert card.data.license is None
    assert "The weights' licence is not stated" in card.text
    assert {result.metric_type for result in card.data.eval_results} == {"sacrebleu", "chrf"}
    assert card.data.eval_results[0].metric_value == round(scores["bleu"], 2)
    assert card.data.eval_results[0].dataset_name == "numbers of up to 2 digits written out in words (test)"
    for words in (
        "| data | numbers of up to 2 digits written out in words (train) |",
        "pairs of numbers of up to 2 digits written out in words (test), decoded with beam search, 4 beams",
        scores["bleu_signature"],
        "| optimizer | Adam, learning rate of Eq. 3 |",
        "| updates | 6 |",
    ):
        assert words in card.text
    assert "{{" not in card.content
    assert "{%" not in card.content


def test_a_licence_is_the_user_s(tmp_path):
    folder = train.main([*recipe(tmp_path), "--max_steps", "1", "--license", "cc-by-4.0"])
    card = ModelCard.load(folder / "README.md")
    assert card.data.license == "cc-by-4.0"
    assert "The weights are under cc-by-4.0" in card.text


def test_a_second_run_does_not_overwrite(trained, tmp_path):
    arguments = recipe(tmp_path, output_dir=str(trained))
    before = (trained / "model.safetensors").read_bytes()
    with pytest.raises(SystemExit, match=r"already holds a model or checkpoints \(.*\); name another folder"):
        train.main(arguments)
    assert (trained / "model.safetensors").read_bytes() == before


def test_overwriting_when_told(tmp_path):
    arguments = recipe(tmp_path)
    first = load_file(train.main(arguments) / "model.safetensors")
    (tmp_path / "a.csv").write_text("en,fr\none,un\n")
    files = {"dataset": None, "train_files": str(tmp_path / "a.csv"), "max_steps": 1, "vocab_size": 280}
    folder = train.main([*recipe(tmp_path, **files), "--overwrite"])
    assert load_file(folder / "model.safetensors").keys() == first.keys()
    assert not list(folder.glob("checkpoint-[36]"))
    assert not (folder / "scores.json").exists()


def test_wrong_input_does_not_remove_what_is_to_be_overwritten(tmp_path, finished):
    before = sorted(finished.rglob("*"))
    with pytest.raises(SystemExit, match="is not there"):
        train.main([*recipe(tmp_path, dataset=None, train_files=["nowhere.csv"]), "--overwrite"])
    assert sorted(finished.rglob("*")) == before


def test_a_model_is_kept_when_scoring_fails(tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("scoring failed")

    monkeypatch.setattr(reporting, "score_pairs", fail)
    with pytest.raises(RuntimeError, match="scoring failed"):
        train.main(recipe(tmp_path))
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")


def test_the_saved_model_is_scored_not_the_one_that_computes_in_bfloat16(tmp_path, monkeypatch, capsys):
    ids = torch.tensor([[5, 6, 7]])
    scored = []

    def note_logits(model, *args):
        scored.append(model.eval()(input_ids=ids, decoder_input_ids=ids).logits)
        return score(model, *args)

    score = reporting.score
    monkeypatch.setattr(reporting, "score", note_logits)
    monkeypatch.setattr(training_arguments, "cpu_supports_matmul_in", lambda dtype: True)
    patch_everywhere(monkeypatch, "cpu_supports_matmul_in", lambda dtype: True)
    folder = train.main([*recipe(tmp_path, max_steps=1), "--bf16", "--use_cpu"])
    assert "training in bfloat16 autocast" in capsys.readouterr().out
    saved = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert torch.equal(scored[0], saved(input_ids=ids, decoder_input_ids=ids).logits)


def test_resuming_elsewhere_does_not_overwrite(trained, tmp_path, finished):
    arguments = recipe(tmp_path, output_dir=str(trained), resume_from_checkpoint=str(finished / "checkpoint-3"))
    with pytest.raises(SystemExit, match="already holds a model or checkpoints"):
        train.main(arguments)


def test_resuming_ends_where_the_whole_run_does(tmp_path):
    arguments = recipe(tmp_path, train_sampling_strategy="random")
    whole = load_file(train.main(arguments) / "model.safetensors")
    resumed = train.main([*arguments, "--resume_from_checkpoint", str(tmp_path / "run" / "checkpoint-3")])
    for name, weight in load_file(resumed / "model.safetensors").items():
        assert (weight == whole[name]).all()


def test_resuming_from_nothing(tmp_path):
    with pytest.raises(SystemExit, match="holds no checkpoint to resume from; leave out --resume_from_checkpoint"):
        train.main([*recipe(tmp_path), "--resume_from_checkpoint", "last"])


def test_resuming_from_a_checkpoint_that_is_cut_off(tmp_path, finished):
    checkpoint = finished / "checkpoint-3"
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(SystemExit, match=r"checkpoint-3 is no checkpoint .*: model\.safetensors: missing or cut off"):
        train.main([*recipe(tmp_path), "--resume_from_checkpoint", str(checkpoint)])


def test_fine_tuning(trained, tmp_path):
    folder = train.main([*recipe(tmp_path), "--model", str(trained), "--max_steps", "2", "--dropout", "0.25"])
    assert (folder / "tokenizer.json").read_text() == (trained / "tokenizer.json").read_text()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.dropout == 0.25
    card = (folder / "README.md").read_text()
    assert f"trained from `{trained.name}`" in card
    assert str(trained.parent) not in card
    assert "base_model:" not in card


def test_fine_tuning_with_another_s_tokenizer(trained, tmp_path, tokenizer):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    model.resize_token_embeddings(100)
    model.save_pretrained(tmp_path / "mixed")
    tokenizer.save_pretrained(tmp_path / "mixed")
    with pytest.raises(SystemExit, match=r"has \d+ tokens, but the model's vocabulary 100; fine-tune a model with"):
        train.main([*recipe(tmp_path), "--model", str(tmp_path / "mixed")])
    assert not (tmp_path / "run").exists()


def test_batches_by_tokens(tmp_path):
    folder = train.main(recipe(tmp_path, tokens_per_batch=96, gradient_accumulation_steps=2, save_steps=6))
    history = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert any("padding_share" in entry for entry in history)
    assert "| tokens an update and side, at most | 192 |" in (folder / "README.md").read_text()


def test_pairs_longer_than_a_batch(tmp_path):
    with pytest.raises(SystemExit, match="error: 60 of 60 pairs are empty on one side or longer than 1 tokens"):
        train.main(recipe(tmp_path, tokens_per_batch=1))


def test_pairs_that_do_not_fit_are_left_out(tmp_path, tokenizer, capsys):
    data = Dataset.from_dict({"input_ids": [[2], [50, 2], [50, 51, 52, 2]], "labels": [[50, 2]] * 3})
    assert train.leave_out(data, tokenizer, 3).to_list() == [{"input_ids": [50, 2], "labels": [50, 2]}]
    printed = capsys.readouterr().out
    assert printed == "left out 2 of 3 training pairs: 1 empty on one side, 1 longer than 3 tokens\n"
    with pytest.raises(SystemExit, match="error: none of the 60 pairs would stay"):
        train.main(recipe(tmp_path, max_tokens=1))


def test_bpe_dropout_and_words_between_blanks(trained, tmp_path, monkeypatch):
    given = []
    make_trainer = train.make_trainer

    def note_data(args, tokenizer, model, data, *more):
        given.append(data)
        return make_trainer(args, tokenizer, model, data, *more)

    monkeypatch.setattr(train, "make_trainer", note_data)
    changes = {"bpe_dropout": 0.5, "bpe_dropout_copies": 3, "whitespace_words": True, "max_steps": 1}
    tokenizer = AutoTokenizer.from_pretrained(train.main(recipe(tmp_path, **changes)))
    sources = [row["input_ids"] for row in given[0]["train"]]
    pairs = load_pairs("numbers", target="fr", max_digits=2, train_size=60)
    assert tokenizer.batch_decode(sources, skip_special_tokens=True) == 3 * list(pairs["train"]["source"])
    assert len({str(sources[begin : begin + 60]) for begin in (0, 60, 120)}) == 3
    assert [row["input_ids"] for row in given[0]["test"]] == tokenizer(list(pairs["test"]["source"])).input_ids

    def words(tokenizer):
        return [word for word, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(" forty-two")]

    assert words(tokenizer) == ["Ġforty-two"]
    assert words(AutoTokenizer.from_pretrained(trained)) == ["Ġforty", "-", "two"]


@pytest.mark.parametrize("fine_tunes", [False, True])
def test_attention_and_checkpointing_are_as_told(trained, tmp_path, monkeypatch, fine_tunes):
    found = []
    run = train.run

    def note(trainer, checkpoint):
        run(trainer, checkpoint)
        model = trainer.model
        layers = [*model.model.encoder.layers, *model.model.decoder.layers]
        found.append((model.config._attn_implementation, {layer.gradient_checkpointing for layer in layers}))

    monkeypatch.setattr(train, "run", note)
    changes = {"attn_implementation": "eager", "gradient_checkpointing": True, "max_steps": 1}
    train.main(recipe(tmp_path, **changes, model=str(trained) if fine_tunes else None))
    assert found == [("eager", {True})]


def test_aligned_files_and_the_paper_s_schedule(tmp_path):
    (tmp_path / "a.en").write_text("one house\ntwo houses\n" * 8)
    (tmp_path / "a.fr").write_text("une maison\ndeux maisons\n" * 8)
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.fr")]
    settings = {name: value for name, value in TINY.items() if name not in ("dataset", "train_size", "max_digits")}
    path = tmp_path / "recipe.json"
    changes = {"output_dir": str(tmp_path / "run"), "train_files": files, "logging_steps": 1}
    path.write_text(json.dumps({**settings, **changes}))
    folder = train.main([str(path)])
    assert "Not evaluated: no test pairs were given." in (folder / "README.md").read_text()
    assert not (folder / "scores.json").exists()
    state = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
    rates = [entry["learning_rate"] for entry in state["log_history"] if "learning_rate" in entry]
    assert rates[:2] == [pytest.approx(learning_rate(update, 16, 3)) for update in (1, 2)]
    card = (folder / "README.md").read_text()
    assert "| data | a.en, a.fr |" in card
    assert "one house" not in card


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": None, "train_files": ["nowhere.csv"]}, r"error: nowhere\.csv is not there"),
        ({"row": "A h=3"}, r'error: "A h=3" is no row of Table 3; choose one of'),
        ({"num_heads": 3}, r"error: d_model \(16\) is not divisible by num_heads \(3\)"),
        ({"model": "no/such/folder"}, "error: there is no folder no/such/folder, and on the Hub: "),
        ({"warmup_steps": 0.5}, r"error: warmup_steps is 0\.5; the paper's schedule counts whole updates"),
        ({"bf16": True, "use_cpu": False, "fp16": True}, "error: "),
        (
            {"per_device_train_batch_size": 0},
            "error: per_device_train_batch_size is 0; it must be a whole number of at",
        ),
        (
            {"gradient_accumulation_steps": 0},
            "error: gradient_accumulation_steps is 0; it must be a whole number of at",
        ),
        ({"bleu_tokenize": "foo"}, 'error: bleu_tokenize is "foo"; choose one of: .*13a'),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=message):
        train.main(recipe(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"d_model": [1, 2]}, r"d_model is \[1, 2\]: one value is needed"),
        ({"vocab_size": None}, "vocab_size is None: "),
        ({"train_size": 5.5}, "train_size is 5.5: "),
        ({"max_steps": "many"}, "max_steps is 'many': "),
        ({"help": True}, 'there is no argument "help"'),
    ],
)
def test_wrong_values_in_a_file(tmp_path, capsys, changes, message):
    with pytest.raises(SystemExit):
        train.main(recipe(tmp_path, **changes))
    assert re.search(message, capsys.readouterr().err)


@pytest.mark.parametrize(("given", "found"), [(35, [35.0]), ("35", [35.0]), ([35, 38], [35.0, 38.0])])
def test_one_value_for_a_list(tmp_path, given, found):
    (tmp_path / "results.yaml").write_text(json.dumps({"bleu_targets": given}))
    (results,) = parse([ResultArguments], "", [str(tmp_path / "results.yaml")])
    assert results.bleu_targets == found


def test_a_sentence_longer_than_a_learned_table(tmp_path):
    (tmp_path / "a.csv").write_text("en,fr\none,un\n")
    (tmp_path / "long.csv").write_text("en,fr\none," + "un " * 3000 + "\n")
    for split in ("train_files", "test_files"):
        files = {"dataset": None, "train_files": str(tmp_path / "a.csv"), split: str(tmp_path / "long.csv")}
        with pytest.raises(SystemExit, match=r"error: the longest sentence of .* tokens, but the model 1024 learned"):
            train.main(recipe(tmp_path, row="E", **files))
    assert not (tmp_path / "run").exists()


def test_resuming_with_another_optimizer(tmp_path, finished):
    changes = {"learning_rate": 0.1, "max_steps": 9, "resume_from_checkpoint": "last"}
    with pytest.raises(SystemExit, match=r"was written with another optimizer .*; resume with the same learning_rate"):
        train.main(recipe(tmp_path, **changes))


def test_the_card_names_the_learning_rate_that_was_used(tmp_path):
    """That of the checkpoint, which a resumed run goes on with."""
    train.main(recipe(tmp_path, learning_rate=0.01, logging_steps=1))
    changes = {"learning_rate": 0.5, "max_steps": 9, "resume_from_checkpoint": "last"}
    folder = train.main(recipe(tmp_path, logging_steps=1, **changes))
    assert re.search(r"\| optimizer \| .*learning rate 0\.01,", (folder / "README.md").read_text())
    history = json.loads((folder / "checkpoint-9" / "trainer_state.json").read_text())["log_history"]
    used = [entry["learning_rate"] for entry in history if "learning_rate" in entry]
    assert 0 < max(used) <= 0.01


def test_resuming_with_an_optimizer_of_another_kind(tmp_path, finished):
    changes = {"optim": "sgd", "max_steps": 9, "resume_from_checkpoint": "last"}
    with pytest.raises(SystemExit, match=r"checkpoint-6 was written with another optimizer .*; resume with the same"):
        train.main(recipe(tmp_path, **changes))


@pytest.mark.parametrize(("argument", "there"), [("num_layers", 1), ("d_model", 16), ("d_ff", 16), ("num_heads", 2)])
def test_another_size_than_the_model_s(trained, tmp_path, argument, there):
    with pytest.raises(SystemExit, match=rf"{argument} is 32, but .* has {there}, which training does not change"):
        train.main(recipe(tmp_path, model=str(trained), **{argument: 32}))


class StubTrainer:
    """Stands for `Seq2SeqTrainer` with an engine that cannot be started here."""

    is_deepspeed_enabled = is_fsdp_enabled = False

    def __init__(self, **kwargs):
        pass


def test_deepspeed_is_not_given_the_paper_s_schedule(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(train, "Seq2SeqTrainer", type("Stub", (StubTrainer,), {"is_deepspeed_enabled": True}))
    model, data = small_model(vocab_size=300), {"train": None}
    with pytest.raises(ValueError, match=r"DeepSpeed needs an optimizer that the Trainer makes.* give --learning_rate"):
        train.make_trainer(train.RunArguments(str(tmp_path)), tokenizer, model, data)
    train.make_trainer(train.RunArguments(str(tmp_path), learning_rate=0.1), tokenizer, model, data)


def test_fsdp_is_given_one_module_for_a_matrix(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(train, "Seq2SeqTrainer", type("Stub", (StubTrainer,), {"is_fsdp_enabled": True}))
    model = small_model(vocab_size=300)
    assert model.model.encoder.embed_tokens is not model.model.shared
    with pytest.raises(ValueError, match=r"FSDP needs an optimizer that the Trainer makes.* give --learning_rate"):
        train.make_trainer(train.RunArguments(str(tmp_path)), tokenizer, model, {"train": None})
    train.make_trainer(train.RunArguments(str(tmp_path), learning_rate=0.1), tokenizer, model, {"train": None})
    assert model.model.encoder.embed_tokens is model.model.decoder.embed_tokens is model.model.shared


def test_no_training_pairs(tmp_path):
    (tmp_path / "a.csv").write_text("en,fr\none,un\n")
    with pytest.raises(SystemExit, match="error: there are no training pairs; there is: test"):
        train.main(recipe(tmp_path, dataset=None, test_files=str(tmp_path / "a.csv")))


def test_an_unknown_argument_in_a_file(tmp_path, capsys):
    with pytest.raises(SystemExit):
        train.main(recipe(tmp_path, d_modle=16))
    assert 'there is no argument "d_modle"' in capsys.readouterr().err


def test_an_unknown_argument(capsys):
    with pytest.raises(SystemExit):
        train.main(["--test_size", "100"])
    assert "there is no argument --test_size; --help lists them." in capsys.readouterr().err


def test_numbers_are_scored_by_character_if_not_told_otherwise():
    numbers = Dataset.from_dict({"number": [1], "source": ["one"], "target": ["eins"]})
    assert ScoringArguments().options(numbers)["tokenize"] == "char"
    assert ScoringArguments().options(numbers.remove_columns("number"))["tokenize"] == "13a"
    assert ScoringArguments("none").options(numbers)["tokenize"] == "none"


def test_languages_without_blanks_are_cut_their_own_way(monkeypatch):
    pairs = Dataset.from_dict({"source": ["one"], "target": ["eins"]})
    for language, tokenize in (("zh", "zh"), ("zh-CN", "zh"), ("th", "char"), ("de", "13a"), (None, "13a")):
        assert ScoringArguments().for_target(language).options(pairs)["tokenize"] == tokenize
    assert ScoringArguments("none").for_target("zh").options(pairs)["tokenize"] == "none"

    def lack(tokenize):
        raise RuntimeError("Please install the extra.")

    monkeypatch.setattr("hf_vanilla_transformer.cli.arguments.BLEU", lack)
    lack.TOKENIZERS = ["ja-mecab"]
    with pytest.raises(ValueError, match=r"is \"ja-mecab\": Please install the extra\. Or give --bleu_tokenize char"):
        ScoringArguments().for_target("ja")


def test_the_search_in_words():
    model = small_model()
    of_paper = "beam search, 4 beams, length penalty 0.6 (gnmt), at most source + 50 tokens"
    assert describe_search(model) == of_paper
    assert describe_search(model, {"num_beams": 1}) == "greedy search"
    assert (
        describe_search(model, {"num_beams": 1, "do_sample": True, "max_new_tokens": 9}) == "sampling, at most 9 tokens"
    )
    marian = SimpleNamespace(generation_config=GenerationConfig(num_beams=6, max_length=512))
    assert describe_search(marian) == "beam search, 6 beams, length penalty 1.0 (hf), at most 512 tokens"


def test_a_search_that_transformers_would_not_take_has_words_too():
    model = small_model()
    model.generation_config.update(num_return_sequences=4)
    assert describe_search(model, {"num_beams": 1}) == "greedy search"


def test_what_predict_writes_into_settings_is_not_in_the_words_of_a_search():
    model = small_model()
    said = describe_search(model)
    model.generation_config.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
    assert model.generation_config.max_length == 20
    assert describe_search(model) == said
    assert describe_search(model, {"max_new_tokens": 7}) == said.replace("source + 50", "7")


def test_one_split_is_the_same_without_the_others(tmp_path, monkeypatch):
    numbers = DataArguments(dataset="numbers", source="en", target="de", max_digits=2, train_size=20)
    both = numbers.load()
    assert numbers.load("test")["test"]["source"] == both["test"]["source"]
    assert numbers.load("train")["train"]["source"] == both["train"]["source"]
    test = tmp_path / "test.csv"
    test.write_text("source,target\none,eins\n")
    pairs = DataArguments(train_files=["nowhere.csv"], test_files=[str(test)]).load("test")
    assert pairs["test"]["target"] == ["eins"]
    asked = {}
    monkeypatch.setattr(
        "hf_vanilla_transformer.cli.arguments.load_pairs",
        lambda dataset, **options: asked.update(options) or {"test": []},
    )
    DataArguments(dataset="user/name", dataset_config="de-en").load("test")
    assert (asked["split"], asked["name"]) == ("test", "de-en")


def test_norwegian_is_no_truth_value(tmp_path, capsys):
    path = tmp_path / "recipe.yaml"
    path.write_text("dataset: numbers\nsource: en\ntarget: no\n")
    with pytest.raises(SystemExit):
        train.main([str(path)])
    assert "target is False: YAML takes words such as no and yes for truth values" in capsys.readouterr().err


def test_translations_do_not_replace_their_sources(trained, tmp_path):
    path = tmp_path / "a.en"
    path.write_text("seven\n")
    with pytest.raises(SystemExit, match="is the input as well; write the translations into another file"):
        translate.main(["--model", str(trained), "--input", str(path), "--output", str(tmp_path / "." / "a.en")])
    assert path.read_text() == "seven\n"


def test_a_model_is_loaded_onto_an_accelerator_that_is_there(trained, monkeypatch):
    """And on a CPU the process keeps the memory that it frees."""
    kept = []
    monkeypatch.setattr("hf_vanilla_transformer.cli.common.keep_freed_memory", lambda: kept.append(expected))
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
    for is_available, device, expected in ((False, None, "cpu"), (True, None, "meta"), (True, "cpu", "cpu")):
        monkeypatch.setattr(torch.accelerator, "is_available", lambda is_available=is_available: is_available)
        _, model = load(str(trained), device and torch.device(device))
        assert model.device.type == expected
    assert kept == ["cpu", "cpu"]


def test_a_model_s_name_does_not_say_where_it_lies(trained):
    assert reporting.name_of(str(trained)) == trained.name
    assert reporting.name_of("user/name") == "user/name"
    assert reporting.name_of(None) is None


@pytest.mark.parametrize("file", ["config.json", "tokenizer_config.json"])
def test_a_model_that_was_not_saved_whole(trained, tmp_path, file):
    shutil.copytree(trained, tmp_path / "part", ignore=shutil.ignore_patterns(file, "checkpoint-*"))
    with pytest.raises(SystemExit, match=f"error: .*part holds no {file}; name the folder of a model"):
        translate.main(["--model", str(tmp_path / "part"), "one"])


def test_evaluate(decisive, tmp_path, capsys):
    output, translations = tmp_path / "scores.json", tmp_path / "translations.txt"
    data = ["--dataset", "numbers", "--source", "en", "--target", "fr", "--max_digits", "2", "--train_size", "9"]
    files = ["--output", str(output), "--translations", str(translations)]
    evaluate.main(["--model", str(decisive), *data, *files, "--num_beams", "1", "--bleu_tokenize", "char"])
    printed = capsys.readouterr().out
    scores = json.loads(output.read_text())
    assert f"exact match: {scores['exact_match']:.1f}" in printed
    assert scores["bleu_signature"] in printed
    assert scores["decoding"] == "greedy search"
    assert scores["data"] == "numbers of up to 2 digits written out in words (test)"
    assert sum(share["numbers"] for share in scores["exact_match_by_digits"].values()) == scores["sentences"]
    tokenizer, model = load(str(decisive))
    sources = list(load_pairs("numbers", target="fr", max_digits=2, train_size=9)["test"]["source"])
    greedy = translate_sentences(model, tokenizer, sources, num_beams=1)
    assert greedy != translate_sentences(model, tokenizer, sources)
    assert translations.read_text(encoding="utf-8") == lines(greedy)


def test_exact_matches_by_the_length_of_a_number():
    numbers = {"number": [7, 8, 42, 100], "target": ["sept", "huit", "quarante-deux", "cent"]}
    assert exact_match_by_digits(Dataset.from_dict(numbers), ["sept", "sept", "quarante-deux", "Cent"]) == {
        "1": {"numbers": 2, "exact_match": 50.0},
        "2": {"numbers": 1, "exact_match": 100.0},
        "3": {"numbers": 1, "exact_match": 0.0},
    }


def test_evaluating_another_split_whatever_the_case(decisive, write):
    files = {
        "--validation_files": write("validation.csv", "source,target\none,UN\ntwo,DEUX\n"),
        "--test_files": write("test.csv", "source,target\none,un\n"),
    }
    named = [word for name, path in files.items() for word in (name, str(path))]
    scores = evaluate.main(["--model", str(decisive), *named, "--split", "validation", "--lowercase"])
    assert (scores["sentences"], scores["data"]) == (2, "validation.csv")
    assert "case:lc" in scores["bleu_signature"]
    assert "case:lc" in scores["chrf_signature"]


def test_bleu_goes_by_the_target_language(decisive, tmp_path, write):
    path = str(write("a.csv", "en,zh\none,一\ntwo,二\n"))
    languages = ["--source", "en", "--target", "zh"]
    scores = evaluate.main(["--model", str(decisive), "--test_files", path, *languages])
    assert "tok:zh" in scores["bleu_signature"]
    files = {"dataset": None, "train_files": path, "test_files": path}
    folder = train.main(recipe(tmp_path, **files, target="zh", bleu_tokenize=None, max_steps=1))
    assert "tok:zh" in json.loads((folder / "scores.json").read_text())["bleu_signature"]


def test_an_optimizer_of_one_s_own_is_not_the_paper_s(tmp_path):
    folder = train.main([*recipe(tmp_path), "--max_steps", "1", "--optim", "sgd", "--save_strategy", "no"])
    assert "| optimizer | sgd, learning rate 0.000698771, schedule inverse_sqrt |" in (folder / "README.md").read_text()


def test_another_kind_of_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "marian"}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(SystemExit, match="is a marian model; this command trains vanilla_transformer"):
        train.main([*recipe(tmp_path), "--model", str(tmp_path)])


def test_an_arguments_file_that_is_neither_yaml_nor_json(tmp_path, capsys):
    (tmp_path / "broken.yaml").write_text("a: [1, 2\nb")
    with pytest.raises(SystemExit):
        train.main([str(tmp_path / "broken.yaml")])
    assert "broken.yaml is neither YAML nor JSON" in capsys.readouterr().err


@pytest.mark.parametrize("script", [evaluate, translate])
def test_an_output_without_a_folder_is_refused_at_once(script, tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*nowhere is not there; make the folder before writing"):
        script.main(["--model", "not looked at", "--output", str(tmp_path / "nowhere" / "out")])


def test_evaluating_a_split_that_is_not_there(trained, tmp_path):
    (tmp_path / "a.csv").write_text("source,target\none,un\n")
    with pytest.raises(SystemExit, match='there is no split "test"; there is: train'):
        evaluate.main(["--model", str(trained), "--train_files", str(tmp_path / "a.csv")])


@pytest.fixture
def expected_translations(decisive):
    tokenizer, model = load(str(decisive))
    return lines(translate_sentences(model, tokenizer, ["one", "two"]))


def test_translating_a_file(decisive, tmp_path, expected_translations):
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    translate.main(
        ["--model", str(decisive), "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
    )
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == expected_translations
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]


def test_a_long_file_is_translated_some_sentences_at_a_time(decisive, tmp_path, monkeypatch, capsys):
    """And what is there so far is no translation of the file. Memory goes back after each time."""
    monkeypatch.setattr(translate, "SENTENCES_AT_ONCE", 2)
    calls, output = [], tmp_path / "out.txt"

    def record(model, tokenizer, sentences, *args, **kwargs):
        assert not output.exists()
        calls.append(sentences)
        return translate_sentences(model, tokenizer, sentences, *args, **kwargs)

    monkeypatch.setattr(translate, "translate", record)
    given_back = []
    monkeypatch.setattr(translate, "release_freed_memory", lambda: given_back.append(len(calls)))
    sentences = ["one", "two houses", "", "a small house", "one"]
    (tmp_path / "in.txt").write_text("".join(f"{sentence}\n" for sentence in sentences))
    translate.main(["--model", str(decisive), "--input", str(tmp_path / "in.txt"), "--output", str(output)])
    assert calls == [sentences[:2], sentences[2:4], sentences[4:]]
    assert given_back == [1, 2, 3]
    assert re.search(r"^5 sentences in \d+\.\d s: \d+\.\d sentences/s$", capsys.readouterr().err, re.MULTILINE)
    tokenizer, model = load(str(decisive))
    assert output.read_text(encoding="utf-8") == lines(translate_sentences(model, tokenizer, sentences))


def test_what_is_translated_before_an_error_is_kept(decisive, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(translate, "SENTENCES_AT_ONCE", 1)
    (tmp_path / "in.txt").write_text("one\ntwo\nthree\n")

    def fail_at_last(model, tokenizer, sentences, *args, **kwargs):
        if sentences == ["three"]:
            raise ValueError("no more")
        return translate_sentences(model, tokenizer, sentences, *args, **kwargs)

    monkeypatch.setattr(translate, "translate", fail_at_last)
    with pytest.raises(SystemExit, match="error: no more"):
        translate.main(
            ["--model", str(decisive), "--input", str(tmp_path / "in.txt"), "--output", str(tmp_path / "out.txt")]
        )
    kept = tmp_path / ".out.txt.part"
    tokenizer, model = load(str(decisive))
    assert kept.read_text(encoding="utf-8") == lines(translate_sentences(model, tokenizer, ["one", "two"]))
    assert f"what was written until then is in {kept}" in capsys.readouterr().err
    assert not (tmp_path / "out.txt").exists()


def test_translating_arguments_by_another_search(decisive, capsys):
    sentences = ["one", "two houses", "a small house"]
    translate.main([*sentences, "--model", str(decisive), "--num_beams", "1", "--max_new_tokens", "20"])
    tokenizer, model = load(str(decisive))
    expected = translate_sentences(model, tokenizer, sentences, num_beams=1, max_new_tokens=20)
    assert expected != translate_sentences(model, tokenizer, sentences, max_new_tokens=20)
    assert expected != translate_sentences(model, tokenizer, sentences, num_beams=1)
    written = capsys.readouterr()
    assert written.out == lines(expected)
    assert "sentences/s" not in written.err


@pytest.mark.parametrize(
    ("command", "place"),
    [(translate, "hf_vanilla_transformer.cli.translate"), (evaluate, "hf_vanilla_transformer.cli.common")],
)
def test_batches_are_as_large_as_asked_for(decisive, write, monkeypatch, command, place):
    given = []

    def note(*args, **kwargs):
        given.append(inspect.signature(translate_sentences).bind(*args, **kwargs).arguments["batch_tokens"])
        return translate_sentences(*args, **kwargs)

    monkeypatch.setattr(f"{place}.translate", note)
    pairs = write("test.csv", "source,target\none,un\n")
    sentences = ["one"] if command is translate else ["--test_files", str(pairs)]
    command.main([*sentences, "--model", str(decisive), "--batch_tokens", "77"])
    assert given == [77]


def test_translating_standard_input(decisive, monkeypatch, capsys, expected_translations):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfone\n\ntwo\r\n"), encoding="ascii"))
    translate.main(["--model", str(decisive)])
    first, second = expected_translations.splitlines()
    assert capsys.readouterr().out == f"{first}\n\n{second}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--num_beams", "0"], "error: num_beams is 0; it must be at least 1"),
        (["--length_penalty", "nan"], "error: length_penalty is nan; it must lie between -100 and 100"),
        (["--batch_tokens", "-5"], "error: batch_tokens is -5; it must be at least 1"),
        (["--output", "."], r"error: \. is a folder; name a file to write"),
    ],
)
def test_wrong_arguments_of_translating(trained, arguments, message):
    with pytest.raises(SystemExit, match=message):
        translate.main(["one", "--model", str(trained), *arguments])


def test_one_file_for_two_outputs(trained, tmp_path):
    path = str(tmp_path / "out")
    with pytest.raises(SystemExit, match="is named twice; write into different files"):
        evaluate.main(["--model", str(trained), "--output", path, "--translations", path])


def test_a_translation_stays_on_its_line(trained, capsys, monkeypatch):
    monkeypatch.setattr(
        sys.modules["hf_vanilla_transformer.cli.translate"], "translate", lambda *args, **kwargs: ["a\nb", "c"]
    )
    translate.main(["one", "two", "--model", str(trained)])
    assert capsys.readouterr().out == "a b\nc\n"


def test_a_sentence_may_end_like_the_name_of_a_file(trained, capsys):
    translate.main(["one.json", "--model", str(trained)])
    assert capsys.readouterr().out


def test_translating_a_file_that_is_not_there(tmp_path):
    with pytest.raises(SystemExit, match=r"error: .*in\.txt is not there; check the path"):
        translate.main(["--model", "not looked at", "--input", str(tmp_path / "in.txt")])


def test_translating_arguments_and_a_file_at_once(trained):
    with pytest.raises(SystemExit, match="given both as arguments and as a file"):
        translate.main(["one", "--model", str(trained), "--input", "in.txt"])


def test_without_arguments_it_is_the_recipe_of_the_number_corpus(monkeypatch):
    given = []

    def stop(settings):
        given.append(settings)
        raise ValueError("it would train now")

    monkeypatch.setattr(train, "begin", stop)
    with pytest.raises(SystemExit, match="it would train now"):
        train.main([])
    (settings,) = given
    recipe_of_numbers = yaml.safe_load(
        (ROOT / "hf_vanilla_transformer" / "recipes" / "numbers.yaml").read_text(encoding="utf-8")
    )
    assert settings.data.dataset == recipe_of_numbers["dataset"] == "numbers"
    assert settings.model.vocab_size == recipe_of_numbers["vocab_size"]
    assert settings.args.max_steps == recipe_of_numbers["max_steps"]


def test_the_demo_ends_with_python_that_runs(tmp_path, monkeypatch, capsys):
    (path,) = recipe(tmp_path, target="de", max_steps=2)
    monkeypatch.setattr(train, "DEFAULT_RECIPE", Path(path))
    monkeypatch.setattr(sys, "argv", ["demo.py", "--output_dir", str(tmp_path / "demo"), "--seed", "3"])
    demo.main()
    printed, python = capsys.readouterr().out.split("in Python:")
    assert "exact match: " in printed
    assert "BLEU: " in printed
    assert printed.count("\n  -> ") == demo.EXAMPLES
    assert f"the model is in {tmp_path / 'demo'}" in printed
    assert len(python.strip().splitlines()) == 3
    exec(python, {})
    assert capsys.readouterr().out.startswith("[")
    with pytest.raises(SystemExit, match="already holds a model"):
        demo.main()


def weights_of(folder: Path) -> dict[str, np.ndarray]:
    return safetensors.numpy.load_file(folder / "model.safetensors")


def assert_is_mean(weights, folders):
    parts = [weights_of(folder) for folder in folders]
    assert weights.keys() == parts[0].keys()
    for name, weight in weights.items():
        assert np.array_equal(weight, np.mean([part[name] for part in parts], axis=0, dtype=float).astype(weight.dtype))
    assert any((parts[0][name] != parts[-1][name]).any() for name in weights)


def test_averaging_checkpoints(trained, tmp_path, capsys):
    checkpoints = [trained / "checkpoint-3", trained / "checkpoint-6"]
    named = average.main([*map(str, checkpoints), "--output", str(tmp_path / "named")])
    assert capsys.readouterr().out == f"the average of checkpoint-3, checkpoint-6 is in {named}\n"
    last = average.main(["--last", "2", str(trained), "--output", str(tmp_path / "last")])
    for folder in (named, last):
        assert_is_mean(weights_of(folder), checkpoints)
    evaluation = ["--dataset", "numbers", "--source", "en", "--target", "fr", "--max_digits", "1", "--train_size", "9"]
    assert "bleu" in evaluate.main(["--model", str(last), *evaluation])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "error: there is nothing to average; name at least one checkpoint or saved model"),
        (["--last", "2"], "error: --last needs the folder of one run; 0 folders were given"),
        (["run", "run2", "--last", "2"], "error: --last needs the folder of one run; 2 folders were given"),
        (["run", "--last", "3"], "error: run holds 2 complete checkpoints, fewer than 3; give a smaller --last, or"),
        (["run", "--last", "0"], "error: the number of checkpoints to average is 0; it must be at least 1"),
        (["run", "nowhere"], "error: nowhere is not there; name the folder of a checkpoint"),
    ],
)
def test_wrong_arguments_of_averaging(trained, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(trained.parent)
    with pytest.raises(SystemExit, match=message):
        average.main([*arguments, "--output", str(tmp_path / "average")])
    assert not list(tmp_path.iterdir())


def test_training_that_ends_with_an_average(tmp_path, monkeypatch):
    scored = []

    def note_weights(model, *args):
        scored.append(model.lm_head.weight.detach().cpu().numpy())
        return score(model, *args)

    score = reporting.score
    monkeypatch.setattr(reporting, "score", note_weights)
    # The last update is no multiple of save_steps; its checkpoint counts all the same.
    arguments = recipe(tmp_path, save_steps=2, max_steps=5, train_sampling_strategy="random")
    averaging = [*arguments, "--average_last", "2"]
    folder = train.main([*averaging, "--save_total_limit", "2"])
    checkpoints = [folder / "checkpoint-4", folder / "checkpoint-5"]
    average = weights_of(folder)
    assert_is_mean(average, checkpoints)
    assert (scored[0] == average["model.shared.weight"]).all()
    assert "| weights | average of 2 checkpoints: checkpoint-4, checkpoint-5 |" in (folder / "README.md").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config.num_beams == 4

    train.main([*averaging, "--resume_from_checkpoint", str(checkpoints[0])])
    assert all((weight == average[name]).all() for name, weight in weights_of(folder).items())
    more = ["--max_steps", "7", "--save_steps", "7", "--average_last", "3", "--resume_from_checkpoint", "last"]
    train.main([*averaging, *more])
    # A resumed run keeps its interval; what it wrote before counts, too.
    assert_is_mean(weights_of(folder), [folder / f"checkpoint-{step}" for step in (5, 6, 7)])

    train.main([*arguments, "--max_steps", "7", "--resume_from_checkpoint", "last"])
    assert not (folder / "averaged_from.json").exists()
    assert "average of" not in (folder / "README.md").read_text()


def test_a_run_that_left_fewer_checkpoints_than_are_to_be_averaged(tmp_path, capsys):
    (path,) = recipe(tmp_path, max_steps=-1, num_train_epochs=1, save_steps=5, average_last=4)
    folder = train.main([path])
    checkpoints = sorted(folder.glob("checkpoint-*"))
    assert_is_mean(weights_of(folder), checkpoints)
    assert f"average_last is 4, but the run left {len(checkpoints)} complete checkpoints" in capsys.readouterr().out


def test_a_model_is_kept_when_averaging_fails(tmp_path, monkeypatch):
    def fail(*args):
        raise OSError("The disk is full.")

    monkeypatch.setattr(train, "write_average", fail)
    message = r"error: The disk is full\. The model in .*run is that of the last update, not an average"
    with pytest.raises(SystemExit, match=message):
        train.main(recipe(tmp_path, average_last=2))
    last = weights_of(tmp_path / "run" / "checkpoint-6")
    assert all((weight == last[name]).all() for name, weight in weights_of(tmp_path / "run").items())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"average_last": 0}, "average_last is 0; it must be at least 1"),
        ({"save_strategy": "no"}, 'average_last is 2, which needs complete checkpoints; give --save_strategy "steps"'),
        ({"save_only_model": True}, "which needs complete checkpoints; .* leave out --save_only_model"),
        ({"save_total_limit": 1}, "average_last is 2, but save_total_limit 1; it must be at least 2"),
        (
            {"save_total_limit": 2, "metric_for_best_model": "loss", "eval_strategy": "epoch"},
            "average_last is 2, but save_total_limit 2; it must be at least 3",
        ),
        (
            {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 3},
            "average_last and load_best_model_at_end choose different weights; give one of the two",
        ),
        ({"save_steps": 6}, "average_last is 2, but the run writes only 1; save more often or average less"),
        ({"save_steps": 0.9, "average_last": 3}, "average_last is 3, but the run writes only 1"),
        ({"save_strategy": "epoch", "max_steps": -1, "num_train_epochs": 1}, "the run writes only 1"),
    ],
)
def test_averages_that_a_run_cannot_end_with(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        train.main(recipe(tmp_path, **{"average_last": 2, **changes}))
    assert not (tmp_path / "run").exists()


def test_an_average_of_a_run_that_has_ended_elsewhere(trained, tmp_path):
    message = "checkpoint-6 is the end of the run already, so .*run would get no checkpoints to average"
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        train.main(recipe(tmp_path, average_last=2, resume_from_checkpoint=str(trained / "checkpoint-6")))
    assert not (tmp_path / "run").exists()


def test_an_average_of_a_run_that_goes_on_with_another_rate_of_dropout(tmp_path, finished):
    changes = {"dropout": 0.25, "label_smoothing": 0.0, "max_steps": 9, "resume_from_checkpoint": "last"}
    folder = train.main(recipe(tmp_path, average_last=3, **changes))
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert (model.config.dropout, model.config.label_smoothing) == (0.25, 0.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"metric_for_best_model": "BLEU"}, 'metric_for_best_model is BLEU; it may be "loss", "bleu" or "chrf"'),
        ({"metric_for_best_model": "eval_bleu"}, "which needs translations; add --predict_with_generate"),
        (
            {"load_best_model_at_end": True, "save_steps": 4},
            "save_steps is 4 and eval_steps 2, so the best model may not be saved; give both the same number",
        ),
        ({"neftune_noise_alpha": 5}, "neftune_noise_alpha is 5.*leave it out, and give --dropout instead"),
        ({"optim_args": "amsgrad=True"}, "optim_args is amsgrad=True, but .* section 5.3, which take none"),
        ({"lr_scheduler_kwargs": {"a": 1}}, "lr_scheduler_kwargs is .*, but .* section 5.3, which take none"),
    ],
)
def test_settings_without_an_effect(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        train.main(recipe(tmp_path, **{**evaluated(tmp_path), **changes}))
    assert not (tmp_path / "run").exists()


def test_times_of_a_run_whose_callbacks_are_restored(tmp_path, finished):
    results_file = tmp_path / "results.json"
    changes = {"max_steps": 9, "resume_from_checkpoint": "last", "restore_callback_states_from_checkpoint": True}
    train.main(recipe(tmp_path, results=str(results_file), **changes))
    state = json.loads((tmp_path / "run" / "checkpoint-6" / "trainer_state.json").read_text())
    before = state["stateful_callbacks"]["FactsOfTheRun"]["args"]["seconds"]
    assert json.loads(results_file.read_text())["training_seconds"] > before


def test_a_local_data_set_is_called_by_its_name_alone(tmp_path):
    (tmp_path / "pairs").mkdir()
    assert DataArguments(dataset=str(tmp_path / "pairs")).describe("train") == "pairs (train)"
    assert DataArguments(dataset="user/pairs").describe("train") == "user/pairs (train)"


def evaluated(folder: Path) -> dict:
    """Arguments of a run with validation pairs, which the built-in corpus has only where there are more numbers."""
    train, test = load_pairs("numbers", source="en", target="fr", max_digits=2, train_size=60).values()
    files = {"train_files": train, "validation_files": test, "test_files": train.select(range(8))}
    for name, pairs in files.items():
        pairs.select_columns(["source", "target"]).rename_columns({"source": "en", "target": "fr"}).to_csv(
            folder / f"{name}.csv"
        )
    paths = {name: str(folder / f"{name}.csv") for name in files}
    return {"dataset": None, **paths, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}


def test_validation_keeps_the_best_and_tells_the_time(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    results_file = tmp_path / "tiny_seed42.json"
    changes = {"predict_with_generate": True, "generation_num_beams": 1, "metric_for_best_model": "chrf"}
    changes |= {"load_best_model_at_end": True, "tokens_per_batch": 96, "bpe_dropout": 0.1, "bpe_dropout_copies": 2}
    changes |= {"max_steps": 90, "eval_steps": 30, "save_steps": 30, "learning_rate": 0.01}
    changes |= {"d_model": 64, "d_ff": 64, "dropout": 0.0}
    changes |= {"num_beams": 3, "length_penalty": 0.9, "whitespace_words": True}
    changes |= {"results": str(results_file), "bleu_targets": [0, 101]}
    arguments = recipe(tmp_path, **{**evaluated(tmp_path), **changes})
    folder = train.main(arguments)
    curve = json.loads((folder / "curve.json").read_text())
    points = curve["points"]
    assert [point["updates"] for point in points] == [30, 60, 90]
    assert curve["reached"] == {"0": points[0], "101": None}
    assert (folder / "curve.png").is_file()

    best = max(points, key=lambda point: point["chrf"])
    checkpoint = folder / f"checkpoint-{best['updates']}"
    whole = weights_of(folder)
    assert all((weight == whole[name]).all() for name, weight in weights_of(checkpoint).items())
    pairs = load_pairs(train_files=tmp_path / "validation_files.csv", source="en", target="fr")["train"]
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(checkpoint), AutoTokenizer.from_pretrained(checkpoint)
    translations = translate_sentences(model, tokenizer, pairs["source"], num_beams=1)
    expected = score_translations(translations, pairs["target"], tokenize="char")
    assert best["chrf"] > 0
    assert best["bleu"] == pytest.approx(expected["bleu"])
    assert best["chrf"] == pytest.approx(expected["chrf"])

    saved = AutoModelForSeq2SeqLM.from_pretrained(folder).generation_config
    assert (saved.num_beams, saved.length_penalty) == (3, 0.9)
    results = json.loads(results_file.read_text())
    assert results["curve"] == curve
    assert results["scores"]["test"] == json.loads((folder / "scores.json").read_text())
    assert results["scores"]["validation"]["decoding"].startswith("beam search, 3 beams, length penalty 0.9")
    assert results["settings"]["bpe_dropout"] == 0.1
    assert "| BPE dropout | 0.1, 2 copies |" in (folder / "README.md").read_text()
    assert results["base_model"] is None
    assert results["precision"] == "float32"
    assert str(tmp_path) not in results_file.read_text()
    assert 0 < results["peak_memory_bytes"] <= resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert results["training_seconds"] >= points[-1]["training_seconds"]
    assert results["evaluation_seconds"] == pytest.approx(points[-1]["evaluation_seconds"])
    assert results["total_seconds"] > results["training_seconds"] + results["evaluation_seconds"]

    drawn = plot.main([str(folder), str(results_file), "--output", str(tmp_path / "plot.png")])
    assert drawn.is_file()
    collect_results.main([str(results_file)])
    assert f"| tiny | 42 | {results['scores']['validation']['bleu']:.2f} |" in capsys.readouterr().out

    train.main([*arguments, "--resume_from_checkpoint", str(folder / "checkpoint-60")])
    resumed = json.loads((folder / "curve.json").read_text())["points"]
    assert resumed[:2] == points[:2]
    assert resumed[2]["chrf"] == points[2]["chrf"]
    assert json.loads(results_file.read_text())["total_seconds"] is None
    for name in ("training_seconds", "evaluation_seconds"):
        assert resumed[2][name] > resumed[1][name] > resumed[0][name] > 0
    assert all((weight == whole[name]).all() for name, weight in weights_of(folder).items())


def test_the_table_of_results_goes_into_a_file_too(tmp_path, capsys):
    results = str(ROOT / "docs" / "results" / "multi30k_en_de_seed1.json")
    table = collect_results.main([results, "--output", str(tmp_path / "table.md")])
    assert "| multi30k_en_de | 1 |" in table
    assert capsys.readouterr().out == (tmp_path / "table.md").read_text(encoding="utf-8") == table
    with pytest.raises(SystemExit, match=r"error: .*nowhere is not there; make the folder before writing"):
        collect_results.main([results, "--output", str(tmp_path / "nowhere" / "table.md")])


def test_r_drop_changes_the_training_and_is_written_down(tmp_path):
    changes = {"max_steps": 4, "dropout": 0.3, "results": str(tmp_path / "results.json")}
    found = []
    for weight in (0.0, 3.0):
        train.main(recipe(tmp_path, **changes, r_drop=weight, overwrite=True))
        results = json.loads((tmp_path / "results.json").read_text())
        found.append((results["settings"].get("r_drop"), weights_of(tmp_path / "run")))
    assert [weight for weight, _ in found] == [None, 3.0]
    assert "| R-Drop | weight 3 |" in (tmp_path / "run" / "README.md").read_text()
    assert any((weight != found[1][1][name]).any() for name, weight in found[0][1].items())


def test_runs_of_one_name_in_a_plot(tmp_path):
    runs = [tmp_path / name for name in ("a/seed1", "b/seed1", "rate_0.1", "rate_0.3")]
    for run in runs:
        run.mkdir(parents=True)
    given = [*map(str, runs), str(tmp_path / "x" / "curve.json"), str(tmp_path / "results_seed2.json")]
    assert plot.names_of(given) == [*given[:2], "rate_0.1", "rate_0.3", "x", "results_seed2"]
    with pytest.raises(ValueError, match="a run is given twice"):
        plot.names_of([given[0], given[0]])
    with pytest.raises(SystemExit, match="error: no run is given; name the folder of at least one"):
        plot.main(["--output", str(tmp_path / "plot.png")])


@pytest.mark.parametrize("can_keep", [True, False])
def test_memory_is_given_back_where_it_is_kept(tmp_path, monkeypatch, can_keep):
    steps, asked = [], []

    class Recorder(train.ReleaseMemory):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    monkeypatch.setattr(train, "keep_freed_memory", lambda: asked.append(1) or can_keep)
    monkeypatch.setattr(train, "ReleaseMemory", Recorder)
    train.main(recipe(tmp_path, max_steps=3, use_cpu=True))
    assert asked == [1]
    assert steps == ([1, 2, 3] if can_keep else [])


def test_stopping_early(tmp_path):
    """Nothing is learnt, so the first evaluation stays the best."""
    changes = {**evaluated(tmp_path), "max_steps": 20, "early_stopping_patience": 2, "learning_rate": 0.0}
    folder = train.main(recipe(tmp_path, **changes))
    last = folder / "checkpoint-6"
    assert json.loads((last / "trainer_state.json").read_text())["global_step"] == 6
    assert not (folder / "checkpoint-8").exists()
    # As where it died before the scores: nothing is left to train.
    weights = weights_of(folder)
    (folder / "model.safetensors").unlink()
    train.main([*recipe(tmp_path, **changes), "--resume_from_checkpoint", "last"])
    assert not (folder / "checkpoint-8").exists()
    assert all((weight == weights[name]).all() for name, weight in weights_of(folder).items())
    # The one before the checkpoint counts.
    shutil.rmtree(last)
    train.main([*recipe(tmp_path, **changes), "--resume_from_checkpoint", "last"])
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]


def test_resuming_with_callbacks_that_the_checkpoint_does_not_know(tmp_path):
    changes = {**evaluated(tmp_path), "max_steps": 4, "learning_rate": 0.0}
    folder = train.main(recipe(tmp_path, **changes))
    path = folder / "checkpoint-4" / "trainer_state.json"
    # As of a stock Trainer.
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["FactsOfTheRun"]
    path.write_text(json.dumps(state))
    mark_complete(path.parent)
    # The first evaluation from here on is the best.
    changes |= {"max_steps": 20, "early_stopping_patience": 2}
    train.main([*recipe(tmp_path, **changes), "--resume_from_checkpoint", "last"])
    kept = json.loads((folder / "checkpoint-10" / "trainer_state.json").read_text())["stateful_callbacks"]
    assert not (folder / "checkpoint-12").exists()
    assert kept["FactsOfTheRun"]["args"]["seconds"] > 0
    assert kept["EarlyStopping"]["attributes"]["early_stopping_patience_counter"] == 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fine_tuning_weights_of_16_bits(trained, tmp_path, dtype):
    AutoModelForSeq2SeqLM.from_pretrained(trained, dtype=dtype).save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path / "half")
    folder = train.main([*recipe(tmp_path), "--model", str(tmp_path / "half"), "--max_steps", "1"])
    assert {weight.dtype.name for weight in weights_of(folder).values()} == {"float32"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"early_stopping_patience": 2}, "early_stopping_patience is 2, but the run has no evaluations; give"),
        (
            {"eval_strategy": "steps", "early_stopping_patience": 0},
            "early_stopping_patience is 0; it must be at least 1",
        ),
        (
            {"eval_strategy": "steps", "metric_for_best_model": "bleu"},
            "metric_for_best_model is bleu, which needs translations",
        ),
        (
            {"eval_strategy": "epoch"},
            "eval_strategy is epoch, but there are no validation pairs; there is: train, test. Give",
        ),
        ({"results": "nowhere/results.json"}, "nowhere is not there; make the folder"),
        ({"bpe_dropout": -0.1}, "bpe_dropout is -0.1; it must lie between 0 and 1"),
        ({"r_drop": -1.0}, r"r_drop is -1.0; it must be 0"),
        ({"bpe_dropout_copies": 20}, r"bpe_dropout_copies is 20, but bpe_dropout is missing; give both"),
    ],
)
def test_wrong_arguments_of_validation(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"error: {message}"):
        train.main(recipe(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


PROGRAMS = [path.name for path in (ROOT / "scripts").glob("*.py") if "__main__" in path.read_text(encoding="utf-8")]
COMMANDS = [*(f"scripts/{name}" for name in sorted(PROGRAMS)), "benchmarks/generation.py", "benchmarks/training.py"]


@pytest.fixture(scope="module")
def helped(tmp_path_factory) -> dict[str, dict]:
    """What the commands answer to --help outside of the project's folder."""
    scripts = {name: str(ROOT / name) for name in COMMANDS}
    child = [sys.executable, "-P", str(ROOT / "tests" / "help_of_scripts.py"), *scripts.values()]
    result = subprocess.run(child, capture_output=True, text=True, cwd=tmp_path_factory.mktemp("elsewhere"))
    assert result.returncode == 0, result.stderr
    # Some libraries say something when they are imported.
    found = json.loads(result.stdout.splitlines()[-1])
    return {name: found[script] for name, script in scripts.items()}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_in_a_fresh_process(name, helped):
    result = SimpleNamespace(**helped[name])
    assert result.returncode == 0, result.stderr
    assert "usage: " in result.stdout
