"""Write docs/results.md, its pictures, and the model card of the packaged model, from the
measurements in benchmarks/results/.

    python benchmarks/report.py

The text is in `sections/` beside this file; expressions in double braces there are looked up in the
JSON files. A missing number stops the program.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import jinja2
from ship import SAMPLING

from partita.contracts.estimate import Estimate
from partita.likelihood.profile import Level, draw_profiles
from partita.models.default import WEIGHTS
from partita.studies.growth import draw_growth
from partita.studies.steps import Quality, draw_comparison, equal_quality, revealed
from partita.training.throughput import PEAKS

HERE = Path(__file__).parent
RESULTS, SECTIONS = HERE / "results", HERE / "sections"
DOCS = HERE.parent / "docs"
REPORT, PICTURES = DOCS / "results.md", DOCS / "pictures"
CARD = WEIGHTS / "README.md"
LONG = 1024  # characters of the texts whose seconds are reported


def measured(name: str) -> dict[str, Any]:
    """The content of a results file."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def there(name: str) -> bool:
    """Whether a results file exists; what was not measured is left out of tables."""
    return (RESULTS / f"{name}.json").exists()


def rows(name: str, **wanted: Any) -> list[dict[str, Any]]:
    """The rows of a file in which these columns have these values."""
    found = measured(name)["rows"]
    return [r for r in found if all(r[key] == value for key, value in wanted.items())]


def row(name: str, **wanted: Any) -> dict[str, Any]:
    """The only row of a file in which these columns have these values."""
    found = rows(name, **wanted)
    if len(found) != 1:
        raise LookupError(f"{name}.json has {len(found)} rows with {wanted}, which must be one")
    return found[0]


def bound(found: dict[str, Any]) -> str:
    """Bits with their error; exact ones have none."""
    error = found["bits_error"]
    return f"{found['bits']:.3f} " + (f"± {error:.3f}" if error else "(exact)")


def theirs(**wanted: Any) -> dict[str, Any]:
    """The measurement of the reference code, or a note that there is none."""
    found = rows("reference-h200", **{"what": wanted.pop("what")})
    fitting = [r for r in found if all(r[key] == value for key, value in wanted.items())]
    return fitting[0] if fitting else {"value": None, "memory_gb": None}


def digits_shares(model: str) -> str:
    """Percentage of digits that are classified as their class, for each guidance weight."""
    return ", ".join(f"{100 * r['accuracy']:.1f}" for r in rows("digits", model=model))


def digits_distances(model: str) -> str:
    """The Fréchet distance of the digits from the data, for each guidance weight."""
    return ", ".join(f"{r['frechet']:.1f}" for r in rows("digits", model=model))


def numbers(name: str, column: str, style: str, **wanted: Any) -> str:
    """A column of the rows that have these values, as text."""
    *most, last = (f"{r[column]:{style}}" for r in rows(name, **wanted))
    return f"{', '.join(most)} and {last}"


def largest(name: str, column: str) -> float:
    """The largest number of a column."""
    return float(max(r[column] for r in rows(name)))


def quality(name: str, model: str, steps: int) -> str:
    """The judge's bits, and the entropy in parentheses."""
    found = row(name, model=model, steps=steps)
    return f"{found['judge_bits']:.3f} ({found['entropy_nats']:.3f})"


def bits(name: str, model: str, steps: int) -> str:
    """The judge's bits alone."""
    return f"{row(name, model=model, steps=steps)['judge_bits']:.3f}"


def worth(steps: int | None, temperature: float, **settings: Any) -> str:
    """Quality of texts of the packaged model, or of 5-grams, with these sampling settings; a dash
    if that was not measured."""
    wanted = settings | {"temperature": temperature}
    fitting = [
        r for r in rows("wikipedia-sampling-settings", steps=steps) if r["sampling"] == wanted
    ]
    if not fitting:
        return "-"
    (one,) = fitting
    return f"{one['judge_bits']:.3f} ({one['entropy_nats']:.3f})"


def curve_of(name: str, model: str) -> list[Quality]:
    """The quality of a model's texts, against the steps."""
    return [Quality(**r) for r in rows(name, model=model)]


def seconds_of_texts(speed: str, method: str, steps: int) -> float | None:
    """Seconds for a batch of texts in this many steps, if that was timed."""
    if not there(speed):
        return None
    for title, speeds in measured(speed)["growth"].items():
        if title.startswith(f"steps {steps} "):
            (one,) = (r for r in speeds if method in r["name"])
            return float(statistics.median(one["seconds"]))
    return None


def texts_at_once(speed: str) -> int:
    """The batch size at which a speed was timed."""
    title = next(iter(measured(speed)["growth"]))
    return int(title.rpartition("batch ")[2].rstrip(")"))


def at_speed(speed: str, method: str) -> list[Quality]:
    """Quality of the texts of `wiki8-METHOD`, with speeds timed on untrained weights."""
    found = []
    for r in curve_of("wiki8-steps", f"wiki8-{method}"):
        seconds = seconds_of_texts(speed, method, r.steps)
        if seconds is not None:
            found.append(replace(r, tokens_per_second=LONG * texts_at_once(speed) / seconds))
    return found


