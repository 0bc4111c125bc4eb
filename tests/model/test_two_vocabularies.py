"""Separate vocabularies of source and target, from training to the Hub's folder."""

import copy
import json
import pickle
import shutil
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq, TokenizersBackend

from hf_vanilla_transformer import (
    TranslationPipeline,
    TwoVocabularyTokenizer,
    filter_pairs,
    score,
    tokenize_pairs,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.data.tokenized_pairs import describe_tokenizer
from hf_vanilla_transformer.model.input_checks import check_vocabulary
from tests.models import decisive_model, small_config, small_model


SOURCES = ["two small dogs run", "a house is small", "two houses", "dogs run and run"] * 3
TARGETS = ["zwei kleine Hunde laufen", "ein Haus ist klein", "zwei Häuser", "Hunde laufen und laufen"] * 3


@pytest.fixture(scope="module")
def sides():
    return tuple(
        train_tokenizer(texts, vocab_size=size, show_progress=False) for texts, size in ((SOURCES, 280), (TARGETS, 290))
    )


@pytest.fixture
def tokenizer(sides):
    return TwoVocabularyTokenizer.of(*sides)


def test_each_side_has_its_own_ids(sides, tokenizer):
    source, target = sides
    assert tokenizer(SOURCES).input_ids == source(SOURCES).input_ids
    assert tokenizer(text_target=TARGETS).input_ids == target(TARGETS).input_ids
    both = tokenizer(SOURCES, text_target=TARGETS)
    assert (both.input_ids, both.labels) == (source(SOURCES).input_ids, target(TARGETS).input_ids)
    # A source is encoded as one after a target, too.
    assert tokenizer(SOURCES[0]).input_ids == source(SOURCES[0]).input_ids != target(SOURCES[0]).input_ids
    assert tokenizer.batch_decode(target(TARGETS).input_ids, skip_special_tokens=True) == TARGETS
    assert (len(tokenizer), tokenizer.tokenize("two")) == (len(source), source.tokenize("two"))
    ids = tokenizer(text_target=TARGETS, padding=True, truncation=True, max_length=4, return_tensors="pt").input_ids
    assert ids.tolist() == target(TARGETS, truncation=True, max_length=4, padding=True).input_ids


def test_a_stop_string_is_of_the_target_s_vocabulary(tokenizer):
    model = decisive_model(vocab_size=290, source_vocab_size=280, d_k=None, d_v=None)
    settings = {"num_beams": 1, "max_new_tokens": 9}
    (text,) = translate(model, tokenizer, SOURCES[:1], **settings)
    stop = "und"  # A token of the target's vocabulary; the source's has another one of this id.
    (stopped,) = translate(model, tokenizer, SOURCES[:1], stop_strings=[stop], **settings)
    assert stopped == text[: text.index(stop) + len(stop)] != text
    assert TranslationPipeline(model, tokenizer, device="cpu")(SOURCES[0], stop_sequence=stop, **settings) == [
        {"translation_text": stopped}
    ]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda tokenizer: pickle.loads(pickle.dumps(tokenizer))])
def test_copies_are_equal(tokenizer, copied):
    other = copied(tokenizer)
    assert other(SOURCES, text_target=TARGETS).data == tokenizer(SOURCES, text_target=TARGETS).data
    assert other.batch_decode(other(text_target=TARGETS).input_ids, skip_special_tokens=True) == TARGETS


def test_a_saved_folder_has_both_and_its_code(tokenizer, tmp_path):
    tokenizer(SOURCES, padding=True, truncation=True, max_length=3)
    tokenizer.save_pretrained(tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {
        "source_tokenizer.json",
        "target_tokenizer.json",
        "tokenizer_config.json",
        "tokenization_two_vocabularies.py",
        "input_checks.py",
    }
    for loaded in (AutoTokenizer.from_pretrained(tmp_path), TwoVocabularyTokenizer.from_pretrained(tmp_path)):
        assert type(loaded) is TwoVocabularyTokenizer
        assert loaded(SOURCES, text_target=TARGETS).data == tokenizer(SOURCES, text_target=TARGETS).data
        assert loaded.special_tokens_map == tokenizer.special_tokens_map
        assert loaded("<s> a").input_ids == tokenizer("<s> a").input_ids
    assert json.loads((tmp_path / "source_tokenizer.json").read_text())["truncation"] is None


WITHOUT_THE_PACKAGE = """
import sys
from transformers import AutoTokenizer
folder = sys.argv[1]
try:
    AutoTokenizer.from_pretrained(folder)
except Exception as error:
    print(type(error).__name__, "trust_remote_code" in str(error))
else:
    print("loaded")
tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
print(tokenizer(["two dogs"], text_target=["zwei Hunde"]).data)
assert "hf_vanilla_transformer" not in sys.modules
"""


def test_without_the_package_it_needs_its_code(sides, tmp_path):
    tokenizer = TwoVocabularyTokenizer.of(*sides)
    small_model(vocab_size=290, source_vocab_size=280).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path / "model")]
    environment = {"HF_HOME": str(tmp_path / "home"), "PYTHONSAFEPATH": "1"}
    streams = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    done = subprocess.run(command, cwd=tmp_path, env=environment, **streams)
    assert done.returncode == 0, done.stderr
    *_, refusal, ids = done.stdout.splitlines()
    # A question on the terminal may precede it.
    assert refusal.endswith("ValueError True")
    assert ids == str(tokenizer(["two dogs"], text_target=["zwei Hunde"]).data)


@pytest.mark.parametrize("missing", ["source_tokenizer.json", "target_tokenizer.json"])
def test_a_side_is_missing(tokenizer, tmp_path, missing):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ValueError, match=f"there is no {missing}; a tokenizer with two vocabularies needs both"):
        AutoTokenizer.from_pretrained(tmp_path)


