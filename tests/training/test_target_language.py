"""Fine-tuning a model of several target languages: the code is before every source that the model reads."""

from functools import wraps

import pytest
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration, tokenize_pairs, translate
from hf_vanilla_transformer.data.pair_arguments import DataArguments
from hf_vanilla_transformer.data.target_language import TargetCodes
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.training import distillation
from hf_vanilla_transformer.training.distillation import Teacher
from hf_vanilla_transformer.training.run import train
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.training.tokenizer_facts import translated_letterless_share
from tests.apps.conversion.opus_mt import TEXTS, convert_several


pytest.importorskip("sentencepiece")
pytest.importorskip("sacremoses")

SEARCH = {"num_beams": 1, "max_new_tokens": 3}
RUN = {
    "max_steps": 2,
    "save_strategy": "no",
    "eval_strategy": "steps",
    "eval_steps": 1,
    "predict_with_generate": True,
    "generation_max_length": 4,
    "choose_search": True,
    "learning_rate": 0.001,
    "per_device_train_batch_size": 2,
    "disable_tqdm": True,
    "bf16": False,
    "num_beams": 2,
    "max_new_tokens": 3,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return convert_several(tmp_path_factory.mktemp("several"))[1]


@pytest.fixture(scope="module")
def tokenizer(folder):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")


@pytest.fixture
def first_tokens(monkeypatch, tokenizer):
    """The first token of each source that a model of this package reads, in training and in a search."""
    names = []

    def watch(method):
        original = getattr(VanillaTransformerForConditionalGeneration, method)

        # The Trainer reads the names of the arguments.
        @wraps(original)
        def watched(self, *arguments, **kwargs):
            ids = kwargs.get("input_ids")
            if ids is not None:
                names.extend(tokenizer.convert_ids_to_tokens(ids[:, 0].tolist()))
            return original(self, *arguments, **kwargs)

        monkeypatch.setattr(VanillaTransformerForConditionalGeneration, method, watched)

    watch("forward")
    watch("generate")
    return names


def write(folder, target: str, codes=("",)) -> list[str]:
    paths = [folder / "mine.en", folder / f"mine.{target}"]
    sources = [code + text for code, text in zip(codes * 4, TEXTS["en"], strict=False)]
    for path, lines in zip(paths, (sources, TEXTS["fr"]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return [str(path) for path in paths]


@pytest.mark.parametrize(
    ("target", "options"),
    [("fr", {}), ("txt", {"target_lang": "fra", "source_lang": "en"})],
    ids=["by the names of the files", "by target_lang"],
)
def test_train(folder, tmp_path, first_tokens, target, options):
    files = write(tmp_path, target)
    pairs = {"validation_files": files, "test_files": files, "model_name_or_path": str(folder)}
    trained = train(files, tmp_path / "run", **pairs, **options, **RUN)
    assert len(first_tokens) > 4
    assert set(first_tokens) == {">>fr<<"}
    # The folder says into what it was fine-tuned, and translates into another language on request.
    assert 'tokenizer(">>fr<< A sentence to translate."' in (trained / "README.md").read_text(encoding="utf-8")
    tokenizer, model = AutoTokenizer.from_pretrained(trained), AutoModelForSeq2SeqLM.from_pretrained(trained)
    first_tokens.clear()
    expected = translate(model, tokenizer, [f">>fr<< {text}" for text in TEXTS["en"]], **SEARCH)
    assert translate(model, tokenizer, TEXTS["en"], **SEARCH) == expected
    assert set(first_tokens) == {">>fr<<"}
    first_tokens.clear()
    translate(model, tokenizer, TEXTS["en"], target_lang="de", **SEARCH)
    assert set(first_tokens) == {">>de<<"}


def test_train_on_sources_with_codes(folder, tmp_path, first_tokens):
    files = write(tmp_path, "txt", codes=(">>fr<< ", ">>de<<"))
    trained = train(
        files,
        tmp_path / "run",
        model_name_or_path=str(folder),
        **{**RUN, "eval_strategy": "no", "choose_search": False},
    )
    assert set(first_tokens) == {">>fr<<", ">>de<<"}
    # Without one language of all pairs, translations need it as before.
    tokenizer, model = AutoTokenizer.from_pretrained(trained), AutoModelForSeq2SeqLM.from_pretrained(trained)
    with pytest.raises(ValueError, match=r"--target_lang.* >>de<<, >>fr<<"):
        translate(model, tokenizer, TEXTS["en"], **SEARCH)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("txt", {}, r"--target_lang.* >>de<<, >>fr<<"),
        ("it", {}, r'"it".* >>de<<, >>fr<<.*--target_lang'),
        ("txt", {"target_lang": "it"}, r'target_lang is "it".* >>de<<, >>fr<<'),
    ],
)
def test_train_without_a_language_of_the_model(folder, tmp_path, target, options, message):
    with pytest.raises(ValueError, match=message):
        train(write(tmp_path, target), tmp_path / "run", model_name_or_path=str(folder), max_steps=1, **options)


def test_translated_letterless_share_is_of_sources_without_codes(tokenizer):
    pairs = Dataset.from_dict({"source": [">>fr<< 12", "12", ">>fr<< 12"], "target": ["douze", "zwölf", "12"]})
    assert translated_letterless_share(pairs, TargetCodes(tokenizer)) == 2 / 3


class TestTokenizePairs:
    def test_sources(self, tokenizer):
        pairs = Dataset.from_dict({"source": [*TEXTS["en"], ">>de<< Two men play.", ""], "target": ["Oui."] * 6})
        tokenized = tokenize_pairs(pairs, tokenizer, target_lang="fr")
        expected = [f">>fr<< {text}" for text in TEXTS["en"]]
        assert tokenized["input_ids"][:] == tokenizer([*expected, ">>de<< Two men play.", ""]).input_ids
        assert tokenized["labels"][:] == tokenizer(text_target=["Oui."] * 6).input_ids

    def test_cached_tokens_are_of_their_language(self, tokenizer):
        pairs = Dataset.from_dict({"source": TEXTS["en"], "target": TEXTS["fr"]})
        of_each = [tokenize_pairs(pairs, tokenizer, target_lang=code) for code in ("fr", "de", "fra")]
        assert of_each[0]._fingerprint != of_each[1]._fingerprint
        assert of_each[0]._fingerprint == of_each[2]._fingerprint


def test_a_teacher(folder, tmp_path, first_tokens, monkeypatch):
    def translate_briefly(model, tokenizer, sentences, **options):
        return translate(model, tokenizer, sentences, **{**options, **SEARCH})

    monkeypatch.setattr(distillation, "translate", translate_briefly)
    caches = set()
    for code in ("fr", "de"):
        arguments = {"teacher": [str(folder)], "output_dir": str(tmp_path / "run"), "target_lang": code}
        teacher = Teacher(Settings.from_arguments(**arguments))
        caches.add(teacher._cache_folder)
        first_tokens.clear()
        teacher._translate(*teacher._load_teacher(), TEXTS["en"][:2])
        assert set(first_tokens) == {f">>{code}<<"}
    # Translations into one language are not taken for those into another one.
    assert len(caches) == 2


def test_files_of_another_language_do_not_get_the_default_code(folder, tmp_path):
    """A fine-tuned model has a default, and its code must not stand before sources of another language."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.init_kwargs["target_lang"] = "fr"
    arguments = DataArguments(train_file=["mine.en", "mine.it"])
    with pytest.raises(ValueError, match=r'"it".* >>de<<, >>fr<<'):
        arguments.target_language_for(tokenizer)
    assert DataArguments(train_file=["mine.txt", "mine.tok"]).target_language_for(tokenizer) is None
    assert DataArguments(train_file=["mine.en", "mine.de"]).target_language_for(tokenizer) == "de"
