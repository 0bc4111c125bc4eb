"""`train`: what a run writes, what it refuses, and fine-tuning, on a model too small to learn anything."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from datasets import Dataset
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, IntervalStrategy

from hf_vanilla_transformer import load_pairs
from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.apps.cli.parser import given_arguments
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.training import after_training, results_file, run_setup, training_pairs
from hf_vanilla_transformer.training import run as train_run
from hf_vanilla_transformer.training.run_arguments import RunArguments, Settings
from tests.apps.cli.tiny_run import TINY, recipe, weights_of, write_recipe
from tests.model.test_remote_code import SHIPPED
from tests.models import small_model
from tests.parity.paper_numpy import learning_rate


pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]


def test_what_a_trained_folder_holds(trained):
    assert {path.name for path in trained.iterdir() if path.is_file()} == SHIPPED | {
        "README.md",
        "arguments.yaml",
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


def test_the_arguments_of_a_run_repeat_it(tmp_path):
    overrides = '{"decoder_layers": 2}'
    changes = {"save_strategy": "no", "warmup_steps": 5, "config_overrides": overrides, "token": "hf_secret"}
    folder = train.main([*recipe(tmp_path, **changes), "--overwrite", "--max_steps", "2", "--dropout", "5e-2"])
    path = folder / "arguments.yaml"
    expected = {**TINY, **changes, "output_dir": str(folder), "max_steps": 2, "dropout": 0.05}
    del expected["token"]
    assert yaml.safe_load(path.read_text()) == expected
    with pytest.raises(SystemExit, match="already holds a model"):
        train.main(["--config", str(path)])
    again = train.main(["--config", str(path), "--output_dir", str(tmp_path / "again")])
    assert all((weight == weights_of(folder)[name]).all() for name, weight in weights_of(again).items())


def test_repeatable_arguments_can_be_read_as_a_recipe(tmp_path):
    arguments = {"train_file": (tmp_path / "a b.en", tmp_path / "a.de"), "eval_strategy": IntervalStrategy.STEPS}
    settings = Settings.from_arguments(**arguments, output_dir=str(tmp_path / "größe"), bf16=False)
    (tmp_path / "arguments.yaml").write_text(yaml.safe_dump(settings.repeatable_arguments()))
    read_arguments = given_arguments(Settings, "", ["--config", str(tmp_path / "arguments.yaml")])
    expected = {"train_file": [str(tmp_path / "a b.en"), str(tmp_path / "a.de")], "eval_strategy": "steps"}
    assert read_arguments == {**expected, "output_dir": str(tmp_path / "größe"), "bf16": False}


def test_the_model_card_is_filled(trained):
    card = ModelCard.load(trained / "README.md")
    scores = json.loads((trained / "scores.json").read_text())
    assert card.data.language == ["en", "fr"]
    assert card.data.pipeline_tag == "translation"
    assert card.data.license is None
    assert "The license of the weights is not stated" in card.text
    assert {result.metric_type for result in card.data.eval_results} == {"sacrebleu", "chrf", "ter"}
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
    files = {"dataset_name": None, "train_file": str(tmp_path / "a.csv"), "max_steps": 1, "vocab_size": 280}
    folder = train.main([*recipe(tmp_path, **files), "--overwrite"])
    assert load_file(folder / "model.safetensors").keys() == first.keys()
    assert not list(folder.glob("checkpoint-[36]"))
    assert not (folder / "scores.json").exists()


def test_wrong_input_does_not_remove_what_is_to_be_overwritten(tmp_path, finished):
    before = sorted(finished.rglob("*"))
    with pytest.raises(SystemExit, match="does not exist"):
        train.main([*recipe(tmp_path, dataset_name=None, train_file=["nowhere.csv"]), "--overwrite"])
    assert sorted(finished.rglob("*")) == before


def test_a_model_is_kept_when_scoring_fails(tmp_path, monkeypatch):
    def fail(*args):
        raise RuntimeError("scoring failed")

    monkeypatch.setattr(after_training, "evaluate_saved", fail)
    with pytest.raises(RuntimeError, match="scoring failed"):
        train.main(recipe(tmp_path))
    AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")


def test_the_saved_model_is_scored_not_the_one_that_computes_in_bfloat16(tmp_path, monkeypatch, capsys):
    ids = torch.tensor([[5, 6, 7]])
    scored = []

    def note_logits(model, *args, **kwargs):
        scored.append(model.eval()(input_ids=ids, decoder_input_ids=ids).logits)
        return evaluate(model, *args, **kwargs)

    evaluate = after_training.evaluate
    monkeypatch.setattr(after_training, "evaluate", note_logits)
    folder = train.main([*recipe(tmp_path, max_steps=1), "--bf16", "--use_cpu"])
    assert "training in bfloat16 autocast" in capsys.readouterr().out
    saved = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert torch.equal(scored[0], saved(input_ids=ids, decoder_input_ids=ids).logits)


def test_fine_tuning(trained, tmp_path):
    folder = train.main(
        [*recipe(tmp_path), "--model_name_or_path", str(trained), "--max_steps", "2", "--dropout", "0.25"]
    )
    assert (folder / "tokenizer.json").read_text() == (trained / "tokenizer.json").read_text()
    model = AutoModelForSeq2SeqLM.from_pretrained(folder)
    assert model.config.dropout == 0.25
    card = (folder / "README.md").read_text()
    assert f"\nfrom `{trained.name}` with hf-vanilla-transformer" in card
    assert str(trained.parent) not in card
    assert "base_model:" not in card


def test_fine_tuning_with_another_s_tokenizer(trained, tmp_path, tokenizer):
    model = AutoModelForSeq2SeqLM.from_pretrained(trained)
    model.resize_token_embeddings(100)
    model.save_pretrained(tmp_path / "mixed")
    tokenizer.save_pretrained(tmp_path / "mixed")
    with pytest.raises(SystemExit, match=r"has \d+ tokens, but the model's vocabulary has 100; use a model with"):
        train.main([*recipe(tmp_path), "--model_name_or_path", str(tmp_path / "mixed")])
    assert not (tmp_path / "run").exists()


def test_batches_by_tokens(tmp_path):
    folder = train.main(recipe(tmp_path, tokens_per_batch=96, gradient_accumulation_steps=2, save_steps=6))
    history = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())["log_history"]
    assert any("padding_share" in entry for entry in history)
    assert "| tokens per update and side, at most | 192 |" in (folder / "README.md").read_text()


def test_pairs_longer_than_a_batch(tmp_path, capsys):
    with pytest.raises(
        SystemExit, match=r"error: none of the 60 pairs .* 60 longer than 1 tokens; raise .*tokens_per_"
    ):
        train.main(recipe(tmp_path, tokens_per_batch=1))
    pairs = load_pairs("numbers", target="fr", train_size=60, max_digits=2)["train"]
    # Words of numbers have fewer tokens than characters, and "</s>".
    lengths = [max(len(pair["source"]), len(pair["target"])) for pair in pairs]
    train.main(recipe(tmp_path, tokens_per_batch=max(lengths) + 1))
    assert "removed" not in capsys.readouterr().out
    train.main(recipe(tmp_path, tokens_per_batch=4, overwrite=True))
    report = r"removed (\d+) of 60 training pairs: (\d+) longer than 4 tokens\n"
    (counts,) = re.findall(report, capsys.readouterr().out)
    assert 0 < int(counts[0]) == int(counts[1]) < 60


def test_pairs_that_do_not_fit_are_left_out(tmp_path, tokenizer, monkeypatch, caplog):
    caplog.set_level("INFO")
    data = Dataset.from_dict({"input_ids": [[2], [50, 2], [50, 51, 52, 2]], "labels": [[50, 2]] * 3})
    monkeypatch.setattr(training_pairs, "tokenize_pairs", lambda pairs, *_, **__: dict(pairs))
    settings = Settings.from_arguments(max_tokens=3)
    remaining_pairs = training_pairs.tokenize(settings, {"train": data}, tokenizer)["train"]
    assert remaining_pairs.to_list() == [{"input_ids": [50, 2], "labels": [50, 2]}]
    assert caplog.messages == ["removed 2 of 3 training pairs: 1 empty on one side, 1 longer than 3 tokens"]
    monkeypatch.undo()
    with pytest.raises(SystemExit, match="error: none of the 60 pairs would remain"):
        train.main(recipe(tmp_path, max_tokens=1))


def test_a_model_from_elsewhere_gets_no_longest_source_of_a_few_pairs(tmp_path):
    """It was trained on longer sources, which would be split otherwise."""
    base = Path(__file__).parents[2] / "fixtures" / "numbers_tiny"
    field = "longest_training_source"
    assert field not in AutoTokenizer.from_pretrained(base).init_kwargs
    data = ["--dataset_name", "numbers", "--source_lang", "en", "--target_lang", "de", "--train_size", "5"]
    steps = ["--max_steps", "1", "--save_strategy", "no", "--bf16", "false", "--use_cpu", "true"]
    command = ["--model_name_or_path", str(base), "--output_dir", str(tmp_path / "tuned"), "--max_digits", "1"]
    folder = train.main([*command, *data, *steps])
    assert field not in AutoTokenizer.from_pretrained(folder).init_kwargs


def test_the_tokenizer_holds_the_longest_source_and_the_languages(trained, tmp_path):
    """Fine-tuning on shorter pairs does not forget longer ones; its languages may be others."""
    pairs = load_pairs("numbers", source="en", target="fr", max_digits=2, train_size=60)["train"]
    changes = {"max_digits": 1, "train_size": 5, "max_steps": 1, "target_lang": "de"}
    shorter = recipe(tmp_path, model_name_or_path=str(trained), **changes)
    for folder, language in ((trained, "fr"), (train.main(shorter), "de")):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        ids = tokenizer(pairs["source"][:], text_target=pairs["target"][:])
        assert tokenizer.init_kwargs["longest_training_source"] == max(map(len, ids["input_ids"]))
        # The longest target is longer; the model has no limit.
        assert tokenizer(pairs["source"][:], text_target=pairs["target"][:], truncation=True) == ids
        assert (tokenizer.init_kwargs["source_lang"], tokenizer.init_kwargs["target_lang"]) == ("en", language)


def trained_on_numbers(folder, pairs, **changes):
    """The share of translated texts without letters that `train` saved for files with these pairs."""
    folder.mkdir()
    files = [folder / "a.en", folder / "a.fr"]
    for path, side in zip(files, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{text}\n" for text in side), encoding="utf-8")
    options = {"dataset_name": None, "train_file": [str(path) for path in files], "max_steps": 1, **changes}
    settings = dict(TINY)
    if "tokenizer_name" in changes:
        del settings["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(train.main(write_recipe(settings, folder, **options)))
    return tokenizer.init_kwargs.get("translated_letterless_share")


def test_the_tokenizer_holds_the_share_of_translated_texts_without_letters(trained, tmp_path):
    assert AutoTokenizer.from_pretrained(trained).init_kwargs["translated_letterless_share"] == 0.0
    words = [("two", "deux"), ("A4", "A4!"), ("5", "5"), (" 5 ", "5"), ("½", "½"), ("- -", "- -")]
    pairs = [*words, ("12", "douze"), ("3.5", "3,5")]
    assert trained_on_numbers(tmp_path / "numbers", pairs) == 2 / 8


def test_fine_tuning_does_not_forget_that_numbers_were_translated(trained, tmp_path):
    numbers = [("12", "douze"), ("two", "deux")]
    words = [("two", "deux"), ("three", "trois")]
    unknown = shutil.copytree(trained, tmp_path / "unknown")
    saved = json.loads((unknown / "tokenizer_config.json").read_text())
    del saved["translated_letterless_share"]
    (unknown / "tokenizer_config.json").write_text(json.dumps(saved))
    assert trained_on_numbers(tmp_path / "a", numbers, model_name_or_path=str(trained)) == 0.5
    taught = str(tmp_path / "a" / "run")
    assert trained_on_numbers(tmp_path / "b", words, model_name_or_path=taught) == 0.5
    # A new model with the tokenizer of another one has another training.
    assert trained_on_numbers(tmp_path / "c", words, tokenizer_name=taught) == 0.0
    # What an unknown training did with numbers stays unknown, unless this one translates them.
    assert trained_on_numbers(tmp_path / "d", words, model_name_or_path=str(unknown)) is None
    assert trained_on_numbers(tmp_path / "e", numbers, model_name_or_path=str(unknown)) == 0.5


def test_words_between_spaces(trained, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(train.main(recipe(tmp_path, whitespace_words=True, max_steps=1)))

    def words(tokenizer):
        return [word for word, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(" forty-two")]

    assert words(tokenizer) == ["Ġforty-two"]
    assert words(AutoTokenizer.from_pretrained(trained)) == ["Ġforty", "-", "two"]


@pytest.mark.parametrize("fine_tunes", [False, True])
def test_attention_and_checkpointing_are_as_told(trained, tmp_path, monkeypatch, fine_tunes):
    attention_and_checkpointing = []
    run_updates = train_run.run_updates

    def run_and_record(trainer, checkpoint):
        run_updates(trainer, checkpoint)
        model = trainer.model
        layers = [*model.model.encoder.layers, *model.model.decoder.layers]
        checkpointing = {layer.gradient_checkpointing for layer in layers}
        attention_and_checkpointing.append((model.config._attn_implementation, checkpointing))

    monkeypatch.setattr(train_run, "run_updates", run_and_record)
    changes = {"attn_implementation": "eager", "gradient_checkpointing": True, "max_steps": 1}
    train.main(recipe(tmp_path, **changes, model_name_or_path=str(trained) if fine_tunes else None))
    assert attention_and_checkpointing == [("eager", {True})]


def test_aligned_files_and_the_paper_s_schedule(tmp_path):
    (tmp_path / "a.en").write_text("one house\ntwo houses\n" * 8)
    (tmp_path / "a.fr").write_text("une maison\ndeux maisons\n" * 8)
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.fr")]
    settings = {name: value for name, value in TINY.items() if name not in ("dataset_name", "train_size", "max_digits")}
    path = tmp_path / "recipe.json"
    changes = {"output_dir": str(tmp_path / "run"), "train_file": files, "logging_steps": 1}
    path.write_text(json.dumps({**settings, **changes}))
    folder = train.main(["--config", str(path)])
    assert "The model was not evaluated, because no test pairs were given." in (folder / "README.md").read_text()
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
        ({"dataset_name": None, "train_file": ["nowhere.csv"]}, r"error: nowhere\.csv does not exist"),
        ({"preset": "A h=3"}, r'error: "A h=3" is no row of Table 3; choose one of'),
        ({"num_heads": 3}, r"error: d_model \(16\) is not divisible by num_heads \(3\)"),
        ({"model_name_or_path": "no/such/folder"}, "error: there is no folder no/such/folder, and the Hub answered: "),
        ({"warmup_steps": 0.5}, r"error: warmup_steps is 0\.5; give a whole number of updates"),
        ({"bf16": True, "use_cpu": False, "fp16": True}, "error: "),
        (
            {"per_device_train_batch_size": 0},
            "error: per_device_train_batch_size is 0; it must be at least 1",
        ),
        (
            {"gradient_accumulation_steps": 0},
            "error: gradient_accumulation_steps is 0; it must be at least 1",
        ),
        ({"bleu_tokenize": "foo"}, 'error: bleu_tokenize is "foo"; choose one of: .*13a'),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=message):
        train.main(recipe(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_a_sentence_longer_than_a_learned_table(tmp_path):
    (tmp_path / "a.csv").write_text("en,fr\none,un\n")
    (tmp_path / "long.csv").write_text("en,fr\none," + "un " * 3000 + "\n")
    for split in ("train_file", "test_file"):
        files = {"dataset_name": None, "train_file": str(tmp_path / "a.csv"), split: str(tmp_path / "long.csv")}
        with pytest.raises(SystemExit, match=r"error: the longest sentence of .* tokens, but the model 1024 learned"):
            train.main(recipe(tmp_path, preset="E", **files))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("argument", "there"), [("num_layers", 1), ("d_model", 16), ("d_ff", 16), ("num_heads", 2)])
def test_another_size_than_the_model_s(trained, tmp_path, argument, there):
    with pytest.raises(SystemExit, match=rf"{argument} is 32, but .* has {there}, which training does not change"):
        train.main(recipe(tmp_path, model_name_or_path=str(trained), **{argument: 32}))


class StubTrainer:
    """Stands for `TokenMetricsTrainer` with an engine that cannot be started here."""

    is_deepspeed_enabled = is_fsdp_enabled = False
    optimizer = lr_scheduler = None
    deepspeed_config = {"zero_optimization": {"stage": 2}}

    def __init__(self, model, args, **kwargs):
        self.model, self.args = model, args
        plugin = SimpleNamespace(hf_ds_config=SimpleNamespace(config=self.deepspeed_config))
        self.accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp"])
def test_engines_get_the_learning_rate_of_the_paper(tmp_path, tokenizer, monkeypatch, engine):
    stub = type("Stub", (StubTrainer,), {f"is_{engine}_enabled": True})
    monkeypatch.setattr(run_setup, "TokenMetricsTrainer", stub)
    model = small_model(vocab_size=300)
    args = RunArguments(str(tmp_path), rate_factor=0.5)
    trainer = run_setup.make_run_trainer(args, tokenizer, model, {"train": None})
    trainer.optimizer = torch.optim.Adam(model.parameters(), lr=0.5)
    rate = 0.5 * learning_rate(1, model.config.d_model, 4000)
    assert trainer.create_scheduler(100).get_last_lr() == [pytest.approx(rate)]
    args = RunArguments(str(tmp_path), learning_rate=0.1)
    assert not hasattr(run_setup.make_run_trainer(args, tokenizer, model, {"train": None}), "create_scheduler")


def test_fsdp_gets_one_module_for_a_matrix(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr(run_setup, "TokenMetricsTrainer", type("Stub", (StubTrainer,), {"is_fsdp_enabled": True}))
    model = small_model(vocab_size=300)
    assert model.model.encoder.embed_tokens is not model.model.shared
    run_setup.make_run_trainer(RunArguments(str(tmp_path)), tokenizer, model, {"train": None})
    assert model.model.encoder.embed_tokens is model.model.decoder.embed_tokens is model.model.shared


def test_no_training_pairs(tmp_path):
    (tmp_path / "a.csv").write_text("en,fr\none,un\n")
    with pytest.raises(SystemExit, match="error: the data has no training pairs, only test"):
        train.main(recipe(tmp_path, dataset_name=None, test_file=str(tmp_path / "a.csv")))


def test_a_model_s_name_does_not_say_where_it_lies(tmp_path):
    for name in (str(tmp_path / "user" / "name"), "user/name", None):
        described = results_file.describe_run(Settings.from_arguments(model_name_or_path=name))
        assert described.base_model == ("name" if name == str(tmp_path / "user" / "name") else name)


def test_an_optimizer_of_one_s_own_is_not_the_paper_s(tmp_path):
    folder = train.main([*recipe(tmp_path), "--max_steps", "1", "--optim", "sgd", "--save_strategy", "no"])
    assert "| optimizer | sgd, learning rate 0.000698771, schedule inverse_sqrt |" in (folder / "README.md").read_text()


def test_another_kind_of_model(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bart"}')
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(SystemExit, match="is a bart model; this command trains vanilla_transformer"):
        train.main([*recipe(tmp_path), "--model_name_or_path", str(tmp_path)])


def test_without_arguments_it_is_the_recipe_of_the_number_corpus(monkeypatch):
    settings_of_runs = []

    def stop(settings):
        settings_of_runs.append(settings)
        raise InputError("it would train now")

    monkeypatch.setattr(train_run, "run", stop)
    with pytest.raises(SystemExit, match="it would train now"):
        train.main([])
    (settings,) = settings_of_runs
    recipe_of_numbers = yaml.safe_load(
        (ROOT / "hf_vanilla_transformer" / "recipes" / "numbers.yaml").read_text(encoding="utf-8")
    )
    assert settings.data.dataset_name == recipe_of_numbers["dataset_name"] == "numbers"
    assert settings.model.vocab_size == recipe_of_numbers["vocab_size"]
    assert settings.args.max_steps == recipe_of_numbers["max_steps"]


def test_r_drop_changes_the_training_and_is_written_down(tmp_path):
    changes = {"max_steps": 4, "dropout": 0.3, "results": str(tmp_path / "results.json")}
    model_weights = {}
    for r_drop_alpha in (0.0, 3.0):
        train.main(recipe(tmp_path, **changes, r_drop_alpha=r_drop_alpha, overwrite=True))
        results = json.loads((tmp_path / "results.json").read_text())
        assert results["settings"].get("r_drop_alpha") == r_drop_alpha
        model_weights[r_drop_alpha] = weights_of(tmp_path / "run")
    assert "| R-Drop | weight 3 |" in (tmp_path / "run" / "README.md").read_text()
    assert any((weight != model_weights[3.0][name]).any() for name, weight in model_weights[0.0].items())


def test_a_constant_before_the_schedule_of_the_paper(tmp_path):
    changes = {"rate_factor": 0.25, "logging_steps": 1, "max_steps": 4, "save_steps": 4}
    folder = train.main(recipe(tmp_path, **changes))
    history = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())["log_history"]
    rates = {entry["step"]: entry["learning_rate"] for entry in history if "learning_rate" in entry}
    assert rates == pytest.approx({k: learning_rate(k, 16, 3) / 4 for k in (1, 2, 3, 4)})
    assert "learning rate of Eq. 3 times 0.25" in (folder / "README.md").read_text()


@pytest.mark.parametrize("can_keep", [True, False])
def test_memory_is_given_back_where_it_is_kept(tmp_path, monkeypatch, can_keep):
    steps = []
    calls = []

    class Recorder(run_setup.ReleaseMemory):
        def on_step_end(self, args, state, control, **kwargs):
            steps.append(state.global_step)

    def keep_freed_memory():
        calls.append("keep_freed_memory")
        return can_keep

    monkeypatch.setattr(run_setup, "keep_freed_memory", keep_freed_memory)
    monkeypatch.setattr(run_setup, "ReleaseMemory", Recorder)
    train.main(recipe(tmp_path, max_steps=3, use_cpu=True))
    assert calls == ["keep_freed_memory"]
    assert steps == ([1, 2, 3] if can_keep else [])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fine_tuning_weights_of_16_bits(trained, tmp_path, dtype):
    AutoModelForSeq2SeqLM.from_pretrained(trained, dtype=dtype).save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(trained).save_pretrained(tmp_path / "half")
    folder = train.main([*recipe(tmp_path), "--model_name_or_path", str(tmp_path / "half"), "--max_steps", "1"])
    assert {weight.dtype.name for weight in weights_of(folder).values()} == {"float32"}
