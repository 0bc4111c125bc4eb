"""Split each update into as few batches as fit into the memory of the devices.

An update has the same number of tokens on one device and on many, on small devices and on large ones. Only its split
into batches differs, and the loss does not depend on the split.
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


# The share of the free memory that a batch may fill. The rest is for memory that `TrainingMemory` does not count, such
# as buffers for the communication between processes, workspaces of matmuls, and gaps between blocks.
_USABLE_SHARE = 0.8


@dataclass(frozen=True)
class DeviceMemory:
    """Free and total memory of a device in bytes."""

    free: int
    total: int


@dataclass(frozen=True)
class TrainingMemory:
    """The memory in bytes that the training of a model needs on an accelerator.

    Args:
        fixed (`int`): weights, gradients and the moments of Adam.
        per_token (`int`): activations for each token on each side of a batch.
        logits_per_token (`int`): logits for each target token of a batch.
        most_logits (`float`): maximum for all logits together, because the loss computes them in chunks. It is infinite
            if the loss needs all logits at once.
    """

    fixed: int
    per_token: int
    logits_per_token: int
    most_logits: float

    @classmethod
    def for_model(
        cls, model: PreTrainedModel, args: RunArguments, memory: DeviceMemory | None, *, in_16_bits: bool
    ) -> "TrainingMemory":
        """Estimate the memory for a model.

        Korthikanti et al. 2022 count 34 bytes of 16-bit activations for each token and channel of a layer with
        d_ff = 4 d_model. A decoder layer has 1.5 times as many, because it has a second attention. With 25,000 tokens
        on each side, this gives 9.7 GB for base and 18.6 GB for big. The measured peaks on large GPUs were 9.4 GB and
        18.9 GB.

        Args:
            model: the model to train; its weights may be on the meta device.
            args: the loss and the number of processes.
            memory: memory of the device; None if it is unknown.
            in_16_bits: True if the training uses bfloat16 or float16 autocast, and False if it uses float32.
        """
        config = model.config
        parameters = model.num_parameters()
        # A weight, its gradient and its two moments take 4 bytes each.
        fixed = 16 * parameters
        if args.world_size > 1:
            # DDP has a second copy of the gradients.
            fixed += 4 * parameters
        per_token = 34 * config.d_model * (config.encoder_layers + 1.5 * config.decoder_layers)
        # Logits in 16 bits, which their gradient overwrites, and as many bytes for values that are computed from them.
        logits_per_token = 4 * config.vocab_size
        # The loss computes logits in chunks, which are larger on larger devices. If the memory is unknown, the largest
        # chunks are assumed.
        chunk_bytes = choose_chunk_bytes(sys.maxsize if memory is None else memory.total)
        most_logits: float = 2 * chunk_bytes
        if args.r_drop_alpha:
            # R-Drop reads each batch twice. It needs all logits of both passes, their gradient and a copy.
            per_token *= 2
            logits_per_token = 12 * config.vocab_size
            most_logits = math.inf
        if not in_16_bits:
            per_token *= 2
            logits_per_token *= 2
        return cls(fixed, int(per_token), logits_per_token, most_logits)

    def bytes_for_batch(self, tokens: float) -> int:
        """Return the peak memory of an update whose batches have at most `tokens` tokens on each side."""
        activations = tokens * self.per_token
        logits = min(tokens * self.logits_per_token, self.most_logits)
        return int(self.fixed + activations + logits)

    def tokens_that_fit_into(self, size: float) -> int:
        """Return the maximum number of tokens on each side of a batch so that the training fits into `size` bytes.

        The result is 0 if not even the weights fit.
        """
        room = size - self.fixed
        if self.most_logits < math.inf:
            # Small batches have fewer logits than this maximum, so slightly more tokens might fit.
            tokens = (room - self.most_logits) / self.per_token
        else:
            tokens = room / (self.per_token + self.logits_per_token)
        return max(0, int(tokens))


def read_device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of an accelerator, or None for a CPU and for devices that do not report it.

    Memory that torch has reserved in this process but does not use counts as free.
    """
    if device.type == "cpu":
        return None
    module = torch.get_device_module(device)
    if not hasattr(module, "mem_get_info"):
        return None
    free, total = module.mem_get_info(device)
    reserved_but_unused = module.memory_reserved(device) - module.memory_allocated(device)
    return DeviceMemory(free + reserved_but_unused, total)


