"""The folder that a run writes: never two models in one, never half a file."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .checkpoints import checkpoints_in


# What a run leaves beside its checkpoints; a later run in the same folder may write fewer of them.
FILES_OF_A_RUN = (
    "README.md",
    "averaged_from.json",
    "config.json",
    "curve.json",
    "curve.png",
    "generation_config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-?????-of-?????.safetensors",
    "scores.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "training_args.bin",
    "configuration_vanilla_transformer.py",
    "functional_vanilla_transformer.py",
    "generation_beam_search_vanilla_transformer.py",
    "generation_step_vanilla_transformer.py",
    "generation_vanilla_transformer.py",
    "modeling_vanilla_transformer.py",
    "packed_linear_vanilla_transformer.py",
    "pipeline_vanilla_transformer.py",
    "quantization_vanilla_transformer.py",
)


def check_output_folder(folder: Path, *, overwrite: bool = False, resume: bool = False) -> None:
    """Make sure that a run does not mix its files with another's.

    Args:
        folder (`Path`): where the run is to write.
        overwrite (`bool`): whether what an earlier run left there may be replaced.
        resume (`bool`): whether this run goes on with the earlier one.

    Raises:
        FileExistsError: if the folder holds files like those that a run writes, and neither was said.
        NotADirectoryError: if it is a file.
    """
    if folder.is_file():
        raise NotADirectoryError(f"{folder} is a file; name a folder for the trained model.")
    found = [path.name for path in (*checkpoints_in(folder), *files_of_a_run(folder))]
    if found and not (overwrite or resume):
        raise FileExistsError(
            f"{folder} already holds a model or checkpoints ({', '.join(found[:4])}); name another folder, or say "
            "--overwrite to replace them or --resume_from_checkpoint last to go on."
        )


@contextmanager
def staged(folder: Path, *, replace_run: bool = False) -> Iterator[Path]:
    """A temporary folder beside `folder`, whose files move into `folder` when all of them are written.

    Args:
        folder (`Path`): made if need be; files of the same names are replaced.
        replace_run (`bool`): whether other files that an earlier run left there go, too.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        yield Path(temporary)
        folder.mkdir(exist_ok=True)
        earlier = files_of_a_run(folder) if replace_run else []
        moved = [path.replace(folder / path.name) for path in Path(temporary).iterdir()]
        for path in set(earlier) - set(moved):
            path.unlink()


def files_of_a_run(folder: Path) -> list[Path]:
    """What a run left in a folder beside its checkpoints."""
    return [path for pattern in FILES_OF_A_RUN for path in sorted(folder.glob(pattern)) if path.is_file()]
