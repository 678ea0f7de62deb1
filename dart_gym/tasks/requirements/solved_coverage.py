"""Which metrics, getters and postconfig steps of task files are held by a task with a known solution.

"Doing nothing scores 0" says little of an evaluator: one that is broken gives 0 to everybody. A part of an evaluator is
covered where a task uses it whose solution is known, so that it can be played solved (1) and unsolved (0), as
`dart-gym certify` and the tests do.

Invariant: pure; nothing is played here. A part that no pair can have is named in `WITHOUT_PAIR` with its reason.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from dart_gym.core.errors import ConfigurationError
from dart_gym.tasks.catalog.task import Task
from dart_gym.tasks.evaluation.score_rules import INFEASIBLE
from dart_gym.tasks.osworld.solutions import known
from dart_gym.tasks.requirements import needs

METRIC, GETTER, STEP = KINDS = ("metric", "getter", "postconfig step")
BEGIN = "<!-- coverage: dart-gym tasks check EXAMPLES --solved --write docs/guides/osworld.md -->"
END = "<!-- end of the coverage -->"

WITHOUT_PAIR = {
    (METRIC, "compare_image_text"): "the evaluator leaves out easyocr",
    (GETTER, "googledrive_file"): "account: Google Drive",
}
"""Parts that need a live web site, an account or a proprietary file, or that the evaluator leaves out."""

_MOST_NAMED = 3
Part = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Row:
    """One part: in how many of the task files it is, which pairs cover it, and why none can."""

    kind: str
    name: str
    tasks: int
    pairs: tuple[str, ...] = ()
    reason: str = ""

    @property
    def shown(self) -> str:
        """The pairs, or the reason why there are no pairs."""
        if not self.pairs:
            return f"not covered: {self.reason or 'no pair yet'}"
        more = len(self.pairs) - _MOST_NAMED
        return ", ".join(self.pairs[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def parts_of(task: Task) -> set[Part]:
    """Return the metrics, getters and postconfig steps of a task."""
    parts = {(METRIC, func) for func in needs.funcs_of(task)}
    parts |= {(GETTER, str(getter.get("type"))) for getter in needs.getters_of(task)}
    return parts | {(STEP, str(step.get("type"))) for stage, step in needs.steps_of(task) if stage == "postconfig"}


def is_solved(task: Task) -> bool:
    """Return whether a solution of a task is known."""
    written = bool(task.solution or (task.raw.get("dart") or {}).get("oracle"))
    return written or task.evaluator.get("func") == INFEASIBLE or str(task.raw.get("id")) in known()


def coverage(tasks: Iterable[Task], pairs: Mapping[str, Task]) -> list[Row]:
    """Return a row for each part of tasks, those that most tasks have first; `pairs`: tasks by the names to show."""
    counts = Counter(part for task in tasks for part in parts_of(task))
    covered: defaultdict[Part, list[str]] = defaultdict(list)
    for name, task in sorted(pairs.items()):
        if is_solved(task):
            for part in parts_of(task):
                covered[part].append(name)
    rows = [
        Row(*part, count, tuple(covered[part]), "" if covered[part] else WITHOUT_PAIR.get(part, ""))
        for part, count in counts.items()
    ]
    return sorted(rows, key=lambda row: (KINDS.index(row.kind), -row.tasks, row.name))


def summary(rows: Iterable[Row]) -> str:
    """Return how many parts of each kind are covered, in a sentence."""
    rows = list(rows)
    owed = [row for row in rows if not row.reason]
    done = Counter(row.kind for row in owed if row.pairs)
    total = Counter(row.kind for row in owed)
    kinds = ", ".join(f"{done[kind]} of {total[kind]} {kind}s" for kind in KINDS)
    share = sum(done.values()) / max(1, len(owed))
    left = len(rows) - len(owed)
    return f"Covered: {kinds} ({share:.0%}); {left} more cannot have a pair, for the reasons given."


def table(rows: Iterable[Row]) -> str:
    """Return the rows as a table in Markdown, with the summary."""
    rows = list(rows)
    lines = [f"| {row.kind} | `{row.name}` | {row.tasks} | {row.shown} |" for row in rows]
    return "\n".join(
        [summary(rows), "", "| kind | name | tasks | solved and unsolved in |", "|---|---|---|---|", *lines]
    )


def write_table(page: Path, text: str) -> None:
    """Write a table between its two marks in a page.

    Raises:
        ConfigurationError: if the page has no such marks.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigurationError(f"{page} lacks the lines that the table stands between: {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
