"""Prepare sequence-level knowledge distillation (Kim and Rush 2016): let a teacher translate the training sources.

A small model, the student, is then trained on the translations of a larger one, the teacher.
"""

import json
import logging
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Literal, NamedTuple, TextIO

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
from .distillation_arguments import DistillationArguments
from .model_arguments import NEW_TOKENIZER_ARGUMENTS, ModelArguments
from .plan import format_duration
from .run_arguments import Arguments, Settings
from .run_checks import check_tokenizer
from .training_pairs import find_target_language, log_removed


logger = logging.getLogger(__name__)

# Number of sentences that are translated before their translations are written to the cache. It is small enough that an
# interruption loses little, and large enough for batches of similar lengths.
_SENTENCES_PER_WRITE = 500
# Number of sentences that are translated to estimate how long all of them will take.
_SENTENCES_TO_TIME = 100
# The reason that the log and the model card give for monolingual sources that are not translated.
_IN_EVALUATION_PAIRS = "in the test or validation pairs"
# Flags that exclude a translation from the training pairs, each with the reason in words.
_REASONS_BY_FLAG = {flag: FLAG_MEANINGS[flag] for flag in ("truncated", "repetition")}


class Hypothesis(NamedTuple):
    """A translation by the teacher. [`~hf_vanilla_transformer.Translation`] lists its flags, such as `"truncated"`."""

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
        _check_revision(settings.model)
        self._arguments = settings.distillation
        self._device = settings.args.device
        self._scoring = settings.scoring
        # Several teachers form an ensemble.
        self._teacher_names = settings.distillation.teacher or []
        self.folders = _find_teacher_folders(settings)
        tokenizer = AutoTokenizer.from_pretrained(self.folders[0])
        target_language = find_target_language(settings.data, tokenizer)
        # The code that is put before each source, or "" if the teacher translates into a single language.
        self._target_language_code = TargetCodes(tokenizer, target_language).default
        self._cache_folder = _find_cache_folder(self._arguments, self.folders, self._target_language_code)

    def with_tokenizer(self, settings: Settings) -> Settings:
        """Return a copy of the settings in which the student uses the teacher's tokenizer.

        The settings are returned unchanged if the given arguments say which tokenizer to use or how to train one, or if
        the teacher's tokenizer is unsuitable, because it does not append EOS or has no pad token.
        """
        if _has_tokenizer_arguments(settings.given_arguments) or not self._has_suitable_tokenizer():
            return settings

        # The settings are built anew, as if the user had also given `tokenizer_name`. They contain only what follows
        # from the given arguments, so the changes that the run has made before this call must be repeated here: the
        # choice of the BLEU tokenization, and `needs_plan`. A further change would be lost otherwise.
        given_arguments = {**settings.given_arguments, "tokenizer_name": str(self.folders[0])}
        changed_settings = Settings.from_arguments(**given_arguments).for_target_language()
        return changed_settings._replace(needs_plan=settings.needs_plan)

    def _has_suitable_tokenizer(self) -> bool:
        """Return True if a student can use the tokenizer of the first teacher."""
        tokenizer = AutoTokenizer.from_pretrained(self.folders[0])
        try:
            check_tokenizer(self._teacher_names[0], tokenizer)
        except InputError:
            return False
        return True

    def add_translations(self, pairs: DatasetDict) -> tuple[DatasetDict, dict[str, str]]:
        """Translate the training sources. Add each source with its translation as a new training pair.

        With `distilled_only`, the translated pairs replace the given training pairs.

        Returns:
            All pairs, with the new training pairs; and rows about the teacher for the table in the model card.

        Raises InputError if no translation remains.
        """
        new_sources = self._select_new_sources(pairs)
        left_out_count = len(self._monolingual_sources) - len(new_sources)
        log_removed({_IN_EVALUATION_PAIRS: left_out_count}, len(self._monolingual_sources), "monolingual sources")

        distilled, removed_counts = self._make_distilled_pairs(pairs, new_sources)
        new_train = self._join_training_pairs(pairs["train"], distilled)

        # The card lists the removed sources after the removed translations, so this reason must name what they are.
        all_removed_counts = {**removed_counts, f"monolingual sources {_IN_EVALUATION_PAIRS}": left_out_count}
        model_card_rows = self._make_model_card_rows(len(distilled), all_removed_counts)
        return DatasetDict({**pairs, "train": new_train}), model_card_rows

    def _join_training_pairs(self, train: Dataset, distilled: Dataset) -> Dataset:
        """Return the given training pairs and the distilled ones or, with `distilled_only`, only the distilled ones.

        Log the number of pairs of both sorts.
        """
        counted_distilled = f"training pairs: {len(distilled):,} with targets of the teacher"
        if self._arguments.distilled_only:
            logger.info(f"{counted_distilled}, none with the given targets")
            return distilled
        # Other columns, such as `references`, would not fit the distilled pairs.
        joined = concatenate_datasets([train.select_columns(["source", "target"]), distilled])
        logger.info(f"{counted_distilled}, {len(train):,} with the given targets")
        return joined

    def _make_distilled_pairs(self, pairs: DatasetDict, new_sources: list[str]) -> tuple[Dataset, dict[str, int]]:
        """Translate the training sources and additional sources, and remove translations that training must not use.

        Args:
            pairs: the pairs of all splits.
            new_sources: additional sources, which have no targets.

        Returns:
            Pairs of sources and translations, and the number of translations that were removed for each reason.

        Raises InputError if no translation remains.
        """
        translated_pairs, removed_counts = self._translate_pairs(pairs["train"], new_sources)
        evaluation_pairs = [pairs[split] for split in ("validation", "test") if split in pairs]
        cleaned_pairs, removed_by_cleaning = clean_pairs(translated_pairs, evaluation_pairs)
        removed_counts.update(removed_by_cleaning)
        log_removed(removed_counts, len(pairs["train"]) + len(new_sources), "translations")
        return cleaned_pairs, removed_counts

    def _translate_pairs(self, train: Dataset, new_sources: list[str]) -> tuple[Dataset, dict[str, int]]:
        """Translate the training sources and additional sources, and remove truncated and repetitive translations.

        Args:
            train: the training pairs.
            new_sources: additional sources, which have no targets.

        Returns:
            The pairs of sources and translations that remain, and a dict with the number of translations that were
            removed for each reason in words, such as `{"truncated at the length limit": 2, ...}`.

        Raises InputError if all translations are removed or blank.
        """
        # This raises an error if its tokenization needs a missing library, so it comes before the translation, which
        # may take hours. With `effective_order`, a sentence without a matching 4-gram may still have a BLEU above 0.
        sentence_bleu = BLEU(tokenize=self._scoring.choose_tokenization(train), effective_order=True)

        sources = [*train["source"], *new_sources]
        references: list[str | None] = [*train["target"], *([None] * len(new_sources))]
        hypotheses_by_source = self._translate_all(sources)
        # A source that occurs with several references may get a different hypothesis each time.
        chosen_hypotheses = [
            self._choose_hypothesis(hypotheses_by_source[source], reference, sentence_bleu)
            for source, reference in zip(sources, references, strict=True)
        ]
        columns, removed_counts = _remove_unsuitable(sources, chosen_hypotheses)
        self._check_translations_remain(columns["target"], removed_counts)

        # The column types are those of the given pairs, so that both can be concatenated.
        features = train.select_columns(["source", "target"]).features
        return Dataset.from_dict(columns, features=features), removed_counts

    def _check_translations_remain(self, translations: Sequence[str], removed_counts: Mapping[str, int]) -> None:
        """Raise InputError if all translations are blank, or if there are none.

        Args:
            translations: the translations that are not removed yet. Blank ones are removed later.
            removed_counts: the number of translations that were removed for each reason.
        """
        if all(is_blank(translation) for translation in translations):
            raise InputError(self._describe_why_none_remains(removed_counts, blank_count=len(translations)))

    def _describe_why_none_remains(self, removed_counts: Mapping[str, int], blank_count: int) -> str:
        """Return the error message for the case that no translation remains, because all were removed or are blank.

        Args:
            removed_counts: the number of translations that were removed for each reason.
            blank_count: the number of blank translations.
        """
        counts_by_reason = {**removed_counts, "empty": blank_count}
        phrases = [f"{count:,} were {reason}" for reason, count in counts_by_reason.items() if count]
        return f"no translation of {self._teacher_names[0]} remains: {', '.join(phrases)}; give another teacher."

    def _make_model_card_rows(self, translated_count: int, removed_counts: Mapping[str, int]) -> dict[str, str]:
        """Return the rows about the teacher for the table in the model card, as a dict from a row's name to its text.

        Args:
            translated_count: the number of training pairs with targets by the teacher.
            removed_counts: the number of sentences that were removed for each reason in words. A reason with 0 gets no
                text.
        """
        targets = f"{translated_count:,}"
        if self._arguments.teacher_num_beams is not None:
            targets += f" with {self._arguments.teacher_num_beams} beams"
        if self._arguments.nearest_to_reference:
            targets += ", the hypothesis nearest to the reference"
        removed_phrases = [f"{count:,} {reason}" for reason, count in removed_counts.items() if count]
        if removed_phrases:
            targets += f"; removed {', '.join(removed_phrases)}"
        teacher_names = [str(name_of_base(name)) for name in self._teacher_names]
        return {
            "teacher": ", ".join(teacher_names),
            "targets of the teacher": targets,
            "given targets": "not used" if self._arguments.distilled_only else "used, too",
        }

    def make_expected_pairs(self, pairs: DatasetDict) -> DatasetDict:
        """Make pairs that resemble the result of `add_translations`, without translating anything.

        Their number and lengths are approximately right. They are used to plan a run before the teacher translates.
        """
        train = pairs["train"].select_columns(["source", "target"])
        new_sources = self._select_new_sources(pairs)
        # The given targets stand in for the translations, which have similar lengths. They are repeated if there are
        # more new sources than given targets.
        new_targets = list(islice(cycle(train["target"]), len(new_sources)))
        new_pairs = Dataset.from_dict({"source": new_sources, "target": new_targets}, features=train.features)
        if self._arguments.distilled_only:
            expected_parts = [train, new_pairs]
        else:
            # Each given source occurs once with its given target, and once with the teacher's translation. The given
            # target stands in for this translation.
            expected_parts = [train, train, new_pairs]
        return DatasetDict({**pairs, "train": concatenate_datasets(expected_parts)})

    def describe_work(self, pairs: DatasetDict) -> str:
        """Describe how many sentences the teacher still has to translate, and how long the translation will take.

        The duration is extrapolated from a sample of up to 100 sentences, which is translated for this purpose.
        """
        sources = [*pairs["train"]["source"], *self._select_new_sources(pairs)]
        cached = self._read_cache()
        untranslated = [source for source in _drop_duplicates(sources) if source not in cached]
        if not untranslated:
            return "teacher: all sentences are translated already"

        seconds_per_sentence = self._time_translation(untranslated)
        # The processes divide the sentences among them, and translate at the same time.
        sentences_per_process = len(untranslated) / PartialState().num_processes
        duration = format_duration(seconds_per_sentence * sentences_per_process)
        return f"teacher: {len(untranslated):,} sentences to translate first, about {duration}"

    def _time_translation(self, sources: Sequence[str]) -> float:
        """Translate a sample of the sources, and return the seconds per sentence, without the time for loading."""
        tokenizer, model = self._load_teacher()
        sample = [sources[row] for row in pick_evenly_spaced_rows(len(sources), _SENTENCES_TO_TIME)]
        start_time = time.perf_counter()
        self._translate(tokenizer, model, sample)
        return (time.perf_counter() - start_time) / len(sample)

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
        """Return the monolingual sources that do not occur in the validation or test pairs."""
        # White space around a source is ignored, so that it cannot hide a source of an evaluation.
        evaluation_sources: set[str] = set()
        for split in ("validation", "test"):
            if split in pairs:
                evaluation_sources.update(source.strip() for source in pairs[split]["source"])
        return [source for source in self._monolingual_sources if source.strip() not in evaluation_sources]

    def _choose_hypothesis(
        self, hypotheses: Sequence[Hypothesis], reference: str | None, sentence_bleu: BLEU
    ) -> Hypothesis:
        """Choose the hypothesis on which the student is trained.

        With `nearest_to_reference`, it is the hypothesis with the highest sentence BLEU, provided that there is a
        reference. Otherwise it is the first hypothesis, which is the best one according to the teacher.
        """
        if reference is None or not self._arguments.nearest_to_reference:
            return hypotheses[0]
        scores = [sentence_bleu.sentence_score(hypothesis.text, [reference]).score for hypothesis in hypotheses]
        # If several hypotheses have the highest score, the first one is chosen.
        best_index = scores.index(max(scores))
        return hypotheses[best_index]

    def _translate_all(self, sources: Sequence[str]) -> Hypotheses:
        """Return the hypotheses of each source. Translate the sources that are not yet in the cache.

        All processes must call this method together with the same sources, because they divide the work. They may have
        different caches, because they may run on several machines or with different home folders.

        The processes wait for each other three times. The order of these waits must stay.
        """
        processes = PartialState()
        unique_sources = _drop_duplicates(sources)
        known_hypotheses = self._read_cache()
        # Wait 1: no process writes to the cache before all processes have read it.
        untranslated = _find_sources_unknown_to_all_processes(unique_sources, known_hypotheses)
        # `untranslated` is the same in all processes, so all of them or none enter this block. If only some did, they
        # would wait in `wait_for_everyone` for processes that never call it.
        if untranslated:
            # With two processes, one translates the 1st, 3rd, ... source and the other the 2nd, 4th, ... one.
            own_share = untranslated[processes.process_index :: processes.num_processes]
            known_hypotheses.update(self._translate_into_cache(own_share))
            # Wait 2: after it, the cache also contains the translations of other processes that share it.
            processes.wait_for_everyone()
            known_hypotheses.update(self._read_cache())
        # Wait 3: after it, each process also has the translations of processes with a different cache.
        return _add_hypotheses_of_other_processes(unique_sources, known_hypotheses)

    def _translate_into_cache(self, sources: list[str]) -> Hypotheses:
        """Translate sources, write their hypotheses to a new file in the cache, and return them.

        The sources are translated and written in chunks, so that a killed process loses at most the last chunk.
        """
        if not sources:
            return {}
        tokenizer, model = self._load_teacher()
        self._cache_folder.mkdir(parents=True, exist_ok=True)
        # Several processes may share the folder, so the name of the file is unique.
        path = self._cache_folder / f"{uuid.uuid4().hex}.jsonl"
        hypotheses: Hypotheses = {}
        with path.open("a", encoding="utf-8") as file, tqdm(sources, "teacher", unit=" sentences") as progress:
            for chunk in _split_into_chunks(sources):
                hypotheses_of_chunk = self._translate(tokenizer, model, chunk)
                _write_to_cache(hypotheses_of_chunk, file)
                hypotheses.update(hypotheses_of_chunk)
                progress.update(len(chunk))
        return hypotheses

    def _read_cache(self) -> Hypotheses:
        """Read the hypotheses of all sources in the cache. Each process that has translated sources wrote its own file.

        A line is, for example, `["A dog.", [["Ein Hund.", []]]]`: a source and its hypotheses, each a text with flags.
        """
        cached: Hypotheses = {}
        for path in sorted(self._cache_folder.glob("*.jsonl")):
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
            # A killed process may leave an incomplete line after the last line break, which may even end within a
            # UTF-8 character. This last line is ignored. In a complete file, it is empty.
            complete_lines = lines[:-1]
            for line in complete_lines:
                source, hypotheses = json.loads(line)
                cached[source] = [Hypothesis(text, flags) for text, flags in hypotheses]
        return cached

    def _load_teacher(self) -> tuple[PreTrainedTokenizerBase, TeacherModel]:
        """Load the teacher's tokenizer and model. An ensemble uses the tokenizer of its first model."""
        engine = self._arguments.teacher_engine
        if engine == "torch":
            return load_ensemble([str(folder) for folder in self.folders], self._device)
        return AutoTokenizer.from_pretrained(self.folders[0]), load_engine(str(self.folders[0]), engine)

    def _translate(self, tokenizer: PreTrainedTokenizerBase, model: TeacherModel, sources: list[str]) -> Hypotheses:
        """Translate sources. Return the hypotheses of each source, as a dict from the source to a list, best first.

        A source has one hypothesis or, with `nearest_to_reference`, one hypothesis per beam.
        """
        # With `FLAGS`, a translation has flags, but no alternatives. With `ALL`, it has both.
        detail_level: Literal[DetailLevel.FLAGS, DetailLevel.ALL] = DetailLevel.FLAGS
        if self._arguments.nearest_to_reference:
            detail_level = DetailLevel.ALL
        options = self._make_search_options(model)
        translations = translate(model, tokenizer, sources, return_details=detail_level, **options)

        hypotheses: Hypotheses = {}
        for source, best_translation in zip(sources, translations, strict=True):
            candidates = (best_translation, *best_translation.alternatives)
            hypotheses[source] = [Hypothesis(candidate.text, sorted(candidate.flags)) for candidate in candidates]
        return hypotheses

    def _make_search_options(self, model: TeacherModel) -> dict[str, Any]:
        """Return the keyword arguments of `translate` that are about the target language and the search."""
        num_beams = self._arguments.teacher_num_beams
        options: dict[str, Any] = {}
        if num_beams is not None:
            options["num_beams"] = num_beams
        if self._target_language_code:
            options["target_lang"] = self._target_language_code
        if self._arguments.nearest_to_reference:
            # The search keeps as many hypotheses as it has beams, and all of them are requested.
            options["num_return_sequences"] = num_beams or model.generation_config.num_beams
        return options


