"""Batches that are padded from Arrow's memory are those of the stock collator, bit by bit, in a Trainer, too."""

import pickle
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from datasets import Dataset, Features, LargeList, List, Value, concatenate_datasets
from torch.utils.data import DataLoader
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    TrainerCallback,
)

from hf_vanilla_transformer import (
    CompleteCheckpoints,
    PaperTrainingArguments,
    RDropTrainer,
    TokenBudgetBatchSampler,
    TokenMetricsTrainer,
    tokenize_pairs,
)
from hf_vanilla_transformer.data.arrow_batches import ArrowPairs, TensorsOfPairs, from_arrow, pad_from_arrow
from hf_vanilla_transformer.model.tokenization_two_vocabularies import TwoVocabularyTokenizer
from tests.models import small_model


FIXTURE = Path(__file__).parents[1] / "fixtures" / "numbers_tiny"
PAIRS = 60
BUDGET = 100


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FIXTURE)


@pytest.fixture(scope="module")
def model():
    return AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)


def sentences(seed, longest):
    generator = np.random.default_rng(seed)
    return [generator.integers(3, 50, length).tolist() for length in generator.integers(1, longest, PAIRS)]


def random_pairs(token="int64"):
    features = Features({name: List(Value(token)) for name in ("input_ids", "labels")})
    return Dataset.from_dict({"input_ids": sentences(0, 20), "labels": sentences(1, 30)}, features=features)


def tokenized_text(tokenizer):
    numbers = ["one", "two hundred and seven", "forty-two", "nine thousand"] * 15
    return tokenize_pairs(Dataset.from_dict({"source": numbers, "target": numbers[::-1]}), tokenizer)


