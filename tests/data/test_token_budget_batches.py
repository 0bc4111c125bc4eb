"""Batches bounded by tokens: their rules, their shuffle, and stock `Seq2SeqTrainer` with them."""

import random
import re
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer
from transformers.trainer_utils import HPSearchBackend

from hf_vanilla_transformer import (
    PaperTrainingArguments,
    TokenBudgetBatchSampler,
    load_pairs,
    tokenize_pairs,
    train_tokenizer,
)
from tests.models import small_model
from tests.training.toy import copy_task, random_words


BUDGET = 100


def lengths(count=2000, longest=40, seed=0):
    """Lengths of both sides, `(2, pairs)`, correlated like those of translations."""
    generator = np.random.default_rng(seed)
    source = generator.integers(2, longest + 1, count)
    return np.stack([source, np.clip(source + generator.integers(-4, 5, count), 1, longest)])


def batches(data, tokens=BUDGET, epoch=0, **options):
    sampler = TokenBudgetBatchSampler(data, tokens, **options)
    sampler.set_epoch(epoch)
    result = list(sampler)
    assert len(result) == len(sampler)
    return result


def padded(data, batch):
    """Tokens of a batch on each side, padding included."""
    return len(batch) * data[:, batch].max(axis=1)


def sets(plan):
    return {frozenset(batch) for batch in plan}


@pytest.fixture(scope="module")
def pairs():
    """Tokenized pairs whose sides are independent."""
    sources, targets = random_words(60, seed=1, longest=20), random_words(60, seed=2, longest=20)
    return Dataset.from_dict(
        {"attention_mask": [[1] * len(row) for row in sources], "input_ids": sources, "labels": targets}
    )


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
@pytest.mark.parametrize("tokens", [40, 41, 100, 1000, 10**6])
def test_every_pair_once_within_the_budget_of_each_side(tokens, processes):
    data = lengths()
    plans = [batches(data, tokens, processes=processes, rank=rank) for rank in range(processes)]
    assert len({len(plan) for plan in plans}) == 1
    assert max(padded(data, batch).max() for plan in plans for batch in plan) <= tokens
    assert sorted(pair for plan in plans for batch in plan for pair in batch) == list(range(data.shape[1]))


@pytest.mark.parametrize("processes", [2, 3, 5])
@pytest.mark.parametrize("tokens", [100, 1000])
def test_halved_batches_have_one_part_of_a_multiple_of_8_rows(tokens, processes):
    plans = [batches(lengths(), tokens, processes=processes, rank=rank) for rank in range(processes)]
    odd = [len(batch) for plan in plans for batch in plan if len(batch) > 8 and len(batch) % 8]
    assert len(odd) <= 1


@pytest.mark.parametrize("tokens", [40, 41, 100, 1000])
def test_batches_are_as_full_as_multiples_of_8_rows_can_be(tokens):
    data = lengths()
    planned = batches(data, tokens)
    rows = [len(batch) for batch in planned]
    assert sum(count > 8 and count % 8 > 0 for count in rows) <= 1
    assert count_of_batches(data, tokens, less=0) <= len(planned) <= count_of_batches(data, tokens, less=7)


def count_of_batches(data, tokens, less):
    """Number of batches from adding pairs one by one, where batches of more than 8 rows hold `less` rows fewer."""
    count, rows = 1, 0
    for longest in sorted(data.max(axis=0)):
        room, rows = tokens // longest, rows + 1
        if rows > (room - less if room > 8 else room):
            count, rows = count + 1, 1
    return count


def test_a_batch_has_room_for_the_longest_pair_only():
    assert sorted(map(len, batches([[10, 10], [1, 3]], 10))) == [1, 1]
    assert sorted(map(len, batches([[10, 10], [1, 3]], 19))) == [1, 1]
    assert sorted(map(len, batches([[10, 10], [1, 3]], 20))) == [2]


def test_pairs_of_near_equal_lengths_are_together():
    data = lengths(count=5000)
    padding = 1 - data.sum() / sum(padded(data, batch).sum() for batch in batches(data, 1000))
    at_random = 1 - data.mean() / data.max()
    assert padding < at_random / 10


