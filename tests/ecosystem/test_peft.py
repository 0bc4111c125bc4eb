"""Adapters of PEFT: trained by the stock Trainer, saved, loaded, decoded with, merged."""

import json
from importlib.util import find_spec

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate
from tests.ecosystem.documentation import FIXTURE, blocks, run
from tests.models import decisive_model, pad, sentences


# Imported where it is used: every process reads this file, and one of them runs it.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="it takes peft")

TRANSLATIONS = json.loads((FIXTURE / "translations.json").read_text(encoding="utf-8"))["4 beams"]
SOURCES = list(TRANSLATIONS)
IDS, MASK = pad(sentences(5, 9, 3))


@pytest.fixture(scope="module")
def documented(tmp_path_factory):
    """What the block of the documentation leaves, trained on a new task: German numbers without "und"."""
    folder = tmp_path_factory.mktemp("peft")
    targets = [target.replace("und", "") or "-" for target in TRANSLATIONS.values()]
    for name, texts in (("train.en", SOURCES), ("train.de", targets)):
        (folder / name).write_text("\n".join(texts) + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        names = run(
            blocks("Adapters (PEFT)")[0],
            ("learning_rate=1e-3, num_train_epochs=3", "learning_rate=1e-2, max_steps=150, logging_steps=1, seed=1"),
            ('output_dir="runs/lora"', 'output_dir="runs/lora", disable_tqdm=True, save_strategy="no"'),
        )
    return {**names, "folder": folder}


def load_base():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


def load_adapters(documented):
    import peft

    return peft.PeftModel.from_pretrained(load_base(), documented["folder"] / "runs" / "lora").eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=MASK, decoder_input_ids=IDS).logits


def with_random_adapters(**settings):
    """A model whose adapters change its output."""
    import peft

    torch.manual_seed(0)
    lora = peft.LoraConfig(task_type=peft.TaskType.SEQ_2_SEQ_LM, init_lora_weights=False, **settings)
    model = peft.get_peft_model(load_base(), lora).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def test_the_loss_falls(documented):
    losses = [float(entry["loss"]) for entry in documented["trainer"].state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


def test_only_adapters_are_trained_and_saved(documented):
    from safetensors.torch import load_file

    untouched = load_base().state_dict()
    for name, weight in documented["trainer"].model.get_base_model().state_dict().items():
        if "lora_" not in name:
            assert torch.equal(weight, untouched[name.replace(".base_layer", "")]), name
    saved = load_file(documented["folder"] / "runs" / "lora" / "adapter_model.safetensors")
    projections = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in saved}
    assert projections == {"q_proj", "v_proj"}
    assert all(".lora_" in name for name in saved)


def test_loaded_adapters_are_the_trained_ones(documented):
    trained, loaded = documented["trainer"].model.eval(), load_adapters(documented)
    assert torch.equal(logits(loaded), logits(trained))
    assert (logits(loaded) - logits(load_base())).abs().max() > 1


@pytest.mark.parametrize("settings", [{"num_beams": 1}, {}, {"max_length_offset": 2}, {"length_penalty": 2.0}])
def test_it_decodes_as_the_merged_model_does(documented, settings):
    unmerged, tokenizer = load_adapters(documented), AutoTokenizer.from_pretrained(FIXTURE)
    merged = AutoModelForSeq2SeqLM.from_pretrained(documented["folder"] / "runs" / "merged")
    assert merged.generation_config.length_penalty_type == "gnmt"
    expected = translate(merged, tokenizer, SOURCES, **settings)
    assert translate(unmerged, tokenizer, SOURCES, **settings) == expected
    assert expected != translate(load_base(), tokenizer, SOURCES, **settings)


def test_the_length_limit_of_the_paper_holds(documented):
    model = load_adapters(documented)
    model.generation_config.eos_token_id = None  # nothing else ends a sentence then
    output = model.generate(input_ids=IDS, attention_mask=MASK, max_length_offset=4)
    assert (output[:, 1:] != 0).sum(dim=1).tolist() == (MASK.sum(dim=1) + 4).tolist()


