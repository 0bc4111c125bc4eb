"""Define the command-line options of `distill`: the teacher, its search, and which translations to train on."""

from dataclasses import dataclass, fields
from typing import Literal

from ..support.argument_checks import check_optional
from ..support.build_arguments import option
from ..support.user_errors import InputError


@dataclass
class DistillationArguments:
    """Options for knowledge distillation, in which a student is trained on the translations of a teacher model.

    The method is sequence-level knowledge distillation (Kim and Rush 2016).
    """

    _argument_group_name = "teacher"

    teacher: list[str] | None = option(
        None, "The model to learn from, a folder or a name on the Hub. Several models are used as an ensemble."
    )
    teacher_revision: list[str] | None = option(
        None, "Branch, tag or commit of each teacher on the Hub. (--revision is for --model_name_or_path.)"
    )
    teacher_num_beams: int | None = option(None, "Beams of the teacher's search (default: the teacher's).")
    teacher_engine: Literal["torch", "ctranslate2"] = option("torch", "Runtime of the teacher.")
    nearest_to_reference: bool = option(
        False, "Train on the hypothesis that has the highest sentence BLEU, instead of the teacher's first one."
    )
    distilled_only: bool = option(False, "Train on the teacher's translations alone, without the given targets.")
    monolingual_source_file: list[str] | None = option(
        None, "Files with one source sentence per line, for which the teacher's translations are the only targets."
    )

    def __post_init__(self) -> None:
        """Raise InputError if the arguments contradict each other."""
        # This raises an error unless the argument is None or a whole number of at least 1.
        check_optional(self, "teacher_num_beams")
        if self.teacher is None:
            self._check_nothing_needs_a_teacher()
            return
        teacher_count = len(self.teacher)
        revisions = self.teacher_revision
        if revisions is not None and len(revisions) != teacher_count:
            raise InputError(
                f"teacher_revision is {', '.join(revisions)}, but there are {teacher_count} teachers; give one "
                "revision for each, such as main."
            )
        if teacher_count > 1 and self.teacher_engine != "torch":
            raise InputError(
                f"teacher_engine {self.teacher_engine} has no ensembles; give one teacher, or leave teacher_engine out."
            )

    def _check_nothing_needs_a_teacher(self) -> None:
        """Raise InputError if a distillation argument is given. Without a teacher, these arguments have no effect."""
        # `teacher` itself is None, which is its default.
        for field in fields(self):
            if getattr(self, field.name) not in (field.default, None):
                raise InputError(f"{field.name} is given, but has no effect without a teacher; also give --teacher.")