def _check_revision(model_args: ModelArguments) -> None:
    """Raise InputError if a revision is given, but no model to fine-tune that it could be for."""
    if model_args.revision is not None and model_args.model_name_or_path is None:
        raise InputError(
            f"revision is {model_args.revision}, which is for --model_name_or_path; give --teacher_revision for a "
            "teacher."
        )


def _has_tokenizer_arguments(given_arguments: Arguments) -> bool:
    """Return True if the given arguments say which tokenizer to use or how to train one."""
    arguments_about_tokenizer = ("model_name_or_path", "tokenizer_name", *NEW_TOKENIZER_ARGUMENTS)
    return any(name in given_arguments for name in arguments_about_tokenizer)


def _split_into_chunks(sources: list[str]) -> Iterator[list[str]]:
    """Yield the sources in chunks, each of which is written to the cache at once."""
    for start in range(0, len(sources), _SENTENCES_PER_WRITE):
        end = start + _SENTENCES_PER_WRITE
        yield sources[start:end]


def _find_teacher_folders(settings: Settings) -> list[Path]:
    """Return the folder of each teacher model. A model of a different system, such as Marian, is converted first.

    Raises InputError if the run would replace a teacher.
    """
    names = settings.distillation.teacher or []
    revisions: Sequence[str | None] = [None] * len(names)
    if settings.distillation.teacher_revision is not None:
        revisions = settings.distillation.teacher_revision
    folders = []
    for name, revision in zip(names, revisions, strict=True):
        folders.append(native_folder(name, revision, settings.model.token))
    _check_keeps_teachers(folders, settings.output_folder)
    return folders


