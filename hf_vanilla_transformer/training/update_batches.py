"""Split each update into the smallest number of batches that fit into memory.

An update has the same number of tokens regardless of the number of devices and their memory. Only its split into
batches differs, and the loss does not depend on the split.
"""

import math
import sys
from dataclasses import dataclass
from typing import NamedTuple

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import PreTrainedModel

from ..acceleration.loss_of_states import choose_chunk_bytes
from ..data.length_filter import pair_lengths
from .run_arguments import TOKENS_PER_PROCESS, RunArguments, Settings


# The fraction of the free memory that a training may use. The rest is for memory that `TrainingMemory` does not count,
# such as communication buffers, matmul workspaces, and gaps between memory blocks.
_USABLE_SHARE = 0.8


@dataclass(frozen=True)
class DeviceMemory:
    """The free and the total memory of a device, in bytes."""

    free: int
    total: int


@dataclass(frozen=True)
class TrainingMemory:
    """An estimate of the memory in bytes that training a model needs on an accelerator, such as a GPU.

    Args:
        fixed (`int`): memory of weights, gradients and Adam's moments.
        per_token (`int`): memory of the activations, per token on each side of a batch.
        logits_per_token (`int`): memory of the logits, per target token of a batch.
        most_logits (`float`): maximum memory of all logits, whatever the number of tokens, because the loss computes
            them in chunks. It is infinite if the loss needs all logits at once. The logits of a batch take
            `min(tokens * logits_per_token, most_logits)` bytes.
    """

    fixed: int
    per_token: int
    logits_per_token: int
    most_logits: float

    @classmethod
    def for_model(
        cls, model: PreTrainedModel, args: RunArguments, memory: DeviceMemory | None, *, in_16_bits: bool
    ) -> "TrainingMemory":
        """Estimate the memory that training a model needs.

        With 25,000 tokens on each side, the estimate is 9.7 GB for base and 18.6 GB for big. The measured peaks on
        large GPUs were 9.4 GB and 18.9 GB.

        Args:
            model: the model to train. Its weights may be on the meta device.
            args: arguments of the run, which determine the loss and the number of processes.
            memory: the device's memory, or None if it is unknown.
            in_16_bits: True if training uses bfloat16 or float16 autocast, and False if it uses float32.
        """
        loss = _LossMemory.of_run(args, memory)
        bytes_per_value = 2 if in_16_bits else 4
        # A token has the activations and the logits of each pass.
        bytes_of_passes = loss.passes * bytes_per_value
        return cls(
            fixed=_count_bytes_per_parameter(args) * model.num_parameters(),
            # For base with 16 bits: 2 * 17 * 512 * (6 + 1.5 * 6) = 261,120 bytes.
            per_token=int(bytes_of_passes * _count_activations_per_token(model)),
            # A token has one logit for each token of the vocabulary. For base with 16 bits and a vocabulary of 37,000:
            # 2 * 2 * 37,000 = 148,000 bytes.
            logits_per_token=bytes_of_passes * loss.logit_tensors * model.config.vocab_size,
            most_logits=loss.most_logits,
        )

    def bytes_for_batch(self, tokens: float) -> int:
        """Return the peak memory in bytes of an update whose batches have `tokens` tokens on each side."""
        activations = tokens * self.per_token
        logits = min(tokens * self.logits_per_token, self.most_logits)
        return int(self.fixed + activations + logits)

    def tokens_that_fit_into(self, size: float) -> int:
        """Return how many tokens a batch may have on each side so that training fits into `size` bytes of memory.

        The result is 0 if the memory is too small even for the weights, gradients and moments.
        """
        # `self.fixed` is the memory of weights, gradients and moments, which does not depend on the size of a batch.
        bytes_for_batch = size - self.fixed
        # `self.per_token` counts the activations, and `self.logits_per_token` the logits.
        bytes_per_token = self.per_token
        computes_logits_in_chunks = self.most_logits < math.inf
        if computes_logits_in_chunks:
            # All logits together never need more than this maximum, whatever the number of tokens. Small batches need
            # less, so slightly more tokens might fit.
            bytes_for_batch -= self.most_logits
        else:
            bytes_per_token += self.logits_per_token
        tokens = bytes_for_batch / bytes_per_token
        return max(0, int(tokens))


