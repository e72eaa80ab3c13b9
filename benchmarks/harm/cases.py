"""One case of damage: a copy of a place, a change of one file, an action, a verdict."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from harm import children, looks, referees
from harm.odd_models import CANARY
from harm.outcomes import Outcome
from harm.stage import Stage
from harm.subjects import Action, Subject
from harm.surroundings import copied, listening
from partita.errors import InputError

_REMOVED, _SWAPPED = "removed", "in the place of"
_EXHAUSTED = ("memory: there is not enough", "bad_alloc", "allocat")


@dataclass(frozen=True)
class Harm:
    """What was done to which file."""

    file: Path
    what: str
    changed: bool

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"


def chance_of(seed: int, area: str, number: int) -> Random:
    """All that is random in a case."""
    return Random(f"{seed}/{area}/{number}")


def case(
    subject: Subject, stage: Stage, seed: int, scratch: Path, keep: Path | None = None
) -> Callable[[int], Outcome]:
    """Cases of a subject by their numbers; `keep` is where the damaged input is left."""

    def act(number: int) -> Outcome:
        random = chance_of(seed, subject.name, number)
        with copied(stage.place(subject.place), scratch):
            action = random.choice(subject.actions)
            harm = _do_harm(random, subject)
            if keep is not None:
                shutil.copytree(Path(), keep, dirs_exist_ok=True)
            outcome = _try(subject, action, harm, stage.results[subject.place, action.name])
        detail = f"{harm}; {action.name}; {outcome.detail}" if outcome.is_fault else ""
        return Outcome(outcome.kind, detail)

    return act


def _do_harm(random: Random, subject: Subject) -> Harm:
    found = {path for pattern in subject.files for path in Path().glob(pattern) if path.is_file()}
    files = sorted(found)
    file = random.choice(files)
    before = file.read_bytes()
    if subject.removes and random.random() < 0.1:
        file.unlink()
        if random.random() < 0.4:
            return Harm(file, _REMOVED, changed=True)
        other = random.choice([path for path in files if path != file])
        shutil.copyfile(other, file)
        return Harm(file, f"{other} {_SWAPPED} it", changed=file.read_bytes() != before)
    after, what = subject.change(random, file, before)
    file.write_bytes(after)
    return Harm(file, what, changed=after != before)


def _try(subject: Subject, action: Action, harm: Harm, sound: str) -> Outcome:
    """What comes of it, beside the `sound` result."""

    def ended(said: str) -> Outcome:
        try:
            found = action.look(said)
        except Exception:  # what was made cannot be looked at
            return Outcome("silent", traceback.format_exc())
        if found == sound:
            return Outcome("equal")
        if not harm.changed:
            return Outcome("silent", "another result of the same input")
        return Outcome("silent" if _could_tell(subject, harm) else "other")

    def refused(problem: str) -> Outcome:
        if any(word in problem for word in _EXHAUSTED):
            return Outcome("memory", problem)
        message = problem[problem.find("partita: ") :]
        names = {*harm.file.parts, harm.file.stem, *subject.called}
        named = message.startswith("partita: ") and any(name in message for name in names)
        return Outcome("refused" if named else "unclear", problem)

    return verdict(action.do, refused, ended)


def verdict(
    do: Callable[[], int],
    refused: Callable[[str], Outcome],
    ended: Callable[[str], Outcome],
) -> Outcome:
    """How something ends that is done in the working folder: `refused` judges what a refusal says,
    `ended` what was said until the end."""
    before, code, problem = looks.listing(Path()), 0, ""
    children.RUN.clear()
    with listening() as (out, err):
        try:
            code = do()
        except InputError as error:
            code, problem = 2, f"partita: {error}"
        except MemoryError:
            return Outcome("memory", traceback.format_exc())
        except BaseException:
            return Outcome("uncaught", traceback.format_exc())
        said, problem = out.text(), problem or err.text()
    if children.RUN or Path(CANARY).exists():
        return Outcome("code", f"{children.RUN}\n{problem}")
    if "Traceback" in problem or code not in (0, 2):
        return Outcome("uncaught", f"exit code {code}\n{problem}")
    if code == 0:
        return ended(said)
    strange = sorted(looks.listing(Path()) ^ before)
    return Outcome("leftover", f"{strange}\n{problem}") if strange else refused(problem)


def _could_tell(subject: Subject, harm: Harm) -> bool:
    """Whether a checksum of ours, or one that the file has by itself, tells of the damage."""
    if subject.ours:
        return True
    return harm.file.exists() and referees.notices(harm.file)
