"""Several names behind `--model_name_or_path`."""

import json
import re
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hf_vanilla_transformer import TwoVocabularyTokenizer, train_tokenizer
from hf_vanilla_transformer import translate as translate_sentences
from hf_vanilla_transformer.apps.cli import evaluate, score, translate
from hf_vanilla_transformer.translation.model_loading import load_ensemble
from tests.models import decisive_model


@pytest.fixture
def folders(decisive, tmp_path, tokenizer):
    decisive_model(1, vocab_size=len(tokenizer)).save_pretrained(tmp_path / "other")
    tokenizer.save_pretrained(tmp_path / "other")
    return [str(decisive), str(tmp_path / "other")]


def test_verbs_make_an_ensemble_of_several_models(folders, tmp_path, capsys):
    tokenizer, ensemble = load_ensemble(folders)
    sources = ["twenty", "one hundred"]
    expected = translate_sentences(ensemble, tokenizer, sources)
    assert expected != translate_sentences(ensemble.models[0], tokenizer, sources)
    translate.main(["--model_name_or_path", *folders, *sources])
    assert capsys.readouterr().out.splitlines() == expected
    (tmp_path / "in.txt").write_text("".join(f"{source}\n" for source in sources))
    (tmp_path / "in.tsv").write_text(
        "".join(f"{source}\tx\n" for source in ("en", *sources)).replace("en\tx", "en\tfr")
    )
    translate.main(["--model_name_or_path", *folders, "--input", str(tmp_path / "in.txt")])
    assert capsys.readouterr().out.splitlines() == expected
    test = ["--test_file", str(tmp_path / "in.tsv"), "--source_lang", "en", "--target_lang", "fr"]
    output = ["--translations", str(tmp_path / "out.txt")]
    scores = evaluate.main(["--model_name_or_path", *folders, *test, *output])
    assert scores["model"] == ", ".join(folders)
    assert (tmp_path / "out.txt").read_text().splitlines() == expected
    capsys.readouterr()
    totals = []
    for names in (folders, folders[:1], folders[1:]):
        score.main(["--model_name_or_path", *names, *test])
        totals.append([float(line) for line in capsys.readouterr().out.splitlines()])
    assert totals[0] == pytest.approx([sum(pair) / 2 for pair in zip(*totals[1:], strict=True)], abs=1e-3)
    with pytest.raises(SystemExit, match="ctranslate2 has no ensembles"):
        evaluate.main(["--model_name_or_path", *folders, *test, "--engine", "ctranslate2"])


def test_the_block_of_the_page(folders, capsys):
    page = Path(__file__).parents[3] / "docs" / "distillation.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    exec(block.replace("runs/one", folders[0]).replace("runs/two", folders[1]), {})
    tokenizer, ensemble = load_ensemble(folders)
    expected = translate_sentences(ensemble, tokenizer, ["forty-two"])
    assert capsys.readouterr().out.splitlines()[-1] == str(expected)


def swap_two_tokens(file):
    """Exchange the ids of two words in a tokenizer's file, so that its vocabulary has the same size and tokens."""
    content = json.loads(file.read_text())
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content))


def test_load_ensemble_compares_vocabularies_by_content(folders, tmp_path):
    swap_two_tokens(tmp_path / "other" / "tokenizer.json")
    vocabularies = [AutoTokenizer.from_pretrained(folder).get_vocab() for folder in folders]
    assert vocabularies[0].keys() == vocabularies[1].keys()
    with pytest.raises(ValueError, match=r"the tokenizers of .* differ"):
        load_ensemble(folders)


@pytest.mark.parametrize("file", ["source_tokenizer.json", "target_tokenizer.json"])
def test_load_ensemble_compares_both_vocabularies_of_two(tmp_path, tokenizer, file):
    two = TwoVocabularyTokenizer.of(tokenizer, tokenizer)
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        decisive_model(vocab_size=len(tokenizer), source_vocab_size=len(tokenizer)).save_pretrained(folder)
        two.save_pretrained(folder)
    load_ensemble([str(folder) for folder in folders])
    swap_two_tokens(folders[1] / file)
    with pytest.raises(ValueError, match=r"the tokenizers of .* differ"):
        load_ensemble([str(folder) for folder in folders])


def test_load_ensemble_rejects_a_different_tokenizer(folders, tmp_path):
    train_tokenizer(["other words than numbers"], vocab_size=280).save_pretrained(tmp_path / "other")
    with pytest.raises(
        ValueError, match=r"the tokenizers of .* differ, but an ensemble needs models of one vocabulary"
    ):
        load_ensemble(folders)