def _check_keeps_teachers(folders: Sequence[Path], output: Path) -> None:
    """Raise InputError if a teacher's folder is within the output folder, which the run replaces."""
    for folder in folders:
        if folder.resolve().is_relative_to(output.resolve()):
            raise InputError(f"{folder} lies in {output}, which the run replaces; name another --output_dir.")


def _find_cache_folder(arguments: DistillationArguments, folders: Sequence[Path], target_code: str | None) -> Path:
    """Return the cache folder for a teacher's translations. Its name depends on everything that can change them.

    Args:
        arguments: the search settings.
        folders: the folders of the teacher models.
        target_code: the code of the target language that is put before each source. It is empty if there is none.
    """
    # The folder's name contains a hash of these values and of their keys.
    search_settings: dict[str, object] = {
        "engine": arguments.teacher_engine,
        # With `nearest_to_reference`, all hypotheses of a source are stored, and not only the first one.
        "all": arguments.nearest_to_reference,
    }
    if arguments.teacher_num_beams is not None:
        search_settings["num_beams"] = arguments.teacher_num_beams
    if target_code:
        search_settings["target"] = target_code
    return result_folder("translations", folders, search_settings)


def _write_to_cache(hypotheses: Hypotheses, file: TextIO) -> None:
    """Write hypotheses to a file of the cache, and wait until they are on the disk."""
    for source, hypotheses_of_source in hypotheses.items():
        # `Teacher._read_cache` reads these lines. JSON stores each `Hypothesis` as a list.
        line = json.dumps((source, hypotheses_of_source), ensure_ascii=False)
        file.write(f"{line}\n")
    file.flush()
    os.fsync(file.fileno())