def mapped_file(data, folder):
    """The pairs in a file in the cache of `datasets`, in chunks of seven."""
    options = {"batched": True, "batch_size": 7, "writer_batch_size": 7, "cache_file_name": str(folder / "pairs.arrow")}
    mapped = data.map(lambda batch: batch, **options)
    assert mapped.data.column("labels").num_chunks == -(-len(data) // 7)
    return mapped


DATA = {
    "random": lambda tokenizer: random_pairs(),
    "int32": lambda tokenizer: random_pairs("int32"),
    "text": tokenized_text,
    "selected": lambda tokenizer: random_pairs().select(range(59, 0, -2)),
    "shuffled": lambda tokenizer: random_pairs().shuffle(seed=0),
    "slice": lambda tokenizer: random_pairs().select(range(13, 40)),
    "chunks": lambda tokenizer: concatenate_datasets([random_pairs(), random_pairs().select(range(7, 20))]),
}


def assert_same(actual, expected):
    assert type(actual) is type(expected)
    assert list(actual) == list(expected)
    for name, tensor in expected.items():
        assert actual[name].dtype == tensor.dtype
        assert torch.equal(actual[name], tensor)


def assert_same_batches(data, collator):
    pairs, tensors = from_arrow(data, collator)
    assert len(pairs) == len(data)
    assert pairs[3] == data[3]
    generator = np.random.default_rng(3)
    for count in (1, 2, 7, 25):
        batch = generator.permutation(len(data))[:count].tolist()
        actual = tensors(pairs.__getitems__(batch))
        assert_same(actual, collator(data.__getitems__(batch)))
        assert all(tensor.is_contiguous() for tensor in actual.values())


@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("with_model", [True, False])
def test_batches_are_those_of_the_stock_collator(name, with_model, tokenizer, model):
    collator = DataCollatorForSeq2Seq(tokenizer, model=model if with_model else None)
    assert_same_batches(DATA[name](tokenizer), collator)


@pytest.mark.parametrize("rows", [range(60), range(59, -1, -2), range(13, 40)], ids=["all", "selected", "slice"])
def test_batches_of_a_file_of_many_chunks(rows, tokenizer, model, tmp_path):
    data = mapped_file(random_pairs(), tmp_path).select(rows)
    assert_same_batches(data, DataCollatorForSeq2Seq(tokenizer, model=model))


def test_batches_of_two_vocabularies(model):
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    both = TwoVocabularyTokenizer.of(tokenizer, AutoTokenizer.from_pretrained(FIXTURE))
    assert_same_batches(tokenized_text(both), DataCollatorForSeq2Seq(both, model=model))


@pytest.mark.parametrize("workers", [0, 1])
def test_in_a_loader_of_torch(workers, tokenizer, model):
    data = random_pairs()
    collator = DataCollatorForSeq2Seq(tokenizer, model=model)
    batches = [[5, 2, 9], [0], [59, 1]]
    loader = DataLoader(data, batch_sampler=batches, collate_fn=collator, num_workers=workers)
    pad_from_arrow(loader)
    assert isinstance(loader.dataset, ArrowPairs)
    for actual, batch in zip(loader, batches, strict=True):
        assert_same(actual, collator(data.__getitems__(batch)))


def test_the_tokens_are_not_copied(tokenizer, tmp_path):
    """A corpus may be larger than the memory."""
    pairs, _ = from_arrow(mapped_file(random_pairs(), tmp_path), DataCollatorForSeq2Seq(tokenizer))
    for column in (pairs.source, pairs.target):
        for chunk in column.chunks:
            assert not chunk.tokens.flags.owndata
            assert not chunk.offsets.flags.owndata


def test_pairs_are_pickled_without_their_tokens(tokenizer, tmp_path):
    """As processes that load data get them where they are not forked."""
    sentence = list(range(3, 50)) * 10
    data = Dataset.from_dict({"input_ids": [sentence] * 500, "labels": [sentence] * 500})
    data = mapped_file(data, tmp_path).select(range(499, 0, -1))
    pairs, _ = from_arrow(data, DataCollatorForSeq2Seq(tokenizer))
    pickled = pickle.dumps(pairs)
    assert len(pickled) < 100_000 < data.data.nbytes
    expected = pairs.__getitems__([7, 3])
    actual = pickle.loads(pickled).__getitems__([7, 3])
    assert np.array_equal(actual.input_ids, expected.input_ids)
    assert np.array_equal(actual.labels, expected.labels)


class OtherCollator(DataCollatorForSeq2Seq):
    pass


@pytest.mark.parametrize(
    "settings",
    [
        {"pad_to_multiple_of": 8},
        {"padding": "max_length", "max_length": 40},
        {"label_pad_token_id": 0},
        {"return_tensors": "np"},
    ],
    ids=lambda settings: ",".join(settings),
)
def test_from_arrow_leaves_other_settings_of_the_collator(settings, tokenizer):
    assert from_arrow(random_pairs(), DataCollatorForSeq2Seq(tokenizer)) is not None
    assert from_arrow(random_pairs(), DataCollatorForSeq2Seq(tokenizer, **settings)) is None


def test_from_arrow_leaves_other_collators(tokenizer):
    assert from_arrow(random_pairs(), OtherCollator(tokenizer)) is None
    assert from_arrow(random_pairs(), list) is None


def with_types(column_type):
    tokens = pyarrow.array([[1, 2], [3]], column_type)
    return Dataset(pyarrow.table({"input_ids": tokens, "labels": tokens}))


OTHER_DATA = {
    "another column": lambda: random_pairs().add_column("weight", [1.0] * PAIRS),
    "a format": lambda: random_pairs().with_format("torch"),
    "a transform": lambda: random_pairs().with_transform(lambda batch: batch),
    "columns of a format": lambda: random_pairs().with_format(None, columns=["labels"]),
    "one column": lambda: random_pairs().select_columns(["labels"]),
    "a missing list": lambda: Dataset.from_dict({"input_ids": [[1], None], "labels": [[1], [2]]}),
    "a missing token": lambda: Dataset.from_dict({"input_ids": [[1, None], [2]], "labels": [[1], [2]]}),
    "floats": lambda: with_types(pyarrow.list_(pyarrow.float32())),
    "truth values": lambda: random_pairs().cast(
        Features({name: List(Value("bool")) for name in ("input_ids", "labels")})
    ),
    "large lists": lambda: random_pairs().cast(
        Features({name: LargeList(Value("int64")) for name in ("input_ids", "labels")})
    ),
    "a stream": lambda: random_pairs().to_iterable_dataset(),
    "a list": lambda: random_pairs().to_list(),
}


@pytest.mark.parametrize("name", OTHER_DATA)
def test_from_arrow_leaves_other_data(name, tokenizer):
    assert from_arrow(OTHER_DATA[name](), DataCollatorForSeq2Seq(tokenizer)) is None


def test_from_arrow_leaves_tokenizers_that_pad_otherwise(tokenizer):
    on_the_left = AutoTokenizer.from_pretrained(FIXTURE, padding_side="left")
    without_mask = AutoTokenizer.from_pretrained(FIXTURE)
    without_mask.model_input_names = ["input_ids"]
    own_pad = AutoTokenizer.from_pretrained(FIXTURE)
    own_pad.pad = tokenizer.pad

    class OwnPad(type(tokenizer)):
        def _pad(self, *args, **kwargs):
            return super()._pad(*args, **kwargs)

    for other in (on_the_left, without_mask, own_pad, OwnPad.from_pretrained(FIXTURE)):
        assert from_arrow(random_pairs(), DataCollatorForSeq2Seq(other)) is None


def test_pad_from_arrow_leaves_other_loaders(tokenizer):
    class OtherLoader(DataLoader):
        pass

    data = random_pairs()
    loader = OtherLoader(data, batch_size=2, collate_fn=DataCollatorForSeq2Seq(tokenizer))
    pad_from_arrow(loader)
    assert loader.dataset is data
    pad_from_arrow([])


class RecordBatches(TrainerCallback):
    """Holds the batches that the model gets in training."""

    def __init__(self):
        self.batches = []

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        self.hook = model.register_forward_pre_hook(self.record, with_kwargs=True)

    def on_train_end(self, args, state, control, **kwargs):
        self.hook.remove()

    def record(self, model, args, batch):
        if model.training:
            self.batches.append({name: value for name, value in batch.items() if isinstance(value, torch.Tensor)})


def trainer_of(
    folder,
    tokenizer,
    data,
    collator_class=DataCollatorForSeq2Seq,
    trainer_class=Seq2SeqTrainer,
    trainer_options=(),
    **arguments,
):
    defaults = {"disable_tqdm": True, "save_strategy": "no", "use_cpu": True, "warmup_steps": 10, "max_steps": 12}
    args = PaperTrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    model = small_model(vocab_size=len(tokenizer), dropout=0.1)
    trainer = trainer_class(
        model=model,
        args=args,
        train_dataset=data,
        eval_dataset=data,
        data_collator=collator_class(tokenizer, model=model),
        callbacks=[CompleteCheckpoints(), RecordBatches()],
        **dict(trainer_options),
    )
    TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    return trainer


def batches_of(trainer, **options):
    """The batches of a training."""
    recorder = next(callback for callback in trainer.callback_handler.callbacks if isinstance(callback, RecordBatches))
    recorder.batches.clear()
    # For the same dropout.
    torch.manual_seed(0)
    trainer.train(**options)
    return list(recorder.batches)


def assert_same_lists(actual, expected):
    assert len(actual) == len(expected) > 0
    for batch, other in zip(actual, expected, strict=True):
        assert batch.keys() == other.keys()
        for name in batch:
            assert batch[name].dtype == other[name].dtype
            assert torch.equal(batch[name], other[name])


def pads_from_arrow(trainer):
    loader = trainer.get_train_dataloader()
    return isinstance(loader.dataset, ArrowPairs) and isinstance(loader.collate_fn, TensorsOfPairs)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"trainer_class": TokenMetricsTrainer, "gradient_accumulation_steps": 2},
        {"trainer_class": RDropTrainer, "trainer_options": {"r_drop_alpha": 2.0}},
        {"remove_unused_columns": False},
        {"train_sampling_strategy": "group_by_length"},
        {"dataloader_num_workers": 1, "dataloader_persistent_workers": True},
        {"dataloader_num_workers": 2, "dataloader_prefetch_factor": 3},
        {"include_num_input_tokens_seen": "all"},
    ],
    ids=lambda settings: ",".join(settings) or "defaults",
)
def test_a_trainer_trains_on_the_batches_of_the_stock_collator(settings, tmp_path, tokenizer):
    data = random_pairs()
    trainer = trainer_of(tmp_path, tokenizer, data, **settings)
    stock = trainer_of(tmp_path, tokenizer, data, OtherCollator, **settings)
    assert pads_from_arrow(trainer)
    assert not pads_from_arrow(stock)
    assert_same_lists(batches_of(trainer), batches_of(stock))
    assert trainer.state.log_history[-1]["train_loss"] == stock.state.log_history[-1]["train_loss"]


