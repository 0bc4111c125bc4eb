"""Run the notebooks, each in an empty folder, and save their outputs: `make notebooks`."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient


NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def main(names: list[str]) -> None:
    """Run the notebooks of these names, or all."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if names and path.stem not in names:
            continue
        print(path.name, flush=True)
        notebook = nbformat.read(path, as_version=4)
        with TemporaryDirectory() as folder:
            run_in = {"metadata": {"path": folder}}
            NotebookClient(
                notebook, timeout=None, resources=run_in, coalesce_streams=True
            ).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)  # Times of day.
            if cell.cell_type == "code":
                # Progress bars, and warnings of the machine.
                cell.outputs = [each for each in cell.outputs if each.get("name") != "stderr"]
        nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
