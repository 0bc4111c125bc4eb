"""What a training step costs an accelerator beside arithmetic: kernel launches, and waits for the device.

Python starts each kernel, which takes 10 to 30 microseconds. If the code reads a value of a tensor, it waits until the
device has computed everything before, and the device is then idle until Python has started the next kernels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.acceleration import attention as attention_module
from hf_vanilla_transformer.acceleration import chunked_loss
from tests.models import patch_everywhere


# The layers and heads of the paper's base model, in narrow matrices: widths do not change the number of launches.
NARROW_BASE = {"vocab_size": 50, "d_model": 16, "d_ff": 16}
# The loss is computed in 25 chunks, as that of 25,000 target tokens in chunks of the base model's 1,024 rows.
SENTENCES, LENGTH, CHUNK_ROWS = 25, 8, 8
# Launches of one step under autocast with bfloat16, and reads of values. Lower them when a change saves some.
FORWARD_LAUNCHES, BACKWARD_LAUNCHES, SYNCS = 986, 723, 0
# Operations that read values of a tensor, or whose result has a size that depends on values.
SYNCING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique_dim", "_unique2")
# Operations that launch nothing, although their schema does not call them views.
WITHOUT_KERNEL = ("_unsafe_view", "_reshape_alias", "empty", "empty_like", "empty_strided", "new_empty")


class Launches(TorchDispatchMode):
    """Counts the operations that launch a kernel, and those that wait for the device, by name."""

    def __init__(self):
        super().__init__()
        self.launches: Counter[str] = Counter()
        self.syncs: Counter[str] = Counter()

    def __torch_dispatch__(
        self,
        operation: torch._ops.OpOverload,
        types: Sequence[type],
        args: Sequence[object] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        name = operation._schema.name.removeprefix("aten::")
        if name in SYNCING:
            self.syncs[name] += 1
        elif not operation.is_view and name not in WITHOUT_KERNEL:
            self.launches[name] += 1
        return operation(*args, **(kwargs or {}))


@pytest.fixture
def as_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model takes the way that it takes for tensors on a GPU, with tensors on the CPU."""
    patch_everywhere(monkeypatch, "is_plain_cpu_tensor", lambda x: False)
    patch_everywhere(monkeypatch, "can_read_values", lambda x: False)
    monkeypatch.setattr(attention_module, "_unfused_is_faster", lambda query, key: False)
    monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS", CHUNK_ROWS)
    monkeypatch.setattr(chunked_loss, "_CHUNK_ROWS_PER_D_MODEL", 0)
    # On a GPU, dropout is one kernel.
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, p, training=True: torch.native_dropout(x, p, True)[0])
    # oneDNN compiles a kernel for each shape, which takes longer than this whole test.
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)


def padded_batch() -> dict[str, torch.Tensor]:
    """Sentences of one length, except for the last of them."""
    input_ids = torch.ones(SENTENCES, LENGTH, dtype=torch.long)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[-1, 5:] = 0
    labels = input_ids.masked_fill(attention_mask == 0, -100)
    return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


@pytest.mark.usefixtures("as_on_an_accelerator")
def test_launches_and_syncs_of_a_training_step():
    config = VanillaTransformerConfig.from_paper("base", **NARROW_BASE)
    model = VanillaTransformerForConditionalGeneration(config).train()
    batch = padded_batch()

    def count_step() -> tuple[Launches, Launches]:
        """Launches of the forward pass with the loss, and of the backward pass."""
        with torch.autocast("cpu", torch.bfloat16), Launches() as forward:
            loss = model(**batch, skip_logits=True).loss
        with Launches() as backward:
            loss.backward()
        model.zero_grad()
        return forward, backward

    count_step()  # The first step prepares what later steps use.
    forward, backward = count_step()
    assert forward.launches.total() <= FORWARD_LAUNCHES, forward.launches.most_common()
    assert backward.launches.total() <= BACKWARD_LAUNCHES, backward.launches.most_common()
    syncs = forward.syncs + backward.syncs
    assert syncs.total() <= SYNCS, syncs
