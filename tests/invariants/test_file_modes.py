"""Other users may read the weights that we write as far as they may read `config.json`, which follows the umask."""

import os
import stat

import pytest
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, Seq2SeqTrainer

from hf_vanilla_transformer import Int8Config, PaperTrainingArguments, average_checkpoints
from hf_vanilla_transformer.apps.conversion import from_hf_marian, to_hf_marian
from hf_vanilla_transformer.hub.model_folder import staged
from hf_vanilla_transformer.training.run import train
from tests.apps.cli.tiny_run import TINY
from tests.apps.conversion.opus_mt import write_opus_mt
from tests.ecosystem.documentation import FIXTURE
from tests.models import small_model
from tests.training.toy import copy_task


@pytest.fixture(params=[0o022, 0o077], ids=oct)
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def assert_modes(folder, umask):
    """The weights, and every other file but code, which is copied with its mode, have the mode of `config.json`."""
    assert list(folder.glob("*.safetensors"))
    assert mode_of(folder) == 0o777 & ~umask
    assert mode_of(folder / "config.json") == 0o666 & ~umask
    for path in folder.iterdir():
        if path.is_file() and path.suffix != ".py":
            assert mode_of(path) == 0o666 & ~umask, path.name


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "10KB"}, {"variant": "fp32"}], ids=str)
def test_a_saved_model(tmp_path, umask, options):
    small_model().save_pretrained(tmp_path / "model", **options)
    assert_modes(tmp_path / "model", umask)


def test_a_model_that_replaces_another(tmp_path, umask):
    folder = tmp_path / "model"
    for _ in range(2):
        small_model().save_pretrained(folder)
    assert_modes(folder, umask)


def test_a_model_without_its_head(tmp_path, umask):
    small_model().model.save_pretrained(tmp_path / "model")
    assert_modes(tmp_path / "model", umask)


def test_an_int8_model(tmp_path, umask):
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE, quantization_config=Int8Config())
    model.save_pretrained(tmp_path / "model")
    assert_modes(tmp_path / "model", umask)


def test_the_files_of_a_stock_trainer(tmp_path, tokenizer, umask):
    model = small_model(vocab_size=len(tokenizer))
    args = PaperTrainingArguments(str(tmp_path / "run"), max_steps=1, save_steps=1, use_cpu=True, disable_tqdm=True)
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    trainer = Seq2SeqTrainer(model, args, train_dataset=copy_task(tokenizer, 8), data_collator=collator)
    trainer.train()
    trainer.save_model()
    assert_modes(tmp_path / "run", umask)
    assert_modes(tmp_path / "run" / "checkpoint-1", umask)


@pytest.mark.parametrize("max_shard_size", ["1GB", "10KB"])
def test_an_average(tmp_path, umask, max_shard_size):
    folders = [tmp_path / name for name in ("one", "two")]
    for seed, folder in enumerate(folders):
        small_model(seed).save_pretrained(folder, max_shard_size=max_shard_size)
    assert_modes(average_checkpoints(folders, tmp_path / "average"), umask)


def test_a_run_of_train(tmp_path, umask):
    folder = train(output_dir=tmp_path / "run", average_last=2, save_total_limit=2, use_cpu=True, **TINY)
    assert_modes(folder, umask)
    assert_modes(folder / "checkpoint-6", umask)


def test_converted_models(tmp_path, umask):
    write_opus_mt(tmp_path / "opus")
    folder = from_hf_marian(str(tmp_path / "opus"), str(tmp_path / "converted"))
    assert_modes(folder, umask)
    assert_modes(to_hf_marian(str(folder), str(tmp_path / "marian")), umask)


def test_weights_that_another_library_puts_into_a_staged_folder(tmp_path, umask):
    folder = tmp_path / "model"
    folder.mkdir()
    with staged(folder) as temporary:
        (temporary / "config.json").write_text("{}")
        (temporary / "model.safetensors").touch(mode=0o600)
    assert_modes(folder, umask)


def test_a_mode_that_cannot_be_changed_is_left(tmp_path, monkeypatch):
    """Some file systems that are mounted from elsewhere have no modes."""

    def refuse(path, mode, **kwargs):
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "chmod", refuse)
    small_model().save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").is_file()
