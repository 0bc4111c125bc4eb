"""What the pages name exists: files, headings, arguments, and in docs/paper.md code and tests of each section.

The Python of the pages runs: here, and for some pages in the tests of their subject. A name after the language of a
code block, as in ```python tokenizer, selects it.
"""

import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, training_args

import hf_vanilla_transformer
from hf_vanilla_transformer.apps.cli.main import VERBS
from hf_vanilla_transformer.apps.cli.plot import FIGURES
from hf_vanilla_transformer.apps.cli.train import parse_settings
from hf_vanilla_transformer.training.run_checks import check_choices
from tests.models import small_model


ROOT = Path(__file__).parents[1]
FIXTURE = ROOT / "tests" / "fixtures" / "numbers_tiny"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
NAMES = re.findall(r"\[`(\w+)`\]\(\.\./([^)#]+\.py)\)", (ROOT / "docs" / "paper.md").read_text(encoding="utf-8"))
RECIPES = ROOT / "hf_vanilla_transformer" / "recipes"
# Blocks of Python on each page, and where they run.
RUN_HERE = {
    "align.md": 1,
    "benchmarks.md": 1,
    "configuration.md": 1,
    "decoding.md": 2,
    "documents.md": 1,
    "evaluate.md": 2,
    "first_translator.md": 1,
    "large_corpora.md": 2,
    "precision_and_memory.md": 1,
    "token_budgets.md": 3,
    "train.md": 1,
    "train_settings.md": 3,
    "translate.md": 4,
}
RUN_ELSEWHERE = {
    "distillation.md": 1,  # tests/apps/cli/test_ensembles.py
    "engines.md": 1,  # tests/apps/conversion/test_ctranslate2_engine.py
    "fine_tune_opus_mt.md": 1,  # tests/apps/conversion/test_to_hf_marian.py
    "export.md": 3,  # tests/apps/conversion/test_ctranslate2.py and tests/ecosystem/test_export.py
    "explained.md": 17,  # tests/apps/pictures/test_pages.py
    "ecosystem.md": 4,  # tests/ecosystem
    "precision_and_memory.md": 3,  # tests/ecosystem and tests/acceleration/test_int8_quantization.py
    "see_inside.md": 3,  # tests/apps/pictures/test_pages.py and tests/ecosystem/test_bertviz.py
    "sharding.md": 3,  # tests/parallel/test_docs.py
    "share.md": 6,  # tests/hub/test_docs.py and tests/model/test_remote_code.py
}


