"""Sequence-level knowledge distillation (Kim and Rush 2016): training pairs whose targets a teacher translated."""

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset, DatasetDict, concatenate_datasets
from sacrebleu.metrics import BLEU
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..data.cleaning import clean_pairs
from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.target_language import TargetCodes
from ..data.text_lines import iterate_lines
from ..hub.model_card import name_of_base
from ..hub.native_folder import native_folder
from ..hub.user_cache import result_folder
from ..model.input_checks import is_blank
from ..support.user_errors import InputError
from ..translation.engine import load_engine
from ..translation.model_loading import load_ensemble
from ..translation.translate import translate
from ..translation.translation_details import FLAG_MEANINGS, DetailLevel
from .plan import spoken_duration
from .run_arguments import TRAINED, Settings
from .run_checks import check_tokenizer
from .run_setup import log_removed, target_language_of


logger = logging.getLogger(__name__)

# Sentences that are translated and written to the cache in one go: few to lose, and enough for batches.
_AT_ONCE = 500
# Sentences that are translated to tell how long all of them will take.
_SAMPLE = 100
# The reason, in the log and in the card, why a monolingual source is not translated.
_EVALUATED = "in the test or validation pairs"
# Rules that remove a translation, by the flag that it has.
_FLAGS = {flag: FLAG_MEANINGS[flag] for flag in ("truncated", "repetition")}


class Hypothesis(NamedTuple):
    """A translation of the teacher, and its flags; see [`~hf_vanilla_transformer.Translation`]."""

    text: str
    flags: list[str]


