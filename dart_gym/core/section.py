"""`Section`: one level of a configuration. Typed fields with defaults and descriptions, from YAML or a command line.

Every setting that a user writes is a field of one, so that documentation, schema, options of commands and messages come
from the same place. A wrong key or value is one line that names the key, what is wrong, and what was meant.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.project_pages import page
from dart_gym.core.suggestions import suggest

MOST_LISTED = 40


class Section(BaseModel):
    """Unknown keys are refused, and a value does not change once it is made.

    Attributes:
        REMOVED: what holds instead of each key that files once had, such as "it is always 300.0 now".
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    REMOVED: ClassVar[Mapping[str, str]] = {}

    @classmethod
    def parse(cls, values: Mapping[str, Any], where: str = "") -> Self:
        """Return the section with these values; messages name it by the key `where`.

        Raises:
            ConfigurationError: if a value is invalid, or a key was removed.
        """
        prefix = f"{where}." if where else ""
        if old := [removed_key(prefix + name, cls.REMOVED[name]) for name in values if name in cls.REMOVED]:
            raise ConfigurationError("; ".join(old))
        try:
            return cls.model_validate(dict(values))
        except ValidationError as error:
            raise ConfigurationError("; ".join(prefix + line for line in mistakes(error, cls))) from None


def removed_key(key: str, holds: str) -> str:
    """Return the line that refuses a removed key: what `holds` instead."""
    return f"{key}: this key was removed: {holds}. Take it out"


def options_of(plug_in: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return all options of a plug-in, those that are left to their default included.

    Only the section `Options` of a plug-in knows them; without one they stay as they are.

    Raises:
        ConfigurationError: if an option is wrong.
    """
    section: type[Section] | None = getattr(plug_in, "Options", None)
    return dict(options) if section is None else section.parse(options, "options").model_dump(mode="json")


@contextmanager
def as_mistake() -> Iterator[None]:
    """Let a validator of pydantic refuse a value that a `ConfigurationError` refuses: it has to raise `ValueError`."""
    try:
        yield
    except ConfigurationError as error:
        raise ValueError(str(error)) from None


def constant(value: Any, description: str, **limits: Any) -> Any:
    """Return a field that always has this value in a run: it is no key of a configuration, only code may pass another.

    Args:
        value: the value.
        description: what it means.
        limits: bounds of the values that code may pass, as of `pydantic.Field`.
    """
    return Field(value, exclude=True, description=description, **limits)


def subsection(annotation: Any) -> type[Section] | None:
    """The section that a field holds, alone, or as one choice of several, or in a list; None for a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    found = (subsection(argument) for argument in get_args(annotation))
    return next((section for section in found if section is not None), None)


def mistakes(error: ValidationError, root: type[Section]) -> Iterator[str]:
    """One line for every mistake, such as "rollout.workerz: unknown key; did you mean 'workers'?"."""
    for item in error.errors(include_url=False):
        where = ".".join(map(str, item["loc"])) or "configuration"
        if item["type"] == "extra_forbidden":
            known = _known_keys(root, item["loc"][:-1])
            many = None if known else "it has no keys"
            if len(known) > MOST_LISTED:
                many = f"{page('reference/configuration')} lists them all"
            yield f"{where}: unknown key; {suggest(str(item['loc'][-1]), known, otherwise=many)}"
        elif "password" in item["msg"]:
            yield f"{where}: {item['msg']}"  # what was given is not to be shown
        elif item["type"] == "missing":
            yield f"{where}: this key is required"
        elif item["type"] == "value_error":
            yield f"{where}: {item['msg'].removeprefix('Value error, ')}"
        else:
            yield f"{where}: {item['msg'].lower()} (got {item.get('input')!r})"


def _known_keys(root: type[Section], location: tuple[int | str, ...]) -> list[str]:
    section = root
    for part in location:
        if part in section.model_fields:
            section = subsection(section.model_fields[str(part)].annotation) or section
    return [name for name, field in section.model_fields.items() if not field.exclude]
