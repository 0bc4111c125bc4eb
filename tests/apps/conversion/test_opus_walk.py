"""The way of docs/fine_tune_opus_mt.md on real text: a model in Helsinki-NLP's layout, another domain, and out again.

It takes minutes, so only `make test-bridges` runs it.
"""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import score, translate
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion import to_hf_marian
from hf_vanilla_transformer.apps.conversion.parity_certificate import count_equal
from hf_vanilla_transformer.hub import user_cache


pytestmark = [
    pytest.mark.skipif(find_spec("pymarian") is None, reason="takes minutes; make test-bridges runs it"),
    pytest.mark.skipif(
        not {"MULTI30K_DIR", "LIBREOFFICE_HELP_DIR"} <= os.environ.keys(),
        reason="needs Multi30k and LibreOffice's help",
    ),
]
TRAINING = {"tokens_per_batch": 1024, "max_tokens": 64, "lr_scheduler_type": "linear", "warmup_steps": 50}
TRAINING |= {"max_train_samples": 8000}
SIZES = {"num_layers": 2, "d_model": 128, "d_ff": 256, "num_heads": 4, "dropout": 0.1, "vocab_size": 2000}


def files(corpus: str, split: str) -> list[str]:
    return [str(Path(os.environ[corpus]) / f"{split}.{code}") for code in ("en", "de")]


def train(output: Path, corpus: str, **arguments) -> Path:
    options = {**TRAINING, "output_dir": output, "save_strategy": "no", "eval_strategy": "no", **arguments}
    main(["train", "--train_file", *files(corpus, "train"), *(f"--{name}={value}" for name, value in options.items())])
    return output


def nats_per_token(folder: Path, corpus: str) -> float:
    """Of 100 validation pairs. After so few updates, translations are too poor for BLEU and chrF."""
    sources, targets = (Path(path).read_text(encoding="utf-8").splitlines()[:100] for path in files(corpus, "val"))
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    log_probs = [pair.log_probs for pair in score(model, tokenizer, sources, targets)]
    return -sum(map(sum, log_probs)) / sum(map(len, log_probs))


@pytest.mark.parametrize(
    ("first", "second"),
    [("MULTI30K_DIR", "LIBREOFFICE_HELP_DIR"), ("LIBREOFFICE_HELP_DIR", "MULTI30K_DIR")],
    ids=["captions to software", "software to captions"],
)
@pytest.mark.bridge
def test_fine_tune_opus_mt_walk(tmp_path, monkeypatch, first, second):
    pytest.importorskip("sentencepiece")
    monkeypatch.setattr(user_cache, "CACHE", tmp_path / "cache")
    ours = train(tmp_path / "ours", first, tokenizer_type="sentencepiece", max_steps=300, learning_rate=0.002, **SIZES)
    # A model of transformers alone, as one of the Hub.
    opus = to_hf_marian(str(ours), str(tmp_path / "opus-mt-en-de"))
    tuned = train(tmp_path / "tuned", second, model_name_or_path=opus, max_steps=300, learning_rate=0.001)
    before, after = (nats_per_token(folder, second) for folder in (opus, tuned))
    print(f"{second}: {before:.2f} nats per token before, {after:.2f} after")
    assert after < before - 1
    out = to_hf_marian(str(tuned), str(tmp_path / "out"))
    lines = Path(files(second, "val")[0]).read_text(encoding="utf-8").splitlines()[:20]
    tokenizer = AutoTokenizer.from_pretrained(tuned)
    models = [AutoModelForSeq2SeqLM.from_pretrained(folder) for folder in (tuned, out)]
    tuned_texts, stock_texts = (translate(model, tokenizer, lines, num_beams=1, max_new_tokens=60) for model in models)
    assert count_equal(tuned_texts, stock_texts) >= 19
    ctranslate2 = pytest.importorskip("ctranslate2")
    ctranslate2.converters.TransformersConverter(str(out)).convert(str(tmp_path / "ct2"))
    translator = ctranslate2.Translator(str(tmp_path / "ct2"))
    sources = [tokenizer.convert_ids_to_tokens(row) for row in tokenizer(lines).input_ids]
    results = translator.translate_batch(sources, beam_size=1, max_decoding_length=60)
    rows = [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]
    by_ctranslate2 = tokenizer.batch_decode(rows, skip_special_tokens=True)
    assert count_equal(by_ctranslate2, stock_texts) >= 19
