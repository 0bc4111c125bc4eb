"""An engine stands where a model stands."""

import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, MaxTimeCriteria, StoppingCriteria

import hf_vanilla_transformer
from hf_vanilla_transformer import (
    ForcedPhrases,
    Glossary,
    TwoVocabularyTokenizer,
    align,
    load_engine,
    score,
    train_tokenizer,
    translate,
)
from hf_vanilla_transformer.apps.cli.main import main
from hf_vanilla_transformer.apps.conversion import ctranslate2_engine
from hf_vanilla_transformer.hub import user_cache
from tests.ecosystem.documentation import FIXTURE, ROOT
from tests.models import decisive_model


pytestmark = pytest.mark.skipif(find_spec("ctranslate2") is None, reason="ctranslate2 is not installed")
NUMBERS = ["one hundred and three", "nine", "three hundred and twelve", "", "one thousand and six", "seven"]
REFERENCES = ["einhundertdrei", "neun", "dreihundertzwölf", "null", "eintausendsechs", "acht"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(user_cache, "CACHE", tmp_path_factory.mktemp("cache"))
        yield user_cache.CACHE


@pytest.fixture(scope="module")
def engine(cache):
    loaded = load_engine(str(FIXTURE), threads=2)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


def test_load_engine_documented_example(engine, tokenizer, capsys):
    page = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    block = re.search(r"```python engine\n(.*?)```", page, flags=re.DOTALL)[1]
    for original, replacement in (("runs/numbers", FIXTURE.as_posix()), ('"int8"', '"float32"')):
        assert original in block
        block = block.replace(original, replacement)
    exec(block, {})
    expected = translate(engine, tokenizer, ["forty-two", "one hundred and one"])
    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize("beams", [1, 4])
def test_translate_equals_model(engine, model, tokenizer, beams):
    ours = translate(engine, tokenizer, NUMBERS, num_beams=beams)
    assert ours == translate(model, tokenizer, NUMBERS, num_beams=beams, early_stopping=True)
    assert ours[3] == ""
    # In batches of one, so with threads in parallel instead of sentences.
    assert translate(engine, tokenizer, NUMBERS, tokens_per_batch=1, num_beams=beams) == ours


def test_score_equals_model(engine, model, tokenizer):
    engine_scores = score(engine, tokenizer, NUMBERS, REFERENCES)
    model_scores = score(model, tokenizer, NUMBERS, REFERENCES)
    for engine_score, model_score in zip(engine_scores, model_scores, strict=True):
        assert engine_score.tokens == model_score.tokens
        assert engine_score.log_probs == pytest.approx(model_score.log_probs, abs=1e-4)
        assert engine_score.normalized == pytest.approx(model_score.normalized, abs=1e-4)


@pytest.mark.parametrize("penalty_type", ["gnmt", "hf"])
def test_generate_ranks_by_length_penalty_of_model(engine, model, tokenizer, penalty_type):
    inputs = tokenizer(["two thousand and twenty-five"], return_tensors="pt")
    settings = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 3.0, "length_penalty_type": penalty_type}
    rows = [row[1 : row.index(2, 1) + 1] for row in engine.generate(**inputs, **settings).tolist()]
    assert len({len(row) for row in rows}) > 1
    penalty = {"gnmt": lambda n: ((5 + n) / 6) ** 3, "hf": lambda n: n**3}[penalty_type]
    with torch.no_grad():
        scores = []
        for row in rows:
            logits = model(**inputs, decoder_input_ids=torch.tensor([[1, *row[:-1]]]), use_cache=False).logits[0]
            scores.append(
                float(logits.log_softmax(-1).gather(-1, torch.tensor(row)[:, None]).sum()) / penalty(len(row))
            )
    assert scores == sorted(scores, reverse=True)
    assert (
        engine.generate(**inputs, **{**settings, "num_return_sequences": 2}).tolist()[1][1:][: len(rows[1])] == rows[1]
    )


