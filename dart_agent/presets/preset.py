"""Presets: a model's published behaviour as values, each with its source. One YAML file per preset.

Invariants:
    - A preset is data. What it fixes beyond `Layout` are settings that a user can also write one by one, so a setting
      that is given together with a preset takes precedence, and a preset can be written out as a configuration.
    - What could not be read in the publisher's own material is said in the preset: `unverified` is not empty.
    - A text that begins with "@" is that of `texts/NAME.txt`, to the letter.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import yaml
from pydantic import ConfigDict, TypeAdapter, ValidationError

from dart_gym.core.errors import ConfigurationError
from dart_gym.core.suggestions import suggest

HERE = Path(__file__).parent
OSWORLD_PASSWORD = "osworld-public-evaluation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Layout of a history as messages. Texts are templates in chat markup.

    `{instruction}`, `{image}`, `{previous}`, `{width}` and `{height}` (of the image that the model sees), `{password}`,
    `{language}` and `{date}` are filled in; other braces are text.

    Attributes:
        first: the message with the instruction. Without `{image}` the screenshot follows in a message of its own.
        system: text of the system message; "" for none.
        later: the messages of the other screenshots.
        gone: what stands for a later screenshot that is no longer shown; None where its whole message goes.
        history: where `first` stands: "anchored" before everything, "sliding" at the oldest turn that is shown,
            "latest" at the newest screenshot, with older turns as text.
        line: a line of `{previous}` for each turn that is no longer shown, with `{step}` and `{action}`.
        none: `{previous}` where there is no such turn.
        remembered: what stands for an earlier response ("latest" only), with `{step}`, `{thought}` and `{action}`.
        parts: regular expressions that find `thought` and `action` in a response, by name; linear in its length.
        reply: how every response is opened, beyond its role.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    first: str
    system: str = ""
    later: str = "{image}"
    gone: str | None = None
    history: Literal["anchored", "sliding", "latest"] = "anchored"
    line: str = "Step {step}: {action}"
    none: str = "None"
    remembered: str = ""
    parts: dict[str, str] = field(default_factory=dict)
    reply: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published score in percent, its step limit where that is said, and where it was read."""

    benchmark: str
    checkpoint: str
    score: float
    steps: int | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A model's published behaviour.

    Attributes:
        name: the name of its file, as `--preset` takes it.
        checkpoints: names of the models at their hub or vendor.
        source: where the facts were read: repository, file, commit.
        compared: what the prompt was compared with, token for token; "" where there was nothing public.
        policy: which policy plays it, as on the command line; "grounder" for a model that only finds elements, and
            "planner" for one that needs such a model: those are put together in Python.
        families: `model_type` of the checkpoints' `config.json`; empty for hosted models.
        format: how it writes actions, with its coordinates: a name of `dart_agent.formats`.
        layout: how its prompts are made; None for hosted models, whose SDK makes them.
        screenshots: in the prompt, at most.
        texts: earlier responses in the prompt, at most.
        pixels: (fewest, most) of the image that it sees; None where the model directory decides.
        temperature: of the published evaluation.
        top_p: of the published evaluation.
        max_tokens: longest response.
        stop: tokens that end a response.
        password: what the prompt says the desktop's password is.
        deviations: where publications differ from one another, or we from them.
        published: scores of the checkpoints.
        unverified: what could not be verified, and why; "" where everything was.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    checkpoints: tuple[str, ...]
    source: str
    format: str
    compared: str = ""
    policy: str = "vlm"
    families: tuple[str, ...] = ()
    layout: Layout | None = None
    screenshots: int = 5
    texts: int = 1000
    pixels: tuple[int, int] | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    max_tokens: int = 2048
    stop: tuple[str, ...] = ("<|im_end|>",)
    password: str = OSWORLD_PASSWORD
    deviations: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    unverified: str = ""

    @property
    def verified(self) -> bool:
        """Return whether every fact was read in the publisher's own material."""
        return not self.unverified

    @property
    def digest(self) -> str:
        """16 hex digits that change with anything that changes what the model is asked, or how it is read."""
        told = {"published", "checkpoints", "source", "compared", "deviations", "unverified"}
        decides = {name: value for name, value in asdict(self).items() if name not in told}
        return hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()[:16]

    def settings(self) -> dict[str, Any]:
        """The settings that it stands for, by their names in a configuration."""
        least, most = self.pixels or (None, None)
        style = {"style": "preset"} if self.layout else {"tool": self.format.partition(":")[2] or None}
        return style | {
            "policy": self.policy,
            "format": self.format,
            "screenshots": self.screenshots,
            "texts": self.texts,
            "block": 1,
            "min_pixels": least,
            "max_pixels": most,
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "password": self.password,
        }


_PRESET = TypeAdapter(Preset)


@cache
def presets() -> dict[str, Preset]:
    """All presets by name, in alphabetical order."""
    return {path.stem: read_preset(path) for path in sorted(HERE.glob("*.yaml"))}


def get_preset(name: str) -> Preset:
    """The preset of a name in any case, or of a file of one's own.

    Args:
        name: see `presets`, or the path of a YAML file.

    Raises:
        ConfigurationError: if there is no such preset (the message suggests a similar name), or its file is wrong.
    """
    if name.endswith((".yaml", ".yml")):
        return read_preset(Path(name))
    known = presets()
    if name.lower() not in known:
        raise ConfigurationError(f"unknown preset {name[:200]!r}; {suggest(name.lower(), known)}")
    return known[name.lower()]


def read_preset(path: Path) -> Preset:
    """Read a preset from a YAML file.

    Raises:
        ConfigurationError: if the file cannot be read, or has a field that presets do not have.
    """
    try:
        values = _with_texts(yaml.safe_load(path.read_text(encoding="utf-8")))
        return _PRESET.validate_python({"name": path.stem, **values})
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg'].lower()}" for item in error.errors())
    except (OSError, UnicodeDecodeError, yaml.YAMLError, TypeError) as error:
        said = " ".join(str(error).split())
    raise ConfigurationError(f"{path} is no preset: {said[:500]}")


def _with_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_texts(item) for key, item in value.items()}
    if isinstance(value, str) and value.startswith("@"):
        return (HERE / "texts" / f"{Path(value[1:]).name}.txt").read_text(encoding="utf-8").removesuffix("\n")
    return value