def test_padding_share_of_batches():
    data = lengths()
    for processes in (1, 3):
        plan = [batch for rank in range(processes) for batch in batches(data, processes=processes, rank=rank, epoch=2)]
        share = TokenBudgetBatchSampler(data, BUDGET, processes=processes).padding_share()
        assert share == 1 - data.sum() / sum(padded(data, batch).sum() for batch in plan)


def test_padding_share_without_padding():
    assert TokenBudgetBatchSampler([[7] * 20, [5] * 20], 21).padding_share() == 0


def test_little_padding_on_multi30k(multi30k):
    data = load_pairs(train_files=[multi30k / "train.en", multi30k / "train.de"])["train"]
    tokenizer = train_tokenizer(data["source"][:] + data["target"][:], vocab_size=10_000, show_progress=False)
    assert TokenBudgetBatchSampler(tokenize_pairs(data, tokenizer), 2048).padding_share() < 0.03


def test_the_same_seed_and_epoch_give_the_same_batches():
    data = lengths()
    assert batches(data, seed=3, epoch=4) == batches(data, seed=3, epoch=4)


@pytest.mark.parametrize("other", [{"seed": 3, "epoch": 5}, {"seed": 4, "epoch": 4}, {"seed": 4, "epoch": 3}])
def test_another_epoch_or_seed_gives_others(other):
    data = lengths()
    plan, another = batches(data, seed=3, epoch=4), batches(data, **other)
    assert len(plan) == len(another)
    # Not only the order: pairs of equal lengths were shuffled.
    assert len(sets(plan) & sets(another)) < len(plan) / 2


def test_long_and_short_batches_come_in_any_order():
    data = lengths(count=5000)
    mean_lengths = [data[:, batch].mean() for batch in batches(data)]
    assert abs(np.corrcoef(mean_lengths, np.arange(len(mean_lengths)))[0, 1]) < 0.2


def test_one_process_has_the_order_of_earlier_versions():
    """A run that an earlier version started must resume as if it had not been interrupted."""
    # The budget has room for 10 pairs of 10 tokens, so a batch has 8 rows, and the last one has 4.
    data = [[9] * 16 + [10] * 60] * 2
    ends = [8, 16, 24, 32, 40, 48, 56, 64, 72, 76]
    generator = np.random.default_rng((3, 4))
    order = np.arange(76)
    generator.shuffle(order[:16])
    generator.shuffle(order[16:])
    in_order_of_lengths = np.split(order, ends[:-1])
    expected = [in_order_of_lengths[number].tolist() for number in generator.permutation(10)]
    assert batches(data, seed=3, epoch=4) == expected


@pytest.fixture(scope="module")
def corpus():
    """Lengths of 300,000 pairs, `(2, pairs)`, distributed as in corpora of translations."""
    generator = np.random.default_rng(0)
    source = np.exp(generator.normal(3.2, 0.6, 300_000))
    target = source * np.exp(generator.normal(0.02, 0.2, 300_000))
    return np.clip(np.round([source, target]), 2, 256).astype(int)


def padded_tokens_of_steps(data, tokens, processes, epoch):
    """Padded tokens of both sides, `(steps, processes)`."""
    work = []
    for rank in range(processes):
        plan = batches(data, tokens, epoch=epoch, processes=processes, rank=rank)
        work.append([padded(data, batch).sum() for batch in plan])
    return np.array(work).T


@pytest.mark.parametrize(("tokens", "processes"), [(25_000, 2), (25_000, 7), (25_000, 8), (3125, 8)])
def test_processes_have_equal_work_in_every_step(corpus, tokens, processes):
    """All processes wait for the slowest one, which must have little more work than the mean."""
    work = padded_tokens_of_steps(corpus, tokens, processes, epoch=1)
    assert work.max(axis=1).sum() < 1.01 * work.mean(axis=1).sum()


def test_no_process_always_has_the_most_work(corpus):
    work_of_epoch = padded_tokens_of_steps(corpus, 3125, 4, epoch=1).sum(axis=0)
    assert np.ptp(work_of_epoch) < 0.001 * work_of_epoch.mean()


def test_steps_of_several_processes_mix_lengths(corpus):
    """If equal work meant equal lengths, the steps would differ in length as much as their batches do."""
    plans = [batches(corpus, 3125, processes=8, rank=rank) for rank in range(8)]
    mean_lengths = np.array([[np.log(corpus[:, batch].mean()) for batch in plan] for plan in plans])
    assert mean_lengths.mean(axis=0).var() < 0.5 * mean_lengths.var()
    numbers_of_steps = np.arange(mean_lengths.shape[1])
    assert abs(np.corrcoef(mean_lengths[0], numbers_of_steps)[0, 1]) < 0.2