def blocks(page: Path, language: str, name: str | None = None) -> list[str]:
    """The code blocks of a page in a language, with a name if one is given."""
    info = rf"{language} {name}" if name else rf"{language}\b[^\n]*"
    return re.findall(rf"```{info}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def commands() -> Iterator[tuple[str, list[str]]]:
    """The command lines on all pages and in the help of all verbs: a module's name, and its arguments."""
    texts = [block for page in PAGES for block in blocks(page, "bash")]
    texts += [import_module(f"hf_vanilla_transformer.apps.cli.{verb}").__doc__ or "" for verb in VERBS]
    texts += [figure.__doc__ or "" for figure in FIGURES.values()]
    for text in texts:
        for line in text.replace("\\\n", " ").splitlines():
            if match := re.search(r"\b(?:hf-vanilla-transformer|-m hf_vanilla_transformer) ([a-z]\w*)(.*)", line):
                module = match[1]
                yield f"hf_vanilla_transformer.apps.cli.{module}", shlex.split(match[2], comments=True)
            elif match := re.search(r"-m (benchmarks\.\w+)(.*)|\bscripts/(\w+)\.py(.*)", line):
                name, arguments = (match[1], match[2]) if match[1] else (f"scripts.{match[3]}", match[4])
                yield name, shlex.split(arguments, comments=True)


def anchors(page: Path) -> set[str]:
    """Of the headings, as repository hosts and mkdocs make them."""
    headings = re.findall(r"^#+ (.*)$", prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    # Jinja's templates make some of the links of the model card.
    for target in re.findall(r"\]\(([^){}\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        assert not anchor or anchor in anchors(linked), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_paths_exist(page):
    roots = "benchmarks|docs|hf_vanilla_transformer|notebooks|recipes|scripts|tests"
    for path in re.findall(rf"`((?:{roots})/[\w./-]*)`", prose(page)):
        base = ROOT / "hf_vanilla_transformer" if path.startswith("recipes/") else ROOT
        assert (base / path).exists(), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lines_have_at_most_100_columns(page):
    lines = page.read_text(encoding="utf-8").splitlines()
    # Tables may be wider, and lines of the model card, a Jinja template.
    assert not [line for line in lines if len(line) > 100 and not line.startswith("|") and "{{" not in line]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_line_inside_a_paragraph_begins_a_list(page):
    """Markdown makes an item of a line such as "- 0.1 + 0.1 / 5", wherever the paragraph was wrapped."""
    if page.name in ("CHANGELOG.md", "model_card.md"):  # Their lists follow a line of text.
        return
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    marker = re.compile(r"\s*([-*+]|\d+\.) ")
    pairs = [pair for pair in pairwise(text.splitlines()) if re.match(r"[^\s#|]", pair[0]) and marker.match(pair[1])]
    assert not [line for before, line in pairs if not marker.match(before)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_training_of_a_page_writes_to_its_own_folder(page):
    """`train` and `distill` refuse a folder that holds a model, so that a reader could not run the second command."""
    text = "\n".join(blocks(page, "bash")).replace("\\\n", " ")
    trainings = dict.fromkeys(re.findall(r"hf-vanilla-transformer (?:train|distill) .*", text))
    fresh = [command for command in trainings if not re.search("--(overwrite|resume_from_checkpoint)", command)]
    folders = re.findall(r"--output_dir (\S+)", "\n".join(fresh))
    assert len(folders) == len(set(folders)), folders


def test_the_site_has_every_page():
    def pages(entry: Any) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for subentry in entry.values() if isinstance(entry, dict) else entry:
                yield from pages(subentry)

    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    there = {page.name for page in (ROOT / "docs").glob("*.md")}
    # These pages are made of files outside of docs/; see docs/site_hooks.py.
    made = {"annotated.md", "quickstart.md", "contributing.md", "changelog.md"}
    assert sorted(pages(nav)) == sorted(there | made)
    listed = re.findall(r"\]\((\w+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(there - {"index.md"})


def test_install_md_has_every_extra_and_all_has_those_of_users():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    table = (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("## Extras")[2]
    assert set(re.findall(r"^\| `(\w+)` \|", table.partition("## ")[0], flags=re.MULTILINE)) == set(extras)

    def packages(extra: str) -> set[str]:
        names = set()
        for requirement in extras[extra]:
            own = re.fullmatch(r"hf-vanilla-transformer\[(.*)\]", requirement)
            names |= set().union(*map(packages, own[1].split(","))) if own else {requirement}
        return names

    extras_apart = {"all", "apps", "benchmarks", "dev", "docs", "quantization"}
    assert packages("all") == set().union(*(packages(extra) for extra in extras if extra not in extras_apart))


def test_python_api_md_has_every_public_name():
    text = (ROOT / "docs" / "python_api.md").read_text(encoding="utf-8")
    names = [f"hf_vanilla_transformer.{name}" for name in hf_vanilla_transformer.__all__]
    listed = re.findall(r"::: ([\w.]+)", text)
    assert sorted(listed) == sorted(names)


def test_architecture_md_names_what_exists():
    """Files by their paths in the package, or by names that occur once; after a colon, what they define."""
    package = ROOT / "hf_vanilla_transformer"
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)(?:: ([\w.]+))?`", text.replace("\n", " "))
    assert len(named) > 60
    for path, symbol in named:
        files = [file for file in (package / path, ROOT / path) if file.is_file()]
        (file,) = files or package.rglob(path)
        code = file.read_text(encoding="utf-8")
        for name in filter(None, symbol.split(".")):
            assert re.search(rf"(def|class) {name}\b", code), (path, symbol)


def test_pictures_are_small():
    images = [path for path in (ROOT / "docs").rglob("*") if path.suffix in (".png", ".svg")]
    assert images
    assert all(path.stat().st_size < 200_000 for path in images)


def test_code_of_the_pages_imports_public_names_from_the_package():
    """A public name has one way in, wherever it is defined."""
    # By a pattern, because the model card is a template and not Python yet.
    statement = r"^from (hf_vanilla_transformer\.[\w.]+) import \(?([\w\s,*]+?)\)?$"
    for page in PAGES:
        for block in blocks(page, "python"):
            for module, names in re.findall(statement, block, flags=re.MULTILINE):
                imported = set(re.split(r"[\s,]+", names))
                assert not imported & {"*", *hf_vanilla_transformer.__all__}, (page.name, module)


def test_the_table_of_python_api_md_has_every_public_name():
    (_, table) = (ROOT / "docs" / "python_api.md").read_text(encoding="utf-8").split("## Public names")
    first_cells = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    # A cell has several names, or a call such as `translate(model, tokenizer, texts)`.
    named = {name for cell in first_cells for name in re.findall(r"`(\w+)", cell)}
    assert named >= set(hf_vanilla_transformer.__all__)


def test_paper_md_has_names():
    assert len(NAMES) > 40


@pytest.mark.parametrize(("name", "file"), sorted(set(NAMES)))
def test_what_paper_md_names_is_defined(name, file):
    assert re.search(rf"^ *(?:def|class) {name}\b", (ROOT / file).read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_errors_of_troubleshooting_md_are_those_of_the_code():
    (_, table) = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").split("## Train")
    table = table.partition("## Translate")[0]
    messages = re.findall(r"^\| `([^`]*)` \|", table, flags=re.MULTILINE)
    assert len(messages) > 2
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "hf_vanilla_transformer").rglob("*.py"))
    for message in messages:
        assert all(part.strip() in code for part in message.split("...")), message


class ParsedError(Exception):
    """The arguments of a command line were understood."""


def understand(name: str, arguments: list[str], monkeypatch) -> None:
    """Run a command until it has read its arguments."""
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        # These two are not installed with the oldest versions.
        if error.name not in {"torchao", "html5lib"}:
            raise
        pytest.skip(f"it takes {error.name}")
    last = "parse" if hasattr(module, "parse") else "run"
    parse = getattr(module, "parse", lambda settings: settings)

    def stop(*args, **kwargs):
        parse(*args, **kwargs)
        raise ParsedError

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(module, last, stop)
    if name.startswith("scripts."):
        # Commands for GPUs have --bf16, which transformers rejects on a machine without such a GPU.
        monkeypatch.setattr(training_args, "is_torch_bf16_gpu_available", lambda: True)
    with pytest.raises(ParsedError):
        module.main(arguments)


@pytest.mark.parametrize(
    ("name", "arguments"), list(commands()), ids=lambda parameter: parameter if isinstance(parameter, str) else ""
)
def test_command_lines_are_understood(name, arguments, monkeypatch):
    if {"--token_error_rate", "cmudict_g2p"} & {*arguments}:
        pytest.importorskip("jiwer")
    understand(name, arguments, monkeypatch)


def test_there_are_command_lines():
    verbs = {
        f"hf_vanilla_transformer.apps.cli.{verb}"
        for verb in ("average", "convert", "demo", "evaluate", "info", "plot", "score")
    }
    verbs |= {f"hf_vanilla_transformer.apps.cli.{verb}" for verb in ("train", "translate")}
    assert {name for name, _ in commands()} >= {*verbs, "scripts.reproduce_table3", "benchmarks.generation"}


def test_keeping_the_best_checkpoint_of_a_recipe(tmp_path):
    """docs/train_settings.md names these options, and what to remove from a copy of a recipe."""
    options = "--load_best_model_at_end true --metric_for_best_model bleu --early_stopping_patience 2"
    path = tmp_path / "small.yaml"
    recipe = yaml.safe_load((RECIPES / path.name).read_text(encoding="utf-8"))
    removed = [recipe.pop(name) for name in ("average_last", "keep_better", "save_steps")]
    assert all(removed)
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    arguments = ["--config", str(path), "--output_dir", "runs/best", *options.split()]
    settings = parse_settings(arguments, description=None, verb="train")
    check_choices(settings)
    assert settings.args.save_steps == settings.args.eval_steps == 0.1


def run(page: str, name: str | None, names: dict[str, Any], *changes: tuple[str, str]) -> None:
    """Run the blocks of Python of this name of a page, with names that exist and that they add to."""
    code = blocks(ROOT / "docs" / page, "python", name)
    assert code
    for block in code:
        exec(compile(replaced(block, *changes), page, "exec"), names)


def replaced(block: str, *changes: tuple[str, str]) -> str:
    for original, replacement in changes:
        assert original in block
        block = block.replace(original, replacement)
    return block


def test_blocks_of_align_md(capsys):
    names: dict[str, Any] = {}
    run("align.md", "align", names, ("runs/numbers", FIXTURE.as_posix()))
    assert capsys.readouterr().out == "[[(0, 0)]]\n"
    pytest.importorskip("selectolax")
    run("documents.md", "markup", names)
    assert capsys.readouterr().out == "<b>zweiundvierzig</b>\n"


def test_blocks_of_translate_md(capsys):
    names: dict[str, Any] = {}
    run("translate.md", "translate", names, ("runs/numbers", FIXTURE.as_posix()))
    assert capsys.readouterr().out == "['zweiundvierzig', 'einhunderteins']\n"
    run("translate.md", "details", names)
    best, second = capsys.readouterr().out.splitlines()
    assert best.startswith("zweiundvierzig -")
    assert best.endswith("'</s>']")
    assert float(best.split()[1]) > float(second.split()[1])
    run("translate.md", "glossary", names)
    assert capsys.readouterr().out == "['zwoundvierzig']\n"
    pytest.importorskip("sentencex")
    run("translate.md", "texts", names)
    assert capsys.readouterr().out == "zweiundvierzig\n\n  einhunderteins\n"


def test_the_worked_search_of_decoding_md():
    model = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE)
    tokenizer = AutoTokenizer.from_pretrained(FIXTURE)
    inputs, ids = tokenizer("ninety", return_tensors="pt"), tokenizer.get_vocab()
    ids = {tokenizer.convert_tokens_to_string([token]): number for token, number in ids.items()}
    page = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8").partition("### A worked search")[2]
    running, sums = [[]], {(): 0.0}
    steps = re.findall(r"^\| \d \|.*", page.partition("\n## ")[0], flags=re.MULTILINE)
    assert len(steps) == 3
    for step in steps:
        candidates = re.findall(r"`([^`]+)` (-[\d.]+)", step.split("|")[2])
        tokens = [[ids[token] for token in text.split()] for text, _ in candidates]
        prefixes = torch.tensor([[model.config.decoder_start_token_id, *prefix] for prefix in running])
        repeated = {name: value.expand(len(running), -1) for name, value in inputs.items()}
        with torch.no_grad():
            log_p = model(**repeated, decoder_input_ids=prefixes).logits[:, -1].log_softmax(dim=-1)
        totals = log_p + torch.tensor([[sums[tuple(prefix)]] for prefix in running])
        best, places = totals.flatten().topk(4)
        hypotheses = [[*running[place // log_p.shape[1]], place % log_p.shape[1]] for place in places.tolist()]
        assert tokens == hypotheses
        assert [float(value) for _, value in candidates] == pytest.approx(best.tolist(), abs=5.1e-4)
        sums = dict(zip(map(tuple, hypotheses), best.tolist(), strict=True))
        running = [hypothesis for hypothesis in hypotheses if hypothesis[-1] != tokenizer.eos_token_id][:2]
    output = model.generate(**inputs, num_beams=2, return_dict_in_generate=True, output_scores=True)
    assert output.sequences_scores.item() == pytest.approx(-0.263, abs=5.1e-4)


def test_watching_of_decoding_md():
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    sentences = ["two", "seven"]
    names: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "sentences": sentences}
    run("decoding.md", "watch", names)
    assert names["output"].tolist() == model.generate(**names["inputs"]).tolist()
    names["cancelled"].set()
    with pytest.raises(InterruptedError, match="the user cancelled"):
        model.generate(**names["inputs"], stopping_criteria=[names["CancelSearch"]()])


def test_phrases_of_decoding_md():
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    names: dict[str, Any] = {"model": model, "tokenizer": tokenizer, "sentences": ["two", "seven"]}
    run("decoding.md", "phrases", names)
    first, second = (f" {' '.join(map(str, row))} " for row in names["output"].tolist())
    assert " 5 6 " in first
    assert re.search(" 7 | 8 9 ", first)
    assert tokenizer.decode(names["output"][1], skip_special_tokens=True) == "sieben"
    assert " 5 6 " not in second


def test_the_configuration_of_configuration_md(capsys):
    run("configuration.md", "configuration", {})
    (block,) = blocks(ROOT / "docs" / "configuration.md", "python", "configuration")
    assert f"# {capsys.readouterr().out}" in block


def test_scores_of_evaluate_md(capsys):
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(FIXTURE), AutoTokenizer.from_pretrained(FIXTURE)
    names: dict[str, Any] = {"model": model, "tokenizer": tokenizer}
    run("evaluate.md", "score", names)
    score = names["scored"]
    inputs = tokenizer(["forty-two"], return_tensors="pt")
    best = model.generate(**inputs, return_dict_in_generate=True, output_scores=True)
    assert score.tokens == tokenizer.convert_ids_to_tokens(best.sequences[0, 1:].tolist())
    assert score.normalized == pytest.approx(best.sequences_scores.item(), abs=1e-5)
    assert f"{score.total} {score.normalized}\n" in capsys.readouterr().out


def write_pairs(folder: Path) -> None:
    for split in ("train", "test"):
        (folder / f"{split}.en").write_text("seven\nforty-two\n")
        for language in ("de", "fr"):
            (folder / f"{split}.{language}").write_text("sieben\nzweiundvierzig\n")


def test_the_evaluation_of_evaluate_md(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    names: dict[str, Any] = {}
    run("evaluate.md", "evaluate", names, ("runs/numbers", FIXTURE.as_posix()))
    assert names["beam_search"].translations == ["sieben", "zweiundvierzig"]
    assert names["beam_search"].scores["exact_match"] == 100


def test_the_run_of_train_md(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path)
    tiny = "d_model=16, d_ff=16, num_layers=1, num_heads=2, vocab_size=300, max_new_tokens=5, bf16=False, use_cpu=True"
    names: dict[str, Any] = {}
    run("train.md", "run", names, ("num_train_epochs=20", f"{tiny}, max_steps=1, save_strategy='no'"))
    assert names["folder"] == Path("runs/python")
    assert AutoConfig.from_pretrained(tmp_path / "runs" / "python").d_model == 16


def test_the_pairs_of_first_translator_md(tmp_path, monkeypatch, capsys):
    # It imports this module.
    from tests.documented_commands import HUB_DATASET, write_hub_dataset

    monkeypatch.chdir(tmp_path)
    sources = [f"source {number}" for number in range(40)]
    targets = [f"target {number}" for number in range(40)]
    write_hub_dataset(tmp_path / HUB_DATASET, sources, targets)
    run("first_translator.md", "pairs", {})
    printed = capsys.readouterr().out.splitlines()
    assert len(set(printed)) == 20
    for line in printed:
        source, _, target = line.partition(" = ")
        assert source in sources
        assert target == source.replace("source", "target")


def test_the_plan_of_train_settings_md(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.en").write_text("seven\nforty-two\n" * 5)
    (tmp_path / "train.de").write_text("sieben\nzweiundvierzig\n" * 5)
    run("train_settings.md", "plan", {}, ('"runs/mine"', '"runs/mine", tflops=100'))
    printed = capsys.readouterr().out
    assert "recipe tiny, for 10 pairs and more: 10 training pairs" in printed
    assert "\ntime and memory: computed for 100 TFLOP/s, not measured\n" in printed


def test_the_tokenizer_of_train_settings_md():
    names: dict[str, Any] = {}
    run("train_settings.md", "tokenizer", names, ("user/name", FIXTURE.as_posix()))
    config, expected = names["config"], AutoConfig.from_pretrained(FIXTURE)
    special = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
    assert [getattr(config, name) for name in special] == [getattr(expected, name) for name in special]


def test_batches_of_token_budgets_md(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run("token_budgets.md", "batches", {})
    printed = capsys.readouterr().out
    assert "% padding" in printed
    assert "0 empty, 0 too long: 500 pairs left" in printed


def test_averages_of_train_settings_md(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    averaged = [tmp_path / "runs" / "averaged" / f"checkpoint-{step}" for step in (1200, 1400)]
    for seed, folder in enumerate(averaged):
        small_model(seed).save_pretrained(folder)
    run("train_settings.md", "average", {})
    first, second, average = (
        load_file(folder / "model.safetensors") for folder in (*averaged, tmp_path / "runs" / "another_average")
    )
    assert average.keys() == first.keys()
    for name, weight in average.items():
        assert torch.equal(weight, ((first[name].double() + second[name].double()) / 2).float())


def test_the_corpus_of_large_corpora_md(tmp_path, monkeypatch, tokenizer):
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"tokenizer": tokenizer}
    (tmp_path / "train.en").write_text("one\ntwo\n" + "one " * 300 + "\n")
    (tmp_path / "train.de").write_text("eins\n\neins\n")
    # For three sentences 8 processes do not pay.
    run("large_corpora.md", "corpus", names, (", num_proc=8", ""))
    assert names["dropped"] == {"empty": 1, "too long": 1}
    (pair,) = names["data"]
    assert names["tokenizer"].decode(pair["labels"], skip_special_tokens=True) == "eins"


def test_the_tokenizer_of_large_corpora_md(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Every tenth pair is in the sample, which begins with the first one.
    numbers = range(30)
    (tmp_path / "train.en").write_text("".join(f"{'sampled' if number % 10 == 0 else 'other'}\n" for number in numbers))
    (tmp_path / "train.de").write_text("eins\n" * len(numbers))
    run("large_corpora.md", "tokenizer", {}, ("vocab_size=37_000", "vocab_size=300"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "runs" / "tokenizer")
    assert len(tokenizer.tokenize("sampled")) < len(tokenizer.tokenize("other"))


def test_batches_of_benchmarks_md(capsys):
    run("benchmarks.md", "plan", {})
    assert "million pairs/s, 0.6% padding" in capsys.readouterr().out


def test_memory_of_precision_and_memory_md(monkeypatch):
    # The settings would hold for all other tests of this process.
    monkeypatch.setattr(hf_vanilla_transformer, "keep_freed_memory", lambda: True, raising=False)
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "64")
    names: dict[str, Any] = {}
    run("precision_and_memory.md", "memory", names)
    assert [type(callback).__name__ for callback in names["callbacks"]] == ["ReleaseMemory"]


def test_blocks_of_python_are_all_run():
    count = Counter({page.name: len(blocks(page, "python")) for page in (ROOT / "docs").glob("*.md")})
    assert count == Counter(RUN_HERE) + Counter(RUN_ELSEWHERE)