class Teacher:
    """The teacher of a run, and its translations in the user's cache, from which an interrupted run continues.

    Raises OSError or ValueError if the model, or one of several, cannot be found or brought into this package.
    """

    def __init__(self, settings: Settings):
        self._arguments, self._device, self._scoring = settings.teacher, settings.args.device, settings.scoring
        self._names = settings.teacher.teacher or []
        model_revision = settings.model.revision
        if model_revision is not None and settings.model.model_name_or_path is None:
            raise InputError(
                f"revision is {model_revision}, which is for --model_name_or_path; give --teacher_revision for a "
                "teacher."
            )
        revisions: Sequence[str | None] = [None] * len(self._names)
        if settings.teacher.teacher_revision is not None:
            revisions = settings.teacher.teacher_revision
        self.folders = []
        for name, revision in zip(self._names, revisions, strict=True):
            self.folders.append(native_folder(name, revision, settings.model.token))
        for folder in self.folders:
            if folder.resolve().is_relative_to(settings.output.resolve()):
                raise InputError(
                    f"{folder} lies in {settings.output}, which the run replaces; name another --output_dir."
                )
        beams = self._arguments.teacher_num_beams
        self._search: dict[str, Any] = {} if beams is None else {"num_beams": beams}
        facts = {**self._search, "engine": self._arguments.teacher_engine, "all": self._arguments.nearest_to_reference}
        tokenizer = AutoTokenizer.from_pretrained(self.folders[0])
        self._target_code = TargetCodes(tokenizer, target_language_of(settings.data, tokenizer)).default
        if self._target_code:
            facts["target"] = self._target_code
        self._cache = result_folder("translations", self.folders, facts)

    def with_tokenizer(self, settings: Settings) -> Settings:
        """Settings with the teacher's tokenizer, unless they name a model or a tokenizer, or say how to train one."""
        if {"model_name_or_path", "tokenizer_name", *TRAINED} & settings.given.keys():
            return settings
        try:
            check_tokenizer(self._names[0], AutoTokenizer.from_pretrained(self.folders[0]))
        except InputError:
            return settings
        given = {**settings.given, "tokenizer_name": str(self.folders[0])}
        return Settings.from_arguments(**given).for_target_language()._replace(plans=settings.plans)

    def add_to(self, pairs: DatasetDict) -> tuple[DatasetDict, dict[str, str]]:
        """The pairs with translated training pairs added, or in the place of the given ones; and rows for the card.

        Raises ValueError if no translation remains.
        """
        bleu = BLEU(tokenize=self._scoring.options(pairs["train"])["tokenize"], effective_order=True)
        train = pairs["train"].select_columns(["source", "target"])
        more = self._new_sources(pairs)
        left_out = len(self._monolingual) - len(more)
        log_removed({_EVALUATED: left_out}, len(self._monolingual), "monolingual sources")
        sources, references = [*train["source"], *more], [*train["target"], *[None] * len(more)]
        found = self._translations(sources)
        kept, removed = dict[str, list[str]](source=[], target=[]), dict.fromkeys(_FLAGS.values(), 0)
        for source, reference in zip(sources, references, strict=True):
            hypothesis = self._choose(found[source], reference, bleu)
            faults = [rule for flag, rule in _FLAGS.items() if flag in hypothesis.flags]
            if faults:
                removed[faults[0]] += 1
            else:
                kept["source"].append(source)
                kept["target"].append(hypothesis.text)
        if all(map(is_blank, kept["target"])):
            removed["empty"] = len(kept["target"])
            counts = ", ".join(f"{count:,} were {rule}" for rule, count in removed.items() if count)
            raise InputError(f"no translation of {self._names[0]} remains: {counts}; give another teacher.")
        evaluated = [pairs[name] for name in ("validation", "test") if name in pairs]
        distilled, others = clean_pairs(Dataset.from_dict(kept, features=train.features), evaluated)
        removed |= others
        log_removed(removed, len(sources), "translations")
        if left_out:
            removed[f"monolingual sources {_EVALUATED}"] = left_out
        parts = [distilled] if self._arguments.distilled_only else [train, distilled]
        counts = f"{len(train):,} with the given targets" if len(parts) > 1 else "none with the given targets"
        logger.info(f"training pairs: {len(distilled):,} with targets of the teacher, {counts}")
        return DatasetDict({**pairs, "train": concatenate_datasets(parts)}), self._facts(len(distilled), removed)

    def _facts(self, count: int, removed: dict[str, int]) -> dict[str, str]:
        beams = f" with {self._arguments.teacher_num_beams} beams" if self._search else ""
        nearest = ", the hypothesis nearest to the reference" if self._arguments.nearest_to_reference else ""
        rules = ", ".join(f"{number:,} {rule}" for rule, number in removed.items() if number)
        return {
            "teacher": ", ".join(str(name_of_base(name)) for name in self._names),
            "targets of the teacher": f"{count:,}{beams}{nearest}{f'; removed {rules}' if rules else ''}",
            "given targets": "not used" if self._arguments.distilled_only else "used, too",
        }

    def expected(self, pairs: DatasetDict) -> DatasetDict:
        """Pairs about as many and as long as `add_to` gives, without its work, for a plan."""
        train = pairs["train"].select_columns(["source", "target"])
        more = self._new_sources(pairs)
        targets = list(islice(cycle(train["target"]), len(more)))
        added = Dataset.from_dict({"source": more, "target": targets}, features=train.features)
        parts = [train, added] if self._arguments.distilled_only else [train, train, added]
        return DatasetDict({**pairs, "train": concatenate_datasets(parts)})

    def describe_work(self, pairs: DatasetDict) -> str:
        """How many sentences are to be translated, and how long that takes, from a sample that is translated."""
        found = self._read()
        sources = dict.fromkeys([*pairs["train"]["source"], *self._new_sources(pairs)])
        missing = [source for source in sources if source not in found]
        if not missing:
            return "teacher: all sentences are translated already"
        model = self._loaded()
        started = time.perf_counter()
        sample = [missing[row] for row in pick_evenly_spaced_rows(len(missing), _SAMPLE)]
        list(self._translate(*model, sample))
        seconds = (time.perf_counter() - started) / len(sample) * len(missing) / PartialState().num_processes
        return f"teacher: {len(missing):,} sentences to translate first, about {spoken_duration(seconds)}"

    @cached_property
    def _monolingual(self) -> list[str]:
        # Once, because a pipe has its lines only once.
        files = self._arguments.monolingual_source_file or []
        return [line for file in files for line in iterate_lines(Path(file)) if not is_blank(line)]

    def _new_sources(self, pairs: DatasetDict) -> list[str]:
        """Return the monolingual sources, without those of validation and test pairs, which training must not see."""
        evaluated = set[str]()
        for name in ("validation", "test"):
            if name in pairs:
                evaluated.update(source.strip() for source in pairs[name]["source"])
        return [source for source in self._monolingual if source.strip() not in evaluated]

    def _choose(self, hypotheses: Sequence[Hypothesis], reference: str | None, bleu: BLEU) -> Hypothesis:
        if reference is None or not self._arguments.nearest_to_reference:
            return hypotheses[0]
        return max(hypotheses, key=lambda each: bleu.sentence_score(each.text, [reference]).score)

    def _translations(self, sources: Sequence[str]) -> dict[str, list[Hypothesis]]:
        """The hypotheses of each source, best first; what no cache has is translated by all processes together.

        Each process writes a file of its own, so that none waits for another. The processes may have different caches,
        because they run on several machines or have home folders of their own.
        """
        state = PartialState()
        cached = self._read()
        unique = list(dict.fromkeys(sources))
        # No process writes before all have read, because this call waits for all.
        in_some_cache = set(gather_object([row for row, source in enumerate(unique) if source in cached]))
        missing = [source for row, source in enumerate(unique) if row not in in_some_cache]
        translated = self._translate_into_cache(missing[state.process_index :: state.num_processes])
        found = {**cached, **translated}
        state.wait_for_everyone()
        if missing:
            found |= self._read()
        return self._exchange(unique, found)

    def _translate_into_cache(self, sources: list[str]) -> dict[str, list[Hypothesis]]:
        if not sources:
            return {}
        tokenizer, model = self._loaded()
        self._cache.mkdir(parents=True, exist_ok=True)
        path = self._cache / f"{uuid.uuid4().hex}.jsonl"
        hypotheses = {}
        with path.open("a", encoding="utf-8") as file, tqdm(sources, "teacher", unit=" sentences") as progress:
            for start in range(0, len(sources), _AT_ONCE):
                part = sources[start : start + _AT_ONCE]
                for source, translations in self._translate(tokenizer, model, part):
                    hypotheses[source] = translations
                    file.write(f"{json.dumps((source, translations), ensure_ascii=False)}\n")
                file.flush()
                os.fsync(file.fileno())
                progress.update(len(part))
        return hypotheses

    def _exchange(self, sources: Sequence[str], found: dict[str, list[Hypothesis]]) -> dict[str, list[Hypothesis]]:
        """Return the hypotheses of this process, and those that it lacks and another process has.

        If all processes share one cache, none lacks any, so only empty lists are exchanged.
        """
        own_missing_rows = [row for row, source in enumerate(sources) if source not in found]
        missing_rows = set(gather_object(own_missing_rows))
        offered = [(sources[row], found[sources[row]]) for row in missing_rows if sources[row] in found]
        received = gather_object(offered)
        return {**dict(received), **found}

    def _read(self) -> dict[str, list[Hypothesis]]:
        """The hypotheses in the cache, by their source."""
        found = {}
        for path in sorted(self._cache.glob("*.jsonl")):
            # A process that was killed may leave half a line at the end.
            for line in path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
                source, hypotheses = json.loads(line)
                found[source] = [Hypothesis(*each) for each in hypotheses]
        return found

    def _loaded(self) -> tuple[PreTrainedTokenizerBase, Any]:
        engine = self._arguments.teacher_engine
        if engine == "torch":
            return load_ensemble(list(map(str, self.folders)), self._device)
        return AutoTokenizer.from_pretrained(self.folders[0]), load_engine(str(self.folders[0]), engine)

    def _translate(
        self, tokenizer: PreTrainedTokenizerBase, model: Any, sources: list[str]
    ) -> Iterator[tuple[str, list[Hypothesis]]]:
        """Each source with its hypotheses, best first; all of the search if one of them is chosen."""
        search: dict[str, Any] = {**self._search, "return_details": DetailLevel.FLAGS}
        if self._target_code:
            search["target_lang"] = self._target_code
        if self._arguments.nearest_to_reference:
            beams = self._search.get("num_beams") or model.generation_config.num_beams
            search |= {"num_return_sequences": beams, "return_details": True}
        for source, best in zip(sources, translate(model, tokenizer, sources, **search), strict=True):
            yield source, [Hypothesis(each.text, sorted(each.flags)) for each in (best, *best.alternatives)]
