"""Options of a command that are the fields of a `Section`: name, type, default and help are written once, there.

The option of a field is its name with dashes and without the unit `_s`: `drain_s` is `--drain`. What may be repeated
is in the singular: `osworld_urls` is `--osworld-url`, and `provider_options` is `--provider-option KEY=VALUE`.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin

import typer
import yaml
from pydantic.fields import FieldInfo

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.project_pages import with_addresses
from dart_gym.core.section import Section

S = TypeVar("S", bound=Section)
_PLAIN = (int, float, bool, Path, str)


def takes(
    section: type[S], *, of_run: str, run_fields: Iterable[str], leave_out: Iterable[str] = ()
) -> Callable[..., Callable[..., None]]:
    """Give a command, whose first parameter is a section, an option for each of its fields, and `--config FILE`."""
    own_options = set(leave_out)
    fields = {
        name: field for name, field in section.model_fields.items() if not field.exclude and name not in own_options
    }
    optional = [_parameter(name, field) for name, field in fields.items()]
    text = f"YAML file with these settings by name, or a run's configuration: its `{of_run}`."
    optional.append(_option("config", Path | None, "--config", text))

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def wrapper(**given: Any) -> None:
            config = given.pop("config")
            values = _read(config, of_run, {*run_fields, *section.REMOVED}) if config else {}
            for name in fields.keys() & given.keys():
                value = given.pop(name)
                if value is not None:
                    values[name] = key_values(value, name) if _is_mapping(fields[name]) else value
            command(section.parse(values), **given)

        _, *rest = inspect.signature(command, eval_str=True).parameters.values()
        own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in rest]
        wrapper.__signature__ = inspect.Signature([*optional, *own])  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """The option of one field; its default stays with the section, so that a file's value is not overridden by it."""
    kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind in _PLAIN]
    repeated = _is_mapping(field) or get_origin(field.annotation) is tuple
    flag = "--" + name.removesuffix("_s").replace("_", "-")
    single: Any = kinds[0] if kinds else str
    kind: Any = list[str] if repeated else single
    text = field.description or ""
    if repeated:
        flag = flag.removesuffix("s")
        text += " KEY=VALUE, may be repeated." if _is_mapping(field) else " May be repeated."
    shown = None if field.default is None or repeated else str(field.default)
    return _option(name, kind | None, flag, text, shown)


def _option(name: str, kind: Any, flag: str, text: str, shown: str | None = None) -> inspect.Parameter:
    option = typer.Option(flag, help=with_addresses(text), show_default=shown or False)
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind, option])


def _is_mapping(field: FieldInfo) -> bool:
    return get_origin(field.annotation) is dict


def key_values(items: list[str], name: str) -> dict[str, str]:
    """Return what KEY=VALUE items mean, in messages those of the option `name`. Raises `ConfigurationError`."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key:
            raise ConfigurationError(f"{name}: each is KEY=VALUE, got {item!r}")
        if key in pairs:
            raise ConfigurationError(f"{name}: {key!r} is given twice")
        pairs[key] = value
    return pairs


def _read(path: Path, of_run: str, run_fields: Iterable[str]) -> dict[str, Any]:
    """Return the settings in a file; of a run's configuration, those below the key `of_run`."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"cannot read {path}: {' '.join(str(error).split())}") from None
    if isinstance(values, dict) and "rollout" in values:
        run = values.get(of_run) or {}
        return {name: run[name] for name in run_fields if name in run}
    if not isinstance(values, dict):
        raise ConfigurationError(f"{path} must hold a mapping of settings to values")
    return values
