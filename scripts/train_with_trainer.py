"""Train a translation model with the stock `Seq2SeqTrainer`, on one GPU, on several GPUs, or on a CPU.

Copy this script and change it as you need. To train on one device:

    python scripts/train_with_trainer.py --train_file train.en train.de --validation_file val.en val.de \
      --output_dir runs/base --bf16

To train on 8 GPUs, with one process for each:

    torchrun --standalone --nproc-per-node 8 scripts/train_with_trainer.py (the same options)

If the run stops, repeat the command with --resume to continue from the last complete checkpoint.
docs/several_gpus.md is a guide to this script.
"""

import os
import shutil
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from datasets import DatasetDict
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    TrainerState,
    set_seed,
)

from hf_vanilla_transformer import (
    CompleteCheckpoints,
    PaperSchedule,
    PaperTrainingArguments,
    ProcessSeeds,
    StopWhenDiverged,
    TokenBudgetBatchSampler,
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    average_checkpoints,
    filter_pairs,
    last_complete_checkpoint,
    load_pairs,
    make_compute_metrics,
    push_run,
    tokenize_pairs,
    train_tokenizer,
)
from hf_vanilla_transformer.support.checkpoint_marks import complete_checkpoints


# Defaults of the Trainer's options. The command line overrides them, and `--help` lists all of them.
DEFAULTS = {
    "max_steps": 100_000,
    "logging_steps": 100,
    # The paper averages the last 5 checkpoints of its base models, which were written about every 1,500 updates.
    "save_steps": 1_500,
    "save_total_limit": 10,
    # Greedy search is enough to compare the checkpoints of a run.
    "eval_strategy": "steps",
    "eval_steps": 5_000,
    "per_device_eval_batch_size": 64,
    "predict_with_generate": True,
    "generation_num_beams": 1,
    # Every weight gets a gradient in every update, so DDP need not search for weights without a gradient.
    "ddp_find_unused_parameters": False,
}


@dataclass
class ScriptArguments:
    """The options for the data, the model and the batches. `PaperTrainingArguments` has all other options."""

    train_file: list[str] = field(
        metadata={"help": "Two text files: line n of the second translates line n of the first."}
    )
    validation_file: list[str] = field(metadata={"help": "Two text files for BLEU during training."})
    tokenizer_name: str | None = field(
        default=None, metadata={"help": "Folder of a tokenizer of this package; by default, a tokenizer is trained."}
    )
    vocab_size: int = field(
        default=37_000, metadata={"help": "Maximum vocabulary size of the tokenizer, if it is trained."}
    )
    preset: str = field(
        default="base", metadata={"help": 'Row of Table 3 of the paper, for example base, big or "C N=2".'}
    )
    tokens_per_batch: int = field(
        default=25_000,
        metadata={
            "help": "Maximum number of source tokens, and of target tokens, per batch and process, with padding."
        },
    )
    max_tokens: int = field(default=1_024, metadata={"help": "Leave out pairs that have more tokens on one side."})
    rate_factor: float = field(default=1.0, metadata={"help": "Factor of the learning rate of Eq. 3."})
    average_last: int = field(
        default=5, metadata={"help": "Number of checkpoints to average at the end; 0 for no average."}
    )
    resume: bool = field(default=False, metadata={"help": "Continue from the last complete checkpoint."})


def main(arguments: list[str] | None = None) -> None:
    """Train with the options of the command line. Every process of the run executes this function."""
    # On recent GPUs torch prefers the attention of cuDNN, which builds an execution plan for every new shape. Batches
    # with a token budget have thousands of shapes. torch reads the variable once, at the first attention on a GPU.
    os.environ.setdefault("TORCH_CUDNN_SDPA_DEPRIORITIZED", "1")

    args, training_args = parse(arguments)
    # All processes start with the same weights.
    set_seed(training_args.seed)
    checkpoint = find_checkpoint(training_args, args.resume)

    # The first process of each machine reads and tokenizes the pairs. The others then read its files in the cache of
    # `datasets`.
    with training_args.main_process_first():
        pairs = load_pairs(train_files=args.train_file, validation_files=args.validation_file)
    tokenizer = load_tokenizer(args, checkpoint, pairs)
    with training_args.main_process_first():
        data = tokenize_pairs(pairs, tokenizer)
        # A pair that is longer than the token budget fits into no batch.
        max_tokens = min(args.max_tokens, args.tokens_per_batch)
        train_data, removed = filter_pairs(data["train"], tokenizer, max_tokens)

    config = VanillaTransformerConfig.from_paper(args.preset, vocab_size=len(tokenizer))
    model = VanillaTransformerForConditionalGeneration(config)
    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=train_data,
        eval_dataset=data["validation"],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=make_compute_metrics(tokenizer),
        callbacks=[CompleteCheckpoints(), StopWhenDiverged()],
    )
    # Adam with the learning rate of section 5.3. This also works with FSDP2 and DeepSpeed.
    PaperSchedule.use_in(trainer, factor=args.rate_factor)
    # Every process draws different dropout masks.
    ProcessSeeds.use_in(trainer)
    # Batches have a number of tokens instead of sentences, as in section 5.1.
    TokenBudgetBatchSampler.use_in(trainer, tokens_per_batch=args.tokens_per_batch)
    if trainer.is_fsdp_enabled:
        # FSDP2 does not accept a matrix that two modules share. This makes both stacks share one module.
        model.set_input_embeddings(model.get_input_embeddings())
    # With --push_to_hub, the Trainer has created the repository. It would push the last weights when it saves them, but
    # this script pushes the average of checkpoints.
    push_to_hub = training_args.push_to_hub
    training_args.push_to_hub = False

    if trainer.is_world_process_zero():
        print(f"training pairs: {len(train_data):,}; removed: {removed}")
    trainer.train(resume_from_checkpoint=checkpoint)
    # All processes take part in saving, because each may hold a part of the weights. The first process writes them.
    trainer.save_model()
    if trainer.is_world_process_zero():
        folder = average_last_checkpoints(training_args.output_dir, args.average_last)
        print(f"the model is in {folder}")
        if push_to_hub:
            push_run(folder, trainer.hub_model_id, message="Add the trained model", token=training_args.hub_token)
    trainer.accelerator.end_training()