class _LossMemory(NamedTuple):
    """What determines the memory of a loss.

    Args:
        passes: how often the model reads each batch.
        logit_tensors: the number of tensors in memory that have the size of the logits.
        most_logits: the maximum memory of all logits in bytes; infinite if the loss needs all logits at once.
    """

    passes: int
    logit_tensors: int
    most_logits: float

    @classmethod
    def of_run(cls, args: RunArguments, memory: DeviceMemory | None) -> "_LossMemory":
        """Return the description of a run's loss, on a device with this memory."""
        if args.r_drop_alpha:
            # R-Drop needs the logits, their gradient and a copy.
            return cls(passes=2, logit_tensors=3, most_logits=math.inf)
        # The two tensors are the logits, which their gradient overwrites, and values that are computed from them. The
        # loss computes the logits of one chunk of tokens at a time, so no more than a chunk is in memory. With the
        # Triton kernel, the size of a chunk in bytes depends only on the device's memory. Without the kernel, d_model
        # determines how many tokens a chunk has, but the estimate is the same.
        logit_tensors = 2
        return cls(passes=1, logit_tensors=logit_tensors, most_logits=logit_tensors * _find_chunk_bytes(memory))


def _count_bytes_per_parameter(args: RunArguments) -> int:
    """Return the memory in bytes that a parameter needs, whatever the batch."""
    # A weight, its gradient and its two moments take 4 bytes each.
    bytes_per_parameter = 16
    if args.world_size > 1:
        # DDP keeps a second copy of the gradients.
        bytes_per_parameter += 4
    return bytes_per_parameter


def _count_activations_per_token(model: PreTrainedModel) -> float:
    """Return the number of activations per token on each side of a batch.

    Korthikanti et al. 2022 count 34 bytes of 16-bit activations, i.e. 17 values, per token and channel of a layer with
    d_ff = 4 d_model. The estimate does not read `config.d_ff`, so it is too high for a smaller d_ff, and too low for a
    larger one.
    """
    config = model.config
    # A decoder layer has a second attention, so it needs 1.5 times as much.
    return 17 * config.d_model * (config.encoder_layers + 1.5 * config.decoder_layers)


def _find_chunk_bytes(memory: DeviceMemory | None) -> int:
    """Return the size in bytes of the chunks in which a device computes logits.

    If the memory of the device is unknown, this is the maximum size.
    """
    if memory is None:
        return choose_chunk_bytes(sys.maxsize)
    return choose_chunk_bytes(memory.total)


