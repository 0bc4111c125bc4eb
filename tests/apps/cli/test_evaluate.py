"""`evaluate`: scores, and the search in words."""

import gzip
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from datasets import Dataset
from transformers import GenerationConfig

from hf_vanilla_transformer import load_pairs, score_translations, translate
from hf_vanilla_transformer.apps.cli import evaluate, train
from hf_vanilla_transformer.evaluation.evaluate import describe_search
from hf_vanilla_transformer.evaluation.metrics import describe_exact_match
from hf_vanilla_transformer.evaluation.scoring_arguments import ScoringArguments
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.translation.model_loading import load
from tests.apps.cli.tiny_run import lines, recipe
from tests.models import small_model


pytestmark = pytest.mark.long


def test_scoring_arguments_compare_numbers_by_character():
    numbers = Dataset.from_dict({"number": [1], "source": ["one"], "target": ["eins"]})
    assert ScoringArguments().options(numbers)["tokenize"] == "char"
    assert ScoringArguments().options(numbers.remove_columns("number"))["tokenize"] == "13a"
    assert ScoringArguments("none").options(numbers)["tokenize"] == "none"


def test_scoring_arguments_tokenize_languages_without_spaces(monkeypatch):
    pairs = Dataset.from_dict({"source": ["one"], "target": ["eins"]})
    for language, tokenize in (("zh", "zh"), ("zh-CN", "zh"), ("th", "char"), ("de", "13a"), (None, "13a")):
        assert ScoringArguments().for_target(language).options(pairs)["tokenize"] == tokenize
    thai = pairs.remove_columns("target").add_column("target", ["ฉันรักแมว"] * len(pairs))
    assert ScoringArguments().options(thai)["tokenize"] == "char"
    assert ScoringArguments("13a").options(thai)["tokenize"] == "13a"
    assert ScoringArguments("none").for_target("zh").options(pairs)["tokenize"] == "none"

    def lack(tokenize):
        raise RuntimeError("Please install the extra.")

    monkeypatch.setattr("sacrebleu.metrics.BLEU", lack)
    lack.TOKENIZERS = ["ja-mecab"]
    with pytest.raises(ValueError, match=r"is \"ja-mecab\": Please install the extra\. Or give --bleu_tokenize char"):
        ScoringArguments().for_target("ja")


def test_the_search_in_words():
    model = small_model()
    of_paper = "beam search, 4 beams, length penalty 0.6 (gnmt), at most source + 50 tokens"
    assert describe_search(model) == of_paper
    assert describe_search(model, {"num_beams": 1}) == "greedy search, at most source + 50 tokens"
    assert describe_search(model, {"early_stopping": True}) == of_paper.replace(
        ", at most", ", early stopping, at most"
    )
    assert (
        describe_search(model, {"num_beams": 1, "do_sample": True, "max_new_tokens": 9}) == "sampling, at most 9 tokens"
    )
    marian = SimpleNamespace(generation_config=GenerationConfig(num_beams=6, max_length=512))
    assert describe_search(marian) == "beam search, 6 beams, length penalty 1.0 (hf), at most 512 tokens"


def test_a_search_that_transformers_would_not_take_has_words_too():
    model = small_model()
    model.generation_config.update(num_return_sequences=4)
    assert describe_search(model, {"num_beams": 1}) == "greedy search, at most source + 50 tokens"


def test_what_predict_writes_into_settings_is_not_in_the_words_of_a_search():
    model = small_model()
    said = describe_search(model)
    model.generation_config.update(**GenerationConfig._get_default_generation_params(), defaults_only=True)
    assert model.generation_config.max_length == 20
    assert describe_search(model) == said
    assert describe_search(model, {"max_new_tokens": 7}) == said.replace("source + 50", "7")


