"""How well tags come out in translated pages, beside pages that people translated.

Pages have the same elements in both languages, tag for tag. Their blocks and elements are read by html5lib. Counted are
elements that cover a part of the words of their block: "exact" are those around the same words as in the reference, F1
is of the words inside, which elements of the same name and attributes share.

Three ways to place tags are compared: "links", what `translate` does; "position", around words at the same place of the
sentence; "apart", where each text between two tags is translated alone.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import html5lib
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate, translate_documents
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.apps.documents.markup_document import Document
from hf_vanilla_transformer.evaluation.metrics import score_translations
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write
from hf_vanilla_transformer.support.user_errors import InputError
from hf_vanilla_transformer.translation.alignment import Aligner, compute_attention
from hf_vanilla_transformer.translation.inference import Inference
from hf_vanilla_transformer.translation.words_of_tokens import WORDS_AND_LETTERS


BLOCKS = {"p", "h1", "h2", "h3", "h4", "h5", "h6", "li", "td", "th", "dt", "dd", "title", "label", "button", "div"}
# Attributes that are translated, and in others what differs: the folder of the language, and links to other hosts.
TEXTS, OTHER = {"alt", "title", "placeholder", "aria-label"}, re.compile(r"^[a-z]{2}(-[A-Z]{2})?/|^https?:.*")


@dataclass
class MarkupArguments:
    """Which pages to translate, and by which model."""

    model_name_or_path: str = field(metadata={"help": "A folder, or a name on the Hub."})
    source_folder: str = field(metadata={"help": "A folder of pages of HTML."})
    target_folder: str = field(metadata={"help": "The same pages, translated by people, by the same names."})
    num_beams: int | None = field(default=None, metadata={"help": "The default is the model's."})
    output: str | None = field(default=None, metadata={"help": "Also write the figures to this JSON file."})


class Part(NamedTuple):
    """A text between two tags of a block, and the numbers of the elements around it."""

    text: str
    elements: tuple[int, ...]


class Block(NamedTuple):
    """The texts of a block, and the names and attributes of the elements inside."""

    parts: list[Part]
    names: list[str]

    @property
    def text(self) -> str:
        """All of it, with one space for white space of any length."""
        return " ".join("".join(part.text for part in self.parts).split())


def read_blocks(page: str) -> list[Block]:
    """The innermost blocks of a page that have text."""
    root = html5lib.parse(page, namespaceHTMLElements=False)
    inner = [
        each for each in root.iter() if each.tag in BLOCKS and not any(e.tag in BLOCKS for e in list(each.iter())[1:])
    ]
    blocks = []
    for element in inner:
        block = Block([], [])
        _read(element, (), block)
        if block.text:
            blocks.append(block)
    return blocks


def _read(element: Any, around: tuple[int, ...], block: Block) -> None:
    block.parts.append(Part(element.text or "", around))
    for child in element:
        if isinstance(child.tag, str):
            kept = sorted((name, OTHER.sub("", value)) for name, value in child.items() if name not in TEXTS)
            block.names.append(f"{child.tag} {kept}")
            _read(child, (*around, len(block.names) - 1), block)
        block.parts.append(Part(child.tail or "", around))


def words_inside(block: Block) -> list[tuple[str, dict[int, str]]]:
    """Of each element that covers a part of the block's words: its name, and these words by their number."""
    text = "".join(part.text for part in block.parts)
    owners = [part.elements for part in block.parts for _ in part.text]
    covered: list[dict[int, str]] = [{} for _ in block.names]
    words = list(re.finditer(r"\S+", text))
    for number, word in enumerate(words):
        letters = [owners[place] for place in range(*word.span()) if text[place].isalnum()]
        for element in {element for each in letters for element in each}:
            covered[element][number] = word[0]
    return [(name, found) for name, found in zip(block.names, covered, strict=True) if 0 < len(found) < len(words)]


class Count:
    """Elements that are exact, and words inside elements, of the translation, of the reference, and of both."""

    def __init__(self, by_number: bool):
        self._by_number = by_number
        self.elements = self.exact = self.found = self.true = self.shared = 0

    def add(self, block: Block, reference: Block) -> None:
        """Compare two blocks: words by their numbers, so of the same text, or by themselves."""
        found, true = words_inside(block), words_inside(reference)
        self.elements += len(true)
        self.exact += sum((self._spans(found) & self._spans(true)).values())
        words, true_words = self._words(found), self._words(true)
        self.found += sum(words.values())
        self.true += sum(true_words.values())
        self.shared += sum((words & true_words).values())

    def _spans(self, elements: list[tuple[str, dict[int, str]]]) -> Counter[Any]:
        return Counter((name, tuple(words if self._by_number else words.values())) for name, words in elements)

    def _words(self, elements: list[tuple[str, dict[int, str]]]) -> Counter[Any]:
        return Counter(
            (name, number if self._by_number else word) for name, words in elements for number, word in words.items()
        )

    def figures(self) -> dict[str, float]:
        """Percentages, and the number of elements."""
        return {
            "elements": self.elements,
            "exact": 100 * self.exact / max(1, self.elements),
            "f1": 100 * 2 * self.shared / max(1, self.found + self.true),
        }


def by_position(source: str, target: str) -> list[tuple[int, int]]:
    """Links of the words of the target with those at the same place of the source."""
    count, most = len(target.split()), len(source.split())
    return [(int((word + 0.5) * most / count), word) for word in range(count)]


def placed(document: Document, texts: Sequence[str], links: Sequence[list[tuple[int, int]]]) -> list[Block]:
    """The blocks of a page with such translations of its texts."""
    return read_blocks(document.render(list(texts), list(links)))


