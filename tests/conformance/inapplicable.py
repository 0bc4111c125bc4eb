"""Tests and suites of transformers that cannot apply here, each with the line of transformers that shows it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Inapplicable:
    """Why a test or a suite cannot apply: the first `line` of `file` after one that has `after` in it."""

    file: str
    after: str
    line: str
    because: str


class LineNotFoundError(Exception):
    """A line that made a test inapplicable is gone."""


def check_line(reason: Inapplicable, name: str, folders: dict[str, Path]) -> None:
    """Check that transformers still has the line that makes the test or suite `name` inapplicable.

    Args:
        reason: the line and its file.
        name: of the test or suite, for the error message.
        folders: the place of each folder that can be the first part of `reason.file`.

    Raises:
        LineNotFoundError: if the line is gone.
    """
    top, _, path = reason.file.partition("/")
    lines = (folders[top] / path).read_text(encoding="utf-8").splitlines()
    start = next((number for number, line in enumerate(lines) if reason.after in line), len(lines))
    if reason.line not in [line.strip() for line in lines[start:]]:
        raise LineNotFoundError(
            f"{reason.file} no longer has the line `{reason.line}` after `{reason.after}`, which made {name} "
            "inapplicable: check whether the test applies now, and update tests/conformance/inapplicable.py."
        )


_ONE_EMBEDDING = "The test embeds source and target with one module, but this model has two modules."
_ONE_SIZE = "The test passes one size, but this model has two vocabularies, so the model raises a `ValueError`."
_EMBEDDED_ALIKE = Inapplicable(
    "tests/test_modeling_common.py",
    "def test_inputs_embeds_matches_input_ids(",
    "decoder_inputs_embeds = wte(decoder_input_ids)",
    _ONE_EMBEDDING,
)
_TWO = "model-two-vocabularies"
_DEFAULT_ATTENTION = Inapplicable(
    "tests/test_modeling_common.py",
    "def test_sdpa_can_dispatch_non_composite_models(",
    'self.assertTrue(model_sdpa.config._attn_implementation == "sdpa")',
    "The default attention of our model is `vanilla_transformer`, which calls sdpa where sdpa is faster.",
)

INAPPLICABLE = {
    "model::test_sdpa_can_dispatch_non_composite_models": _DEFAULT_ATTENTION,
    f"{_TWO}::test_sdpa_can_dispatch_non_composite_models": _DEFAULT_ATTENTION,
    "model-untied-learned::test_sdpa_can_dispatch_non_composite_models": _DEFAULT_ATTENTION,
    "model-other-system::test_sdpa_can_dispatch_non_composite_models": _DEFAULT_ATTENTION,
    "tokenizer::test_tokenize_special_tokens": Inapplicable(
        "tests/test_tokenization_common.py",
        "def test_tokenize_special_tokens(",
        "self.assertEqual(len(token_1), 1)",
        "By default, our tokenizer reads `</s>` in a text as ordinary text (`split_special_tokens=True`). The suite "
        "`tokenizer-special-tokens` runs this test with `False`.",
    ),
    "tokenizers-backend::test_rust_tokenizer_add_prefix_space_0": Inapplicable(
        "transformers/tokenization_utils_tokenizers.py",
        "def __init__(",
        "self.add_prefix_space = add_prefix_space",
        "The test also fails for `TokenizersBackend` of transformers, which stores `add_prefix_space` but does not use "
        "it.",
    ),
    f"{_TWO}::test_inputs_embeds": Inapplicable(
        "tests/test_modeling_common.py",
        "def test_inputs_embeds(",
        'inputs["decoder_inputs_embeds"] = wte(decoder_input_ids)',
        _ONE_EMBEDDING,
    ),
    f"{_TWO}::test_inputs_embeds_matches_input_ids": _EMBEDDED_ALIKE,
    "model-untied-learned::test_inputs_embeds_matches_input_ids": _EMBEDDED_ALIKE,
    f"{_TWO}::test_resize_tokens_embeddings": Inapplicable(
        "tests/test_modeling_common.py",
        "def test_resize_tokens_embeddings(",
        "model_embed = model.resize_token_embeddings(model_vocab_size)",
        _ONE_SIZE,
    ),
    f"{_TWO}::test_resize_embeddings_untied": Inapplicable(
        "tests/test_modeling_common.py",
        "def test_resize_embeddings_untied(",
        "model.resize_token_embeddings(model_vocab_size + 10)",
        _ONE_SIZE,
    ),
    f"{_TWO}::test_resize_embeddings_untied_no_reinit_on_post_init": Inapplicable(
        "tests/test_modeling_common.py",
        "def test_resize_embeddings_untied_no_reinit_on_post_init(",
        "model.resize_token_embeddings(model_vocab_size + 10)",
        _ONE_SIZE,
    ),
}

_MISSING_FILE = "The source distribution of transformers lacks a file that the suite needs."

SUITES_NOT_RUN = {
    "generation (`GenerationTesterMixin`)": Inapplicable(
        "tests/test_modeling_common.py",
        "",
        "from .generation.test_utils import GenerationTesterMixin",
        f"{_MISSING_FILE} `tests/generation` tests decoding instead.",
    ),
    "export (`ExportTesterMixin`)": Inapplicable(
        "tests/test_modeling_common.py",
        "",
        "from .exporters.test_export import ExportTesterMixin",
        _MISSING_FILE,
    ),
    "tensor parallelism": Inapplicable(
        "tests/test_tensor_parallel_mixin.py",
        "",
        "from .distributed_testing_utils import run_distributed",
        _MISSING_FILE,
    ),
    "FSDP": Inapplicable(
        "tests/test_fsdp_mixin.py",
        "",
        "from .distributed_testing_utils import (",
        _MISSING_FILE,
    ),
    "expert parallelism": Inapplicable(
        "tests/test_expert_parallel_mixin.py",
        "",
        "from .distributed_testing_utils import run_distributed",
        _MISSING_FILE,
    ),
    "pipelines": Inapplicable(
        "tests/test_pipeline_mixin.py",
        "",
        "pipeline_test_mapping = {",
        "The suite has no translation task, because transformers 5 removed it.",
    ),
    "SentencePiece tokenizers": Inapplicable(
        "tests/test_tokenization_common.py",
        "",
        "# set to True to test a sentencepiece tokenizer",
        "Our tokenizer uses the tokenizers library, not SentencePiece.",
    ),
    "ExecuTorch": Inapplicable(
        "tests/test_executorch.py",
        "",
        'self.model = AutoModelForCausalLM.from_pretrained("hf-internal-testing/tiny-random-LlamaForCausalLM")',
        "The suite tests only a tiny Llama model.",
    ),
}
