"""Prepare sequence-level knowledge distillation (Kim and Rush 2016): let a teacher translate the training sources.

A small model, the student, is then trained on the translations of a larger one, the teacher.
"""

import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset, DatasetDict, concatenate_datasets
from sacrebleu.metrics import BLEU
from tqdm.auto import tqdm
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from ..data.cleaning import clean_pairs
from ..data.evenly_spaced_rows import pick_evenly_spaced_rows
from ..data.target_language import TargetCodes
from ..data.text_lines import iterate_lines
from ..hub.model_card import name_of_base
from ..hub.native_folder import native_folder
from ..hub.user_cache import result_folder
from ..model.input_checks import is_blank
from ..support.user_errors import InputError
from ..translation.engine import Engine, load_engine
from ..translation.model_loading import load_ensemble
from ..translation.translate import translate
from ..translation.translation_details import FLAG_MEANINGS, DetailLevel
from .model_arguments import NEW_TOKENIZER_ARGUMENTS
from .plan import format_duration
from .run_arguments import Settings
from .run_checks import check_tokenizer
from .training_pairs import find_target_language, log_removed


logger = logging.getLogger(__name__)

# Number of sentences that are translated before their translations are written to the cache. It is small enough that an
# interruption loses little, and large enough for batches of similar lengths.
_SENTENCES_PER_WRITE = 500
# Number of sentences that are translated to estimate how long all of them will take.
_SENTENCES_TO_TIME = 100
# The reason that the log and the model card give for monolingual sources that are not translated.
_EVALUATED = "in the test or validation pairs"
# Flags that exclude a translation from the training pairs, each with the reason in words.
_REASONS_BY_FLAG = {flag: FLAG_MEANINGS[flag] for flag in ("truncated", "repetition")}


class Hypothesis(NamedTuple):
    """A translation by the teacher, with flags such as `"truncated"`; see [`~hf_vanilla_transformer.Translation`]."""

    text: str
    flags: list[str]


# A PyTorch model, which may be an ensemble, or a model in a different inference engine.
TeacherModel = PreTrainedModel | Engine
# The hypotheses of each source, best first.
Hypotheses = dict[str, list[Hypothesis]]


