"""A command of several modes, whose figures are kept in one JSON file."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from hf_vanilla_transformer.cli.parsing import plain_errors
from hf_vanilla_transformer.cli.writing import check_can_write
from hf_vanilla_transformer.files import write_text


REPORT = "report"
Figures = dict[str, Any]


def run_modes(
    chosen: Sequence[str],
    measure: dict[str, Callable[[], Iterable[Figures]]],
    output: str,
    plot_folder: str | None,
    tables: Callable[[Figures], Iterable[str]],
    plot: Callable[[Figures, Path], Iterable[Path]],
) -> Figures:
    """Measure in each mode that was chosen, and show all figures there are, also those of earlier runs.

    Args:
        chosen: modes, the first of `measure` where there is none. `report` shows what is there.
        measure: what yields the figures of each mode, and again when there are more; they replace the mode's own in the
            file, which is written each time.
        output: the file.
        plot_folder: draw into it.
        tables, plot: how figures are shown.
    """
    with plain_errors():
        modes = [*measure, REPORT]
        unknown = [mode for mode in chosen if mode not in modes]
        if unknown:
            raise ValueError(f'there is no mode "{unknown[0]}"; choose among: {", ".join(modes)}.')
        path = Path(output)
        path.parent.mkdir(parents=True, exist_ok=True)
        check_can_write(output)
        figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for mode in chosen or modes[:1]:
            if mode == REPORT and not figures:
                raise ValueError(f"there are no figures in {output}; measure first, or name another --output.")
            for measured in measure[mode]() if mode != REPORT else ():
                figures[mode] = measured
                write_text(path, json.dumps(figures, indent=2) + "\n")
        print("\n\n".join(tables(figures)))
        if plot_folder is not None:
            for drawn in plot(figures, Path(plot_folder)):
                print(f"drawn: {drawn}")
    return figures
