"""Run Python with a few packages only, as on a machine where nothing was installed for this project."""

import os
import subprocess
import sys
from importlib.metadata import distribution, requires
from pathlib import Path

from packaging.requirements import Requirement


ROOT = Path(__file__).parents[1]


def with_dependencies(*names: str) -> set[str]:
    """Return packages and all that they require, without extras."""
    packages: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in packages:
            packages.add(name)
            for requirement in map(Requirement, requires(name) or ()):
                if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                    pending.append(requirement.name)
    return packages


def make_folder_of_packages(folder: Path, *names: str) -> Path:
    """Fill a folder with links to packages and their dependencies, and return it."""
    for name in with_dependencies(*names):
        for file in distribution(name).files or ():
            top = file.parts[0]
            if top not in ("..", "__pycache__") and not (folder / top).is_symlink():
                (folder / top).symlink_to(Path(str(distribution(name).locate_file(top))))
    return folder


def run_bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in the checkout, with the packages of a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    command = [sys.executable, "-S", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
