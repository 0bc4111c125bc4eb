"""Force words of the references into translations that lack them: BLEU, and how many of the words are there.

The words of a sentence are the longest of its reference, from 5 letters on, that its free translation lacks. Appending
them to the free translations is the baseline.
"""

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from hf_vanilla_transformer import translate
from hf_vanilla_transformer.apps.cli.parser import parse, program
from hf_vanilla_transformer.apps.terms.forced_phrases import ForcedPhrases, check_is_beam_search
from hf_vanilla_transformer.apps.terms.glossary import letter_edges, tokenize_in_contexts
from hf_vanilla_transformer.data.pair_arguments import DataArguments
from hf_vanilla_transformer.evaluation.metrics import score_translations
from hf_vanilla_transformer.support.argument_checks import check_number
from hf_vanilla_transformer.support.atomic_files import write_text
from hf_vanilla_transformer.support.output_files import check_can_write
from hf_vanilla_transformer.translation.required_phrases import Phrase, PhraseSizes


FEWEST_LETTERS = 5


@dataclass
class TermsArguments:
    """What to translate, and where to write the result."""

    model_name_or_path: str = field(metadata={"help": "A folder, or a name on the Hub."})
    words: int = field(default=1, metadata={"help": "Words per sentence at most."})
    beams: list[int] = field(default_factory=lambda: [5, 10, 20], metadata={"help": "Beam sizes to compare."})
    length_penalty: float | None = field(default=None, metadata={"help": "alpha; the default is the model's."})
    output: str | None = field(
        default=None, metadata={"help": "Also write figures and translations to this JSON file."}
    )

    def __post_init__(self) -> None:
        check_number("words", self.words, 1)


def words_of(text: str) -> list[str]:
    """The words of a text, without digits and punctuation."""
    return re.findall(r"[^\W\d_]+", text)


def missing_words(reference: str, translation: str, count: int) -> list[str]:
    """The `count` longest words of a reference that a translation lacks."""
    said = set(words_of(translation))
    missing = [word for word in dict.fromkeys(words_of(reference)) if len(word) >= FEWEST_LETTERS and word not in said]
    return sorted(missing, key=len, reverse=True)[:count]


def recall(words: Sequence[Sequence[str]], translations: Sequence[str]) -> float:
    """Percent of the words that are whole words of their translations."""
    found = [
        word in words_of(translation)
        for needed, translation in zip(words, translations, strict=True)
        for word in needed
    ]
    return 100 * sum(found) / max(1, len(found))


class WordsOfSentences:
    """Words that the translations of some sentences must have as whole words, for `translate(glossary=...)`.

    A sentence that occurs several times must have all of its words every time.
    """

    def __init__(self, tokenizer: Any, sentences: Sequence[str], words: Sequence[Sequence[str]]):
        self._tokenizer = tokenizer
        self._phrases: dict[str, list[Phrase]] = {sentence: [] for sentence in sentences}
        for sentence, words_of_sentence in zip(sentences, words, strict=True):
            phrases = self._phrases[sentence]
            for word in words_of_sentence:
                phrase = tokenize_in_contexts(tokenizer, word)
                if phrase not in phrases:
                    phrases.append(phrase)

    def check(self, settings: Any) -> None:
        """Raise ValueError if the settings are not those of a beam search."""
        check_is_beam_search(settings)

    def phrases(self, sentence: str) -> list[Phrase]:
        """The words of a sentence, as alternatives of token ids."""
        return self._phrases[sentence]

    def sizes(self, sentence: str) -> PhraseSizes:
        """Few words are too small to split batches by them."""
        return PhraseSizes()

    def search(self, model: Any, phrases: list[list[Phrase]]) -> ForcedPhrases:
        """The search for translations with the words of each sentence."""
        return ForcedPhrases(phrases, letter_edges(self._tokenizer, model.config.vocab_size))


class Arguments(NamedTuple):
    """All arguments."""

    terms: TermsArguments
    data: DataArguments


@program
def main(arguments: list[str]) -> dict[str, Any]:
    """Run the command line; returns the figures of each beam size."""
    args, data = parse(Arguments, __doc__, arguments)
    check_can_write(args.output)
    pairs = data.load("test")["test"]
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(args.model_name_or_path)
    sources, references = list(pairs["source"]), list(pairs["target"])
    search: dict[str, Any] = {} if args.length_penalty is None else {"length_penalty": args.length_penalty}
    figures = {}
    for num_beams in args.beams:
        search["num_beams"] = num_beams
        free, seconds = timed(model, tokenizer, sources, **search)
        words = [missing_words(*pair, args.words) for pair in zip(references, free, strict=True)]
        required = WordsOfSentences(tokenizer, sources, words)
        forced, more_seconds = timed(model, tokenizer, sources, **search, glossary=required)
        appended = [" ".join([text, *needed]) for text, needed in zip(free, words, strict=True)]
        figures[str(num_beams)] = {
            "sentences_with_words": sum(map(bool, words)),
            "words": words,
            "free": summary(free, references, words, seconds),
            "appended": summary(appended, references, words, seconds),
            "forced": summary(forced, references, words, more_seconds),
        }
        for name in ("free", "appended", "forced"):
            row = figures[str(num_beams)][name]
            print(
                f"{num_beams} beams, {name}: BLEU {row['bleu']:.2f}, chrF {row['chrf']:.2f}, "
                f"{row['recall']:.1f} % of {sum(map(len, words))} words, {row['seconds']:.1f} s"
            )
    if args.output is not None:
        write_text(args.output, json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    return figures


def timed(model: Any, tokenizer: Any, sources: list[str], **options: Any) -> tuple[list[str], float]:
    """Translations, and the CPU seconds that they took."""
    start = time.process_time()
    translations = translate(model, tokenizer, sources, **options)
    return translations, time.process_time() - start


def summary(translations: list[str], references: list[str], words: list[list[str]], seconds: float) -> dict[str, Any]:
    """The figures of one way to translate."""
    scores = score_translations(translations, references)
    return {
        "bleu": scores["bleu"],
        "chrf": scores["chrf"],
        "recall": recall(words, translations),
        "seconds": seconds,
        "translations": translations,
    }


if __name__ == "__main__":
    main()