def parse(arguments: list[str] | None) -> tuple[ScriptArguments, PaperTrainingArguments]:
    """Parse the command line, or a list of arguments, and reject options that cannot work."""
    parser = HfArgumentParser((ScriptArguments, PaperTrainingArguments), description=__doc__.partition("\n")[0])
    parser.set_defaults(**DEFAULTS)
    args, training_args = parser.parse_args_into_dataclasses(arguments)
    if training_args.n_gpu > 1:
        raise SystemExit(
            f"there are {training_args.n_gpu} GPUs for one process; start one process per GPU with torchrun, or choose "
            "one GPU with CUDA_VISIBLE_DEVICES=0."
        )
    if args.average_last < 0:
        raise SystemExit(f"--average_last is {args.average_last}; give 0 or a number of checkpoints.")
    checkpoint_limit = training_args.save_total_limit
    if checkpoint_limit and args.average_last > checkpoint_limit:
        raise SystemExit(
            f"--average_last is {args.average_last}, but --save_total_limit keeps {checkpoint_limit} checkpoints; "
            "raise --save_total_limit."
        )
    return args, training_args


def find_checkpoint(training_args: PaperTrainingArguments, resume: bool) -> str | None:
    """Return the checkpoint to resume from, or None to start from scratch.

    Raises:
        SystemExit: if there is nothing to resume, if the run is finished, or if a new run would write into a folder
            with checkpoints.
    """
    folder = training_args.output_dir
    checkpoint = last_complete_checkpoint(folder)
    if not resume:
        if checkpoint is not None:
            raise SystemExit(f"{folder} holds {Path(checkpoint).name}; give --resume, or another --output_dir.")
        return None
    if checkpoint is None:
        raise SystemExit(f"{folder} holds no complete checkpoint; leave out --resume, or give another --output_dir.")
    state = TrainerState.load_from_json(str(Path(checkpoint, "trainer_state.json")))
    if state.global_step >= training_args.max_steps:
        # The Trainer would make one more update before it stops.
        raise SystemExit(f"{folder} is finished after {state.global_step} updates; give a larger --max_steps.")
    return checkpoint


def load_tokenizer(args: ScriptArguments, checkpoint: str | None, pairs: DatasetDict) -> PreTrainedTokenizerBase:
    """Load the tokenizer of the checkpoint or of the options. Without either, train a tokenizer on the pairs."""
    name = checkpoint or args.tokenizer_name
    if name is not None:
        return AutoTokenizer.from_pretrained(name)
    tokenizer = None
    if PartialState().is_main_process:
        sentences = chain(pairs["train"]["source"], pairs["train"]["target"])
        tokenizer = train_tokenizer(sentences, vocab_size=args.vocab_size)
    # All processes get the tokenizer of the first one.
    return broadcast_object_list([tokenizer])[0]


def average_last_checkpoints(output_dir: str, count: int) -> Path:
    """Average the last checkpoints, and return the folder of the average.

    If there are no checkpoints to average, return `output_dir`, which has the last weights.
    """
    newest_first = complete_checkpoints(Path(output_dir))
    checkpoints = list(islice(newest_first, count))
    if not checkpoints:
        return Path(output_dir)
    checkpoints.reverse()
    average_folder = Path(output_dir, "average")
    # If a run was stopped while it wrote the average, and then resumed, there is an incomplete one.
    shutil.rmtree(average_folder, ignore_errors=True)
    return average_checkpoints(checkpoints, average_folder)


if __name__ == "__main__":
    main()