def test_generate_length_limits(engine, tokenizer):
    inputs = tokenizer(["two thousand and twenty-five", "one"], return_tensors="pt", padding=True)
    for settings in ({"max_new_tokens": 3}, {"max_length": 4}):
        assert engine.generate(**inputs, num_beams=1, **settings).shape == (2, 4)
    longest = int(inputs.attention_mask.sum(dim=1).max())
    # At length 0 all hypotheses are cut off by the limit.
    assert engine.generate(**inputs, max_length_offset=0, repetition_penalty=1.0).shape[1] <= longest + 1


# CTranslate2 translates an empty sentence as nothing.
SENTENCES = [text for text in NUMBERS if text]
SETTINGS = [
    *(
        {"min_new_tokens": 6},
        {"min_length": 6},
        {"min_new_tokens": 9, "max_new_tokens": 4},
        {"eos_token_id": [2, 75, 80, 260]},
    ),
    *({"forced_bos_token_id": 70}, {"forced_bos_token_id": 70, "min_new_tokens": 6}, {"suppress_tokens": [83, 287]}),
    *({"forced_eos_token_id": 2, "max_length": 3}, {"bad_words_ids": [[83], [287, 275]]}),
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_generate_applies_generation_config(engine, model, tokenizer, monkeypatch, settings):
    """In its generation_config.json, and as arguments."""
    plain = translate(engine, tokenizer, NUMBERS, num_beams=1)
    # CTranslate2 normalizes scores.
    expected = [
        model.generate(**tokenizer([text], return_tensors="pt"), num_beams=1, renormalize_logits=True, **settings)
        for text in SENTENCES
    ]
    for arguments in (settings, {}):
        for text, expected_row in zip(SENTENCES, expected, strict=True):
            row = engine.generate(**tokenizer([text], return_tensors="pt"), num_beams=1, **arguments)
            assert row.tolist() == expected_row.tolist()
        for name, value in settings.items():
            monkeypatch.setattr(engine.generation_config, name, value)
    assert translate(engine, tokenizer, NUMBERS, num_beams=1) != plain


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("encoder_no_repeat_ngram_size", 2), ("diversity_penalty", 0.5), ("sequence_bias", [[[5], 1.0]])),
        *(("begin_suppress_tokens", [5]), ("max_time", 1.0), ("decoder_start_token_id", 2), ("stop_strings", ["a"])),
        *(("exponential_decay_length_penalty", [5, 1.1]), ("forced_bos_token_id", 10**6), ("a_new_one", 1)),
    ],
)
def test_generate_rejects_unsupported_generation_config(engine, tokenizer, monkeypatch, name, value):
    monkeypatch.setattr(engine.generation_config, name, value, raising=False)
    with pytest.raises(ValueError, match=f"{name} is "):
        translate(engine, tokenizer, ["nine"])


def test_generate_accepts_settings_without_effect(engine, tokenizer, monkeypatch):
    defaults = GenerationConfig._get_default_generation_params() | {"max_length": None, "num_beams": 4}
    for name, value in {**defaults, "early_stopping": True, "top_k": 7, "output_scores": True}.items():
        monkeypatch.setattr(engine.generation_config, name, value)
    assert translate(engine, tokenizer, ["nine"]) == ["neun"]


