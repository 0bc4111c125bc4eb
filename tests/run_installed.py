"""Run the command line of an installed wheel, with the checkout not on the path.

Usage: python -I run_installed.py FOLDER VERB ...; FOLDER is where pip installed the wheel.
"""

import runpy
import sys
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    """Replace the checkout by the folder on the path, and run the package as `python -m` does."""
    folder, checkout = sys.argv.pop(1), Path(__file__).parents[1]
    sys.path = [folder, *(place for place in sys.path if Path(place).resolve() != checkout)]
    origin = Path(find_spec("hf_vanilla_transformer").origin)
    assert origin.is_relative_to(folder), origin
    runpy.run_module("hf_vanilla_transformer", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
