import gzip
import subprocess
import tarfile

import pytest

from tests.conformance import sdist
from tests.conformance.sdist import SourceDistributionError


ARCHIVE = "transformers-5.0.tar.gz"


def make_archive(folder, names=sdist.NEEDED):
    """A source distribution with these tests, and with other files."""
    tests = folder / "transformers-5.0" / "tests"
    (tests / "models").mkdir(parents=True)
    for path in [
        tests / "models" / "test_modeling_bert.py",
        tests.parent / "setup.py",
        *(tests / name for name in names),
    ]:
        path.write_text(f"name = {path.name!r}\n")
    archive = folder / ARCHIVE
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tests.parent, arcname=tests.parent.name)
    return archive


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """pip, whose every download of an archive is one more entry of the list returned."""
    source = make_archive(tmp_path)
    calls = []

    def download(command, **kwargs):
        calls.append(command)
        (sdist.Path(command[command.index("--dest") + 1]) / ARCHIVE).write_bytes(source.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(sdist.subprocess, "run", download)
    return calls


def test_fetch_downloads_once(pip, tmp_path):
    cache = tmp_path / "cache"
    assert sdist.fetch("5.0", cache) == sdist.fetch("5.0", cache) == cache / ARCHIVE
    assert len(pip) == 1
    assert [path.name for path in cache.iterdir()] == [ARCHIVE]


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-9], lambda data: data[:40] + b"?" + data[41:], lambda data: b""]
)
def test_fetch_replaces_a_damaged_archive(pip, tmp_path, damage):
    cache = tmp_path / "cache"
    whole = sdist.fetch("5.0", cache).read_bytes()
    (cache / ARCHIVE).write_bytes(damage(whole))
    assert sdist.fetch("5.0", cache).read_bytes() == whole
    assert len(pip) == 2


def test_fetch_names_the_remedy_without_network(monkeypatch, tmp_path):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(SourceDistributionError, match=r"connect to the network, or copy the file to .*No matching"):
        sdist.fetch("5.0", tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []


def test_unpack_gives_an_importable_package_of_common_tests(tmp_path):
    folder = tmp_path / "unpacked"
    folder.mkdir()
    sdist.unpack(make_archive(tmp_path), folder)
    files = {path.relative_to(folder / sdist.PACKAGE).as_posix() for path in folder.rglob("*.*")}
    assert files == {*sdist.NEEDED, *sdist.STAND_INS}


def test_unpack_names_a_suite_that_is_missing(tmp_path):
    folder = tmp_path / "unpacked"
    folder.mkdir()
    with pytest.raises(SourceDistributionError, match=r"has no tests/test_modeling_common\.py"):
        sdist.unpack(make_archive(tmp_path, set(sdist.NEEDED) - {"test_modeling_common.py"}), folder)


def test_is_whole_checks_the_checksum(tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"text"))
    assert sdist.is_whole(path)
    path.write_bytes(path.read_bytes()[:-8] + bytes(8))
    assert not sdist.is_whole(path)
