"""The translations of a teacher in two processes, which share a cache or have homes of their own."""

import json
import os
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.hub import user_cache
from hf_vanilla_transformer.training import distillation
from hf_vanilla_transformer.training.distillation import Teacher
from hf_vanilla_transformer.training.run_arguments import Settings
from hf_vanilla_transformer.translation.model_loading import load
from tests.invariants.killed import run_as_two


pytestmark = [pytest.mark.slow, pytest.mark.several_processes]

TEACHER = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
SOURCES = ["one", "two", "six", "seven", "ten", "twenty", "thirty"]


def distill_as_one_of_two(folder, homes, sources):
    """Write the sentences that this process translates, and the pairs that it gets."""
    rank = int(os.environ["RANK"])
    user_cache.CACHE = Path(homes[rank])
    translated = []

    def note(model, tokenizer, sentences, **options):
        translated.extend(sentences)
        return translate(model, tokenizer, sentences, **options)

    distillation.translate = note
    settings = Settings.from_arguments(teacher=str(TEACHER), distilled_only=True, output_dir=f"{folder}/run")
    train = Dataset.from_dict({"source": sources, "target": ["acht"] * len(sources)})
    pairs, _ = Teacher(settings).add_translations(DatasetDict(train=train))
    Path(folder, f"translated{rank}.json").write_text(json.dumps(translated))
    Path(folder, f"pairs{rank}.json").write_text(json.dumps(pairs["train"].to_dict()))


def distill_in_two_processes(folder, homes, sources):
    """The sentences that each process translated, and the pairs that both got."""
    run_as_two(distill_as_one_of_two, str(folder), [str(home) for home in homes], sources, folder=folder)
    translated = [json.loads((folder / f"translated{rank}.json").read_text()) for rank in range(2)]
    pairs = [json.loads((folder / f"pairs{rank}.json").read_text()) for rank in range(2)]
    assert pairs[0] == pairs[1]
    return translated, pairs[0]


@pytest.mark.parametrize("homes", [("cache", "cache"), ("first", "second")], ids=["one cache", "two homes"])
def test_two_processes_share_the_work_of_a_teacher(tmp_path, homes):
    tokenizer, model = load(str(TEACHER))
    homes = [tmp_path / home for home in homes]
    translated, pairs = distill_in_two_processes(tmp_path, homes, SOURCES)
    assert pairs == {"source": SOURCES, "target": translate(model, tokenizer, SOURCES)}
    assert translated[0] + translated[1] == SOURCES[::2] + SOURCES[1::2]
    # Each process has a part of the translations, and two new sentences are missing.
    more = [*SOURCES, "eleven", "twelve"]
    translated, pairs = distill_in_two_processes(tmp_path, homes, more)
    assert pairs == {"source": more, "target": translate(model, tokenizer, more)}
    assert sorted(translated[0] + translated[1]) == ["eleven", "twelve"]
