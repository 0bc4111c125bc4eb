"""A benchmark command with several modes: it keeps all figures in a JSON file and writes their tables next to it."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write
from hf_vanilla_transformer.support.user_errors import InputError


REPORT = "report"
# Names of modes in older files of figures.
RENAMED = {"parts": "profile"}
Figures = dict[str, Any]


def run_modes(
    name: str,
    chosen: Sequence[str],
    measure: dict[str, Callable[[], Iterable[Figures]]],
    output: str,
    plot_folder: str | None,
    tables: Callable[[Figures], Iterable[str]],
    plot: Callable[[Figures, Path], Iterable[Path]],
) -> Figures:
    """Measure in the chosen modes, then print and write the tables of all figures in the file, old and new.

    The tables are written to the JSON file's name with the ending `.md`.

    Args:
        name: of the command, for the heading of the tables.
        chosen: names of modes; the first of `measure` if empty. `report` measures nothing.
        measure: for each mode, a function that yields its figures, again whenever there are more. They replace the
            figures of this mode in the file, which is written each time.
        output: the JSON file.
        plot_folder: folder to draw into.
        tables, plot: functions that show figures.

    Returns:
        All figures in the file, by mode.
    """
    modes = [*measure, REPORT]
    unknown = [mode for mode in chosen if mode not in modes]
    if unknown:
        raise InputError(f'there is no mode "{unknown[0]}"; choose among: {", ".join(modes)}.')
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    check_can_write(output, str(path.with_suffix(".md")))
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    figures = {RENAMED.get(mode, mode): section for mode, section in stored.items()}
    for mode in chosen or modes[:1]:
        if mode == REPORT and not figures:
            raise InputError(f"there are no figures in {output}; measure first, or name another --output.")
        for measured in measure[mode]() if mode != REPORT else ():
            figures[mode] = measured
            write_text(path, json.dumps(figures, indent=2) + "\n")
    text = "\n\n".join(tables(figures))
    print(text)
    source = f"Generated from {path.name} by `python -m benchmarks.{name} report`."
    write_text(path.with_suffix(".md"), f"# benchmarks.{name}\n\n{source}\n\n{text}\n")
    if plot_folder is not None:
        for drawn in plot(figures, Path(plot_folder)):
            print(f"drawn: {drawn}")
    return figures