def apart(block: Block, translate_all: Callable[[list[str]], list[str]]) -> Block:
    """A block of which each text between two tags is translated alone."""
    texts = translate_all([part.text.strip() for part in block.parts])
    parts = []
    for part, text in zip(block.parts, texts, strict=True):
        before, after = (bool(part.text) and part.text[place].isspace() for place in (0, -1))
        parts.append(Part(f"{' ' * before}{text}{' ' * after}" if text else part.text, part.elements))
    return Block(parts, block.names)


def read_pages(args: MarkupArguments) -> Iterator[tuple[str, str]]:
    """Pages and their translations, if both have the same blocks with the same elements."""
    for path in sorted(Path(args.source_folder).glob("*.html")):
        pages = tuple(Path(each, path.name).read_text(encoding="utf-8") for each in (path.parent, args.target_folder))
        texts, names = zip(*((len(Document("html", page).texts), element_names(page)) for page in pages), strict=True)
        if texts[0] != texts[1] or names[0] != names[1]:
            print(f"{path.name} is left out: its translation has other blocks")
            continue
        yield pages[0], pages[1]


def element_names(page: str) -> list[list[str]]:
    """The names and attributes of the elements of each block, in any order."""
    return [sorted(block.names) for block in read_blocks(page)]


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Run the command line; returns the figures."""
    args = parse(MarkupArguments, __doc__, arguments)
    check_can_write(args.output)
    pages = list(read_pages(args))
    if not pages:
        raise InputError(f"{args.source_folder} has no pages of HTML whose translations have the same blocks.")
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path)
    options: dict[str, Any] = {"split_sentences": True}
    options |= {} if args.num_beams is None else {"num_beams": args.num_beams}

    def translate_all(texts: list[str]) -> list[str]:
        return translate(model, tokenizer, texts, **options)

    references = [block for _, target in pages for block in read_blocks(target)]
    sources = [block for source, _ in pages for block in read_blocks(source)]
    documents = [(Document("html", source), Document("html", target)) for source, target in pages]
    # The words of people, and the tags of ours.
    forced = [links_of_tags(model, tokenizer, source.texts, target.texts) for source, target in documents]
    figures: dict[str, Any] = {"pages": len(pages), "blocks": len(references), "placement": {}, "translation": {}}
    for name, links in (("links", forced), ("position", [positions(*each) for each in documents])):
        blocks = [
            block
            for (source, target), each in zip(documents, links, strict=True)
            for block in placed(source, target.texts, each)
        ]
        figures["placement"][name] = compare(blocks, references, by_number=True)
    started = time.perf_counter()
    translated = translate_documents(model, tokenizer, [source for source, _ in pages], "html", **options)
    figures["pages_per_second"] = len(pages) / (time.perf_counter() - started)
    found = {"links": [block for page in translated for block in read_blocks(page)]}
    texts = [translate_all(source.texts) for source, _ in documents]
    found["position"] = [
        block
        for (source, _), each in zip(documents, texts, strict=True)
        for block in placed(source, each, [by_position(*pair) for pair in zip(source.texts, each, strict=True)])
    ]
    found["apart"] = [apart(block, translate_all) for block in sources]
    for name, blocks in found.items():
        figures["translation"][name] = {
            **compare(blocks, references, by_number=False),
            **scores([block.text for block in blocks], references),
        }
    figures["translation"]["no tags"] = scores(translate_all([block.text for block in sources]), references)
    print(table(figures))
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2) + "\n")
    return figures


def links_of_tags(model: Any, tokenizer: Any, sources: list[str], targets: list[str]) -> list[list[tuple[int, int]]]:
    """The links by which `translate` places tags, of given translations."""
    aligner = Aligner(model, tokenizer, WORDS_AND_LETTERS, for_tags=True)
    inference = Inference(model, tokenizer, 4096, False)
    links_of_rows = {}
    with torch.inference_mode():
        for pair in compute_attention(inference, sources, targets):
            links_of_rows[pair.row] = aligner(pair.source, pair.target, pair.attention)
    return [links_of_rows[row] for row in range(len(links_of_rows))]


def positions(source: Document, target: Document) -> list[list[tuple[int, int]]]:
    """Links by position, of each text of a page."""
    return [by_position(*pair) for pair in zip(source.texts, target.texts, strict=True)]


def compare(blocks: Sequence[Block], references: Sequence[Block], by_number: bool) -> dict[str, float]:
    """The figures of blocks beside those of the reference, by numbers of words in blocks with the same words only."""
    count, same = Count(by_number), 0
    for block, reference in zip(blocks, references, strict=True):
        if not by_number or block.text == reference.text:
            count.add(block, reference)
            same += 1
    return {**count.figures(), "blocks": same}


def scores(texts: Sequence[str], references: Sequence[Block]) -> dict[str, float]:
    """BLEU and chrF of the texts of blocks."""
    found = score_translations(texts, [block.text for block in references])
    return {"bleu": found["bleu"], "chrf": found["chrf"]}


def table(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [f"{figures['pages']} pages, {figures['blocks']} blocks, {figures['pages_per_second']:.2f} pages/s", ""]
    lines += ["| words | tags | blocks | elements | exact | F1 | BLEU | chrF |", "|---|---|---|---|---|---|---|---|"]
    rows = [("human", *row) for row in figures["placement"].items()] + [
        ("model", *row) for row in figures["translation"].items()
    ]
    for words, name, row in rows:
        cells = (
            f"{row[key]:.{digits}f}" if key in row else ""
            for key, digits in (("blocks", 0), ("elements", 0), ("exact", 1), ("f1", 1), ("bleu", 2), ("chrf", 2))
        )
        lines.append(f"| {words} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
