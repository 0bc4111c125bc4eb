"""The tests in transformers' source distribution: downloaded once, checked, unpacked outside the checkout."""

import gzip
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path
from tempfile import TemporaryDirectory


# Its name ends in "tests", because the tokenizer suite looks for its text upwards from its own file to such a folder.
PACKAGE = "transformers_tests"

NEEDED = (
    "test_configuration_common.py",
    "test_modeling_common.py",
    "test_sentencepiece_backend_mixin.py",
    "test_tokenization_common.py",
    "test_tokenizers_backend_mixin.py",
    "test_training_mixin.py",
)

# What the needed files import or read, and the source distribution leaves out.
STAND_INS = {
    "__init__.py": "",
    "exporters/__init__.py": "",
    "exporters/test_export.py": "class ExportTesterMixin:\n    pass\n",
    "generation/__init__.py": "",
    "generation/test_utils.py": "class GenerationTesterMixin:\n    pass\n",
    "utils/__init__.py": "",
    "utils/test_configuration_utils.py": (
        'config_common_kwargs = {"return_dict": False, "output_hidden_states": True, "dtype": "float16", '
        '"chunk_size_feed_forward": 3, "architectures": ["AnyModel"], "id2label": {0: "a"}, "label2id": {"a": 0}}\n'
    ),
    "fixtures/sample_text.txt": "A text of a few words, 12 numbers and marks!\n\nA second paragraph; and its end.\n",
}


class SourceDistributionError(Exception):
    """The source distribution cannot be downloaded, or lacks a file; the message gives the remedy."""


def fetch(version: str, cache: Path) -> Path:
    """The source distribution of `transformers==version`, from `cache`, or else from pip's package index.

    Raises:
        SourceDistributionError: if pip cannot fetch it.
    """
    archive = cache / f"transformers-{version}.tar.gz"
    if archive.exists() and is_whole(archive):
        return archive
    cache.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=cache) as folder:
        requirement = f"transformers=={version}"
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary=transformers"]
        done = subprocess.run([*pip, "--dest", folder, requirement], capture_output=True, text=True)
        downloaded = Path(folder, archive.name)
        if done.returncode != 0 or not downloaded.exists() or not is_whole(downloaded):
            last_line = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
            raise SourceDistributionError(
                f"pip could not fetch the source distribution of {requirement} from the package index; connect to the "
                f"network, or copy the file to {archive}. pip's last line: {last_line}"
            )
        downloaded.replace(archive)
    return archive


def is_whole(archive: Path) -> bool:
    """Whether a gzip file is complete and unchanged, by the checksum and the length at its end."""
    try:
        with gzip.open(archive) as file:
            # gzip accepts an empty file.
            return sum(len(block) for block in iter(lambda: file.read(1 << 20), b"")) > 0
    except (OSError, EOFError, zlib.error):
        return False


def unpack(archive: Path, folder: Path) -> None:
    """Write the common tests, and stand-ins for what they import, into `folder` as the package `transformers_tests`.

    Raises:
        SourceDistributionError: if the source distribution lacks a needed file.
    """
    package = folder / PACKAGE
    package.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar:
            path = Path(member.name)
            if path.parts[1:-1] == ("tests",) and member.isfile():
                (package / path.name).write_bytes(tar.extractfile(member).read())
    for name in NEEDED:
        if not (package / name).exists():
            raise SourceDistributionError(
                f"{archive.name} has no tests/{name}: find where transformers keeps that suite now, and update "
                "tests/conformance/sdist.py."
            )
    for name, text in STAND_INS.items():
        path = package / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