def _drop_duplicates(sentences: Iterable[str]) -> list[str]:
    """Return the sentences without duplicates, in the order of their first occurrence."""
    return list(dict.fromkeys(sentences))


def _find_sources_unknown_to_all_processes(sources: Sequence[str], known_hypotheses: Hypotheses) -> list[str]:
    """Return the sources for which no process has any hypotheses.

    The processes exchange row numbers, which are shorter than sources, so all of them must pass the same sources.

    Args:
        sources: the sources, without duplicates.
        known_hypotheses: the hypotheses that this process knows.
    """
    rows_known_here = [row for row, source in enumerate(sources) if source in known_hypotheses]
    # `gather_object` concatenates the lists of all processes.
    rows_known_somewhere = set(gather_object(rows_known_here))
    return [source for row, source in enumerate(sources) if row not in rows_known_somewhere]


def _add_hypotheses_of_other_processes(sources: Sequence[str], known_hypotheses: Hypotheses) -> Hypotheses:
    """Exchange hypotheses between the processes, so that each process has the hypotheses of all sources.

    If all processes share one cache, they know the same hypotheses, so only empty lists are exchanged.

    Args:
        sources: the sources whose hypotheses are needed, without duplicates. They must be the same in all processes.
        known_hypotheses: the hypotheses that this process knows.
    """
    rows_unknown_here = [row for row, source in enumerate(sources) if source not in known_hypotheses]
    # `gather_object` concatenates the lists of all processes, so that every process knows what the others lack.
    rows_unknown_somewhere = set(gather_object(rows_unknown_here))
    # Pairs of a source and its hypotheses, which this process knows and at least one other process lacks.
    offered = []
    for row in rows_unknown_somewhere:
        source = sources[row]
        if source in known_hypotheses:
            offered.append((source, known_hypotheses[source]))
    received = dict(gather_object(offered))
    # Hypotheses of this process have precedence over those of other processes.
    return {**received, **known_hypotheses}


