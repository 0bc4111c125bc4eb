"""The models that a run learns from, and what it learns of their translations."""

from dataclasses import dataclass, fields
from typing import Literal

from ..support.argument_checks import check_optional
from ..support.build_arguments import option
from ..support.user_errors import InputError


@dataclass
class TeacherArguments:
    """Sequence-level knowledge distillation (Kim and Rush 2016): targets that a teacher translates."""

    _argument_group_name = "teacher"

    teacher: list[str] | None = option(
        None, "The model to learn from, a folder or a name on the Hub; several are an ensemble."
    )
    teacher_revision: list[str] | None = option(
        None, "Branch, tag or commit of each teacher on the Hub, which --revision is not."
    )
    teacher_num_beams: int | None = option(None, "Beams of the teacher's search (default: the teacher's).")
    teacher_engine: Literal["torch", "ctranslate2"] = option("torch", "Runtime of the teacher.")
    nearest_to_reference: bool = option(
        False, "Of the teacher's hypotheses take the one with the highest sentence BLEU, not the first."
    )
    distilled_only: bool = option(False, "Train on the teacher's translations alone, without the given targets.")
    monolingual_source_file: list[str] | None = option(
        None, "Files with a source sentence per line, for which the teacher's translations are the only targets."
    )

    def __post_init__(self) -> None:
        check_optional(self, "teacher_num_beams")
        given = [each.name for each in fields(self) if getattr(self, each.name) not in (each.default, None)]
        if given and self.teacher is None:
            raise InputError(f"{given[0]} is given, but has no effect without a teacher; give --teacher, too.")
        teachers = self.teacher or []
        revisions = self.teacher_revision
        if revisions is not None and len(revisions) != len(teachers):
            raise InputError(
                f"teacher_revision is {', '.join(revisions)}, but there are {len(teachers)} teachers; give one "
                "revision for each, such as main."
            )
        if self.teacher is not None and len(self.teacher) > 1 and self.teacher_engine != "torch":
            raise InputError(f"teacher_engine {self.teacher_engine} has no ensembles; give one, or leave it out.")
