"""Train a Transformer from scratch, or fine-tune one, and evaluate it on the test pairs.

Without arguments it trains on the built-in number corpus, with the recipe "numbers".
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from ..data.pair_arguments import DataArguments
from ..evaluation.scoring_arguments import ScoringArguments
from ..training.run_arguments import ModelArguments, RunArguments, Settings
from ..translation.decoding_arguments import DecodingArguments
from .parser import parse, plain_errors


DEFAULT_CONFIG = "numbers"
KINDS = [ModelArguments, DataArguments, DecodingArguments, ScoringArguments, RunArguments]
# Arguments of the Trainer that would have no effect here, or stop the run.
_NO_EFFECT = {
    "do_train": "`train` always trains",
    "do_eval": '--eval_strategy "steps" or "epoch" evaluates during training',
    "do_predict": "--test_file translates and scores test pairs after training",
    "local_rank": "torchrun and accelerate launch set it",
    "sortish_sampler": "--train_sampling_strategy and --tokens_per_batch form batches",
    "length_column_name": "lengths are counted from the tokens",
    "include_for_metrics": "BLEU and chrF need translations only",
    "use_liger_kernel": "Liger has no kernels for this model",
    "liger_kernel_config": "Liger has no kernels for this model",
}
_UNSUPPORTED = {
    "batch_eval_metrics": "BLEU needs all translations",
    "eval_do_concat_batches": "BLEU needs all translations",
    "auto_find_batch_size": "its second attempt keeps the model and the learning rate of the first",
    "neftune_noise_alpha": "the Trainer's noise does not reach shared embeddings",
}
REJECTED = {name: f"{name} has no effect, because {why}; leave it out." for name, why in _NO_EFFECT.items()}
REJECTED |= {name: f"{name} is not supported, because {why}; leave it out." for name, why in _UNSUPPORTED.items()}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train as the command line says; returns the folder of the trained model."""
    arguments = list(sys.argv[1:] if arguments is None else arguments) or ["--config", DEFAULT_CONFIG]
    settings = Settings(*parse(KINDS, __doc__, arguments, verb="train", rejected=REJECTED))
    # Not at the top, because --help needs neither the Trainer nor the data.
    from ..training.run import run

    with plain_errors():
        if scores_something(settings):
            language = settings.data.languages()[1]
            settings = settings._replace(scoring=settings.scoring.for_target(language))
    return run(settings)


def scores_something(settings: Settings) -> bool:
    """Whether the run may compute BLEU, whose tokenization may need an optional library."""
    data, args = settings.data, settings.args
    return bool(data.test_file or data.dataset_name or args.predict_with_generate or args.results)
