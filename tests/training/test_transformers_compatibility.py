"""What training uses of the Trainer's private parts is listed, and the installed transformers has it.

The form of the lists is that of `tests/model/test_transformers_compatibility.py`.
"""

from importlib import import_module
from pathlib import Path

from tests import transformers_names as names


# Methods that this package overrides, replaces or calls, by their class, each with the parameters that it uses: by
# position those before the *, by name those after it.
PARAMETERS = {
    "transformers:Trainer": {
        "compute_loss": "model, inputs, return_outputs, *, num_items_in_batch",
        "log": "logs, start_time",
        "evaluation_loop": "*, metric_key_prefix",
        # With _internal_call the Trainer does not push.
        "save_model": "output_dir, *, _internal_call",
        # TokenBudgetBatchSampler.use_in replaces these two, and calls the others.
        "_get_train_sampler": "train_dataset",
        "get_train_dataloader": "",
        "get_tp_size": "",
        "get_cp_size": "",
        "get_sp_size": "",
        # PaperSchedule.use_in replaces these two.
        "create_optimizer": "model",
        "create_scheduler": "num_training_steps, optimizer",
        # Of a run that is resumed after its end.
        "_load_best_model": "",
        # Replaced where it pushes during the training.
        "_push_from_checkpoint": "checkpoint_folder",
    },
    "transformers:Seq2SeqTrainer": {"prediction_step": "model, inputs"},
    "transformers:PreTrainedModel": {"_from_config": "config"},
    # VanillaTransformerTokenizer splits added special tokens, too.
    "transformers:TokenizersBackend": {"_add_tokens": "new_tokens, special_tokens"},
}

# Attributes and classes that this package sets for the Trainer or reads from it, by the class that has or reads them.
ATTRIBUTES = {
    # The Trainer takes whole batches from a BatchRebalanceSampler, and leaves each process its own.
    "transformers:Trainer": (
        "BatchRebalanceSampler",
        "callback_handler",
        "compute_loss_func",
        # PaperSchedule sets these, and the Trainer creates the optimizer and the next schedule by them.
        "optimizer_cls_and_kwargs",
        "_created_lr_scheduler",
    ),
    # The Trainer looks up the name of every stateful callback here when it saves.
    "transformers:TrainerState": ("stateful_callbacks", "best_global_step", "best_model_checkpoint", "log_history"),
    # CompleteCheckpoints makes it negative during a run, which the Trainer takes for no limit.
    "transformers:TrainingArguments": ("save_total_limit",),
    # CompleteCheckpoints replaces it, so that the order of sentences depends on the seed and the epoch only.
    "transformers.trainer_pt_utils:LengthGroupedSampler": ("generator",),
    "transformers:EarlyStoppingCallback": ("early_stopping_patience_counter",),
    "transformers.integrations:TensorBoardCallback": ("tb_writer",),
    "transformers:HfArgumentParser": ("_argument_group_name",),
}

PACKAGE = Path(__file__).parents[2] / "hf_vanilla_transformer"
FILES = sorted(path for room in ("data", "training") for path in (PACKAGE / room).glob("[a-z]*.py"))
MODULES = [import_module(f"hf_vanilla_transformer.{path.parent.name}.{path.stem}") for path in FILES]
LISTED = names.all_listed(PARAMETERS, ATTRIBUTES)
# Of datasets.Dataset, and of every NamedTuple.
OF_OTHERS = {"_fingerprint", "_indices", "_replace"}


def test_transformers_has_the_listed_parameters():
    assert list(names.missing_parameters(PARAMETERS)) == []


def test_transformers_has_the_listed_attributes():
    assert list(names.missing_attributes(ATTRIBUTES)) == []


def test_overrides_accept_what_transformers_passes():
    assert list(names.refused_parameters(MODULES, PARAMETERS)) == []


def test_every_private_name_is_listed():
    assert names.private_overrides(MODULES) - LISTED == set()
    assert names.private_uses(FILES, MODULES) - OF_OTHERS - LISTED == set()


def test_every_listed_name_is_used():
    assert LISTED - names.identifiers(FILES) == set()
