"""`distill`: training pairs that a teacher translated. The teacher is the fixture, which writes numbers in German."""

import json
import logging
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from datasets import Dataset, DatasetDict
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import Int8Config, Translation, load_pairs, translate
from hf_vanilla_transformer import distill as distill_from_python
from hf_vanilla_transformer.apps.cli import distill, train
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.training import distillation, run
from hf_vanilla_transformer.training.distillation import Teacher
from hf_vanilla_transformer.training.plan import adapt_recipe_to_student
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.translation.ensemble import Ensemble
from hf_vanilla_transformer.translation.model_loading import load


TEACHER = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
SMALL = {
    "num_layers": "1",
    "d_model": "32",
    "d_ff": "64",
    "num_heads": "4",
    "dropout": "0",
    "label_smoothing": "0",
    "per_device_train_batch_size": "32",
    "learning_rate": "0.005",
    "lr_scheduler_type": "linear",
    "warmup_steps": "20",
    "bf16": "false",
    "save_steps": "5",
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A cache of its own for each test."""
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")
    return tmp_path / "cache"


@pytest.fixture
def sources() -> list[str]:
    return load_pairs("numbers", max_digits=2, train_size=60)["train"]["source"][:]


@pytest.fixture
def files(tmp_path, sources) -> list[str]:
    """Pairs whose targets are of no use."""
    (tmp_path / "mine.en").write_text("".join(f"{source}\n" for source in sources))
    (tmp_path / "mine.de").write_text("".join(f"Haus {number}\n" for number in range(len(sources))))
    return [str(tmp_path / "mine.en"), str(tmp_path / "mine.de")]


@pytest.fixture
def counted(monkeypatch) -> list[str]:
    """The sentences that teachers translate."""
    translated_sentences: list[str] = []

    def counting(model, tokenizer, sentences, **options):
        translated_sentences.extend(sentences)
        return translate(model, tokenizer, sentences, **options)

    monkeypatch.setattr(distillation, "translate", counting)
    return translated_sentences


def words(settings: dict) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", value)]


def teacher_of(tmp_path, **arguments) -> Teacher:
    return Teacher(Settings.from_arguments(teacher=[str(TEACHER)], output_dir=str(tmp_path / "run"), **arguments))


def pairs_of(sources, **other_splits) -> DatasetDict:
    train = Dataset.from_dict({"source": sources, "target": ["acht"] * len(sources)})
    return DatasetDict(train=train, **other_splits)


def expected_translations(sources, **search) -> list[str]:
    tokenizer, model = load(str(TEACHER))
    return translate(model, tokenizer, sources, **search)


def test_distill_student_learns_what_its_teacher_says(tmp_path, files, sources, capsys):
    options = {**SMALL, "output_dir": str(tmp_path / "student"), "max_steps": "150", "save_strategy": "no"}
    folder = distill.main(
        ["--teacher", str(TEACHER), "--distilled_only", "--train_file", *files, "--test_file", *files, *words(options)]
    )
    tokenizer, student = load(str(folder))
    expected = expected_translations(sources)
    assert tokenizer.get_vocab() == AutoTokenizer.from_pretrained(TEACHER).get_vocab()
    translations = translate(student, tokenizer, sources)
    assert sum(map(str.__eq__, translations, expected)) >= 0.9 * len(sources)
    small = AutoModelForSeq2SeqLM.from_pretrained(folder / "int8")
    assert small.config.quantization_config.quant_method == Int8Config().quant_method
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "| teacher | numbers_tiny |" in card
    assert "| given targets | not used |" in card
    assert "| int8 | in the folder int8, which is not pushed: BLEU" in card
    saved = yaml.safe_load((folder / "arguments.yaml").read_text())
    assert (saved["teacher"], saved["distilled_only"], saved["tokenizer_name"]) == ([str(TEACHER)], True, str(TEACHER))
    assert "training pairs: 60 with targets of the teacher, none with the given targets" in capsys.readouterr().out


def test_distill_from_python_trains_on_the_teacher_s_targets(tmp_path, files, sources):
    sizes = {"d_model": 16, "d_ff": 16, "num_heads": 2, "num_layers": 1}
    folder = distill_from_python(
        TEACHER, files, tmp_path / "student", distilled_only=True, max_steps=1, use_cpu=True, bf16=False, **sizes
    )
    assert folder == tmp_path / "student"
    saved = yaml.safe_load((folder / "arguments.yaml").read_text())
    assert (saved["teacher"], saved["train_file"], saved["d_model"]) == ([str(TEACHER)], files, 16)


def test_distill_from_python_needs_a_teacher(tmp_path, files):
    with pytest.raises(InputError, match="teacher is empty"):
        distill_from_python([], files, tmp_path / "student")


def test_add_translations_joins_the_given_targets(tmp_path, sources, counted):
    sources = [*sources[:4], sources[0]]
    pairs, facts = teacher_of(tmp_path).add_translations(pairs_of(sources))
    expected = expected_translations(sources[:4])
    assert pairs["train"]["source"][:] == [*sources, *sources[:4]]
    assert pairs["train"]["target"][:] == ["acht"] * 5 + expected
    assert facts["targets of the teacher"] == "4; removed 1 duplicates"
    assert counted == sources[:4]
    alone, facts = teacher_of(tmp_path, distilled_only=True).add_translations(pairs_of(sources))
    assert alone["train"]["target"][:] == expected
    assert facts["given targets"] == "not used"
    assert counted == sources[:4]


def test_add_translations_of_sources_without_targets(tmp_path, counted):
    (tmp_path / "more.en").write_text("twenty\n\n \nthirty\n")
    teacher = teacher_of(tmp_path, monolingual_source_file=str(tmp_path / "more.en"))
    given_pairs = pairs_of(["one", "two"])
    pairs, _ = teacher.add_translations(given_pairs)
    assert pairs["train"]["source"][:] == ["one", "two", "one", "two", "twenty", "thirty"]
    assert pairs["train"]["target"][4:] == expected_translations(["twenty", "thirty"])
    assert teacher.make_expected_pairs(given_pairs)["train"]["source"][:] == pairs["train"]["source"][:]
    (tmp_path / "more.en").unlink()  # As a pipe that has been read.
    assert teacher.add_translations(given_pairs)[0]["train"]["source"][:] == pairs["train"]["source"][:]


def test_add_translations_leaves_out_sources_of_test_pairs(tmp_path, counted, caplog):
    (tmp_path / "more.en").write_text("twenty\nnine\n thirty \nten\nnine\n")
    validation = Dataset.from_dict({"source": ["nine"], "target": ["9"]})
    test = Dataset.from_dict({"source": ["thirty"], "target": ["30"]})
    given_pairs = pairs_of(["one", "two"], validation=validation, test=test)
    teacher = teacher_of(tmp_path, monolingual_source_file=str(tmp_path / "more.en"))
    with caplog.at_level(logging.INFO, logger="hf_vanilla_transformer"):
        pairs, facts = teacher.add_translations(given_pairs)
    assert pairs["train"]["source"][:] == ["one", "two", "one", "two", "twenty", "ten"]
    assert counted == ["one", "two", "twenty", "ten"]
    assert teacher.make_expected_pairs(given_pairs)["train"]["source"][:] == pairs["train"]["source"][:]
    assert "removed 3 of 5 monolingual sources: 3 in the test or validation pairs" in caplog.text
    assert "3 monolingual sources in the test or validation pairs" in facts["targets of the teacher"]
    assert "4 sentences to translate" not in teacher.describe_work(given_pairs)


def test_add_translations_removes_test_pairs(tmp_path):
    sources = ["one", "two", "six"]
    expected = expected_translations(sources)
    evaluated = {
        "validation": Dataset.from_dict({"source": ["two"], "target": [expected[1]]}),
        "test": Dataset.from_dict({"source": ["six"], "target": [expected[2]]}),
    }
    pairs, facts = teacher_of(tmp_path, distilled_only=True).add_translations(pairs_of(sources, **evaluated))
    assert pairs["train"]["source"][:] == ["one"]
    assert facts["targets of the teacher"] == "1; removed 2 in the test or validation pairs"


def test_nearest_to_reference_without_a_reference(tmp_path):
    (tmp_path / "more.en").write_text("two hundred and forty-six\n")
    teacher = teacher_of(
        tmp_path, nearest_to_reference=True, teacher_num_beams=3, monolingual_source_file=str(tmp_path / "more.en")
    )
    pairs, _ = teacher.add_translations(pairs_of(["one"]))
    assert pairs["train"]["target"][-1] == expected_translations(["two hundred and forty-six"], num_beams=3)[0]


def test_teacher_revision_is_not_the_revision_of_the_student(tmp_path, monkeypatch):
    requests = []

    def note(name, revision=None, token=None):
        requests.append((name, revision, token))
        return TEACHER

    monkeypatch.setattr(distillation, "native_folder", note)
    arguments = {"teacher": ["user/a", "user/b"], "token": "hf_mine", "output_dir": str(tmp_path / "run")}
    Teacher(Settings.from_arguments(**arguments, model_name_or_path="user/student", revision="v2"))
    assert requests == [("user/a", None, "hf_mine"), ("user/b", None, "hf_mine")]
    requests.clear()
    Teacher(Settings.from_arguments(**arguments, teacher_revision=["v1", "main"]))
    assert requests == [("user/a", "v1", "hf_mine"), ("user/b", "main", "hf_mine")]
    with pytest.raises(InputError, match=r"teacher_revision.*v1.*2 teachers"):
        Settings.from_arguments(**arguments, teacher_revision=["v1"])
    with pytest.raises(InputError, match=r"revision is v2.*--teacher_revision"):
        Teacher(Settings.from_arguments(**arguments, revision="v2"))


def test_add_translations_removes_and_counts_faulty_ones(tmp_path, monkeypatch, caplog):
    answers = {"one": ("eins", []), "two": ("x x x", ["repetition"]), "six": ("sechs", ["truncated"])}
    answers |= {"ten": ("", []), "nine": ("nine", []), "five": ("fünf" * 30, [])}
    answers |= {f"number {number}": (f"Nummer {number}", []) for number in range(50)}

    def answer(self, tokenizer, model, sentences):
        return {sentence: [distillation.Hypothesis(*answers[sentence])] for sentence in sentences}

    monkeypatch.setattr(Teacher, "_translate", answer)
    validation = Dataset.from_dict({"source": ["nine"], "target": ["neun"]})
    with caplog.at_level(logging.INFO, logger="hf_vanilla_transformer"):
        pairs, facts = teacher_of(tmp_path, distilled_only=True).add_translations(
            pairs_of(list(answers), validation=validation)
        )
    assert pairs["train"]["target"][:] == ["eins", *(f"Nummer {number}" for number in range(50))]
    removed = (
        "1 truncated at the length limit, 1 caught in a loop, 1 identical sides, 1 empty on one side, 1 length ratio"
    )
    assert f"removed 5 of 56 translations: {removed}" in caplog.text
    assert facts["targets of the teacher"] == f"51; removed {removed}"
    answers |= {"one": ("eins", ["repetition"]), "six": (" ", [])}
    with pytest.raises(ValueError, match=r"no translation of .*numbers_tiny remains: .* 1 were empty; give another"):
        teacher_of(tmp_path, teacher_num_beams=1).add_translations(pairs_of(["one", "six"]))


def test_nearest_to_reference_chooses_by_sentence_bleu(tmp_path):
    source = "two hundred and forty-six"
    tokenizer, model = load(str(TEACHER))
    (best,) = translate(model, tokenizer, [source], return_details=True, num_beams=3, num_return_sequences=3)
    reference = best.alternatives[1].text
    pairs = DatasetDict(train=Dataset.from_dict({"source": [source], "target": [reference]}))
    options = {"distilled_only": True, "teacher_num_beams": 3}
    assert teacher_of(tmp_path, **options).add_translations(pairs)[0]["train"]["target"][:] == [best.text]
    nearest = teacher_of(tmp_path, nearest_to_reference=True, **options).add_translations(pairs)[0]
    assert nearest["train"]["target"][:] == [reference] != [best.text]


def test_nearest_to_reference_in_a_language_without_spaces(tmp_path, monkeypatch):
    hypotheses = [Translation(text, 0.0, [], [], None) for text in ("一只狗在吃饭。", "猫坐在红色的垫子上。")]
    hypotheses[0] = hypotheses[0]._replace(alternatives=(hypotheses[1],))
    monkeypatch.setattr(distillation, "translate", lambda *args, **options: hypotheses[:1])
    pairs = DatasetDict(train=Dataset.from_dict({"source": ["the cat"], "target": ["那只猫坐在红色的垫子上。"]}))
    teacher = teacher_of(tmp_path, nearest_to_reference=True, distilled_only=True, bleu_tokenize="zh")
    assert teacher.add_translations(pairs)[0]["train"]["target"][:] == [hypotheses[1].text]


def test_with_tokenizer_changes_no_other_setting(tmp_path, files):
    targets = Path(files[1]).rename(tmp_path / "mine.zh")
    arguments = {"train_file": [files[0], targets], "test_file": [files[0], targets], "max_steps": 1}
    arguments |= {"teacher": TEACHER, "output_dir": str(tmp_path / "run")}
    settings = Settings.from_arguments(**arguments).for_target_language()
    changed_settings = Teacher(settings).with_tokenizer(settings)
    assert changed_settings.model.tokenizer_name == str(TEACHER)
    assert changed_settings.scoring == settings.scoring
    assert changed_settings.scoring.bleu_tokenize == "zh"


def test_add_translations_continues_after_an_interruption(tmp_path, sources, counted, cache, monkeypatch):
    monkeypatch.setattr(distillation, "_SENTENCES_PER_WRITE", 16)
    counting = distillation.translate

    def killed(model, tokenizer, sentences, **options):
        if len(counted) >= 32:
            raise KeyboardInterrupt
        return counting(model, tokenizer, sentences, **options)

    monkeypatch.setattr(distillation, "translate", killed)
    with pytest.raises(KeyboardInterrupt):
        teacher_of(tmp_path).add_translations(pairs_of(sources))
    (file,) = cache.rglob("*.jsonl")
    assert len(file.read_text(encoding="utf-8").splitlines()) == 32
    with file.open("a", encoding="utf-8") as half:
        half.write(json.dumps([sources[32], [["half a line", []]]])[:-2])
    monkeypatch.setattr(distillation, "translate", counting)
    pairs, _ = teacher_of(tmp_path, distilled_only=True).add_translations(pairs_of(sources))
    assert counted == sources
    assert pairs["train"]["target"][:] == expected_translations(sources)
    again, _ = teacher_of(tmp_path, distilled_only=True).add_translations(pairs_of(sources[::-1]))
    assert counted == sources
    assert again["train"]["target"][:] == pairs["train"]["target"][::-1]


def test_distill_resumes_after_an_interruption(tmp_path, files, counted):
    """To the weights of one that was not interrupted, from the arguments in its folder."""
    options = [*words({**SMALL, "max_steps": "10", "average_last": "2"}), "--train_file", *files]
    whole = distill.main(["--teacher", str(TEACHER), *options, "--output_dir", str(tmp_path / "whole")])
    cut = ["--teacher", str(TEACHER), *options, "--output_dir", str(tmp_path / "cut")]
    expected = (whole / "model.safetensors").read_bytes()
    distill.main(cut)
    folder = tmp_path / "cut"
    for name in ("checkpoint-10",):
        for path in sorted((folder / name).iterdir()):
            path.unlink()
        (folder / name).rmdir()
    (folder / "model.safetensors").unlink()
    translated = len(counted)
    train.main(["--output_dir", str(folder), "--resume_from_checkpoint", "last"])
    assert (folder / "model.safetensors").read_bytes() == expected
    assert len(counted) == translated


def test_teacher_of_several_models_is_an_ensemble(tmp_path, monkeypatch):
    models = []

    def note(model, tokenizer, sentences, **options):
        models.append(model)
        return translate(model, tokenizer, sentences, **options)

    monkeypatch.setattr(distillation, "translate", note)
    settings = Settings.from_arguments(teacher=[str(TEACHER)] * 2, output_dir=str(tmp_path / "run"))
    pairs, facts = Teacher(settings).add_translations(pairs_of(["one", "two"]))
    assert isinstance(models[0], Ensemble)
    assert pairs["train"]["target"][2:] == expected_translations(["one", "two"])
    assert facts["teacher"] == "numbers_tiny, numbers_tiny"


def test_distill_plans_a_student(tmp_path, files, capsys, cache):
    row = adapt_recipe_to_student({"num_layers": 3, "d_model": 256})
    overrides = {"encoder_layers": 6, "decoder_layers": 1}
    assert row == {"num_layers": 3, "d_model": 256, "config_overrides": overrides, "initializer_factor": 0.38}
    distill.main(
        ["--teacher", str(TEACHER), "--train_file", *files, "--output_dir", str(tmp_path / "run"), "--dry_run"]
    )
    printed = capsys.readouterr().out
    assert "118 training pairs" in printed
    assert "model: 6 + 1 layers" in printed
    assert "dropout 0.2, initial weights times 0.38\n" in printed
    assert f"vocabulary: {TEACHER}" in printed
    assert "teacher: 59 sentences to translate first, about 1 minute" in printed
    assert not cache.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], r"--teacher must be given"),
        (["--distilled_only"], r"distilled_only is given, but has no effect without a teacher"),
        (["--teacher", "nowhere"], r"there is no folder nowhere"),
        (["--teacher", "a", "b", "--teacher_engine", "ctranslate2"], r"teacher_engine ctranslate2 has no ensembles"),
        (["--teacher", str(TEACHER), "--output_dir", str(TEACHER.parent), "--overwrite"], r"lies in .*, which the run"),
        (["--teacher", str(TEACHER), "--monolingual_source_file", "nowhere.en"], r"nowhere\.en"),
    ],
)
def test_distill_rejects_wrong_arguments(tmp_path, files, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(SystemExit, match=message):
        distill.main(["--train_file", *files, *arguments])
    assert not (tmp_path / "trainer_output").exists()


def test_distill_checks_the_push_before_it_translates(tmp_path, files, counted, monkeypatch):
    def refuse(settings):
        raise InputError("the token has no write access.")

    monkeypatch.setattr(run, "prepare_push", refuse)
    options = {**SMALL, "output_dir": str(tmp_path / "student"), "max_steps": "1", "push_to_hub": "true"}
    with pytest.raises(SystemExit, match="no write access"):
        distill.main(["--teacher", str(TEACHER), "--train_file", *files, *words(options)])
    assert not counted


def test_distill_checks_the_disk_before_it_translates(tmp_path, files, counted, monkeypatch):
    costs = SimpleNamespace(arguments={}, costs=SimpleNamespace(disk=10), lines=list)
    monkeypatch.setattr(run, "plan", lambda pairs, **arguments: costs)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10, free=9))
    with pytest.raises(SystemExit, match="make room"):
        distill.main(["--teacher", str(TEACHER), "--train_file", *files, "--output_dir", str(tmp_path / "student")])
    assert not counted


def test_distill_limits_cached_matmuls_before_it_translates(tmp_path, files, monkeypatch):
    monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", raising=False)

    def stop(self, pairs):
        raise InputError(f"{os.environ.get('ONEDNN_PRIMITIVE_CACHE_CAPACITY')} are kept.")

    monkeypatch.setattr(Teacher, "add_translations", stop)
    options = {**SMALL, "output_dir": str(tmp_path / "student"), "max_steps": "1"}
    with pytest.raises(SystemExit, match="64 are kept"):
        distill.main(["--teacher", str(TEACHER), "--train_file", *files, *words(options)])
