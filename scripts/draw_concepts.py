"""Draw the diagrams of `docs/concepts`.

`python scripts/draw_concepts.py` writes `docs/images/concept-<name>.svg`. A diagram is a list of boxes, arrows and
labels at fixed places, so that a change of one word is a change of one line here. `tests/test_docs.py` compares the
files with what this script draws.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CHARACTER_WIDTH = 6.6
"""Mean width of a character of the small text, in pixels."""
STYLE = """
  svg { font-family: "DejaVu Sans", "Helvetica Neue", Arial, sans-serif; }
  .box { fill: #ffffff; stroke: #5c6bc0; stroke-width: 1.4; }
  .strong { fill: #e8eaf6; stroke: #3949ab; stroke-width: 1.8; }
  .good { fill: #e8f5e9; stroke: #2e7d32; stroke-width: 1.6; }
  .bad { fill: #fbe9e7; stroke: #c62828; stroke-width: 1.4; }
  .area { fill: #f3f4fa; stroke: #9fa8da; stroke-width: 1.2; stroke-dasharray: 6 4; }
  .work { fill: #c5cae9; stroke: #5c6bc0; stroke-width: 1; }
  .learn { fill: #a5d6a7; stroke: #2e7d32; stroke-width: 1; }
  .sync { fill: #ffcc80; stroke: #ef6c00; stroke-width: 1; }
  .name { font-size: 14px; font-weight: bold; fill: #1a237e; }
  .text { font-size: 11.5px; fill: #37474f; }
  .label { font-size: 11.5px; fill: #455a64; font-style: italic; }
  .arrow { fill: none; stroke: #546e7a; stroke-width: 1.6; marker-end: url(#head); }
  .line { fill: none; stroke: #b0bec5; stroke-width: 1; }
"""
HEAD = (
    '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#546e7a"/></marker></defs>'
)


@dataclass(frozen=True)
class Box:
    """A rectangle with a name and a few words below it; its place and size are in pixels."""

    x: int
    y: int
    width: int
    height: int
    name: str = ""
    text: str = ""
    style: str = "box"

    def svg(self) -> list[str]:
        """Return the elements to draw."""
        rounding = 3 if self.style in ("work", "learn", "sync") else 8
        out = [
            f'<rect class="{self.style}" x="{self.x}" y="{self.y}" width="{self.width}" height="{self.height}" '
            f'rx="{rounding}"/>'
        ]
        top = self.y + 20
        if self.name:
            out.append(f'<text class="name" x="{self.x + 12}" y="{top}">{escape(self.name)}</text>')
            top += 19
        lines = textwrap.wrap(self.text, max(1, int((self.width - 20) / CHARACTER_WIDTH)))
        out += [
            f'<text class="text" x="{self.x + 12}" y="{top + 15 * index}">{escape(line)}</text>'
            for index, line in enumerate(lines)
        ]
        return out


@dataclass(frozen=True)
class Arrow:
    """A line through points with a head at its end."""

    points: tuple[tuple[int, int], ...]
    style: str = "arrow"

    def svg(self) -> list[str]:
        """Return the elements to draw."""
        path = " L".join(f"{x} {y}" for x, y in self.points)
        return [f'<path class="{self.style}" d="M{path}"/>']


@dataclass(frozen=True)
class Label:
    """Words of their own, one line for each element of `lines`."""

    x: int
    y: int
    lines: tuple[str, ...]
    style: str = "label"
    anchor: str = "start"

    def svg(self) -> list[str]:
        """Return the elements to draw."""
        place = f'class="{self.style}" text-anchor="{self.anchor}" x="{self.x}"'
        return [
            f'<text {place} y="{self.y + 15 * index}">{escape(line)}</text>' for index, line in enumerate(self.lines)
        ]


Diagram = tuple[int, int, list[Box | Arrow | Label]]
"""Width and height in pixels, and what is drawn, from back to front."""


def environment() -> Diagram:
    """The loop of agent and environment."""
    return (
        860,
        300,
        [
            Box(30, 60, 240, 170, "Policy", "reset(episode): instruction, seed; act(observation): actions", "strong"),
            Box(50, 150, 200, 64, "Parser", "a model's text -> actions"),
            Box(590, 60, 240, 170, "Environment", "one desktop, with Gymnasium's interface", "strong"),
            Box(610, 124, 200, 40, text="desktop: screen, programs"),
            Box(610, 174, 200, 40, text="task: set-up and evaluator"),
            Arrow(((270, 185), (590, 185))),
            Label(430, 175, ("actions: Click(x, y), Type(text), ..., Done()",), anchor="middle"),
            Arrow(((590, 95), (270, 95))),
            Label(
                430,
                70,
                ("observation: screenshot, instruction", "reward, terminated, truncated, info"),
                anchor="middle",
            ),
            Arrow(((710, 230), (710, 270), (150, 270), (150, 230))),
            Label(
                430, 262, ("the end: score of the evaluator, or an environment error without a score",), anchor="middle"
            ),
            Label(
                430,
                30,
                ("One step: the policy sees a settled screen and answers with one or more actions.",),
                "text",
                "middle",
            ),
        ],
    )


def desktop() -> Diagram:
    """The layers of an embedded desktop, from the client down to the programs."""
    return (
        860,
        560,
        [
            Box(30, 330, 800, 216, style="area"),
            Box(
                30,
                20,
                800,
                62,
                "Your process",
                "DesktopEnv or DesktopVectorEnv: actions and observations as Python values.",
                "strong",
            ),
            Arrow(((430, 82), (430, 118))),
            Label(445, 105, ("websocket on a Unix socket or TCP: every frame is checked",)),
            Box(
                30,
                118,
                800,
                76,
                "Server (dart-gym serve)",
                "One session per desktop: set-up, pacing, evaluation. It trusts nothing that an agent touches.",
                "strong",
            ),
            Arrow(((430, 194), (430, 230))),
            Label(445, 217, ("pipe: requests with deadlines; screenshots in shared memory",)),
            Box(
                30,
                230,
                800,
                62,
                "Keeper, one for each desktop",
                "It alone speaks to the X server and reads the desktop's files. If it hangs, the desktop is replaced.",
            ),
            Arrow(((250, 292), (250, 368))),
            Arrow(((620, 292), (620, 368))),
            Label(265, 315, ("X11: input events, pixels",)),
            Label(635, 315, ("commands, files",)),
            Label(430, 538, ("sandbox (bubblewrap): own files, network, processes and limits",), anchor="middle"),
            Box(60, 368, 360, 62, "X server (Xvfb)", "The screen, the pointer and the keyboard."),
            Box(440, 368, 360, 62, "Guest", "Starts programs and answers the keeper from inside."),
            Arrow(((620, 430), (620, 460))),
            Arrow(((250, 460), (250, 430))),
            Box(
                60,
                460,
                740,
                62,
                "Programs",
                "Window manager, browser, office, editors: Debian's packages. What the agent does happens only here.",
                "good",
            ),
        ],
    )


def processes() -> Diagram:
    """What the four modules of a run do at the same time."""
    left = 150
    drawn: list[Box | Arrow | Label] = [
        Label(30, 28, ("Time runs to the right. No module waits for another one to finish its work.",), "text"),
    ]
    rows = (
        (60, "desktop 1"),
        (95, "desktop 2"),
        (130, "desktop 3"),
        (190, "engine 1"),
        (225, "engine 2"),
        (295, "data manager"),
        (365, "trainer"),
    )
    for y, name in rows:
        drawn.append(Label(left - 12, y + 16, (name,), "text", "end"))
        drawn.append(Arrow(((left, y + 24), (830, y + 24)), "line"))
    for y, widths in (
        (60, (110, 70, 150, 90, 120, 90)),
        (95, (60, 140, 80, 130, 100, 120)),
        (130, (150, 90, 60, 110, 140, 80)),
    ):
        x = left
        for width in widths:
            drawn.append(Box(x, y, width - 4, 22, style="work"))
            x += width
    for y, sync in ((190, 420), (225, 480)):
        drawn += [
            Box(left, y, sync - left - 4, 22, style="work"),
            Box(sync, y, 36, 22, style="sync"),
            Box(sync + 40, y, 786 - sync, 22, style="work"),
        ]
    drawn += [Box(x, 295, 26, 22, style="work") for x in (262, 352, 402, 498, 560, 610, 690, 756)]
    drawn += [
        Box(200, 365, 176, 22, style="learn"),
        Box(404, 365, 176, 22, style="learn"),
        Box(610, 365, 176, 22, style="learn"),
        Arrow(((275, 317), (275, 340), (404, 340), (404, 364))),
        Label(285, 355, ("lease of groups",)),
        Arrow(((390, 365), (390, 262), (436, 262), (436, 248))),
        Arrow(((390, 262), (390, 205), (418, 205))),
        Label(450, 275, ("new version: one engine after the other takes it",)),
        Box(150, 420, 30, 16, style="work"),
        Label(188, 433, ("a rollout; an engine that answers; a group that is complete",), "text"),
        Box(150, 444, 30, 16, style="sync"),
        Label(188, 457, ("an engine takes new weights",), "text"),
        Box(150, 468, 30, 16, style="learn"),
        Label(188, 481, ("an optimizer step on one lease",), "text"),
    ]
    return 860, 500, drawn


def group() -> Diagram:
    """The states of a group of rollouts."""
    return (
        860,
        400,
        [
            Box(30, 60, 170, 92, "open", "Its rollouts are played, each on a desktop of its own."),
            Box(270, 60, 170, 92, "ready", "All rollouts have a score, and the scores differ.", "good"),
            Box(510, 60, 150, 92, "leased", "One trainer has it, for a limited time."),
            Box(710, 60, 130, 92, "trained", "Counted once, with its version.", "good"),
            Arrow(((200, 106), (270, 106))),
            Arrow(((440, 106), (510, 106))),
            Arrow(((660, 106), (710, 106))),
            Label(685, 48, ("commit",), anchor="middle"),
            Arrow(((585, 60), (585, 30), (355, 30), (355, 60))),
            Label(470, 22, ("the trainer died, or its lease ran out",), anchor="middle"),
            Box(
                30,
                270,
                230,
                92,
                "rejected",
                "All scores are equal, so that no advantage differs from 0; or a file is damaged.",
                "bad",
            ),
            Box(320, 270, 230, 92, "expired", "Its oldest rollout is more than max_staleness versions old.", "bad"),
            Arrow(((115, 152), (115, 270))),
            Label(125, 215, ("no signal",)),
            Arrow(((330, 152), (330, 270))),
            Arrow(((160, 152), (160, 190), (370, 190), (370, 270))),
            Label(380, 240, ("newer versions were published",)),
            Box(
                610,
                270,
                230,
                92,
                "experience pool",
                "A recorded success can join a group in which every rollout failed.",
                "strong",
            ),
            Arrow(((725, 270), (725, 185), (415, 185), (415, 152))),
            Label(715, 178, ("joins a group that failed as a whole",), anchor="end"),
        ],
    )


def staleness() -> Diagram:
    """The three policies behind the log-probabilities of one token."""
    return (
        860,
        430,
        [
            Label(
                30,
                28,
                ("The same token has up to three log-probabilities. Ratios between them correct for what differs.",),
                "text",
            ),
            Box(
                30,
                60,
                240,
                110,
                "mu",
                "The engine that sampled the token: weights of version v - s, the engine's kernels and precision.",
            ),
            Box(
                310,
                60,
                240,
                110,
                "pi_old",
                "The trainer before this update: weights of version v, the trainer's kernels.",
            ),
            Box(590, 60, 240, 110, "pi", "The trainer during the update: has a gradient.", "strong"),
            Arrow(((270, 115), (310, 115))),
            Arrow(((550, 115), (590, 115))),
            Label(290, 195, ("importance weight", "w = min(pi_old / mu, C)", "no gradient"), anchor="middle"),
            Label(570, 195, ("ratio", "rho = pi / pi_old", "clipped to 1 - eps ... 1 + eps"), anchor="middle"),
            Label(30, 275, ("Versions and staleness s of a group:",), "text"),
            *[Box(150 + 130 * n, 295, 122, 24, style="learn") for n in range(5)],
            *[Label(211 + 130 * n, 312, (f"version {10 + n}",), "text", "middle") for n in range(5)],
            Box(180, 340, 190, 24, style="work"),
            Label(275, 357, ("oldest rollout of the group",), "text", "middle"),
            Box(330, 372, 190, 24, style="work"),
            Label(425, 389, ("newest rollout of the group",), "text", "middle"),
            Arrow(((560, 410), (560, 322))),
            Label(
                570,
                375,
                (
                    "trained after version 13 was published:",
                    "s = 13 - 10 = 3; with max_staleness 2",
                    "the group would have expired",
                ),
                "text",
            ),
        ],
    )


DIAGRAMS = {
    "environment": environment,
    "desktop": desktop,
    "processes": processes,
    "group": group,
    "staleness": staleness,
}


def draw(name: str) -> str:
    """Return one diagram as SVG."""
    width, height, drawn = DIAGRAMS[name]()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">',
        f"<style>{STYLE}</style>",
        HEAD,
        f'<rect width="{width}" height="{height}" fill="#fafafa"/>',
    ]
    for part in drawn:
        lines += part.svg()
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    for name in DIAGRAMS:
        (IMAGES / f"concept-{name}.svg").write_text(draw(name), encoding="utf-8")