def test_equal_pairs_meet_by_chance():
    """Two of 60 equal pairs in batches of 10 share a batch with probability 9/59."""
    data, epochs = np.full((2, 60), 10), 400
    met = np.zeros((60, 60))
    for epoch in range(epochs):
        for batch in batches(data, epoch=epoch):
            met[np.ix_(batch, batch)] += 1
    apart = met[~np.eye(60, dtype=bool)] / epochs
    # Six standard deviations of the share of epochs.
    assert np.abs(apart - 9 / 59).max() < 6 * (9 / 59 * 50 / 59 / epochs) ** 0.5


def test_no_global_random_number_is_drawn():
    def states():
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()

    before = states()
    batches(lengths())
    assert states() == before
    plan = batches(lengths())
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    assert batches(lengths()) == plan


def test_lengths_of_a_table(pairs):
    arrays = np.array([[len(row) for row in pairs[name]] for name in ("input_ids", "labels")])
    assert batches(pairs) == batches(arrays)
    shuffled = pairs.shuffle(seed=0).select(range(3, 50))
    arrays = np.array([[len(row) for row in shuffled[name]] for name in ("input_ids", "labels")])
    assert batches(shuffled) == batches(shuffled.with_format("torch")) == batches(arrays)


def table_of(source, target) -> Dataset:
    """Tokens, all 0, in lists of these lengths."""
    columns = {}
    for name, counts in zip(("input_ids", "labels"), (source, target), strict=True):
        ends = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        columns[name] = pa.ListArray.from_arrays(ends, np.zeros(ends[-1], np.int8))
    return Dataset(pa.table(columns))


@pytest.mark.parametrize("storage", ["arrays", "table", "rows of a table"])
def test_memory_of_a_sampler(storage):
    """20 bytes a pair besides NumPy's sort, 8 in an epoch, and some for each batch; lengths given are the caller's."""
    count = 500_000
    keys = [np.asarray(side, np.int32) for side in lengths(count)]
    tracemalloc.start()
    np.lexsort(keys)
    sorting = tracemalloc.get_traced_memory()[1]  # 8 bytes a pair, and 12 since NumPy 2.5.
    tracemalloc.stop()
    data = lengths(count) if storage == "arrays" else table_of(*lengths(count))
    if storage == "rows of a table":
        data = data.select(np.random.default_rng(0).permutation(count))
    tracemalloc.start()
    sampler = TokenBudgetBatchSampler(data, 2048)
    planning = tracemalloc.get_traced_memory()[1]
    tracemalloc.reset_peak()
    for _ in sampler:
        pass
    an_epoch = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    a_little = 64 * len(sampler) + 64 * 1000
    assert planning < 20 * count + sorting + a_little
    assert an_epoch < 8 * count + a_little


def test_rows_of_a_table_with_long_sentences():
    data = table_of([5, 70_000, 7, 9], [6, 3, 80_000, 8])
    assert batches(data.select([3, 0]), 16) == batches(([9, 5], [8, 6]), 16)
    for rows, first in (([2, 0, 1], "0 (7 source, 80000 target"), ([0, 1, 3], "1 (70000 source, 3 target")):
        with pytest.raises(ValueError, match=re.escape(f"the first is pair {first} tokens)")):
            TokenBudgetBatchSampler(data.select(rows), 65_536)


def test_faulty_pairs_are_counted_and_the_first_is_named():
    data = lengths()
    data[0, 7], data[1, 9], data[1, 1500] = 0, 101, 0
    message = (
        rf"^3 of 2000 pairs are empty on one side or longer than .* is 100; the first is pair 7 \(0 source, "
        rf"{data[1, 7]} target tokens\)\. Remove them"
    )
    with pytest.raises(ValueError, match=message):
        TokenBudgetBatchSampler(data, BUDGET)
    data[0, 7] = 5
    with pytest.raises(ValueError, match=rf"^2 of 2000 .* is pair 9 \({data[0, 9]} source, 101 target tokens\)"):
        TokenBudgetBatchSampler(data, BUDGET)