def test_engine_rejects_unsupported_arguments(engine, tokenizer):
    inputs = tokenizer(["one"], return_tensors="pt")
    for settings, message in (
        ({"early_stopping": "never"}, "early_stopping is 'never', but CTranslate2 ends a sentence when"),
        ({"do_sample": True}, "do_sample is True, but the engine has num_beams, "),
        ({"logits_processor": []}, r"logits_processor is \[\], but the engine has"),
        ({"num_beams": 2, "num_return_sequences": 3}, "num_return_sequences is 3, but there are 2 num_beams"),
        ({"length_penalty_type": "bert"}, 'length_penalty_type is "bert"'),
    ):
        with pytest.raises(ValueError, match=message):
            engine.generate(**inputs, **settings)
    with pytest.raises(ValueError, match=r"a source has 4,[0-9]* tokens, but the engine has 2,048 positions; split"):
        translate(engine, tokenizer, ["nine " * 2100])
    for sources, targets, message in (
        (["nine " * 2100], ["neun"], r"a source has 4,\d* tokens, but the engine has 2,048 positions; split"),
        (["nine"], ["neun " * 2100], r"a target has [4-9],\d* tokens, but the engine has 2,048 positions; split"),
    ):
        with pytest.raises(ValueError, match=message):
            align(engine, tokenizer, sources, targets)
    for arguments, message in (({"engine": "onnx"}, 'engine is "onnx"'), ({"compute_type": "int3"}, "compute_type is")):
        with pytest.raises(ValueError, match=message):
            load_engine(str(FIXTURE), **arguments)


@pytest.mark.parametrize("compute_type", ["bfloat16", "float16", "int8_float16", "int8_bfloat16"])
def test_load_engine_compute_type_that_processor_lacks(cache, compute_type, monkeypatch):
    library = ctranslate2_engine.import_library()
    monkeypatch.setattr(library, "get_supported_compute_types", lambda device: {"float32", "int8"})
    monkeypatch.setattr(ctranslate2_engine, "converted", None)
    message = f'compute_type is "{compute_type}"; choose one of float32, int8, which this processor has.'
    with pytest.raises(ValueError, match=re.escape(message)):
        load_engine(str(FIXTURE), compute_type=compute_type)


def test_converted_reuses_cache(cache, tmp_path, monkeypatch, tokenizer):
    model = decisive_model(vocab_size=len(tokenizer), d_k=None, d_v=None)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    first = ctranslate2_engine.converted(tmp_path / "model", "int8")
    assert json.loads((first / "parity.json").read_text())["quantization"] == "int8"
    shutil.copytree(tmp_path / "model", tmp_path / "moved")
    with monkeypatch.context() as patch:
        patch.setattr(ctranslate2_engine, "to_ctranslate2", None)
        assert ctranslate2_engine.converted(tmp_path / "moved", "int8") == first
    model.model.decoder.layers[0].fc1.bias.data += 1
    model.save_pretrained(tmp_path / "model")
    assert {first.name, ctranslate2_engine.converted(tmp_path / "model", "int8").name} <= {
        path.name for path in cache.iterdir()
    }
    assert ctranslate2_engine.converted(tmp_path / "model", "int8") != first


def test_load_engine_damaged_weights(cache, tmp_path, tokenizer):
    model = decisive_model(vocab_size=len(tokenizer), d_k=None, d_v=None)
    model.model.decoder.layers[0].fc1.bias.data[0] = float("nan")
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match=r"fc1\.bias has values that are NaN or infinite"):
        load_engine(str(tmp_path / "model"), compute_type="int8")


def test_load_engine_two_vocabularies(cache, tmp_path):
    texts = ["zweiundvierzig", "neun", "tausendsechs"], NUMBERS[:3]
    options = {"min_frequency": 1, "show_progress": False}
    sides = [train_tokenizer(lines, vocab_size=size, **options) for lines, size in zip(texts, (280, 270), strict=True)]
    tokenizer = TwoVocabularyTokenizer.of(*sides)
    model = decisive_model(vocab_size=len(sides[1]), source_vocab_size=len(sides[0]), d_k=None, d_v=None)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    engine = load_engine(str(tmp_path / "model"))
    settings = {"num_beams": 1, "max_new_tokens": 9}
    assert translate(engine, tokenizer, texts[0], **settings) == translate(model, tokenizer, texts[0], **settings)
    pair = score(engine, tokenizer, texts[0][:1], texts[1][:1]), score(model, tokenizer, texts[0][:1], texts[1][:1])
    assert pair[0][0].total == pytest.approx(pair[1][0].total, abs=1e-3)
    engine.close()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux")