@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj", "v_proj"]},
        {"target_modules": "all-linear"},
        {"target_modules": ["q_proj"], "modules_to_save": ["final_layer_norm"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": [5, 6]},
    ],
    ids=["q_proj, v_proj", "all linear", "norms too", "words too"],
)
def test_merging_keeps_the_logits_and_the_one_matrix(tmp_path, settings):
    model = with_random_adapters(**settings)
    before = logits(model)
    merged = model.merge_and_unload()
    torch.testing.assert_close(logits(merged), before, atol=1e-5, rtol=0)
    merged.save_pretrained(tmp_path)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(logits(loaded), logits(merged))
    assert loaded.lm_head.weight is loaded.model.shared.weight
    same_words = "trainable_token_indices" not in settings
    assert torch.equal(loaded.lm_head.weight, load_base().lm_head.weight) == same_words


@pytest.mark.parametrize("modules", [["lm_head"], ["embed_tokens", "lm_head"]], ids=str)
def test_a_softmax_of_its_own_is_saved_untied(tmp_path, modules):
    model = with_random_adapters(target_modules=["q_proj"], modules_to_save=modules)
    before = logits(model)
    merged = model.merge_and_unload()
    assert not merged.config.tie_word_embeddings
    merged.save_pretrained(tmp_path)
    torch.testing.assert_close(logits(AutoModelForSeq2SeqLM.from_pretrained(tmp_path)), before, atol=1e-5, rtol=0)


def test_accumulation_counts_the_words_of_all_batches(tmp_path):
    import peft
    from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

    from tests.training.toy import copy_task

    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    logs = []
    for batch, accumulation in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        lora = peft.LoraConfig(task_type=peft.TaskType.SEQ_2_SEQ_LM, target_modules=["q_proj", "v_proj"])
        model = peft.get_peft_model(load_base(), lora)
        args = Seq2SeqTrainingArguments(
            output_dir=str(tmp_path),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_steps=3,
            learning_rate=1e-2,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
        )
        data = copy_task(tokenizer, 24)
        trainer = Seq2SeqTrainer(
            model, args, train_dataset=data, data_collator=DataCollatorForSeq2Seq(tokenizer, model=model)
        )
        trainer.train()
        logs.append([(float(entry["loss"]), float(entry["grad_norm"])) for entry in trainer.state.log_history[:-1]])
    torch.testing.assert_close(torch.tensor(logs[0]), torch.tensor(logs[1]), rtol=1e-5, atol=0)


def with_prompt(method, **sizes):
    """A small model with a prompt of three virtual tokens, by prompt tuning or p-tuning."""
    import peft

    common = {"task_type": peft.TaskType.SEQ_2_SEQ_LM, "num_virtual_tokens": 3}
    if method == "prompt tuning":
        config = peft.PromptTuningConfig(**common)
    else:
        config = peft.PromptEncoderConfig(encoder_hidden_size=16, **common)
    torch.manual_seed(0)
    return peft.get_peft_model(decisive_model(dropout=0.0, **sizes), config).eval()


@pytest.mark.parametrize("method", ["prompt tuning", "p-tuning"])
@pytest.mark.parametrize(
    "sizes",
    [
        {},
        {"source_vocab_size": 80},
        {"source_vocab_size": 48},
        {"source_vocab_size": 80, "d_ff": 60},
        {"position_embedding_type": "learned", "max_position_embeddings": 60},
    ],
    ids=str,
)
@torch.no_grad()
def test_prompts_stand_before_the_source_s_embeddings(method, sizes):
    """PEFT would take the first weight with as many rows as the target's vocabulary has tokens."""
    model = with_prompt(method, **sizes)
    base = model.get_base_model()
    source, mask = pad(sentences(6, 4, seed=1))
    source = source.clamp(max=47)
    embeds = base.state_dict()["model.encoder.embed_tokens.weight"][source]
    prompted = {
        "inputs_embeds": torch.cat([model.get_prompt(batch_size=2)[:, :3], embeds], dim=1),
        "attention_mask": torch.cat([torch.ones(2, 3), mask], dim=1),
    }
    target = torch.tensor([[1, 9, 4], [1, 30, 12]])
    expected = base(**prompted, decoder_input_ids=target).logits
    logits = model(input_ids=source, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(logits, expected)
    expected = base.generate(**prompted, num_beams=1, max_new_tokens=6)
    assert torch.equal(model.generate(input_ids=source, attention_mask=mask, num_beams=1, max_new_tokens=6), expected)