def test_evaluate(decisive, tmp_path, capsys):
    output, translations = tmp_path / "scores.json", tmp_path / "translations.txt.gz"
    data = [
        "--dataset_name",
        "numbers",
        "--source_lang",
        "en",
        "--target_lang",
        "fr",
        "--max_digits",
        "2",
        "--train_size",
        "9",
    ]
    files = ["--output", str(output), "--translations", str(translations)]
    scoring = ["--num_beams", "1", "--bleu_tokenize", "char", "--show", "3"]
    evaluate.main(["--model_name_or_path", str(decisive), *data, *files, *scoring])
    printed = capsys.readouterr().out
    scores = json.loads(output.read_text())
    assert f"exact match: {describe_exact_match(scores)}\n" in printed
    assert scores["bleu_signature"] in printed
    assert scores["decoding"] == "greedy search, at most source + 50 tokens"
    assert scores["data"] == "numbers of up to 2 digits written out in words (test)"
    tokenizer, model = load(str(decisive))
    test = load_pairs("numbers", target="fr", max_digits=2, train_size=9)["test"]
    sources = list(test["source"])
    greedy = translate(model, tokenizer, sources, num_beams=1)
    assert greedy != translate(model, tokenizer, sources)
    assert gzip.decompress(translations.read_bytes()).decode() == lines(greedy)
    rows = [0, len(test) // 3, 2 * len(test) // 3]
    blocks = [
        f"source:     {sources[row]}\nprediction: {lines([greedy[row]])}reference:  {test['target'][row]}\n"
        for row in rows
    ]
    assert printed.startswith("\n" + "\n".join(blocks) + "\n")
    with pytest.raises(SystemExit, match="error: show is 0; it must be at least 1"):
        evaluate.main(["--model_name_or_path", str(decisive), *data, "--show", "0"])


def test_evaluate_another_split_with_lowercase(decisive, write):
    files = {
        "--validation_file": write("validation.csv", "source,target\none,UN\ntwo,DEUX\n"),
        "--test_file": write("test.csv", "source,target\none,un\n"),
    }
    named = [word for name, path in files.items() for word in (name, str(path))]
    scores = evaluate.main(["--model_name_or_path", str(decisive), *named, "--split", "validation", "--lowercase"])
    assert (scores["sentences"], scores["data"]) == (2, "validation.csv")
    assert "case:lc" in scores["bleu_signature"]
    assert "case:lc" in scores["chrf_signature"]


def test_evaluate_tokenizes_bleu_by_the_target_language(decisive, tmp_path, write):
    path = str(write("a.csv", "en,zh\none,一\ntwo,二\n"))
    languages = ["--source_lang", "en", "--target_lang", "zh"]
    scores = evaluate.main(["--model_name_or_path", str(decisive), "--test_file", path, *languages])
    assert "tok:zh" in scores["bleu_signature"]
    files = {"dataset_name": None, "train_file": path, "test_file": path}
    folder = train.main(recipe(tmp_path, **files, target_lang="zh", bleu_tokenize=None, max_steps=1))
    assert "tok:zh" in json.loads((folder / "scores.json").read_text())["bleu_signature"]
    chosen = {"average_last": 1, "test_file": None, "predict_with_generate": False, "results": None}
    settings = Settings.from_arguments(**{**files, **chosen, "source_lang": "en", "target_lang": "zh"})
    assert settings.for_target_language().scoring.bleu_tokenize == "zh"


def test_evaluate_rejects_a_missing_split(trained, tmp_path):
    (tmp_path / "a.csv").write_text("source,target\none,un\n")
    with pytest.raises(SystemExit, match='the data has no split "test", only train'):
        evaluate.main(["--model_name_or_path", str(trained), "--train_file", str(tmp_path / "a.csv")])


def test_evaluate_rejects_one_file_for_two_outputs(trained, tmp_path):
    path = str(tmp_path / "out")
    with pytest.raises(SystemExit, match="are one file"):
        evaluate.main(["--model_name_or_path", str(trained), "--output", path, "--translations", path])


REFERENCES = ["a red house", "two small dogs run", "seven"]
OTHERS = ["a red hut", "two little dogs run", "seven"]
TRANSLATIONS = ["a red hut", "two small dogs", "eleven"]


@pytest.fixture
def files(write):
    """Pairs, other references and translations, in files whose names have no languages."""
    sides = {
        "in.txt": ["ein Haus", "Hunde", "sieben"],
        "ref.txt": REFERENCES,
        "more.txt": OTHERS,
        "out.txt": TRANSLATIONS,
    }
    return {name: str(write(name, lines(texts))) for name, texts in sides.items()}


def test_evaluate_scores_a_file_without_a_model(files, tmp_path, capsys):
    translation_options = ["--translations_file", files["out.txt"], "--references_file", files["more.txt"]]
    data = ["--test_file", files["in.txt"], files["ref.txt"]]
    output = tmp_path / "scores.json"
    scores = evaluate.main([*translation_options, *data, "--output", str(output), "--show", "1"])
    expected = score_translations(TRANSLATIONS, [*zip(REFERENCES, OTHERS, strict=True)])
    facts = {"data": "in.txt, ref.txt", "translations_file": files["out.txt"]}
    assert scores == json.loads(output.read_text()) == {**expected, **facts}
    assert "nrefs:2" in scores["ter_signature"]
    printed = capsys.readouterr().out
    assert "source:     ein Haus\nprediction: a red hut\nreference:  a red house\n" in printed
    assert f"exact match: 33.3 % (1 of 3)\nBLEU: {scores['bleu']:.2f}  nrefs:2" in printed
    assert f"\nTER: {scores['ter']:.2f}  nrefs:2" in printed
    assert "decoding" not in printed


def test_evaluate_against_a_file_and_a_model(decisive, trained, files, capsys):
    data = ["--test_file", files["in.txt"], files["ref.txt"]]
    output = files["out.txt"].replace("out.txt", "scores.json")
    translation_options = ["--translations_file", files["out.txt"], "--against", files["more.txt"]]
    scores = evaluate.main([*translation_options, *data, "--output", output])
    assert json.loads(Path(output).read_text()) == scores
    expected = score_translations(TRANSLATIONS, REFERENCES, against=OTHERS)
    assert expected.items() <= scores.items()
    comparison = scores["ter_against"]
    name = files["more.txt"]
    assert (
        f"\n  paired bootstrap: {comparison['mean']:.2f} ± {comparison['ci']:.2f}; "
        f"{name}: {comparison['other_score']:.2f}, "
        f"{comparison['other_mean']:.2f} ± {comparison['other_ci']:.2f}; p = {comparison['p_value']:.4f}\n"
    ) in capsys.readouterr().out
    model = ["--model_name_or_path", str(decisive), "--num_beams", "1"]
    scores = evaluate.main([*model, "--against", str(trained), *data])
    sides = []
    for folder in (decisive, trained):
        tokenizer, loaded = load(str(folder))
        sides.append(translate(loaded, tokenizer, ["ein Haus", "Hunde", "sieben"], num_beams=1))
    assert score_translations(sides[0], REFERENCES, against=sides[1]).items() <= scores.items()
    assert (scores["model"], scores["against"]) == (str(decisive), str(trained))


def test_evaluate_against_a_model_with_the_same_search(decisive, files):
    """The scores of this model change with the length of its translations."""
    tokenizer, model = load(str(decisive))
    sources = ["ein Haus", "Hunde", "sieben"]
    short = translate(model, tokenizer, sources, max_new_tokens=3)
    chrf_of_short = score_translations(short, REFERENCES)["chrf"]
    chrf = score_translations(translate(model, tokenizer, sources), REFERENCES)["chrf"]
    assert chrf_of_short != chrf
    command = ["--translations_file", files["out.txt"], "--test_file", files["in.txt"], files["ref.txt"]]
    scores = evaluate.main([*command, "--against", str(decisive), "--max_new_tokens", "3"])
    assert scores["chrf_against"]["other_score"] == pytest.approx(chrf_of_short)


@pytest.mark.parametrize(("options", "revision"), [([], None), (["--against_revision", "v1"], "v1")])
def test_evaluate_loads_the_revision_of_against(decisive, files, monkeypatch, options, revision):
    loaded_models = []

    def load_and_note(arguments, engine):
        loaded_models.append((arguments.model_name_or_path, arguments.revision, arguments.token))
        if arguments.model_name_or_path == ["user/other"]:
            raise InputError("that is enough.")
        return load(str(decisive))

    monkeypatch.setattr(evaluate, "load_tokenizer_and_model", load_and_note)
    command = ["--model_name_or_path", "user/mine", "--revision", "v2", "--token", "hf_mine"]
    command += ["--test_file", files["in.txt"], files["ref.txt"], *options]
    with pytest.raises(SystemExit, match="enough"):
        evaluate.main([*command, "--against", "user/other"])
    assert loaded_models == [(["user/mine"], "v2", "hf_mine"), (["user/other"], revision, "hf_mine")]


def test_evaluate_rejects_against_revision_without_against(files):
    command = ["--model_name_or_path", "user/mine", "--test_file", files["in.txt"], files["ref.txt"]]
    with pytest.raises(SystemExit, match=r"against_revision is v1.*--against"):
        evaluate.main([*command, "--against_revision", "v1"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "give either a model (--model_name_or_path) or translations (--translations_file)"),
        (["--translations_file", "out.txt", "--model_name_or_path", "MODEL"], "give either a model (--model_name_or"),
        (["--translations_file", "short.txt"], "short.txt has 1 lines, but there are 3 pairs; give one line per pair"),
        (
            ["--translations_file", "out.txt", "--references_file", "more.txt", "short.txt"],
            "short.txt has 1 lines, but",
        ),
        (["--translations_file", "out.txt", "--against", "short.txt"], "short.txt has 1 lines, but there are 3 pairs"),
        (["--translations_file", "none.txt"], "No such file or directory: 'none.txt'"),
        (
            ["--translations_file", "out.txt", "--num_beams", "2"],
            "num_beams: no effect without a model that translates",
        ),
        (["--translations_file", "out.txt", "--against", "./none.txt"], "./none.txt"),
        (["--translations_file", "out.txt", "--output", "out.txt"], "out.txt is also an input, out.txt; write to"),
        (["--translations_file", "out.txt", "--against", "more.txt", "--output", "more.txt"], "more.txt is also an"),
        (["--translations_file", "out.txt", "--references_file", "more.txt", "--output", "more.txt"], "is also an"),
    ],
)
def test_evaluate_rejects_files_and_options(trained, files, write, tmp_path, monkeypatch, options, message):
    write("short.txt", "one\n")
    monkeypatch.chdir(tmp_path)
    options = [str(trained) if word == "MODEL" else word for word in options]
    with pytest.raises(SystemExit, match=f"^error: .*{re.escape(message)}"):
        evaluate.main([*options, "--test_file", "in.txt", "ref.txt"])
