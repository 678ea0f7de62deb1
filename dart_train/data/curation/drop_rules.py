"""Rules that drop trajectories and groups: the built-in ones, and those that a configuration names.

A rule is a class with a name, a sentence for the diagnosis, and one pure decision, over a trajectory or over the
members of a complete group:

```python
class Loops(CurationRule):
    name = "loops"
    sentence = "repeat one action over and over"

    def drops(self, trajectory):
        actions = [step.actions for step in trajectory.steps]
        return len(actions) > 5 and all(action == actions[0] for action in actions)
```

`data.curation.rules: [my_rules:Loops]` uses it, and so does the name of an entry point of an installed package. A new
built-in one is a class here with its line in `RULES`.

Invariants:
    - Pure: a rule sees what it is given, and nothing else; the same data are always decided in the same way.
    - A trajectory that a rule drops counts towards its group, which is complete with it and trained on without it.
    - The database keeps a rule's name: a run can be looked at without the rule's code.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dart_agent.episodes.trajectory import Trajectory
from dart_gym.core.errors import PluginError
from dart_gym.utils.plugins import Registry, called_with
from dart_train.core.data_states import RULE_LENGTH, Reason

SENTENCES = {
    "stale": "older than the staleness window",
    "no_signal": "in groups with no variance",
    "too_easy": "in groups that mostly succeed",
    "unfinished": "in unfinished groups",
    "leased": "leased now",
    "trained": "trained already",
    "pooled": "in the pool or demonstrations",
    "untrainable": "ended in an environment, engine or evaluation error",
    "surplus": "beyond their group's size",
    "unselected": "left out to balance their group",
    "replaced": "replaced by a success of the pool",
    "corrupt": "in groups with damaged files",
    "fork_differs": "in forks whose replay came out differently",
}
"""Sentences of a diagnosis about trajectories that cannot be leased, by their state or the rule that dropped them."""


@dataclass(frozen=True, slots=True)
class Member:
    """A trajectory of a complete group, later ones of greater numbers; the version that its staleness counts from.

    Attributes:
        taught: number of its steps that a teacher taught.
    """

    rollout_id: int
    reward: float
    oldest_version: int = 0
    num_steps: int = 0
    taught: int = 0


class CurationRule:
    """A rule that drops data; a subclass sets both attributes and overrides one of the methods.

    Attributes:
        name: written into the database and the metrics; at most 64 characters.
        sentence: what a diagnosis says of the trajectories that it dropped, behind their number.
    """

    name: str = ""
    sentence: str = ""

    def drops(self, trajectory: Trajectory) -> bool:
        """Return whether a trajectory of the policy that could be trained on is left out of its group."""
        return False

    def drops_group(self, members: Sequence[Member]) -> bool:
        """Return whether a complete group is dropped.

        `members` are the trajectories that would be trained on, at least one, in the order of their recording; a
        success of the experience pool that joined them comes last.
        """
        return False


class NoSignal(CurationRule):
    """Drops groups whose rewards are all equal, and that no teacher taught: their advantages are zero."""

    name, sentence = Reason.NO_SIGNAL, SENTENCES[Reason.NO_SIGNAL]

    def drops_group(self, members: Sequence[Member]) -> bool:
        """Return whether all rewards are equal, and nothing else is to be learned."""
        return len({member.reward for member in members}) == 1 and not any(member.taught for member in members)


class TooEasy(CurationRule):
    """Drops groups that mostly succeed, from the mean reward `limit` on."""

    name, sentence = Reason.TOO_EASY, SENTENCES[Reason.TOO_EASY]

    def __init__(self, limit: float) -> None:
        self._limit = limit

    def drops_group(self, members: Sequence[Member]) -> bool:
        """Return whether the mean reward reaches the limit."""
        return sum(member.reward for member in members) / len(members) >= self._limit


def _sound(found: Any) -> str | None:
    name, sentence = getattr(found, "name", None), getattr(found, "sentence", None)
    if not isinstance(name, str) or not 0 < len(name) <= RULE_LENGTH or not isinstance(sentence, str) or not sentence:
        return f"needs a name of 1 to {RULE_LENGTH} characters and a sentence, both of them text"
    if name in SENTENCES or name in {reason.value for reason in Reason}:
        return f"has the name {name!r}, which is built in: give it another one"
    if not (isinstance(found, type) and issubclass(found, CurationRule)):
        return "is no subclass of dart_train.data.CurationRule"
    if found.drops is CurationRule.drops and found.drops_group is CurationRule.drops_group:
        return "overrides neither drops(trajectory) nor drops_group(members)"
    return None


RULES: Registry[type[CurationRule]] = Registry("curation rule", "dart_gui.curation_rules", {}, (called_with(), _sound))
"""Rules that a configuration may name. `drop_no_signal` and `drop_above` have switches of their own."""


@functools.cache
def named_rules(names: tuple[str, ...]) -> tuple[CurationRule, ...]:
    """Return the rules that a configuration names.

    Raises:
        PluginError: if a rule cannot be used, or two have one name.
    """
    rules = tuple(RULES.get(name)() for name in names)
    for index, rule in enumerate(rules):
        if rule.name in {earlier.name for earlier in rules[:index]}:
            raise PluginError(f"data.curation.rules names two rules {rule.name!r}: leave one of them out")
    return rules
