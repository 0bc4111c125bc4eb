"""Translations of the same validation pairs at each evaluation of a run."""

import logging
import math
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase, Seq2SeqTrainer, TrainerCallback, TrainerControl, TrainerState
from transformers.integrations import TensorBoardCallback

from ..evaluation.evaluate import format_examples, spread


SHOWN = 5

logger = logging.getLogger(__name__)


class LogExamples(TrainerCallback):
    """Logs, at each evaluation, the same five validation pairs as source, prediction and reference.

    TensorBoard shows them as text. Every process translates them, because the weights of one may be spread over all.

    Args:
        trainer (`Seq2SeqTrainer`): whose decoding settings and TensorBoard are used.
        tokenizer (`PreTrainedTokenizerBase`): of the model.
        pairs (`Dataset`): validation pairs, with columns `source` and `target`.
    """

    def __init__(self, trainer: Seq2SeqTrainer, tokenizer: PreTrainedTokenizerBase, pairs: Dataset):
        self.trainer, self.tokenizer = trainer, tokenizer
        self.examples = pairs.select(spread(len(pairs), SHOWN))

    def on_evaluate(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # A model whose training diverged may have no translation.
        if not math.isfinite(kwargs["metrics"].get("eval_loss", 0)):
            return
        predictions = self._translate(args, kwargs["model"])
        if not state.is_world_process_zero:
            return
        text = format_examples(self.examples["source"], predictions, self.examples["target"])
        logger.info("%s\n", text)
        for each in self.trainer.callback_handler.callbacks:
            if isinstance(each, TensorBoardCallback) and each.tb_writer is not None:
                # Markdown, in which an indented block keeps its lines.
                each.tb_writer.add_text("eval/examples", text.replace("\n", "\n    "), state.global_step)

    def _translate(self, args: Any, model: Any) -> list[str]:
        """Not by `translate()`, whose inference mode makes tensors that training cannot use."""
        ids = self.tokenizer(self.examples["source"][:], verbose=False).input_ids
        inputs = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(model.device)
        settings = {"num_beams": args.generation_num_beams, "max_length": args.generation_max_length}
        given = {name: value for name, value in settings.items() if value is not None}
        return self.tokenizer.batch_decode(model.generate(**inputs, **given), skip_special_tokens=True)
