"""A Triton GPU kernel for the label-smoothed loss, which reads each row of logits twice and writes it once.

On NVIDIA GPUs, `replace_logits_by_gradient_in_triton` replaces the function `replace_logits_by_gradient` of
`fused_loss`, if `gpu_conditions` finds that it works there. Each program of the kernel handles one row of logits. A
first pass over the row computes the logarithm of the sum of exponentials, and a second pass writes the gradient in
place. On an H200, the speedup of a base-model training step is 1.16x (docs/benchmarks.md, "GPUs").

tests/acceleration/test_fused_loss.py compares the kernel with the formula in Triton's interpreter (`make test-triton`),
and tests/acceleration/test_triton_compilation.py compiles it for an H100.
"""

import torch
import triton
import triton.language as tl

from .fused_loss import RowTerms


# A program loads this many logits at once, with this many warps (groups of 32 threads), which is 16 logits per thread.
# The kernel then keeps its values in registers (tests/acceleration/test_triton_compilation.py).
COLUMNS_PER_BLOCK = 4096
_WARPS = 8
# A row that begins at a multiple of 8 elements of 16 bits begins at a multiple of 16 bytes.
_ALIGNED_COLUMNS = 8


@triton.jit
def _add_exponentials(values, largest, sum_of_exponentials):
    """Add a block of values to a running sum of exponentials. Returns the new largest value and the new sum.

    The sum is always relative to the largest value so far, i.e. the sum of exp(value - largest). If the block has a
    larger value, the sum so far is rescaled to it.
    """
    new_largest = tl.maximum(largest, tl.max(values, axis=0))
    sum_of_block = tl.sum(tl.exp(values - new_largest), axis=0)
    return new_largest, sum_of_exponentials * tl.exp(largest - new_largest) + sum_of_block


@triton.jit
def _gradient(values, columns, label, log_sum, label_probability):
    """Compute the gradient of logits: softmax, minus `label_probability` at the label; 0 if the label is negative.

    `values` are the logits of one row in the columns `columns`, and `log_sum` is log(sum(exp(logits))) of the whole
    row.
    """
    softmax = tl.exp(values - log_sum)
    gradient = tl.where(columns == label, softmax - label_probability, softmax)
    return tl.where(label >= 0, gradient, 0.0)


