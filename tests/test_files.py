"""Files are written as a whole or not at all."""

import pytest

from hf_vanilla_transformer import files
from hf_vanilla_transformer.files import whole_file, write_text


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
    assert [each.name for each in tmp_path.iterdir()] == ["text"]


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
    kept = keeps_part and bool(content)
    assert part.exists() == kept
    assert caplog.messages == ([f"the part that was written is in {part}"] if kept else [])


def test_a_folder_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_text(tmp_path / "nowhere" / "text", "")


def test_content_is_on_the_disk_before_the_name(tmp_path, monkeypatch):
    flushed = []
    monkeypatch.setattr(files, "flush", lambda path: flushed.append((path, (tmp_path / "text").exists())))
    with whole_file(tmp_path / "text", sync=True) as file:
        file.write("new")
    assert flushed == [(tmp_path / ".text.part", False)]