def read_smallest_device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of the device with the least free memory among all processes; every process must call this.

    The result is None if a device is a CPU or does not report its memory.
    """
    memories = gather_object([read_device_memory(device)])
    if None in memories:
        return None
    return min(memories, key=lambda memory: memory.free)


def count_tokens_that_fit(model: PreTrainedModel, args: RunArguments, memory: DeviceMemory | None) -> int:
    """Compute how many tokens on each side of a batch fit into the memory of a device.

    Args:
        model: the model to train; its weights may be on the meta device.
        args: the precision, the loss and the number of processes.
        memory: memory of the device. If it is None, as for a CPU, the result is `TOKENS_PER_PROCESS`.
    """
    if memory is None:
        return TOKENS_PER_PROCESS
    training = TrainingMemory.for_model(model, args, memory, in_16_bits=bool(args.bf16 or args.fp16))
    return training.tokens_that_fit_into(_USABLE_SHARE * memory.free)


@dataclass(frozen=True)
class UpdateBatches:
    """The batches of an update.

    Args:
        tokens_per_batch (`int`): maximum number of tokens on each side of a batch.
        gradient_accumulation_steps (`int`): number of batches in each process.
    """

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

    A batch can hold at least the longest sentence, even if that does not fit into memory, because the longest pairs
    would be removed otherwise.

    Args:
        tokens_per_update: tokens on each side of an update, of all processes together.
        processes: number of processes that train together.
        tokens_that_fit: tokens on each side of a batch that fit into the memory of each process's device.
        longest_sentence: tokens of the longest sentence on either side of the training pairs.
        tokens_per_batch: the number that the user has set, which is kept; the other number then follows from it.
        gradient_accumulation_steps: the number that the user has set, in the same way.
    """
    accumulation_steps = gradient_accumulation_steps
    if accumulation_steps is None:
        most_tokens = tokens_per_batch or max(tokens_that_fit, longest_sentence)
        accumulation_steps = math.ceil(tokens_per_update / (processes * most_tokens))
    if tokens_per_batch is not None:
        return UpdateBatches(tokens_per_batch, accumulation_steps)
    share_of_update = tokens_per_update // (processes * accumulation_steps)
    return UpdateBatches(max(share_of_update, longest_sentence), accumulation_steps)


def set_batches_of_update(settings: Settings, tokens_that_fit: int, longest_sentence: int) -> Settings:
    """Set the batches of an update in the arguments of a run that has `tokens_per_update`.

    The arguments in `settings.args` are changed. The returned settings also have the batches among the given arguments,
    because a run that is resumed or repeated on a different device must have the same batches. Settings without
    `tokens_per_update` are returned unchanged.

    Args:
        settings: settings of the run.
        tokens_that_fit: tokens on each side of a batch that fit into the memory of each process's device.
        longest_sentence: tokens of the longest sentence on either side of the training pairs.
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
        # `args.gradient_accumulation_steps` is 1 if the user has not set it, so it does not show whether they have.
        gradient_accumulation_steps=settings.given_arguments.get("gradient_accumulation_steps"),
    )
    args.tokens_per_batch = batches.tokens_per_batch
    args.gradient_accumulation_steps = batches.gradient_accumulation_steps
    given_arguments = {**settings.given_arguments, **asdict(batches)}
    given_arguments.pop("tokens_per_update", None)
    return settings._replace(given_arguments=given_arguments)


def find_longest_sentence(data: Dataset) -> int:
    """Return the number of tokens of the longest sentence of tokenized pairs, on either side."""
    source_lengths, target_lengths = pair_lengths(data)
    return int(max(source_lengths.max(), target_lengths.max()))
