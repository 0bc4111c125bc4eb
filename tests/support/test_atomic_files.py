"""Files are written as a whole or not at all."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from hf_vanilla_transformer.support import atomic_files
from hf_vanilla_transformer.support.atomic_files import are_same_file, locked, whole_file, write_text


def test_a_file_is_replaced_when_all_is_written(tmp_path):
    path = tmp_path / "text"
    write_text(path, "old")
    with whole_file(str(path)) as file:
        file.write("ä")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text(encoding="utf-8") == "ä"
    with whole_file(path, binary=True) as file:
        file.write(b"\x00")
    assert path.read_bytes() == b"\x00"
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize(("keeps_part", "content"), [(False, "half"), (True, ""), (True, "half")])
def test_an_error_leaves_the_file_as_it_was(tmp_path, caplog, keeps_part, content):
    path, part = tmp_path / "text", tmp_path / ".text.part"
    write_text(path, "old")

    def write_a_part():
        with whole_file(path, keeps_part=keeps_part) as file:
            file.write(content)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_a_part()
    assert path.read_text() == "old"
    is_kept = keeps_part and bool(content)
    assert part.exists() == is_kept
    assert caplog.messages == ([f"the part that was written is in {part}"] if is_kept else [])


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "text", "")


def test_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(atomic_files, "flush", lambda path: flushed.append((path, (tmp_path / "text").exists())))
    with whole_file(tmp_path / "text", sync=True) as file:
        file.write("new")
    assert flushed == [(tmp_path / ".text.part", False)]


def test_a_link_stays_and_its_target_is_replaced(tmp_path):
    target, link = tmp_path / "folder" / "target", tmp_path / "link"
    target.parent.mkdir()
    link.symlink_to(target)
    for text in ("first", "second"):  # At first the link leads nowhere.
        write_text(link, text)
        assert link.is_symlink()
        assert target.read_text() == text


def test_permissions_stay(tmp_path):
    path = tmp_path / "text"
    path.touch(mode=0o640)
    path.chmod(0o640)
    write_text(path, "new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_through():
    write_text("/dev/null", "text")
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs Linux")
def test_files_in_memory_are_files():
    with TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "text"
        path.write_text("old")
        with whole_file(path) as file:
            file.write("new")
            assert path.read_text() == "old"
        assert path.read_text() == "new"


def test_a_pipe_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        write_text(pipe, "text")
        assert reader.communicate()[0] == "text"
    assert pipe.is_fifo()


def test_the_file_of_a_stream_is_written_in_place(tmp_path):
    command = (
        "from hf_vanilla_transformer.support.atomic_files import write_text; print(1); write_text('/dev/stdout', '2')"
    )
    with (tmp_path / "text").open("w") as file:
        subprocess.run([sys.executable, "-u", "-c", command], stdout=file, check=True)
        inode = os.fstat(file.fileno()).st_ino
    assert (tmp_path / "text").stat().st_ino == inode


def test_a_full_disk_is_told_with_the_file(tmp_path):
    def fill_the_disk():
        with whole_file(tmp_path / "text") as file:
            file.write("half")
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match=f"No space left on device: '{tmp_path / 'text'}'"):
        fill_the_disk()
    assert not list(tmp_path.iterdir())


HOLD = """
import sys, time
from pathlib import Path
from hf_vanilla_transformer.support.atomic_files import locked
with locked(Path(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("is_folder", [False, True])
def test_one_process_at_a_time(tmp_path, is_folder):
    path = tmp_path / "output"
    if is_folder:
        path.mkdir()
    with subprocess.Popen([sys.executable, "-c", HOLD, path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BlockingIOError, match=f"process {holder.pid} on .* is writing {path}; wait"), locked(path):
            pass
        if not is_folder:
            with pytest.raises(BlockingIOError, match=f"process {holder.pid} on "):
                write_text(path, "text")
        holder.kill()
    # The lock file of a killed process does not block.
    assert [path.name for path in tmp_path.rglob(".*")]
    with locked(path):
        pass
    assert not [path.name for path in tmp_path.rglob(".*")]


@pytest.mark.parametrize("error", [NotImplementedError(), OSError(errno.EROFS, ""), PermissionError(errno.EACCES, "")])
def test_a_file_system_without_locks(tmp_path, monkeypatch, error):
    def acquire(self):
        raise error

    monkeypatch.setattr(atomic_files.FileLock, "acquire", acquire)
    write_text(tmp_path / "text", "text")
    assert (tmp_path / "text").read_text() == "text"


def test_same_files(tmp_path):
    path, link, hard_link = (tmp_path / name for name in ("file", "link", "hard"))
    assert are_same_file(path, tmp_path / "." / "file")
    path.touch()
    link.symlink_to("file")
    hard_link.hardlink_to(path)
    assert are_same_file(path, link)
    assert are_same_file(link, hard_link)
    assert not are_same_file(path, tmp_path / "other")
