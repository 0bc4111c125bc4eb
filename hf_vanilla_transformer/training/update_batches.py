"""How many batches an update has: as few as fit into the memory of the device.

An update has the same number of tokens on one device and on many, on small ones and on large ones; only its split into
batches differs, and the loss does not depend on that.
"""

import math
import sys
from dataclasses import asdict, dataclass

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel

from ..acceleration.loss_of_states import choose_chunk_bytes
from ..data.length_filter import pair_lengths
from .run_arguments import TOKENS_PER_PROCESS, RunArguments, Settings


# Share of the free memory that a batch may fill. The rest is for what `TrainingMemory` does not count: buffers of the
# communication between processes, workspaces of matmuls, and gaps between blocks.
_USABLE_SHARE = 0.8


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of a device: those that are free, and all of them."""

    free: int
    total: int


@dataclass(frozen=True)
class TrainingMemory:
    """The bytes that the training of a model takes on an accelerator.

    Weights, gradients and moments take `fixed` bytes. Each token on each side of a batch takes `per_token` bytes of
    activations. The logits take `logits_per_token` bytes for each token, but at most `most_logits` at a time.
    """

    fixed: int
    per_token: int
    logits_per_token: int
    most_logits: float

    @classmethod
    def for_model(
        cls, model: PreTrainedModel, args: RunArguments, memory: DeviceMemory | None, *, in_16_bits: bool
    ) -> "TrainingMemory":
        """Count the bytes for a model, which may be on the meta device, and a device, whose memory may be unknown.

        Korthikanti et al. 2022 count 34 bytes in 16 bits for each token and channel of a layer, with d_ff = 4 d_model.
        A decoder layer has half as many more. With 25,000 tokens on each side, this gives 9.7 GB for base and 18.6 GB
        for big. The measured peaks on large GPUs were 9.4 and 18.9 GB.
        """
        config = model.config
        parameters = model.num_parameters()
        # In float32: a weight, its gradient and its two moments. DDP has a second copy of the gradients.
        fixed = 16 * parameters
        if args.world_size > 1:
            fixed += 4 * parameters
        per_token = 34 * config.d_model * (config.encoder_layers + 1.5 * config.decoder_layers)
        # Logits in 16 bits, which their gradient replaces, and as many bytes again for what is computed from them.
        logits_per_token = 4 * config.vocab_size
        # The loss computes them in chunks. A device whose memory is unknown has the largest ones.
        chunk_bytes = choose_chunk_bytes(sys.maxsize if memory is None else memory.total)
        most_logits: float = 2 * chunk_bytes
        if args.r_drop_alpha:
            # R-Drop reads each batch twice, and needs all logits of both passes, their gradient and a copy.
            per_token *= 2
            logits_per_token = 12 * config.vocab_size
            most_logits = math.inf
        if not in_16_bits:
            per_token *= 2
            logits_per_token *= 2
        return cls(fixed, int(per_token), logits_per_token, most_logits)

    def bytes_for_batch(self, tokens: float) -> int:
        """Return the bytes at the peak of an update whose batches have so many tokens on each side."""
        return int(self.fixed + tokens * self.per_token + min(tokens * self.logits_per_token, self.most_logits))

    def tokens_that_fit_into(self, size: float) -> int:
        """Return the most tokens on each side of a batch with which a training fits into `size` bytes, or 0."""
        room = size - self.fixed
        if self.most_logits < math.inf:
            # A batch that has not even that many logits may need less; the difference is small.
            return max(0, int((room - self.most_logits) / self.per_token))
        return max(0, int(room / (self.per_token + self.logits_per_token)))


def read_device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of an accelerator, or None for a CPU, and for devices that do not report it.

    What torch holds for reuse in this process counts as free.
    """
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(device)
    unused = module.memory_reserved(device) - module.memory_allocated(device)
    return DeviceMemory(free + unused, total)


def read_smallest_device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of that process's device that has least of it free; every process must call this."""
    memories = gather_object([read_device_memory(device)])
    if None in memories:
        return None
    return min(memories, key=lambda memory: memory.free)


def count_tokens_that_fit(model: PreTrainedModel, args: RunArguments, memory: DeviceMemory | None) -> int:
    """Compute how many tokens on each side of a batch fit into the memory of a device.

    Args:
        model: the model to train; its weights may be on the meta device.
        args: the precision, the loss, and the number of processes.
        memory: of the device. If it is None, as for a CPU, the result is `TOKENS_PER_PROCESS`.
    """
    if memory is None:
        return TOKENS_PER_PROCESS
    training = TrainingMemory.for_model(model, args, memory, in_16_bits=bool(args.bf16 or args.fp16))
    return training.tokens_that_fit_into(_USABLE_SHARE * memory.free)


@dataclass(frozen=True)
class UpdateBatches:
    """The batches of an update: the most tokens of each on each side, and their number in each process."""

    tokens_per_batch: int
    gradient_accumulation_steps: int


def split_update(
    tokens_per_update: int,
    processes: int,
    tokens_that_fit: int,
    longest_sentence: int,
    *,
    tokens_per_batch: int | None = None,
    gradient_accumulation_steps: int | None = None,
) -> UpdateBatches:
    """Split an update into batches that fit into memory.

        gradient_accumulation_steps = ceil(tokens_per_update / (processes * tokens_that_fit))
        tokens_per_batch = tokens_per_update // (processes * gradient_accumulation_steps)

    A batch has at least as many tokens as the longest sentence, even if that does not fit, because the longest pairs
    would be removed otherwise.

    Args:
        tokens_per_update: of all processes together, on each side.
        processes: that train together.
        tokens_that_fit: into the memory of each process's device.
        longest_sentence: of both sides of the training pairs, in tokens.
        tokens_per_batch, gradient_accumulation_steps: what the user gives stays, and the other number follows from it.
    """
    if gradient_accumulation_steps is None:
        most_tokens = tokens_per_batch or max(tokens_that_fit, longest_sentence)
        gradient_accumulation_steps = math.ceil(tokens_per_update / (processes * most_tokens))
    if tokens_per_batch is None:
        share = tokens_per_update // (processes * gradient_accumulation_steps)
        tokens_per_batch = max(share, longest_sentence)
    return UpdateBatches(tokens_per_batch, gradient_accumulation_steps)


def set_batches_of_update(settings: Settings, tokens_that_fit: int, longest_sentence: int) -> Settings:
    """Split an update of `tokens_per_update` with [`split_update`]; settings without it are returned as they are.

    `settings.args` are changed. The settings that are returned have the batches among what was given, because a run
    that is resumed or repeated on another device must have the same ones.
    """
    args = settings.args
    if args.tokens_per_update is None:
        return settings
    batches = split_update(
        args.tokens_per_update,
        args.world_size,
        tokens_that_fit,
        longest_sentence,
        tokens_per_batch=args.tokens_per_batch,
        # Not the argument itself, whose default looks like a number that was given.
        gradient_accumulation_steps=settings.given_arguments.get("gradient_accumulation_steps"),
    )
    args.tokens_per_batch = batches.tokens_per_batch
    args.gradient_accumulation_steps = batches.gradient_accumulation_steps
    given_arguments = {**settings.given_arguments, **asdict(batches)}
    given_arguments.pop("tokens_per_update", None)
    return settings._replace(given_arguments=given_arguments)


def find_longest_sentence(data: Dataset) -> int:
    """Return the number of tokens of the longest sentence of tokenized pairs, on either side."""
    source, target = pair_lengths(data)
    return int(max(source.max(), target.max()))