def test_process_has_no_torch_and_is_replaced_when_killed(cache, tokenizer):
    engine = load_engine(str(FIXTURE))
    assert translate(engine, tokenizer, ["nine"]) == ["neun"]
    ((process,),) = engine._processes.values()
    libraries = Path(f"/proc/{process._process.pid}/maps").read_text()
    assert "ctranslate2" in libraries
    assert "torch" not in libraries
    os.kill(process._process.pid, signal.SIGSTOP)  # It hangs, until another thread kills it.
    killing = threading.Timer(0.3, process.kill)
    killing.start()
    with pytest.raises(RuntimeError, match="CTranslate2's process ended with exit code -9"):
        translate(engine, tokenizer, ["nine"])
    killing.join()
    assert translate(engine, tokenizer, ["nine"]) == ["neun"]
    ((another,),) = engine._processes.values()
    assert another is not process
    engine.close()


def test_choose_process_while_another_call_runs(cache, tokenizer):
    engine = load_engine(str(FIXTURE))
    assert translate(engine, tokenizer, ["nine"]) == ["neun"]
    ((busy,),) = engine._processes.values()
    with ThreadPoolExecutor() as pool:

        def job_without_end(process):
            os.kill(process._process.pid, signal.SIGSTOP)
            job = pool.submit(translate, engine, tokenizer, ["nine"])
            while not process.is_busy:
                time.sleep(0.01)
            return job

        def kill(process, job):
            process.kill()
            with pytest.raises(RuntimeError, match="exit code -9"):
                job.result(30)

        older = job_without_end(busy)
        assert translate(engine, tokenizer, ["seven"]) == ["sieben"]
        ((first, other),) = engine._processes.values()
        assert first is busy
        kill(other, job_without_end(other))
        assert not busy.has_ended
        assert translate(engine, tokenizer, ["seven"]) == ["sieben"]
        ((_, another),) = engine._processes.values()
        kill(busy, older)
    assert not another.has_ended
    assert translate(engine, tokenizer, ["seven"]) == ["sieben"]
    assert list(engine._processes.values()) == [[another]]
    engine.close()


class Watching(StoppingCriteria):
    """Counts its calls, and raises an error in the last one that it accepts."""

    stops_hypotheses = False

    def __init__(self, last=None):
        self.calls, self.last = 0, last

    def __call__(self, input_ids, scores, **kwargs):
        self.calls += 1
        if self.calls == self.last:
            raise OverflowError("the last call")


def test_generate_stopping_criterion_raises_error(cache, tokenizer):
    """Its error is raised, the process is killed, and the process that follows it has no answer of an earlier call."""
    engine = load_engine(str(FIXTURE))
    assert translate(engine, tokenizer, ["nine"], stopping_criteria=[Watching()]) == ["neun"]
    ((process,),) = engine._processes.values()
    watching = Watching(last=3)
    os.kill(process._process.pid, signal.SIGSTOP)
    with pytest.raises(OverflowError, match="the last call"):
        translate(engine, tokenizer, ["nine"], stopping_criteria=[watching])
    assert watching.calls == 3
    assert process.has_ended
    assert translate(engine, tokenizer, ["seven"], stopping_criteria=[Watching()]) == ["sieben"]
    assert translate(engine, tokenizer, ["two"]) == ["zwei"]
    engine.close()


def test_generate_rejects_criterion_that_stops_hypotheses(cache, tokenizer):
    engine = load_engine(str(FIXTURE))
    with pytest.raises(ValueError, match="MaxTimeCriteria may stop hypotheses, which CTranslate2 cannot do"):
        translate(engine, tokenizer, ["nine"], stopping_criteria=[MaxTimeCriteria(1.0)])
    engine.close()