def test_long_sentences():
    data = np.array([[100_000, 5], [100_000, 99_999]])
    assert sorted(map(len, batches(data, 10**6))) == [2]
    with pytest.raises(ValueError, match=r"1 of 2 pairs .* which is 1000000; .* pair 0 \(5000000000 source"):
        TokenBudgetBatchSampler([[5 * 10**9, 5], [5, 5]], 10**6)


def test_missing_tokens_are_none(pairs):
    with_gap = Dataset.from_dict({"input_ids": [[1, 2], None], "labels": [[3], [4]]})
    with pytest.raises(ValueError, match=r"1 of 2 pairs are empty.* is pair 1 \(0 source, 1 target"):
        TokenBudgetBatchSampler(with_gap, BUDGET)


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (Dataset.from_dict({"source": ["a"], "labels": [[1]]}), {}, ValueError, "source, labels, and not input_ids;"),
        (Dataset.from_dict({"input_ids": [[1]], "labels": [[1]]}).to_iterable_dataset(), {}, TypeError, "Iterable"),
        ([{"input_ids": [1]}], {}, TypeError, "a list does not tell the lengths of pairs"),
        (([1, 2], [1]), {}, TypeError, r"two arrays of whole numbers, \(pairs,\)"),
        (([1.0], [1.0]), {}, TypeError, "two arrays of whole numbers"),
        (np.zeros((2, 0), int), {}, ValueError, "the data set is empty"),
        (([1], [1]), {"tokens": 0}, ValueError, "tokens_per_batch is 0; it must be at least 1"),
        (([1], [1]), {"tokens": 2048.0}, TypeError, "tokens_per_batch is 2048.0; give a whole number"),
        (([1], [1]), {"seed": -1}, ValueError, "seed is -1"),
        (([1], [1]), {"processes": 2}, ValueError, "1 pairs, each a batch of its own, .* among 2 processes; give"),
        (([7, 8, 9], [7, 8, 9]), {"tokens": 10, "processes": 2}, ValueError, "3 pairs, each a .* among 2 processes"),
        (([1], [1]), {"processes": 2, "rank": 2}, ValueError, "rank is 2; it must lie between 0 and 1"),
    ],
)
def test_sampler_rejects_input(data, options, error, message):
    with pytest.raises(error, match=message):
        batches(data, **options)


def test_with_a_data_loader(pairs, tokenizer):
    sampler = TokenBudgetBatchSampler(pairs, BUDGET)
    loader = DataLoader(pairs, batch_sampler=sampler, collate_fn=DataCollatorForSeq2Seq(tokenizer))
    shapes = [(batch["input_ids"].numel(), batch["labels"].numel()) for batch in loader]
    assert len(shapes) == len(loader) == len(sampler)
    assert np.max(shapes) <= BUDGET
    real = sum(len(row) for name in ("input_ids", "labels") for row in pairs[name])
    assert sampler.padding_share() == 1 - real / np.sum(shapes)


def make_trainer(folder, tokenizer, data=None, model=None, **arguments):
    defaults = {"disable_tqdm": True, "save_strategy": "no", "logging_steps": 1, "use_cpu": True, "warmup_steps": 10}
    args = PaperTrainingArguments(output_dir=str(folder), **{**defaults, **arguments})
    model = model or small_model(vocab_size=len(tokenizer), dropout=0.0)
    return Seq2SeqTrainer(
        model=model,
        args=args,
        train_dataset=copy_task(tokenizer, 60, longest=20) if data is None else data,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
    )