def read_device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of a device, or None if the device is a CPU or does not report its memory.

    Memory that PyTorch has reserved in this process but does not use counts as free.
    """
    if device.type == "cpu":
        return None
    # The part of PyTorch for the device's type, such as `torch.cuda`.
    device_module = torch.get_device_module(device)
    if not hasattr(device_module, "mem_get_info"):
        return None
    free, total = device_module.mem_get_info(device)
    reserved_but_unused = device_module.memory_reserved(device) - device_module.memory_allocated(device)
    return DeviceMemory(free + reserved_but_unused, total)


def read_smallest_device_memory(device: torch.device) -> DeviceMemory | None:
    """Return the memory of the device that has the least free memory among the devices of all processes.

    The result is None if any of these devices is a CPU or does not report its memory. Every process must call this
    function, because the processes exchange their values.
    """
    # One item for each process.
    memories = gather_object([read_device_memory(device)])
    if None in memories:
        return None
    return min(memories, key=lambda memory: memory.free)


def count_tokens_that_fit(model: PreTrainedModel, args: RunArguments, memory: DeviceMemory | None) -> int:
    """Estimate how many tokens on each side of a batch fit into a device's memory.

    Args:
        model: the model to train. Its weights may be on the meta device.
        args: arguments of the run, which determine the precision, the loss and the number of processes.
        memory: the device's memory. If it is None, as for a CPU, the result is `TOKENS_PER_PROCESS`.
    """
    if memory is None:
        return TOKENS_PER_PROCESS
    training = TrainingMemory.for_model(model, args, memory, in_16_bits=bool(args.bf16 or args.fp16))
    return training.tokens_that_fit_into(_USABLE_SHARE * memory.free)


@dataclass(frozen=True)
class UpdateBatches:
    """The size and number of the batches that make up an update.

    Args:
        tokens_per_batch (`int`): maximum number of tokens on each side of a batch.
        gradient_accumulation_steps (`int`): number of batches per update in each process.
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
    """Choose the size and the number of an update's batches so that each batch fits into memory.

    For example, with one process and memory for batches of 10,000 tokens, an update of 25,000 tokens consists of 3
    batches of at most 8,333 tokens. A chosen batch has room for the longest sentence, even if it might not fit into
    memory. Otherwise the longest pairs would be removed from the training.

    Args:
        tokens_per_update: number of tokens on each side of an update, over all processes.
        processes: number of processes that train together.
        tokens_that_fit: number of tokens on each side of a batch that fit into the memory of each process's device.
        longest_sentence: number of tokens in the longest source or target of the training pairs.
        tokens_per_batch, gradient_accumulation_steps: the values that the user has set, if any. They are kept.
    """
    # The number of batches comes first, because the size of a batch is computed from it.
    batches_per_process = gradient_accumulation_steps
    if batches_per_process is None:
        largest_batch = _find_largest_batch(tokens_per_batch, tokens_that_fit, longest_sentence)
        batches_per_process = math.ceil(tokens_per_update / (processes * largest_batch))

    batch_size = tokens_per_batch
    if batch_size is None:
        batches_per_update = processes * batches_per_process
        share_of_update = tokens_per_update // batches_per_update
        batch_size = max(share_of_update, longest_sentence)
    return UpdateBatches(tokens_per_batch=batch_size, gradient_accumulation_steps=batches_per_process)


def _find_largest_batch(tokens_per_batch: int | None, tokens_that_fit: int, longest_sentence: int) -> int:
    """Return the largest allowed batch size: the user's if there is one, and otherwise what fits into memory.

    Without the user's batch size, the result is at least the length of the longest sentence.
    """
    if tokens_per_batch:
        return tokens_per_batch
    return max(tokens_that_fit, longest_sentence)


def with_batches_of_update(settings: Settings, tokens_that_fit: int, longest_sentence: int) -> Settings:
    """Return settings in which a batch size and a number of batches replace `tokens_per_update`.

    Settings without `tokens_per_update` are returned as they are.

    Args:
        settings: the run's settings. They are not changed.
        tokens_that_fit: number of tokens on each side of a batch that fit into the memory of each process's device.
        longest_sentence: number of tokens in the longest source or target of the training pairs.
    """
    args = settings.args
    if args.tokens_per_update is None:
        return settings

    batches = split_update(
        tokens_per_update=args.tokens_per_update,
        processes=args.world_size,
        tokens_that_fit=tokens_that_fit,
        longest_sentence=longest_sentence,
        tokens_per_batch=args.tokens_per_batch,
        # `args.gradient_accumulation_steps` is 1 if the user has not set it, so it does not show whether they have.
        gradient_accumulation_steps=settings.given_arguments.get("gradient_accumulation_steps"),
    )
    batch_arguments = {
        "tokens_per_batch": batches.tokens_per_batch,
        "gradient_accumulation_steps": batches.gradient_accumulation_steps,
    }
    # The given arguments are saved with the run. If it is resumed or repeated on a different device, it must have the
    # same batches.
    given_arguments = {**settings.given_arguments, **batch_arguments}
    given_arguments.pop("tokens_per_update", None)
    return settings._replace(args=args.change(**batch_arguments), given_arguments=given_arguments)


def find_longest_sentence(data: Dataset) -> int:
    """Return the number of tokens in the longest sentence of tokenized pairs, on either side."""
    source_lengths, target_lengths = pair_lengths(data)
    return int(max(source_lengths.max(), target_lengths.max()))
