"""`translate` of whole documents, by the endings of their names."""

from pathlib import Path

import pytest

from hf_vanilla_transformer.apps.cli import translate


pytest.importorskip("selectolax")
pytest.importorskip("sentencex")
MODEL = Path(__file__).parents[2] / "fixtures" / "numbers_tiny"


def run(*arguments) -> None:
    translate.main(["--model_name_or_path", str(MODEL), *map(str, arguments)])


def test_translate_keeps_the_markup_of_a_page(tmp_path, capsys):
    page = tmp_path / "page.html"
    page.write_text(
        "<!DOCTYPE html>\r\n<title>ten</title><p>six</p>\r\n\r\n<p><b>ten</b>\r\n</p>", encoding="utf-8-sig"
    )
    run("--input", page, "--output", tmp_path / "page.de.html")
    translation = (tmp_path / "page.de.html").read_text(encoding="utf-8")
    assert "<title>zehn</title>" in translation
    assert "<p>sechs</p>" in translation
    assert "<p><b>zehn</b>\n</p>" in translation
    run("--input", page)
    assert capsys.readouterr().out == translation


def test_translate_writes_a_folder_of_documents(tmp_path):
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "in" / "sub" / "a.HTM").write_text("<p>six</p>")
    (tmp_path / "in" / "b.xml").write_text('<?xml version="1.0"?>\n<d><p>ten</p><p>six</p></d>')
    (tmp_path / "in" / "c.txt").write_text("six")
    run("--input", tmp_path / "in", "--output", tmp_path / "out")
    files = {
        path.relative_to(tmp_path / "out").as_posix(): path.read_text() for path in (tmp_path / "out").rglob("*.*")
    }
    assert files == {
        "sub/a.HTM": "<p>sechs</p>",
        "b.xml": '<?xml version="1.0"?>\n<d><p>zehn</p><p>sechs</p></d>',
    }


def test_translate_rejects_folders_and_documents(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("in").mkdir()
    Path("in/a.xml").write_text("<d>six")
    Path("in/b.html").write_bytes(b"<p>\xff</p>")
    Path("file").write_text("")
    for arguments, message in {
        ("in",): "in is a folder; name a folder for the translations by --output",
        ("in", "file"): "in is a folder; name a folder for the translations by --output",
        ("in", "in/out"): "in/out lies in in, whose documents it would join",
        ("in", "."): "in/a.xml: .* is not well-formed XML",
        ("empty", "out"): "empty has no documents; their names end in .html, .htm, .xhtml, .xml",
        ("in/b.html", "out.html"): "in/b.html: 'utf-8' codec can't decode",
        ("in/b.html", "in/b.html"): "is also an input",
    }.items():
        with pytest.raises(SystemExit, match=message):
            run(*(word for pair in zip(("--input", "--output"), arguments, strict=False) for word in pair))
    assert not Path("out.html").exists()
    assert not Path("a.xml").exists()
