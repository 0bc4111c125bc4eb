"""Facts of a run survive a resume."""

import json

from transformers import TrainerState

from hf_vanilla_transformer.training import trainer_callbacks
from hf_vanilla_transformer.training.trainer_callbacks import RecordFacts


def test_record_facts_counts_from_the_beginning_of_a_resumed_run(tmp_path, monkeypatch):
    now = iter([100, 130, 500, 507])
    first = RecordFacts("user/base", "Adam")
    monkeypatch.setattr(trainer_callbacks.time, "monotonic", lambda: next(now))
    first.on_train_begin(None, TrainerState(), None)
    state = {"stateful_callbacks": {"RecordFacts": first.state()}}
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    second = RecordFacts.read_checkpoint(tmp_path)
    second.on_train_begin(None, TrainerState(), None)
    second.on_train_end(None, None, None)
    monkeypatch.undo()
    assert (second.base_model, second.optimizer, second.seconds) == ("user/base", "Adam", 37)


def test_record_facts_of_a_checkpoint_without_facts(tmp_path):
    (tmp_path / "trainer_state.json").write_text("{}")
    facts = RecordFacts.read_checkpoint(tmp_path)
    assert (facts.base_model, facts.optimizer, facts.seconds) == (None, None, 0)
