"""Arguments of `train`: which fit together, what the run prints about them, and what a resumed run takes from where."""

import json
import math
import shutil
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, IntervalStrategy
from transformers.integrations.deepspeed import set_hf_deepspeed_config, unset_hf_deepspeed_config

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.apps.cli import train
from hf_vanilla_transformer.apps.cli.parser import given_arguments
from hf_vanilla_transformer.data.pair_arguments import DataArguments
from hf_vanilla_transformer.training import (
    model_arguments,
    run,
    run_arguments,
    run_checks,
    run_setup,
    tokenizer_facts,
    training_pairs,
)
from tests.apps.cli.tiny_run import TINY_RUN, write_recipe


pytestmark = pytest.mark.long

TINY = {**TINY_RUN, "max_steps": 4, "save_steps": 2}


recipe = partial(write_recipe, TINY)


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    return train.main(recipe(tmp_path_factory.mktemp("trained")))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config_overrides": {"layers": 2}}, "config_overrides has layers, which is no field"),
        ({"config_overrides": "{"}, "config_overrides is '{'; give a JSON object of names and values"),
        ({"config_overrides": "[2]"}, r"config_overrides is '\[2\]'; give a JSON object of names and values"),
        (
            {"tokenizer_name": "somewhere", "vocab_size": 300},
            "tokenizer_name is somewhere, so no tokenizer is trained; leave out",
        ),
        ({"tokens_per_batch": 0}, "tokens_per_batch is 0; it must be at least 1"),
        ({"max_tokens": 0}, "max_tokens is 0; it must be at least 1"),
        (
            {"model_name_or_path": "somewhere", "preset": "big"},
            "preset is big, but somewhere has sizes and a tokenizer",
        ),
        (
            {"model_name_or_path": "somewhere", "tokenizer_name": "elsewhere", "vocab_size": 37000},
            "tokenizer_name is elsewhere, but somewhere has sizes",
        ),
    ],
)
def test_what_does_not_go_together(tmp_path, changes, message):
    with pytest.raises(SystemExit, match=f"error: {message}"):
        train.main(recipe(tmp_path, **changes))
    assert not (tmp_path / "run").exists()


def test_the_base_of_a_fine_tuned_model_is_not_replaced(trained, tmp_path):
    before = sorted(trained.rglob("*"))
    for model in (trained, trained / "checkpoint-2"):
        changes = {"model_name_or_path": str(model), "output_dir": str(trained), "overwrite": True}
        with pytest.raises(SystemExit, match=r"lies in .*, which the run replaces; name another --output_dir"):
            train.main(recipe(tmp_path, **changes))
    assert sorted(trained.rglob("*")) == before


def test_one_process_does_not_take_several_gpus():
    args = SimpleNamespace(n_gpu=4, device=torch.device("cuda:0"))
    with pytest.raises(ValueError, match=r"4 GPUs for one process; .*--nproc-per-node 4 .* CUDA_VISIBLE_DEVICES=0"):
        run_checks.check_device(None, args)
    run_checks.check_device(None, SimpleNamespace(n_gpu=1, device=torch.device("cuda:0")))


def test_zero_3_is_refused_before_any_work(tmp_path):
    class Zero3:
        def is_zero3(self):
            return True

    config = Zero3()
    set_hf_deepspeed_config(config)
    try:
        with pytest.raises(SystemExit, match=r"error: .*zero_stage is 3.* set it to 2"):
            train.main(recipe(tmp_path))
    finally:
        unset_hf_deepspeed_config()
    assert not (tmp_path / "run").exists()


def test_more_of_the_configuration(tmp_path, capsys):
    overrides = {"decoder_layers": 2, "position_embedding_type": "learned", "hidden_size": 32}
    changes = {
        "config_overrides": overrides,
        "d_model": None,
        "max_steps": 1,
        "dataset_name": "numbers",
        "max_digits": 1,
    }
    config = AutoConfig.from_pretrained(train.main(recipe(tmp_path, **changes)))
    assert (config.encoder_layers, config.decoder_layers, config.d_model) == (1, 2, 32)
    assert config.position_embedding_type == "learned"
    assert " 9 pairs, 1 updates of 8 sentences\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "needed"),
    [({"vocab_size": 5}, 269), ({"source_vocab_size": 5}, 269), ({"pad_token_id": 3}, 0), ({"eos_token_id": 1}, 2)],
)
def test_a_configuration_that_contradicts_the_tokenizer(tmp_path, overrides, needed):
    ((name, value),) = overrides.items()
    changes = {"config_overrides": overrides, "vocab_size": 269, "dataset_name": "numbers"}
    with pytest.raises(SystemExit, match=f"config_overrides has {name} {value}, but the tokenizer needs {needed}"):
        train.main(recipe(tmp_path, **changes))