def _remove_unsuitable(
    sources: Sequence[str], hypotheses: Sequence[Hypothesis]
) -> tuple[dict[str, list[str]], dict[str, int]]:
    """Remove truncated and repetitive translations, together with their sources.

    Args:
        sources: the sources.
        hypotheses: the translation of each source.

    Returns:
        The columns `"source"` and `"target"` of the remaining pairs, and the number of translations that were removed
        for each reason, such as `{"truncated at the length limit": 2, "caught in a loop": 0}`.
    """
    columns: dict[str, list[str]] = {"source": [], "target": []}
    # Each reason is listed, even if no translation is removed for it.
    removed_counts = dict.fromkeys(_REASONS_BY_FLAG.values(), 0)
    for source, hypothesis in zip(sources, hypotheses, strict=True):
        reason = _find_reason_to_remove(hypothesis)
        if reason is None:
            columns["source"].append(source)
            columns["target"].append(hypothesis.text)
        else:
            removed_counts[reason] += 1
    return columns, removed_counts


def _find_reason_to_remove(hypothesis: Hypothesis) -> str | None:
    """Return why a hypothesis is unsuitable, such as "truncated at the length limit", or None if it is suitable."""
    for flag, reason in _REASONS_BY_FLAG.items():
        if flag in hypothesis.flags:
            return reason
    return None
