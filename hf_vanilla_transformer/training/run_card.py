"""The model card of a run."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from datasets import DatasetDict
from transformers import Seq2SeqTrainer

from ..hub.model_card import BUILT_IN, About, argument_facts, average_facts, fill_model_card
from ..hub.staged_folder import staged
from .checkpoint_averaging import averaged_from
from .paper_arguments import describe_precision
from .run_arguments import Settings
from .run_facts import FactsOfTheRun
from .run_results import describe_best
from .run_scoring import describe_average


def save_card(
    trainer: Seq2SeqTrainer,
    settings: Settings,
    pairs: DatasetDict,
    scores: dict[str, Any] | None,
    facts: FactsOfTheRun,
    average_scores: dict[str, Any],
) -> None:
    """Write the model card and the scores into the model's folder.

    Args:
        scores: on the test pairs.
        average_scores: what `compare_average` returned, or nothing.
    """
    args = settings.args
    model: Any = trainer.model
    data = settings.data.describe("train")
    training_facts = {
        "data": data,
        **argument_facts(args),
        "precision": describe_precision(args),
        "optimizer": facts.optimizer,
        "pairs": f"{len(pairs['train']):,}",
        "updates": f"{trainer.state.global_step:,}",
        "seconds": round(facts.seconds),
        **({"R-Drop": f"weight {args.r_drop_alpha:g}"} if args.r_drop_alpha else {}),
        **describe_best(trainer),
        **average_facts(averaged_from(settings.output)),
        **({"validation BLEU": describe_average(average_scores)} if average_scores else {}),
    }
    # A sentence of the user's data may be private.
    example = {"example_source": pairs["train"][0]["source"]} if settings.data.dataset_name == BUILT_IN else {}
    described = replace(about(settings, scores), data=data, **describe_location(settings), **example)
    card = fill_model_card(described, model.config, model.num_parameters(), training_facts)
    with staged(settings.output) as folder:
        (folder / "README.md").write_text(card.content, encoding="utf-8")
        if scores is not None or average_scores:
            written = {**(scores or {}), **({"validation": average_scores} if average_scores else {})}
            (folder / "scores.json").write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


def about(settings: Settings, scores: dict[str, Any] | None = None) -> About:
    """What the model card says besides sizes and training."""
    args, data_args = settings.args, settings.data
    name = (args.hub_model_id if args.push_to_hub else None) or str(args.output_dir)
    return About(
        Path(name).absolute().name,
        data_args.dataset_name,
        data_args.dataset_config_name,
        *data_args.languages(),
        settings.model.model_name_or_path,
        settings.model.license,
        scores,
    )


def describe_location(settings: Settings) -> dict[str, Any]:
    """Where the model card's example loads the model from."""
    args = settings.args
    if args.push_to_hub:
        return {"location": args.hub_model_id, "revision": args.hub_revision}
    # An absolute path would describe this machine.
    return {"location": settings.output.name if settings.output.is_absolute() else str(args.output_dir)}