class Teacher:
    """The model that a student learns from. It translates the sources of the student's training pairs.

    Its translations are kept in the user's cache, so that an interrupted run does not have to repeat them.

    Raises OSError or InputError if a model cannot be found or converted, or if the run would replace it.
    """

    def __init__(self, settings: Settings):
        model_revision = settings.model.revision
        if model_revision is not None and settings.model.model_name_or_path is None:
            raise InputError(
                f"revision is {model_revision}, which is for --model_name_or_path; give --teacher_revision for a "
                "teacher."
            )
        self._arguments = settings.distillation
        self._device = settings.args.device
        self._scoring = settings.scoring
        self._names = settings.distillation.teacher or []
        self.folders = self._find_folders(settings)
        tokenizer = AutoTokenizer.from_pretrained(self.folders[0])
        self._target_code = TargetCodes(tokenizer, find_target_language(settings.data, tokenizer)).default
        self._cache = self._find_cache()

    def _find_folders(self, settings: Settings) -> list[Path]:
        """Find the folder of each teacher model. Models of other systems, such as Marian, are converted first.

        Raises InputError if the run would replace a teacher.
        """
        revisions: Sequence[str | None] = [None] * len(self._names)
        if self._arguments.teacher_revision is not None:
            revisions = self._arguments.teacher_revision
        folders = []
        for name, revision in zip(self._names, revisions, strict=True):
            folders.append(native_folder(name, revision, settings.model.token))
        output = settings.output_folder
        for folder in folders:
            if folder.resolve().is_relative_to(output.resolve()):
                raise InputError(f"{folder} lies in {output}, which the run replaces; name another --output_dir.")
        return folders

    def _find_cache(self) -> Path:
        """Return the cache folder for the translations. Its name depends on the teacher and its search settings."""
        facts: dict[str, object] = {
            "engine": self._arguments.teacher_engine,
            "all": self._arguments.nearest_to_reference,
        }
        if self._arguments.teacher_num_beams is not None:
            facts["num_beams"] = self._arguments.teacher_num_beams
        if self._target_code:
            facts["target"] = self._target_code
        return result_folder("translations", self.folders, facts)

    def with_tokenizer(self, settings: Settings) -> Settings:
        """Return settings with which the student uses the teacher's tokenizer.

        The settings are returned unchanged, so that the student gets a different tokenizer, in two cases:

        - The given arguments say which tokenizer to use or how to train one.
        - The teacher's tokenizer is unsuitable, because it does not append EOS or has no pad token.
        """
        for name in ("model_name_or_path", "tokenizer_name", *NEW_TOKENIZER_ARGUMENTS):
            if name in settings.given_arguments:
                return settings
        try:
            check_tokenizer(self._names[0], AutoTokenizer.from_pretrained(self.folders[0]))
        except InputError:
            return settings
        given_arguments = {**settings.given_arguments, "tokenizer_name": str(self.folders[0])}
        changed = Settings.from_arguments(**given_arguments).for_target_language()
        return changed._replace(needs_plan=settings.needs_plan)

    def add_translations(self, pairs: DatasetDict) -> tuple[DatasetDict, dict[str, str]]:
        """Translate the training sources, and add the sources with their translations to the training pairs.

        With `distilled_only`, the translated pairs replace the given training pairs.

        Returns:
            All pairs, with the new training pairs; and rows about the teacher for the table in the model card.

        Raises InputError if no translation remains.
        """
        train = pairs["train"].select_columns(["source", "target"])
        new_sources = self._select_new_sources(pairs)
        left_out_count = len(self._monolingual_sources) - len(new_sources)
        log_removed({_EVALUATED: left_out_count}, len(self._monolingual_sources), "monolingual sources")

        tokenization = self._scoring.choose_tokenization(pairs["train"])
        translated, removed = self._translate_pairs(train, new_sources, tokenization)
        evaluation_pairs = [pairs[split] for split in ("validation", "test") if split in pairs]
        distilled, removed_by_cleaning = clean_pairs(translated, evaluation_pairs)
        removed.update(removed_by_cleaning)
        log_removed(removed, len(train) + len(new_sources), "translations")
        if left_out_count:
            removed[f"monolingual sources {_EVALUATED}"] = left_out_count

        if self._arguments.distilled_only:
            new_train = distilled
            given_targets = "none with the given targets"
        else:
            new_train = concatenate_datasets([train, distilled])
            given_targets = f"{len(train):,} with the given targets"
        logger.info(f"training pairs: {len(distilled):,} with targets of the teacher, {given_targets}")
        return DatasetDict({**pairs, "train": new_train}), self._describe(len(distilled), removed)

    def _translate_pairs(
        self, train: Dataset, new_sources: list[str], tokenization: str
    ) -> tuple[Dataset, dict[str, int]]:
        """Translate the training sources and additional sources, and remove faulty translations.

        Args:
            train: the training pairs.
            new_sources: additional sources, which have no targets.
            tokenization: the sacreBLEU tokenization that is used for sentence BLEU.

        Returns:
            Pairs of sources and translations, and the number of translations that were removed for each reason.

        Raises InputError if all translations were removed or are blank.
        """
        sources = [*train["source"], *new_sources]
        references = [*train["target"], *[None] * len(new_sources)]
        # This raises an error if the tokenization needs a missing library, so it is done before the translation.
        bleu = BLEU(tokenize=tokenization, effective_order=True)
        hypotheses = self._translate_all(sources)
        translated: dict[str, list[str]] = {"source": [], "target": []}
        removed = dict.fromkeys(_REASONS_BY_FLAG.values(), 0)
        for source, reference in zip(sources, references, strict=True):
            hypothesis = self._choose(hypotheses[source], reference, bleu)
            reason = _reason_to_remove(hypothesis)
            if reason is not None:
                removed[reason] += 1
            else:
                translated["source"].append(source)
                translated["target"].append(hypothesis.text)
        if all(is_blank(target) for target in translated["target"]):
            removed["empty"] = len(translated["target"])
            counts = [f"{count:,} were {reason}" for reason, count in removed.items() if count]
            raise InputError(f"no translation of {self._names[0]} remains: {', '.join(counts)}; give another teacher.")
        return Dataset.from_dict(translated, features=train.features), removed

    def _describe(self, count: int, removed: Mapping[str, int]) -> dict[str, str]:
        """Return rows about the teacher for the table in the model card.

        Args:
            count: the number of training pairs with targets by the teacher.
            removed: the number of translations that were removed for each reason.
        """
        targets = f"{count:,}"
        if self._arguments.teacher_num_beams is not None:
            targets += f" with {self._arguments.teacher_num_beams} beams"
        if self._arguments.nearest_to_reference:
            targets += ", the hypothesis nearest to the reference"
        reasons = [f"{number:,} {reason}" for reason, number in removed.items() if number]
        if reasons:
            targets += f"; removed {', '.join(reasons)}"
        return {
            "teacher": ", ".join(str(name_of_base(name)) for name in self._names),
            "targets of the teacher": targets,
            "given targets": "not used" if self._arguments.distilled_only else "used, too",
        }

    def make_expected_pairs(self, pairs: DatasetDict) -> DatasetDict:
        """Make pairs that resemble the result of `add_translations`, without translating anything.

        Their number and lengths are approximately right. They are used to plan a run before the teacher translates.
        """
        train = pairs["train"].select_columns(["source", "target"])
        new_sources = self._select_new_sources(pairs)
        # The given targets stand in for the translations, which have similar lengths.
        new_targets = list(islice(cycle(train["target"]), len(new_sources)))
        new_pairs = Dataset.from_dict({"source": new_sources, "target": new_targets}, features=train.features)
        parts = [train, new_pairs]
        if not self._arguments.distilled_only:
            parts.insert(0, train)
        return DatasetDict({**pairs, "train": concatenate_datasets(parts)})

    def describe_work(self, pairs: DatasetDict) -> str:
        """Return a text that says how many sentences the teacher still has to translate, and how long that will take.

        The duration is extrapolated from a sample of up to 100 sentences, which is translated for this purpose.
        """
        cached = self._read_cache()
        sources = dict.fromkeys([*pairs["train"]["source"], *self._select_new_sources(pairs)])
        missing = [source for source in sources if source not in cached]
        if not missing:
            return "teacher: all sentences are translated already"
        tokenizer, model = self._load()
        sample = [missing[row] for row in pick_evenly_spaced_rows(len(missing), _SENTENCES_TO_TIME)]
        started = time.perf_counter()
        list(self._translate(tokenizer, model, sample))
        seconds_per_sentence = (time.perf_counter() - started) / len(sample)
        seconds = seconds_per_sentence * len(missing) / PartialState().num_processes
        return f"teacher: {len(missing):,} sentences to translate first, about {format_duration(seconds)}"

    @cached_property
    def _monolingual_sources(self) -> list[str]:
        """The nonblank lines of the monolingual files. They are cached, because a pipe can be read only once."""
        lines = []
        for file in self._arguments.monolingual_source_file or []:
            for line in iterate_lines(Path(file)):
                if not is_blank(line):
                    lines.append(line)
        return lines

    def _select_new_sources(self, pairs: DatasetDict) -> list[str]:
        """Return the monolingual sources, except those that occur in validation or test pairs."""
        evaluated: set[str] = set()
        for split in ("validation", "test"):
            if split in pairs:
                evaluated.update(source.strip() for source in pairs[split]["source"])
        return [source for source in self._monolingual_sources if source.strip() not in evaluated]

    def _choose(self, hypotheses: Sequence[Hypothesis], reference: str | None, bleu: BLEU) -> Hypothesis:
        """Choose the hypothesis that the student is trained on.

        It is the first hypothesis or, with `nearest_to_reference`, the one with the highest sentence BLEU.
        """
        if reference is None or not self._arguments.nearest_to_reference:
            return hypotheses[0]
        scores = [bleu.sentence_score(hypothesis.text, [reference]).score for hypothesis in hypotheses]
        # If several hypotheses have the highest score, the first one is chosen.
        return hypotheses[scores.index(max(scores))]

    def _translate_all(self, sources: Sequence[str]) -> Hypotheses:
        """Return the hypotheses of each source, from the cache or newly translated.

        The processes divide among themselves the sources that are in no cache. Each process writes to a separate file,
        so it need not wait for the others. The processes may have different caches, because they may run on several
        machines or with different home folders.
        """
        state = PartialState()
        cached = self._read_cache()
        unique_sources = list(dict.fromkeys(sources))
        cached_rows = [row for row, source in enumerate(unique_sources) if source in cached]
        # This waits for all processes, so no process writes to the cache before all processes have read it.
        rows_in_some_cache = set(gather_object(cached_rows))
        missing = [source for row, source in enumerate(unique_sources) if row not in rows_in_some_cache]
        translated = self._translate_into_cache(missing[state.process_index :: state.num_processes])
        hypotheses = {**cached, **translated}
        state.wait_for_everyone()
        if missing:
            # The cache now also contains the translations of other processes that share it.
            hypotheses.update(self._read_cache())
        return self._exchange(unique_sources, hypotheses)

    def _translate_into_cache(self, sources: list[str]) -> Hypotheses:
        """Translate sources, and write their hypotheses to a new file in the cache."""
        if not sources:
            return {}
        tokenizer, model = self._load()
        self._cache.mkdir(parents=True, exist_ok=True)
        path = self._cache / f"{uuid.uuid4().hex}.jsonl"
        hypotheses: Hypotheses = {}
        with path.open("a", encoding="utf-8") as file, tqdm(sources, "teacher", unit=" sentences") as progress:
            for start in range(0, len(sources), _SENTENCES_PER_WRITE):
                chunk = sources[start : start + _SENTENCES_PER_WRITE]
                for source, translations in self._translate(tokenizer, model, chunk):
                    hypotheses[source] = translations
                    file.write(f"{json.dumps((source, translations), ensure_ascii=False)}\n")
                # If the process is killed, it loses at most the chunk that it is translating.
                file.flush()
                os.fsync(file.fileno())
                progress.update(len(chunk))
        return hypotheses

    def _exchange(self, sources: Sequence[str], hypotheses: Hypotheses) -> Hypotheses:
        """Get missing hypotheses from other processes, and return all hypotheses that are then known.

        If all processes share one cache, no hypotheses are missing, so only empty lists are exchanged.
        """
        rows_missing_here = [row for row, source in enumerate(sources) if source not in hypotheses]
        rows_missing_somewhere = set(gather_object(rows_missing_here))
        offered = []
        for row in rows_missing_somewhere:
            source = sources[row]
            if source in hypotheses:
                offered.append((source, hypotheses[source]))
        received = dict(gather_object(offered))
        return {**received, **hypotheses}

    def _read_cache(self) -> Hypotheses:
        """Read the hypotheses of all sources in the cache."""
        cached = {}
        for path in sorted(self._cache.glob("*.jsonl")):
            # A killed process may leave an incomplete line after the last line break. It is ignored.
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
            for line in lines:
                source, hypotheses = json.loads(line)
                cached[source] = [Hypothesis(text, flags) for text, flags in hypotheses]
        return cached

    def _load(self) -> tuple[PreTrainedTokenizerBase, TeacherModel]:
        """Load the teacher's tokenizer and model. An ensemble uses the tokenizer of its first model."""
        engine = self._arguments.teacher_engine
        if engine == "torch":
            return load_ensemble([str(folder) for folder in self.folders], self._device)
        return AutoTokenizer.from_pretrained(self.folders[0]), load_engine(str(self.folders[0]), engine)

    def _translate(
        self, tokenizer: PreTrainedTokenizerBase, model: TeacherModel, sources: list[str]
    ) -> Iterator[tuple[str, list[Hypothesis]]]:
        """Translate sources, and yield each source with its hypotheses, best first.

        A source has one hypothesis or, with `nearest_to_reference`, one hypothesis per beam.
        """
        detail_level: Literal[DetailLevel.FLAGS, DetailLevel.ALL] = DetailLevel.FLAGS
        options: dict[str, Any] = {}
        if self._arguments.teacher_num_beams is not None:
            options["num_beams"] = self._arguments.teacher_num_beams
        if self._target_code:
            options["target_lang"] = self._target_code
        if self._arguments.nearest_to_reference:
            num_beams = self._arguments.teacher_num_beams or model.generation_config.num_beams
            options["num_return_sequences"] = num_beams
            detail_level = DetailLevel.ALL
        translations = translate(model, tokenizer, sources, return_details=detail_level, **options)
        for source, best in zip(sources, translations, strict=True):
            hypotheses = []
            for translation in (best, *best.alternatives):
                hypotheses.append(Hypothesis(translation.text, sorted(translation.flags)))
            yield source, hypotheses


def _reason_to_remove(hypothesis: Hypothesis) -> str | None:
    """Return in words why a hypothesis must not be a training target, or None if it may be one."""
    for flag, reason in _REASONS_BY_FLAG.items():
        if flag in hypothesis.flags:
            return reason
    return None