def test_more_rows_than_tokens_and_another_start(tmp_path):
    changes = {"config_overrides": {"vocab_size": 320, "decoder_start_token_id": 0}, "max_steps": 1}
    config = AutoConfig.from_pretrained(train.main(recipe(tmp_path, **changes)))
    assert (config.vocab_size, config.decoder_start_token_id) == (320, 0)


def test_a_tokenizer_that_is_there_is_taken(trained, tmp_path):
    changes = {"tokenizer_name": str(trained), "vocab_size": 37000, "train_size": 30, "max_steps": 1}
    folder = train.main(recipe(tmp_path, **changes))
    assert (folder / "tokenizer.json").read_text() == (trained / "tokenizer.json").read_text()
    assert AutoConfig.from_pretrained(folder).vocab_size == len(AutoTokenizer.from_pretrained(trained))


def test_a_tokenizer_that_pads_on_the_left_and_has_holes(trained, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(trained, padding_side="left")
    tokenizer.save_pretrained(tmp_path / "left")
    path = tmp_path / "left" / "tokenizer.json"
    fields = json.loads(path.read_text())
    (*_, last) = sorted(fields["model"]["vocab"], key=fields["model"]["vocab"].get)
    fields["model"]["vocab"][last] += 5
    path.write_text(json.dumps(fields))
    folder = train.main(recipe(tmp_path, tokenizer_name=str(tmp_path / "left"), vocab_size=37000, max_steps=1))
    assert AutoConfig.from_pretrained(folder).vocab_size == len(tokenizer) + 5
    assert AutoTokenizer.from_pretrained(folder).padding_side == "right"


def test_find_common_checkpoint_rejects_different_checkpoints(monkeypatch):
    checkpoint_of_first = Path("checkpoint-2")
    monkeypatch.setattr(run, "broadcast_object_list", lambda objects: [checkpoint_of_first])
    # The process finds this checkpoint at the first call, and none at the second.
    checkpoints = iter([checkpoint_of_first, None])
    monkeypatch.setattr(run, "find_checkpoint", lambda name, folder: next(checkpoints))
    settings = run_arguments.Settings.from_arguments(resume_from_checkpoint="auto")
    assert run.find_common_checkpoint(settings) == checkpoint_of_first
    with pytest.raises(ValueError, match=r"checkpoint-2\b.*no checkpoint"):
        run.find_common_checkpoint(settings)


def test_special_tokens_are_the_tokenizer_s():
    numbers = {"pad_token_id": 5, "bos_token_id": None, "eos_token_id": 7}
    of_marian = model_arguments.get_special_token_ids(SimpleNamespace(**numbers))
    assert of_marian == {"pad_token_id": 5, "bos_token_id": 7, "eos_token_id": 7, "decoder_start_token_id": 5}
    ours = model_arguments.get_special_token_ids(train_tokenizer(["a b"], vocab_size=260, show_progress=False))
    assert ours == {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}


def test_a_tokenizer_that_ends_no_sentence_is_refused():
    tokenizer = train_tokenizer(["a b"], vocab_size=260, show_progress=False)
    run_checks.check_tokenizer("mine", tokenizer)
    tokenizer.backend_tokenizer.post_processor = None
    with pytest.raises(ValueError, match="the tokenizer of mine has no pad_token, or does not append"):
        run_checks.check_tokenizer("mine", tokenizer)
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="the tokenizer of mine has no pad_token, or does not append"):
        run_checks.check_tokenizer("mine", tokenizer)


def test_what_is_trained_is_said(tmp_path, capsys):
    changes = {"tokens_per_batch": 100, "gradient_accumulation_steps": 3, "warmup_steps": 4}
    folder = train.main(recipe(tmp_path, **changes))
    printed = capsys.readouterr().out
    parameters = AutoModelForSeq2SeqLM.from_pretrained(folder).num_parameters()
    assert f"training in float32: {parameters:,} parameters, 60 pairs, 4 updates of at most 300 tokens on" in printed
    assert "the learning rate rises for 4 updates, so until the end; see --warmup_steps" in printed