# By convention, Triton's compile-time constants have names in capitals.
@triton.jit
def _replace_row(
    logits,
    labels,
    log_sums,
    label_logits,
    are_highest,
    row_stride,
    vocabulary,
    label_probability,
    STRIDE_MULTIPLE: tl.constexpr,  # noqa: N803
    COLUMNS: tl.constexpr,  # noqa: N803
):
    """Replace one row of logits with its gradient, and store the row's three values of `RowTerms`.

    Each program of the kernel handles one row. It reads the row twice, in blocks of COLUMNS elements. For example, with
    a vocabulary of 10,000 and COLUMNS = 4096, there are two whole blocks, which begin at columns 0 and 4,096. The last
    block begins at 8,192 and ends after the row, so its elements from column 10,000 on are masked.

    A pointer plus a number is the address of the element with this index. `tl.load` reads the element at an address, or
    the elements at a block of addresses, and `tl.store` writes them. Where a `mask` is False, `tl.load` returns `other`
    without reading, and `tl.store` writes nothing.

    Args:
        logits: a pointer to the logits, `(rows, vocabulary)`, which are overwritten.
        labels: a pointer to the token ids, `(rows,)`, which are negative where there is no label.
        log_sums, label_logits, are_highest: pointers to the three results, each `(rows,)`.
        row_stride, STRIDE_MULTIPLE: the product is the number of elements from the start of a row to the next one. For
            example, 37,056 elements are passed as 4,632 and 8. When Triton compiles the kernel, it knows
            STRIDE_MULTIPLE, which is 1 or 8, but not row_stride.
        vocabulary: the number of logits in a row.
        label_probability: 1 - epsilon.
        COLUMNS: the number of logits that are loaded at once, a power of 2.
    """
    # The number of this program, which is the number of its row.
    row = tl.program_id(0)
    label = tl.load(labels + row)
    # A pointer to the first logit of the row. The offset has 64 bits, because the logits of a chunk may have more than
    # 2^31 elements. STRIDE_MULTIPLE tells Triton that rows begin at multiples of 16 bytes, so that it loads 16 bytes at
    # once.
    row_of_logits = logits + row.to(tl.int64) * row_stride * STRIDE_MULTIPLE
    logits_dtype = logits.dtype.element_ty
    # Only the last block, which may extend beyond the row, has a mask, because Triton loads masked elements one by one.
    # So each of the two passes has a loop over whole blocks, and then an `if` with the same statements for the last
    # block. A change to one of them must be made in the other. The formulas are in `_add_exponentials` and `_gradient`,
    # which both of them call.
    end_of_whole_blocks = vocabulary // COLUMNS * COLUMNS
    last_columns = end_of_whole_blocks + tl.arange(0, COLUMNS)
    is_inside = last_columns < vocabulary

    # First pass: log(sum(exp(logits))), with the largest logit subtracted so that no exponential overflows.
    largest = -float("inf")
    sum_of_exponentials = 0.0
    for begin in range(0, end_of_whole_blocks, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        values = tl.load(row_of_logits + columns).to(tl.float32)
        largest, sum_of_exponentials = _add_exponentials(values, largest, sum_of_exponentials)
    if end_of_whole_blocks < vocabulary:
        # The same as in the loop. Elements beyond the row are minus infinity, so their exponentials add 0 to the sum.
        values = tl.load(row_of_logits + last_columns, mask=is_inside, other=-float("inf")).to(tl.float32)
        largest, sum_of_exponentials = _add_exponentials(values, largest, sum_of_exponentials)
    log_sum = largest + tl.log(sum_of_exponentials)
    # A row without a label reads the logit of token 0, which is not stored below.
    label_column = tl.where(label >= 0, label, 0)
    label_logit = tl.load(row_of_logits + label_column).to(tl.float32)

    # Second pass: the gradient. All threads must have read the label's logit before one of them overwrites it.
    tl.debug_barrier()
    for begin in range(0, end_of_whole_blocks, COLUMNS):
        columns = begin + tl.arange(0, COLUMNS)
        values = tl.load(row_of_logits + columns).to(tl.float32)
        gradient = _gradient(values, columns, label, log_sum, label_probability)
        tl.store(row_of_logits + columns, gradient.to(logits_dtype))
    if end_of_whole_blocks < vocabulary:
        # The same as in the loop. Elements beyond the row are not stored.
        values = tl.load(row_of_logits + last_columns, mask=is_inside, other=-float("inf")).to(tl.float32)
        gradient = _gradient(values, last_columns, label, log_sum, label_probability)
        tl.store(row_of_logits + last_columns, gradient.to(logits_dtype), mask=is_inside)

    tl.store(log_sums + row, tl.where(label >= 0, log_sum, 0.0))
    tl.store(label_logits + row, tl.where(label >= 0, label_logit, 0.0))
    tl.store(are_highest + row, tl.where((label >= 0) & (label_logit >= largest), 1.0, 0.0))


def replace_logits_by_gradient_in_triton(
    logits: torch.Tensor, labels: torch.Tensor, label_probability: float
) -> RowTerms:
    """Replace logits with the gradient of the label-smoothed loss, using a single Triton kernel.

    The result is the same as with `replace_logits_by_gradient`. The logits are in float32, bfloat16 or float16.

    Args:
        logits (`torch.Tensor` of shape `(rows, vocabulary)`): changed in place; the last dimension is contiguous.
        labels (`torch.LongTensor` of shape `(rows,)`): -100 where there is no label.
        label_probability (`float`): 1 - epsilon_ls.
    """
    rows, vocabulary = logits.shape
    log_sums, label_logits, are_highest = logits.new_empty((3, rows), dtype=torch.float32)
    row_stride = logits.stride(0)
    # The kernel multiplies the stride by a constant again. Triton knows constants when it compiles, and loads 16 bytes
    # at once if it can conclude that every row begins at a multiple of 16 bytes.
    stride_multiple = 1
    if row_stride % _ALIGNED_COLUMNS == 0:
        stride_multiple = _ALIGNED_COLUMNS
    # Triton launches on the current GPU, which may differ from the GPU of the logits.
    with torch.cuda.device_of(logits):
        _replace_row[(rows,)](
            logits,
            labels,
            log_sums,
            label_logits,
            are_highest,
            row_stride // stride_multiple,
            vocabulary,
            label_probability,
            STRIDE_MULTIPLE=stride_multiple,
            COLUMNS=COLUMNS_PER_BLOCK,
            num_warps=_WARPS,
        )
    return RowTerms(log_sums, label_logits, are_highest)