def test_a_trainer_removes_columns_that_the_model_does_not_read(tmp_path, tokenizer):
    data = random_pairs().add_column("origin", ["web"] * PAIRS)
    trainer = trainer_of(tmp_path, tokenizer, data)
    assert pads_from_arrow(trainer)
    assert_same_lists(batches_of(trainer), batches_of(trainer_of(tmp_path, tokenizer, data, OtherCollator)))


def test_a_trainer_with_masks_of_its_own_is_left_alone(tmp_path, tokenizer):
    data = random_pairs()
    masks = [[1] * len(tokens) for tokens in data["input_ids"]]
    assert not pads_from_arrow(trainer_of(tmp_path, tokenizer, data.add_column("attention_mask", masks)))


def test_an_evaluation_is_left_alone(tmp_path, tokenizer):
    trainer = trainer_of(tmp_path, tokenizer, random_pairs())
    loader = trainer.get_eval_dataloader()
    assert type(loader.dataset) is Dataset
    assert loader.collate_fn is trainer.data_collator
    trainer.train()
    assert trainer.evaluate()["eval_loss"] > 0


@pytest.mark.parametrize(
    ("first", "second"),
    [(OtherCollator, DataCollatorForSeq2Seq), (DataCollatorForSeq2Seq, OtherCollator)],
    ids=["with Arrow", "without Arrow"],
)
def test_a_run_that_resumes_in_the_middle_of_an_epoch_has_the_same_batches(first, second, tmp_path, tokenizer):
    data = random_pairs()
    saving = {"save_strategy": "steps", "save_steps": 5, "max_steps": 9}
    trainer = trainer_of(tmp_path, tokenizer, data, first, **saving)
    assert len(trainer.get_train_dataloader()) > 5
    whole = batches_of(trainer)
    resumed = trainer_of(tmp_path, tokenizer, data, second, **saving)
    checkpoint = str(tmp_path / "checkpoint-5")
    assert_same_lists(batches_of(resumed, resume_from_checkpoint=checkpoint), whole[5:])


def test_use_in_twice_and_other_data(tmp_path, tokenizer):
    trainer = trainer_of(tmp_path, tokenizer, random_pairs())
    TokenBudgetBatchSampler.use_in(trainer, 2 * BUDGET)
    assert pads_from_arrow(trainer)
    trainer.train_dataset = random_pairs().select(range(20, 40))
    loader = trainer.get_train_dataloader()
    assert len(loader.dataset) == 20
    trainer.data_collator = OtherCollator(tokenizer, model=trainer.model)
    assert not pads_from_arrow(trainer)
