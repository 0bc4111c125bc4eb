"""Lines of text: their encoding, compression, and arrival."""

import gzip
import io
import os
import threading

import pytest

from hf_vanilla_transformer.data.text_lines import decode_lines, iterate_lines, lines_as_they_arrive


def test_iterate_lines_removes_line_ends_and_byte_order_mark(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffä\r\nb\u2028c\n\n\ufeffd".encode())
    assert list(iterate_lines(path)) == ["ä", "b\u2028c", "", "\ufeffd"]


@pytest.mark.parametrize("name", ["text.gz", "TEXT.GZ"])
def test_iterate_lines_of_compressed_text(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(gzip.compress("ä\nb\n".encode()))
    assert list(iterate_lines(path)) == ["ä", "b"]


def test_iterate_lines_of_damaged_compression(tmp_path):
    path = tmp_path / "text.gz"
    for content in (gzip.compress(b"a\n" * 999)[:-9], b"plain\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"text\.gz is not a whole gzip file \("):
            list(iterate_lines(path))


def test_iterate_lines_names_the_line_of_a_bad_byte(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"0123456789\n" * 100_000 + b"ab\xe4\n")
    with pytest.raises(ValueError, match=r"text, line 100001: byte 0xe4 is not UTF-8; convert it to UTF-8"):
        list(iterate_lines(path))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_iterate_lines_rejects_other_encodings_of_unicode(tmp_path, encoding):
    path = tmp_path / "text"
    path.write_text("seven\n", encoding=encoding)
    with pytest.raises(ValueError, match=r"text, line 1: .*; convert it to UTF-8, for example with iconv"):
        list(iterate_lines(path))


def test_open_bytes_rejects_folders_and_missing_files(tmp_path):
    """The errors of the file system name the path."""
    with pytest.raises(IsADirectoryError, match=f"Is a directory: .*{tmp_path.name}"):
        list(iterate_lines(tmp_path))
    for name in ("nowhere", "nowhere.gz"):
        with pytest.raises(FileNotFoundError, match=f"No such file or directory: .*{name}"):
            list(iterate_lines(tmp_path / name))


def test_iterate_lines_of_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("a\nb\n",))
    writer.start()
    assert list(iterate_lines(pipe)) == ["a", "b"]
    writer.join()


def test_lines_as_they_arrive_do_not_wait():
    receiver, sender = os.pipe()
    with os.fdopen(receiver, "rb") as stream, os.fdopen(sender, "wb", buffering=0) as writer:
        lists = lines_as_they_arrive(stream, "stream")
        writer.write(b"\xef\xbb\xbfone\ntw")
        assert next(lists) == ["one"]
        writer.write(b"o\nthree\nfour")
        assert next(lists) == ["two", "three"]
        writer.close()
        assert list(lists) == [["four"]]


def test_lines_as_they_arrive_are_counted():
    stream = io.BufferedReader(io.BytesIO(b"one\ntwo\nb\xffd\n"))
    with pytest.raises(ValueError, match="standard input, line 3: byte 0xff is not UTF-8"):
        list(lines_as_they_arrive(stream, "standard input"))


def test_the_first_line_alone_has_a_byte_order_mark():
    lines = ["\ufeffa".encode()]
    assert list(decode_lines(lines, "text")) == ["a"]
    assert list(decode_lines(lines, "text", first=2)) == ["\ufeffa"]