def test_another_class_does_not_load_half_of_it(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="Couldn't instantiate the backend tokenizer"):
        TokenizersBackend.from_pretrained(tmp_path)


def test_special_tokens_must_have_equal_ids(sides):
    source = copy.deepcopy(sides[0])
    source.eos_token = source.convert_ids_to_tokens(270)
    with pytest.raises(ValueError, match=r"eos_token is 270 in .* source and \d+ in .* target"):
        TwoVocabularyTokenizer.of(source, sides[1])


def test_added_special_tokens_are_not_those_of_text(tokenizer, tmp_path):
    tokenizer.add_special_tokens({"additional_special_tokens": ["<2de>"]})
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    name, source_token = loaded.convert_tokens_to_ids("<2de>"), loaded.tokenize("seven")[0]
    assert loaded.all_special_ids[-1] == name
    assert name not in loaded("<2de>").input_ids
    with pytest.raises(ValueError, match=f"'{source_token}' is already a token of text"):
        loaded.add_special_tokens({"additional_special_tokens": [source_token]})


def test_pairs_are_tokenized_and_filtered_by_their_sides(sides, tokenizer):
    from datasets import Dataset

    pairs = Dataset.from_dict({"source": [*SOURCES, "two", " "], "target": [*TARGETS, "  ", "zwei"]})
    data = tokenize_pairs(pairs, tokenizer)
    assert data["labels"][0] == sides[1](TARGETS[0]).input_ids
    remaining, dropped = filter_pairs(data, tokenizer)
    assert (len(remaining), dropped) == (len(SOURCES), {"empty": 2, "too long": 0})
    swapped = TwoVocabularyTokenizer.of(sides[0], sides[0])
    assert describe_tokenizer(swapped) != describe_tokenizer(tokenizer)


def test_a_model_has_both_vocabularies(sides, tokenizer):
    model = small_model(vocab_size=len(sides[1]), source_vocab_size=len(sides[0]))
    texts = translate(model, tokenizer, SOURCES[:2], max_new_tokens=4)
    translations = [
        row["translation_text"] for row in TranslationPipeline(model, tokenizer)(SOURCES[:2], max_new_tokens=4)
    ]
    assert translations == texts
    scored = score(model, tokenizer, SOURCES[:1], TARGETS[:1])[0]
    assert scored.tokens == sides[1].convert_ids_to_tokens(sides[1](TARGETS[0]).input_ids)
    batch = DataCollatorForSeq2Seq(tokenizer, model=model)([tokenizer(SOURCES[0], text_target=TARGETS[0])])
    with torch.no_grad():
        loss = float(model.eval()(**batch).loss)
    assert -loss * len(scored.tokens) == pytest.approx(scored.total, rel=1e-4)


@pytest.mark.parametrize("fields", [{"vocab_size": 285}, {"vocab_size": 290, "source_vocab_size": 270}])
def test_each_vocabulary_fits_its_side(tokenizer, fields):
    side = "source" if "source_vocab_size" in fields else "target"
    with pytest.raises(
        ValueError, match=rf"the tokenizer has \d+ tokens, but the model's {side} vocabulary has \d+; use"
    ):
        check_vocabulary(small_config(**{"source_vocab_size": 280, **fields}), tokenizer)


def test_training_with_two_vocabularies(tmp_path):
    from hf_vanilla_transformer.apps.cli import average, evaluate, train
    from hf_vanilla_transformer.apps.cli import translate as translate_verb

    files = [tmp_path / name for name in ("train.en", "train.de")]
    for path, lines in zip(files, (SOURCES, TARGETS), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    names = list(map(str, files))
    small = {"num_layers": 1, "d_model": 16, "d_ff": 32, "num_heads": 2, "vocab_size": 290}
    options = [part for name, value in small.items() for part in (f"--{name}", str(value))]
    training = {"max_steps": 4, "save_steps": 2, "per_device_train_batch_size": 4, "eval_steps": 4, "warmup_steps": 2}
    options += [part for name, value in training.items() for part in (f"--{name}", str(value))]
    options += ["--train_file", *names, "--validation_file", *names, "--eval_strategy", "steps"]
    options += ["--predict_with_generate", "--joint_vocabulary", "false", "--disable_tqdm", "true"]
    train.main([*options, "--output_dir", str(tmp_path / "run"), "--average_last", "2"])
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    sizes = [len(side) for side in (tokenizer.source_tokenizer, tokenizer.target_tokenizer)]
    assert [model.config.source_vocab_size, model.config.vocab_size] == sizes
    assert not (tmp_path / "run" / "tokenizer.json").exists()
    checkpoints = [str(path) for path in (tmp_path / "run").glob("checkpoint-*")]
    average.main([*checkpoints, "--output", str(tmp_path / "average")])
    assert type(AutoTokenizer.from_pretrained(tmp_path / "average")) is TwoVocabularyTokenizer
    translate_verb.main(["two dogs", "--model_name_or_path", str(tmp_path / "run")])
    evaluate.main(["--model_name_or_path", str(tmp_path / "run"), "--test_file", *names])
    # Fine-tuning takes the tokenizer of the model.
    shutil.rmtree(tmp_path / "average")
    train.main(
        [
            "--model_name_or_path",
            str(tmp_path / "run"),
            "--train_file",
            *names,
            "--max_steps",
            "1",
            "--disable_tqdm",
            "true",
            "--output_dir",
            str(tmp_path / "tuned"),
        ]
    )
    assert type(AutoTokenizer.from_pretrained(tmp_path / "tuned")) is TwoVocabularyTokenizer