def logged(trainer, name):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_train_epochs": 2},
        {"num_train_epochs": 2, "gradient_accumulation_steps": 3},
        {"num_train_epochs": 2, "dataloader_num_workers": 2},
        {"num_train_epochs": 1.5, "per_device_train_batch_size": 1},
    ],
)
def test_epochs_of_a_trainer(tmp_path, tokenizer, arguments):
    trainer = make_trainer(tmp_path, tokenizer, include_num_input_tokens_seen="non_padding", **arguments)
    sampler = TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    trainer.train()
    updates = -(-len(sampler) // trainer.args.gradient_accumulation_steps)
    assert trainer.state.global_step == -(-updates * arguments["num_train_epochs"] // 1)
    epochs = -(-arguments["num_train_epochs"] // 1)
    assert logged(trainer, "padding_share") == [sampler.padding_share()] * (epochs >= 1)
    if arguments["num_train_epochs"] == 2:
        tokens = sum(map(len, trainer.train_dataset["input_ids"]))
        assert trainer.state.num_input_tokens_seen == 2 * tokens


def test_max_steps_of_a_trainer(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, max_steps=5)
    sampler = TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    trainer.train()
    assert trainer.state.global_step == 5
    assert trainer.state.epoch == 5 / len(sampler)


def test_batches_of_a_trainer(tmp_path, tokenizer):
    """It trains on the batches of the sampler, epoch by epoch, with the seed of its arguments."""
    seen = []
    trainer = make_trainer(tmp_path, tokenizer, num_train_epochs=3, seed=5)
    collate = trainer.data_collator
    trainer.data_collator = lambda rows: seen.append(rows) or collate(rows)
    TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    data = trainer.train_dataset
    trainer.train()
    assert trainer.accelerator.even_batches  # An evaluation in several processes needs it.
    plan = [b for epoch in range(3) for b in batches(data, seed=5, epoch=epoch)]
    assert [[row["labels"] for row in rows] for rows in seen] == [data[batch]["labels"] for batch in plan]


def test_data_seed(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, seed=5, data_seed=6)
    assert TokenBudgetBatchSampler.use_in(trainer, BUDGET).seed == 6


def labels_of_training(trainer):
    """The labels of each batch of a training, in the order in which the Trainer reads them."""
    labels = []
    collate = trainer.data_collator

    def record(rows):
        labels.append([row["labels"] for row in rows])
        return collate(rows)

    trainer.data_collator = record
    trainer.train()
    trainer.data_collator = collate
    return labels


def expected_labels(data, seed):
    return [data[batch]["labels"] for batch in batches(data, seed=seed, epoch=0)]


def test_use_in_follows_another_data_set(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, num_train_epochs=1, seed=5)
    first = TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    trainer.train()
    # A data set of another size, with a column of its own.
    data = copy_task(tokenizer, 90, seed=7, longest=15)
    trainer.train_dataset = data.add_column("origin", ["second"] * len(data))
    assert labels_of_training(trainer) == expected_labels(data, seed=5)
    # Log and epochs are of the new sampler, too.
    (share,) = logged(trainer, "padding_share")
    assert share == TokenBudgetBatchSampler(data, BUDGET, seed=5).padding_share() != first.padding_share()


def test_use_in_follows_another_seed(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, num_train_epochs=1, seed=5)
    TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    assert labels_of_training(trainer) == expected_labels(trainer.train_dataset, seed=5)
    trainer.args.seed = 6
    assert labels_of_training(trainer) == expected_labels(trainer.train_dataset, seed=6)
    trainer.args.data_seed = 8
    assert labels_of_training(trainer) == expected_labels(trainer.train_dataset, seed=8)


def test_use_in_follows_the_trials_of_a_hyperparameter_search(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, num_train_epochs=1, seed=5)
    # The trials of this backend are dictionaries. `train(trial=...)` would need its package.
    trainer.hp_search_backend = HPSearchBackend.WANDB
    TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    for seed in (11, 12):
        trainer._hp_search_setup({"seed": seed})
        assert labels_of_training(trainer) == expected_labels(trainer.train_dataset, seed=seed)
        assert trainer.accelerator.even_batches


def test_use_in_prepares_the_batches_of_a_trial_unevenly(tmp_path, tokenizer):
    """Each trial has an accelerator of its own, and accelerate 1.12 fails with `even_batches`."""
    trainer = make_trainer(tmp_path, tokenizer)
    TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    trainer.create_accelerator_and_postprocess()
    prepare = trainer.accelerator.prepare
    settings = []

    def record(*arguments):
        settings.append(trainer.accelerator.even_batches)
        return prepare(*arguments)

    trainer.accelerator.prepare = record
    trainer.get_train_dataloader()
    assert settings == [False]


def test_use_in_raises_for_another_data_set_without_its_lengths(tmp_path, tokenizer):
    table = copy_task(tokenizer, 60, longest=20)
    trainer = make_trainer(tmp_path, tokenizer, data=Pairs(table.to_list()), num_train_epochs=1)
    lengths = [[len(row) for row in table[name]] for name in ("input_ids", "labels")]
    TokenBudgetBatchSampler.use_in(trainer, BUDGET, lengths=lengths)
    trainer.train_dataset = Pairs(table.to_list()[::-1])
    with pytest.raises(ValueError, match="train_dataset was replaced"):
        trainer.train()
    TokenBudgetBatchSampler.use_in(trainer, BUDGET, lengths=[side[::-1] for side in lengths])
    assert labels_of_training(trainer) == expected_labels(table.select(range(59, -1, -1)), seed=trainer.args.seed)


def test_use_in_checks_another_data_set(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, num_train_epochs=1)
    TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    trainer.train_dataset = copy_task(tokenizer, 4, longest=3 * BUDGET)
    # A second attempt must not train with the batches of the earlier data.
    for _ in range(2):
        with pytest.raises(ValueError, match="longer than tokens_per_batch"):
            trainer.train()


def test_the_later_of_two_budgets_counts(tmp_path, tokenizer):
    trainer = make_trainer(tmp_path, tokenizer, num_train_epochs=1)
    TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    sampler = TokenBudgetBatchSampler.use_in(trainer, 2 * BUDGET)
    trainer.train()
    assert trainer.state.global_step == len(sampler)
    assert logged(trainer, "padding_share") == [sampler.padding_share()]


def test_the_loss_does_not_depend_on_the_grouping(tmp_path, tokenizer):
    """One update of all pairs, in batches of any size, has the loss and the gradient of one batch of all."""
    results = []
    for tokens in (30, BUDGET, 10**4):
        trainer = make_trainer(tmp_path, tokenizer, num_train_epochs=1, gradient_accumulation_steps=1000)
        sampler = TokenBudgetBatchSampler.use_in(trainer, tokens)
        trainer.train()
        assert trainer.state.global_step == 1
        results.append((len(sampler), logged(trainer, "loss")[0], float(logged(trainer, "grad_norm")[0])))
    counts, losses, norms = zip(*results, strict=True)
    assert counts[0] > counts[1] > counts[2] == 1
    assert losses == pytest.approx([losses[2]] * 3, rel=1e-6)
    assert norms == pytest.approx([norms[2]] * 3, rel=1e-5)


class Pairs(torch.utils.data.Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def test_a_data_set_that_is_no_table(tmp_path, tokenizer):
    table = copy_task(tokenizer, 60, longest=20)
    trainer = make_trainer(tmp_path, tokenizer, data=Pairs(table.to_list()), num_train_epochs=1)
    with pytest.raises(TypeError, match="a Pairs does not tell the lengths of pairs"):
        TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    lengths_of_sides = [[len(row) for row in table[name]] for name in ("input_ids", "labels")]
    with pytest.raises(ValueError, match="59 lengths were given for 60 training pairs"):
        TokenBudgetBatchSampler.use_in(trainer, BUDGET, lengths=[side[1:] for side in lengths_of_sides])
    sampler = TokenBudgetBatchSampler.use_in(trainer, BUDGET, lengths=lengths_of_sides)
    trainer.train()
    assert trainer.state.global_step == len(sampler)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"accelerator_config": {"dispatch_batches": True}}, "accelerator_config with split or dispatched batches"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config with split or dispatched batches"),
    ],
)
def test_settings_that_rule_it_out(tmp_path, tokenizer, arguments, message):
    trainer = make_trainer(tmp_path, tokenizer, **arguments)
    with pytest.raises(ValueError, match=message):
        TokenBudgetBatchSampler.use_in(trainer, BUDGET)


def test_data_that_cannot_be_planned(tmp_path, tokenizer):
    data = copy_task(tokenizer, 8)
    trainer = make_trainer(tmp_path, tokenizer, data=data.to_iterable_dataset(), max_steps=1)
    with pytest.raises(TypeError, match="a IterableDataset does not tell the lengths of pairs"):
        TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    trainer.train_dataset = None
    with pytest.raises(TypeError, match="a NoneType does not tell the lengths of pairs"):
        TokenBudgetBatchSampler.use_in(trainer, BUDGET)
    trainer.train_dataset, trainer.model._tp_size = data, 2
    with pytest.raises(ValueError, match="tensor, context or sequence parallelism contradicts"):
        TokenBudgetBatchSampler.use_in(trainer, BUDGET)
