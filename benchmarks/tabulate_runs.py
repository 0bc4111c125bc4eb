"""Print a Markdown table of files that scripts/train.py wrote with --results, with mean and deviation over seeds."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


# Run as a file, Python looks in the file's folder first, where evaluate.py hides the library of that name.
if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from hf_vanilla_transformer.cli.parsing import parse, plain_errors
from hf_vanilla_transformer.cli.writing import check_can_write
from hf_vanilla_transformer.evaluation.results import table_of_results
from hf_vanilla_transformer.files import write_text


@dataclass
class TableArguments:
    """Where to put the table. The files of results come first, as arguments without a name."""

    output: str | None = field(default=None, metadata={"help": "Write the table into this file, too."})


def main(arguments: Sequence[str] | None = None) -> str:
    """Collect as the command line says; returns the table."""
    args, files = parse([TableArguments], __doc__, arguments, positional="results")
    with plain_errors():
        check_can_write(args.output)
        table = table_of_results(files)
    print(table, end="")
    if args.output is not None:
        write_text(args.output, table)
    return table


if __name__ == "__main__":
    main()