def test_a_wrong_number_of_an_optimizer_is_not_a_checkpoint_s(tmp_path):
    with pytest.raises(SystemExit, match=r"^error: adam_beta1 is 1\.5; it must be at least 0 and below 1"):
        train.main(recipe(tmp_path, adam_beta1=1.5))


@pytest.mark.parametrize(("schedule", "rises"), [("constant", False), ("linear", True)])
def test_a_schedule_without_warm_up_is_not_said_to_rise(tmp_path, capsys, schedule, rises):
    train.main(recipe(tmp_path, lr_scheduler_type=schedule, warmup_steps=4, max_steps=1))
    assert ("the learning rate rises" in capsys.readouterr().out) == rises


def test_all_checkpoints_are_kept_where_it_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.setattr(run_setup, "CHECKPOINTS_KEPT", 1)
    folder = train.main(recipe(tmp_path, save_steps=1, average_last=2, save_total_limit=0))
    assert len(list(folder.glob("checkpoint-*"))) == 4


def test_a_job_that_is_started_again(tmp_path, capsys):
    """It starts from scratch, resumes from its last checkpoint, and finally has no updates left."""
    train.main(recipe(tmp_path, resume_from_checkpoint="auto", max_steps=2))
    assert "is the end of the run" not in capsys.readouterr().out
    train.main(recipe(tmp_path, resume_from_checkpoint="auto"))
    state = json.loads((tmp_path / "run" / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["global_step"] == 4
    capsys.readouterr()
    train.main(recipe(tmp_path, resume_from_checkpoint="auto"))
    printed = capsys.readouterr().out
    assert "checkpoint-4 is the end of the run, so no updates are left" in printed
    assert "training in" not in printed


def test_a_job_that_was_killed_in_its_first_checkpoint(tmp_path):
    torn = tmp_path / "run" / "checkpoint-2"
    torn.mkdir(parents=True)
    (torn / "model.safetensors").write_bytes(b"...")
    with pytest.raises(SystemExit, match="already holds a model or checkpoints"):
        train.main(recipe(tmp_path))
    folder = train.main(recipe(tmp_path, resume_from_checkpoint="auto"))
    assert json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())["global_step"] == 4


def test_a_model_is_not_replaced_by_a_job_that_is_started_again(trained, tmp_path):
    shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-*"))
    with pytest.raises(SystemExit, match="already holds a model or checkpoints"):
        train.main(recipe(tmp_path, resume_from_checkpoint="auto"))


@pytest.mark.parametrize(("logging_steps", "update"), [(3, 3), (500, 2)])
def test_a_training_that_diverged_ends(tmp_path, logging_steps, update):
    """And it leaves no model that would look trained."""
    changes = {"learning_rate": 1e38, "logging_steps": logging_steps, "lr_scheduler_type": "constant"}
    with pytest.raises(SystemExit, match=rf"the training diverged: the loss is nan at update {update}; start again"):
        train.main(recipe(tmp_path, **changes))
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_old_checkpoints_of_a_long_run_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(run_setup, "CHECKPOINTS_KEPT", 2)
    folder = train.main(recipe(tmp_path, save_steps=1))
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == ["checkpoint-3", "checkpoint-4"]
    averaged_folder = train.main(recipe(tmp_path, save_steps=1, average_last=3, output_dir=str(tmp_path / "averaged")))
    assert len(list(averaged_folder.glob("checkpoint-*"))) == 4


def test_blank_lines_are_left_out(tmp_path, capsys):
    (tmp_path / "a.en").write_text("one\n\ntwo\nthree\n")
    (tmp_path / "a.fr").write_text("un\n\n  \ntrois\n")
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.fr")]
    changes = {"dataset_name": None, "source_lang": None, "target_lang": None, "train_file": files, "max_steps": 1}
    folder = train.main(recipe(tmp_path, **changes))
    printed = capsys.readouterr().out
    assert "removed 2 of 4 training pairs: 2 empty on one side\n" in printed
    assert ": 2 pairs, 1 updates" in printed.replace("parameters, ", ": ")
    # The languages are those of the files.
    assert "from en to fr" in (folder / "README.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "languages"),
    [
        ({"train_file": ["a.en", "a.zh"]}, ("en", "zh")),
        ({"train_file": ["a.en", "a.zh"], "target_lang": "zh_TW"}, ("en", "zh_TW")),
        ({"train_file": ["a.csv"], "test_file": ["b.de", "b.en"]}, ("de", "en")),
        ({"train_file": ["source.txt", "target.txt"]}, (None, None)),
        ({"train_file": ["a.en.gz", "a.FR.GZ"]}, ("en", "fr")),
        ({"train_file": ["a.eng_Latn", "a.zho_Hans"]}, ("en", "zh")),
        ({"train_file": ["a.en.gz", "a.tgt.gz"]}, (None, None)),
        ({"source_lang": "es-419", "target_lang": "sr-Latn-RS"}, ("es-419", "sr-Latn-RS")),
        ({"source_lang": "cmn", "target_lang": "jpn_Jpan"}, ("cmn", "jpn_Jpan")),
        ({"train_file": ["a.en", "a.zh"], "target_lang": "zho_Hans"}, ("en", "zho_Hans")),
        ({"train_file": ["a.en", "b.en"]}, (None, None)),
        ({"train_file": ["a.csv", "b.csv"], "source_lang": "en", "target_lang": "cs"}, ("en", "cs")),
    ],
)
def test_languages_of_files(arguments, languages):
    assert DataArguments(**arguments).languages() == languages


@pytest.mark.parametrize(
    ("arguments", "languages"),
    [
        (["--train_file", "a.src", "a.tgt"], (None, None)),
        (["--train_file", "a.src.gz", "a.tgt.gz", "--target_lang", "fr"], (None, "fr")),
        (["--train_file", "a.en", "a.de"], ("en", "de")),
        (["--test_file", "a.en", "a.hyp"], (None, None)),
        (["--train_file", "a.csv", "b.csv"], ("en", "de")),
        (["--train_file", "a.csv", "--target_column", "french"], ("en", None)),
        ([], ("en", "de")),
    ],
)
def test_the_languages_of_a_recipe_are_not_those_of_any_files(arguments, languages, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("languages.yaml").write_text("source_lang: en\ntarget_lang: de\n")
    data_arguments = given_arguments(DataArguments, "", ["--config", "languages.yaml", *arguments])
    assert DataArguments(**data_arguments).languages() == languages


def test_files_of_other_languages_than_the_recipe_are_refused(tmp_path):
    files = {"train_file": ["a.en.gz", "a.fr.gz"]}
    with pytest.raises(ValueError, match="given or of --config, are en and de, but the files end in en and fr"):
        run.train(files["train_file"], tmp_path / "run", config="multi30k_en_de")
    own = tmp_path / "own.yaml"
    own.write_text(json.dumps({"train_file": ["a.src", "a.tgt"], "source_lang": "en", "target_lang": "fr"}))
    assert DataArguments(**given_arguments(DataArguments, "", ["--config", str(own)])).languages() == ("en", "fr")


@pytest.mark.parametrize("said", [{"source_lang": "en", "target_lang": "de"}, {"target_lang": "de"}])
def test_files_in_the_wrong_order_are_refused(said):
    with pytest.raises(ValueError, match=r"and de, but the files end in de and en; name the file of the sources"):
        DataArguments(train_file=["a.de", "a.en"], **said)


def test_no_sentence_of_a_data_set_is_in_the_card(tmp_path):
    """It may be private, whatever is pushed."""
    (tmp_path / "mine").mkdir()
    lines = "\n".join(["source,target", *(f"secret {word},{word}" for word in "abcdefgh")])
    (tmp_path / "mine" / "train.csv").write_text(lines)
    changes = {"dataset_name": str(tmp_path / "mine"), "source_lang": None, "target_lang": None, "max_steps": 1}
    folder = train.main(recipe(tmp_path, **changes))
    card = (folder / "README.md").read_text()
    assert "secret" not in card
    assert "A sentence to translate." in card


def test_tokens_cut_by_several_processes_are_the_same(trained, tmp_path, monkeypatch):
    process_counts = []
    tokenize_pairs = training_pairs.tokenize_pairs

    def tokenize_and_record(pairs, tokenizer, num_proc=None, **options):
        process_counts.append(num_proc)
        return tokenize_pairs(pairs, tokenizer, num_proc, **options)

    monkeypatch.setattr(training_pairs, "tokenize_pairs", tokenize_and_record)
    changes = {"preprocessing_num_workers": 2, "output_dir": str(tmp_path / "run")}
    folder = train.main(recipe(tmp_path, **changes))
    assert process_counts == [2]
    states_of_one_process = torch.load(trained / "checkpoint-4" / "optimizer.pt")["state"]
    states = torch.load(folder / "checkpoint-4" / "optimizer.pt")["state"]
    for number, state in states_of_one_process.items():
        torch.testing.assert_close(state["exp_avg"], states[number]["exp_avg"], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("gpu", "supported", "arguments", "expected"),
    [
        (False, True, {}, True),
        (False, False, {}, False),
        (False, True, {"bf16": False}, False),
        (False, False, {"bf16": True}, True),
        (False, True, {"fp16": True}, False),
        (True, True, {}, True),
        (True, False, {}, False),
        (True, False, {"use_cpu": True}, True),
    ],
)
def test_bfloat16_is_chosen_by_the_machine(tmp_path, monkeypatch, gpu, supported, arguments, expected):
    """On a machine with a GPU, the CPU is faster in bfloat16 here, and the GPU computes in it if `supported`."""
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    monkeypatch.setattr(run_arguments, "is_torch_bf16_gpu_available", lambda: supported)
    monkeypatch.setattr(run_arguments, "cpu_is_faster_in_bfloat16", lambda: gpu or supported)
    monkeypatch.setattr(run_arguments.PaperTrainingArguments, "__post_init__", lambda self: None)
    args = run_arguments.RunArguments(str(tmp_path), **arguments)
    assert args.bf16 is expected
    assert args.use_cpu is (not gpu or "use_cpu" in arguments)


@pytest.mark.parametrize(("major", "computes"), [(7, False), (8, True), (9, True)])
def test_gpus_that_emulate_bfloat16(monkeypatch, major, computes):
    """V100 is 7.0, and T4 7.5; torch can make a tensor there, and multiplies in float32."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: SimpleNamespace(major=major))
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    assert run_arguments.is_faster_in_bfloat16(use_cpu=False) is computes


def test_languages_of_a_tokenizer_with_names_for_them():
    """As MarianTokenizer."""
    tokenizer = SimpleNamespace(init_kwargs={"source_lang": "en", "target_lang": "de"}, target_lang="de")
    tokenizer_facts.set_languages(tokenizer, None, "fr")
    assert vars(tokenizer) == {"init_kwargs": {"source_lang": "en", "target_lang": "fr"}, "target_lang": "fr"}


@pytest.mark.parametrize("chosen", [True, False])
def test_the_precision_that_was_chosen_is_recorded(tmp_path, monkeypatch, chosen):
    monkeypatch.setattr(run_arguments, "is_faster_in_bfloat16", lambda use_cpu: chosen)
    results = tmp_path / "results.json"
    folder = train.main(recipe(tmp_path, bf16=None, max_steps=1, results=str(results)))
    precision = "bfloat16 autocast" if chosen else "float32"
    content = json.loads(results.read_text())
    assert content["precision"] == precision
    assert content["settings"]["bf16"] == chosen
    assert f"| precision | {precision} |" in (folder / "README.md").read_text()


def test_the_device_of_a_training(tmp_path):
    arguments = [*recipe(tmp_path), "--device", "cpu"]
    settings = run_arguments.Settings.from_arguments(**given_arguments(run_arguments.Settings, "", arguments))
    assert settings.args.use_cpu
    assert settings.args.device == torch.device("cpu")
    args_of_first_gpu = SimpleNamespace(n_gpu=1, device=torch.device("cuda:0"))
    run_checks.check_device("cuda", args_of_first_gpu)
    for device in ("cuda:1", "cpu"):
        with pytest.raises(ValueError, match=rf"device is {device}\b.*cuda:0"):
            run_checks.check_device(device, args_of_first_gpu)
    with pytest.raises(SystemExit, match="error: device is meta, but the Trainer uses cpu"):
        train.main([*recipe(tmp_path), "--device", "meta"])


def test_fine_tuning_from_a_revision_with_a_token(trained, tmp_path, monkeypatch):
    options_of_calls = []

    def load_and_record(cls, name, **options):
        options_of_calls.append({option: options.get(option) for option in ("revision", "token", "trust_remote_code")})
        return from_pretrained(name, **options)

    from_pretrained = AutoConfig.from_pretrained
    monkeypatch.setattr(AutoConfig, "from_pretrained", classmethod(load_and_record))
    results = tmp_path / "results.json"
    arguments = {"revision": "small", "token": "hf_mine", "max_steps": 1, "results": str(results)}
    folder = train.main(recipe(tmp_path, model_name_or_path=str(trained), **arguments))
    assert {"revision": "small", "token": "hf_mine", "trust_remote_code": False} in options_of_calls
    written_files = [path for path in folder.rglob("*") if path.is_file()] + [results]
    assert not [path for path in written_files if b"hf_mine" in path.read_bytes()]


def test_recorded_arguments_omit_places_and_secrets():
    arguments = {"train_file": "/home/someone/train", "output_dir": "/home/someone", "token": "hf_mine"}
    arguments["overwrite"] = True
    settings = run_arguments.Settings.from_arguments(**arguments, eval_strategy=IntervalStrategy.STEPS, bf16=False)
    assert settings.recorded_arguments() == {"eval_strategy": "steps", "bf16": False}


@pytest.mark.parametrize("changes", [{"test_file": ["a.en", "a.ja"]}, {"predict_with_generate": True}])
def test_the_tokenization_of_a_language_is_needed_only_for_scores(tmp_path, monkeypatch, changes):
    for name in ("a.en", "a.ja"):
        (tmp_path / name).write_text("one\n" * 9)
    files = [str(tmp_path / "a.en"), str(tmp_path / "a.ja")]
    settings = {
        "dataset_name": None,
        "train_file": files,
        "source_lang": "en",
        "target_lang": "ja",
        "bleu_tokenize": None,
    }
    monkeypatch.setitem(sys.modules, "MeCab", None)
    monkeypatch.chdir(tmp_path)
    train.main(recipe(tmp_path, max_steps=1, **settings))
    with pytest.raises(SystemExit, match='error: bleu_tokenize is "ja-mecab"'):
        train.main(recipe(tmp_path, max_steps=1, **{**settings, **changes}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 0}, "max_steps is 0; it must be at least 1"),
        ({"max_steps": -5}, "max_steps is -5; it must be at least 1"),
        ({"max_steps": -1, "num_train_epochs": 0}, "num_train_epochs is 0.*; give a number above 0"),
        ({"num_train_epochs": -2.0}, r"num_train_epochs is -2\.0; it must be a number of at least 0"),
        ({"max_grad_norm": math.nan}, "max_grad_norm is nan; it must be a number of at least 0"),
        ({"max_grad_norm": -1.0}, r"max_grad_norm is -1\.0; it must be a number of at least 0"),
        ({"learning_rate": math.inf}, "learning_rate is inf; it must be a number of at least 0"),
        ({"weight_decay": -0.1}, r"weight_decay is -0\.1; it must be a number of at least 0"),
        ({"neftune_noise_alpha": -5.0}, r"neftune_noise_alpha is -5\.0; it must be a number of at least 0"),
        ({"save_steps": -3.0}, "save_steps is -3.*; it must be a number of at least 0"),
        ({"ddp_timeout": 0}, "ddp_timeout is 0; it must lie between 1 and"),
        ({"ddp_timeout": 10**30}, "ddp_timeout is 1000000000000000000000000000000; it must lie between 1 and"),
        ({"seed": -1}, "Seed must be between 0 and"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0; it must be at least 1"),
        ({"save_total_limit": -2}, "save_total_limit is -2; it must be a number of at least 0"),
        ({"eval_accumulation_steps": 0}, "eval_accumulation_steps is 0; it must be at least 1"),
        ({"generation_max_length": -3}, "generation_max_length is -3; it must be at least 1"),
        ({"generation_num_beams": 0}, "generation_num_beams is 0; it must be at least 1"),
        ({"output_dir": ""}, "output_dir is empty; name a folder for the trained model"),
    ],
)
def test_numbers_out_of_range_are_refused_before_a_model_is_replaced(finished, tmp_path, monkeypatch, changes, message):
    monkeypatch.chdir(tmp_path)
    before = (finished / "model.safetensors").read_bytes()
    with pytest.raises(SystemExit, match=f"error: .*{message}"):
        train.main(recipe(tmp_path, overwrite=True, **changes))
    assert (finished / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize("logging_steps", [20, 500])
def test_a_short_run_logs_its_loss_before_its_end(tmp_path, logging_steps):
    train.main(recipe(tmp_path, logging_steps=logging_steps, max_steps=20, save_steps=20))
    state = json.loads((tmp_path / "run" / "checkpoint-20" / "trainer_state.json").read_text())
    assert [entry["step"] for entry in state["log_history"] if "loss" in entry] == list(range(2, 21, 2))