def test_generate_after_interrupted_call(cache, tokenizer):
    def interrupt(*args):
        raise KeyboardInterrupt

    engine = load_engine(str(FIXTURE))
    before = signal.signal(signal.SIGALRM, interrupt)
    for text, translation in {"nine": "neun", "seven": "sieben", "one": "eins", "two": "zwei"}.items():
        assert translate(engine, tokenizer, [text]) == [translation]
        running = []
        for processes in engine._processes.values():
            running.extend(processes)
        for process in running:
            os.kill(process._process.pid, signal.SIGSTOP)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            translate(engine, tokenizer, ["three"])
        for process in running:
            if not process.has_ended:
                os.kill(process._process.pid, signal.SIGCONT)
    signal.signal(signal.SIGALRM, before)
    engine.close()


def test_generate_reports_error_of_ctranslate2(cache, tokenizer):
    engine = load_engine(str(FIXTURE))
    engine._compute_type = "int3"
    with pytest.raises(RuntimeError, match=r"CTranslate2 says: .*int3"):
        translate(engine, tokenizer, ["nine"])
    engine.close()


def test_commands_with_engine(cache, tmp_path, capsys):
    files = tmp_path / "test.en", tmp_path / "test.de"
    for path, lines in zip(files, (["nine", "seven"], ["neun", "acht"]), strict=True):
        path.write_text("".join(f"{line}\n" for line in lines))
    loading = ["--model_name_or_path", str(FIXTURE)]
    engine = ["--engine", "ctranslate2", "--compute_type", "int8"]
    pairs = ["--test_file", *map(str, files), "--source_lang", "en", "--target_lang", "de"]
    main(["translate", *loading, *engine, "nine", "seven"])
    assert capsys.readouterr().out == "neun\nsieben\n"
    main(["evaluate", *loading, *engine, *pairs])
    assert "exact match: 50.0" in (printed := capsys.readouterr().out)
    assert "early stopping, at most source + 50 tokens" in printed
    totals = []
    for engine_options in (engine[:2], []):
        main(["score", *loading, *engine_options, *pairs])
        totals.append([float(line) for line in capsys.readouterr().out.split()])
    assert totals[0] == pytest.approx(totals[1], abs=1e-3)
    for options, message in (
        (["--engine", "onnx"], "argument --engine: invalid choice: 'onnx'"),
        (["--compute_type", "int8"], "compute_type is int8, but has no effect without --engine ctranslate2"),
        ([*engine[:2], "--device", "meta"], "device is meta, but --engine ctranslate2 runs on the CPU"),
        ([*engine[:2], "--compute_type", "int3"], 'compute_type is "int3"; choose one of float32'),
    ):
        with pytest.raises(SystemExit, match=message):
            main(["translate", *loading, *options, "nine"])


def test_translate_command_without_library(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(SystemExit, match=r"error: CTranslate2 needs ctranslate2; install it with: .*\[ctranslate2\]"):
        main(["translate", "--model_name_or_path", str(FIXTURE), "--engine", "ctranslate2", "nine"])


def test_engine_is_public():
    assert hf_vanilla_transformer.load_engine is load_engine


def test_translate_rejects_terms(engine, tokenizer):
    for terms in ({"seven": "sieben"}, {"nine": "neun"}):
        with pytest.raises(ValueError, match=r"terms do not work with .*engine.*; leave them out"):
            translate(engine, tokenizer, ["seven"], glossary=Glossary(terms, tokenizer))
    with pytest.raises(ValueError, match=r"custom_generate is .*ForcedPhrases.*, but the engine has num_beams"):
        engine.generate(**tokenizer(["seven"], return_tensors="pt"), custom_generate=ForcedPhrases([[[5]]]))


@pytest.mark.parametrize("threads", [0, -1])
def test_load_engine_number_of_threads(threads):
    with pytest.raises(ValueError, match=f"threads is {threads}; it must be at least 1"):
        load_engine(str(FIXTURE), threads=threads)


@pytest.mark.parametrize("beams", [-1, 1.5, "4"])
def test_generate_number_of_beams(engine, tokenizer, beams):
    with pytest.raises(ValueError, match=f"num_beams is {beams!r}; it must be a whole number from 1"):
        translate(engine, tokenizer, ["seven"], num_beams=beams)