def equally_good(speeds: list[str]) -> list[dict[str, Any]]:
    """PGM's speed relative to MDLM's at equal quality, by MDLM's steps."""
    found: dict[int, dict[str, Any]] = {
        r.steps: {"steps": r.steps, "judge_bits": r.judge_bits, "times": dict.fromkeys(speeds)}
        for r in curve_of("wiki8-steps", "wiki8-mdlm")
    }
    for speed in speeds:
        pgm, mdlm = (at_speed(speed, method) for method in ("pgm", "mdlm"))
        for e in equal_quality(pgm, mdlm) if pgm else []:
            found[e.steps]["times"][speed] = None if e.better or e.times is None else e
    return [*found.values()]


def found(name: str, contestant: str) -> list[dict[str, Any]]:
    """The results of `partita bench` for a contestant; empty if it took no part."""
    subjects = [measured(name).get(subject, {}) for subject in ("sampling", "training")]
    tables = [table for subject in subjects for table in subject.values()]
    return [r for table in tables for r in table if r["name"] == contestant]


def largest_turn(name: str, contestant: str) -> float:
    """The seconds of a contestant's slowest turn."""
    (one,) = found(name, contestant)
    return float(max(one["seconds"]))


def table(name: str, title: str) -> list[dict[str, Any]]:
    """A table of `partita bench`."""
    rows_of: list[dict[str, Any]] = measured(name)[title.split()[0].lower()][title]
    return rows_of


def grown(title: str, method: str) -> float:
    """Seconds of a method in one of the tables of growth."""
    one = next(r for r in measured("bench-h200-growth")["growth"][title] if method in r["name"])
    return float(statistics.median(one["seconds"]))


def timed(name: str, title: str, contestant: str) -> dict[str, Any]:
    """One contestant of such a table."""
    (one,) = (r for r in table(name, title) if r["name"] == contestant)
    return one


def cost(found: dict[str, Any], unit: str = "character") -> str:
    """Bits per character, byte or token, with their error where they are a bound."""
    bits, error = (found[f"bits_per_{unit}{end}"] for end in ("", "_error"))
    return f"{bits:.3f}" if found["exact"] else f"{bits:.3f} ± {error:.3f}"


def percent(found: dict[str, Any]) -> str:
    """The accuracy in percent, with its error."""
    share, error = (100 * found[f"accuracy{end}"] for end in ("", "_error"))
    return f"{share:.1f} ± {error:.1f}%"


def rendered(template: str = "results.md") -> str:
    """The report, or the card."""
    world = jinja2.Environment(
        loader=jinja2.FileSystemLoader(SECTIONS),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # the output is not HTML
    )
    world.tests["there"] = there
    world.globals |= {
        "row": row,
        "measured": measured,
        "bound": bound,
        "theirs": theirs,
        "digits_shares": digits_shares,
        "digits_distances": digits_distances,
        "rows": rows,
        "there": there,
        "revealed": revealed,
        "quality": quality,
        "worth": worth,
        "seconds_of_texts": seconds_of_texts,
        "equally_good": equally_good,
        "bits": bits,
        "largest": largest,
        "numbers": numbers,
        "found": found,
        "table": table,
        "timed": timed,
        "grown": grown,
        "middle": statistics.median,
        "largest_turn": largest_turn,
        "PEAKS": PEAKS,
        "cost": cost,
        "percent": percent,
        "sampling": SAMPLING,
    }
    return world.get_template(template).render()


def draw_steps(names: dict[str, str], picture: Path) -> None:
    """Draw the quality of teachers and their last students, against the steps."""
    shown = []
    for name, title in names.items():
        for model, called in {"teacher": title, "round 3": f"{title}, distilled"}.items():
            shown += [Quality(**{**r, "model": called}) for r in rows(name, model=model)]
    draw_comparison(shown, picture, timed=False)  # one run shared the machine, the other not


def draw_texts(speed: str, picture: Path) -> None:
    """Draw the quality of texts of 1,024 characters, against the steps and against the time."""
    models = {"mdlm": "MDLM", "pgm": "PGM"}
    shown = [replace(r, model=named) for m, named in models.items() for r in at_speed(speed, m)]
    draw_comparison(shown, picture)


def curve(name: str) -> list[Level]:
    """The bound of a run by noise level."""
    nats, tokens = math.log(2), measured(name)["valid"]["tokens"]
    return [
        Level(
            x["hidden_from"],
            x["hidden_to"],
            Estimate(x["bits_per_token"] * nats, x["bits_per_token_error"] * nats, tokens),
        )
        for x in measured(name)["profile"]
    ]


def main() -> None:
    """Write the report, the pictures and the card."""
    REPORT.write_text(rendered())
    CARD.write_text(rendered("card.md"))
    draw_growth(measured("bench-h200-growth"), PICTURES / "growth.png")
    draw_steps({"steps-mdlm": "MDLM", "steps-pgm": "PGM"}, PICTURES / "steps.png")
    draw_texts("wiki8-speed-cpu", PICTURES / "texts.png")
    draw_texts("wiki8-speed-gpu-32", PICTURES / "texts-h200.png")
    draw_profiles({"MDLM, eleven minutes": curve("wiki8-long")}, PICTURES / "profiles.png")


if __name__ == "__main__":
    main()
