"""The tasks on drawn programs: forms, lists, menus, tabs, wizards, counters, a keypad. Each is drawn from a generator.

Every task takes 3 to 12 actions. What is asked for must be found, entered in the right place, and submitted at the end;
a wrong entry can be mended. Programs look alike each time, as real ones do; what `in-order`, the counters and the lists
to mend or to leaf through show, and where, is drawn anew.
"""

from collections.abc import Callable
from random import Random

from dart_gym.tasks.suites.drawn.drawn_screens import Instance, Widget

NAMES = ("Alan", "Briana", "Chas", "Dannie", "Emile", "Joye", "Kasie", "Lyda", "Myron", "Olin", "Renda", "Vina")
CITIES = ("Athens", "Berlin", "Cairo", "Delhi", "Lima", "Oslo", "Paris", "Quito")
COLORS = ("red", "green", "blue", "yellow")
DAYS = ("Monday", "Tuesday", "Friday", "Sunday")
SIZES = ("small", "large")
ITEMS = ("Apples", "Bread", "Cheese", "Eggs", "Milk", "Rice", "Salt", "Tea")
PLACES = ("Bath", "Hall", "Kitchen", "Office")
FIELDS = {"name": NAMES, "city": CITIES, "color": COLORS, "day": DAYS}
MENUS = {"File": ("Open", "Save", "Print"), "Edit": ("Copy", "Find", "Undo"), "View": ("Full", "Grid", "Zoom")}


def _form(rng: Random, names: tuple[str, ...]) -> tuple[list[Widget], dict[str, str], str]:
    """Fields, what is to be entered, and that in words."""
    goal = {name: rng.choice(FIELDS[name]) for name in names}
    widgets = []
    for place, name in enumerate(names):
        widgets += [Widget("text", name, place, 0, 1), Widget("field", "", place, 1, 3, name)]
    return widgets, goal, " and ".join(f'{name} "{value}"' for name, value in goal.items())


def _options(name: str, options: tuple[str, ...], row: int = 0) -> list[Widget]:
    """Options of which one is set, below a title."""
    title = Widget("text", name, row)
    return [title, *(Widget("set", one, at, name=name, value=one) for at, one in enumerate(options, row + 1))]


def _end(row: int, label: str = "OK") -> Widget:
    return Widget("submit", label, row, 1, 2)


def _fields(*names: str) -> Callable[[Random], Instance]:
    def make(rng: Random) -> Instance:
        widgets, goal, words = _form(rng, names)
        return Instance(f"Enter {words}, then OK.", {"form": (*widgets, _end(6))}, {}, goal)

    return make


def _ticks(*, mended: bool) -> Callable[[Random], Instance]:
    def make(rng: Random) -> Instance:
        items = rng.sample(ITEMS, 6) if mended else ITEMS[:6]
        wanted = rng.sample(items, rng.choice((3, 4)))
        start = {wanted[0]: 1, next(item for item in items if item not in wanted): 1} if mended else {}
        widgets = [Widget("check", item, row, name=item) for row, item in enumerate(items)]
        asked = ", ".join(f'"{item}"' for item in wanted)
        goal = {item: 1 if item in wanted else "" for item in items}
        return Instance(f"Tick {asked} and nothing else, then OK.", {"list": (*widgets, _end(6))}, start, goal)

    return make


def _order_form(rng: Random) -> Instance:
    widgets, goal, words = _form(rng, ("name",))
    size, gift = rng.choice(SIZES), rng.choice(ITEMS[:4])
    widgets += _options("size", SIZES, 1)
    extras = [Widget("check", item, 4 + at // 2, at % 2 * 2, 2, item) for at, item in enumerate(ITEMS[:4])]
    ticks = {item: 1 if item == gift else "" for item in ITEMS[:4]}
    asked = f'Enter {words}, size "{size}", tick "{gift}", then OK.'
    return Instance(asked, {"form": (*widgets, *extras, _end(6))}, {}, {**goal, "size": size, **ticks})


def _menu(rng: Random) -> Instance:
    """Two choices in two menus, each two clicks deep."""
    chosen = {menu: rng.choice(MENUS[menu]) for menu in rng.sample(sorted(MENUS), 2)}
    bar = [Widget("go", menu, 0, at, 1, value=menu) for at, menu in enumerate(MENUS)]
    bar += [Widget("show", "", 4 + at, name=menu) for at, menu in enumerate(MENUS)]
    pages = {"start": (*bar, _end(7))}
    for at, (menu, entries) in enumerate(MENUS.items()):
        listed = [Widget("set", one, row, at, 2, menu, one) for row, one in enumerate(entries, start=1)]
        pages[menu] = (*bar, *listed, _end(7))
    asked = " and ".join(f'"{menu}" "{entry}"' for menu, entry in chosen.items())
    return Instance(f"Choose {asked}, then OK.", pages, {}, {menu: chosen.get(menu, "") for menu in MENUS})


def _way(at: int, last: int) -> list[Widget]:
    """Buttons to the page before, and to the next one or to the end."""
    back = [Widget("go", "Back", 6, 0, 2, value=str(at - 1))] if at else []
    on = Widget("go", "Next", 6, 2, 2, value=str(at + 1)) if at < last else Widget("submit", "Finish", 6, 2, 2)
    return [*back, on]


def _wizard(rng: Random) -> Instance:
    """One choice a page; the last page submits."""
    goal = {"color": rng.choice(COLORS), "day": rng.choice(DAYS), "size": rng.choice(SIZES)}
    choices = enumerate((("color", COLORS), ("day", DAYS), ("size", SIZES)))
    pages = {str(at): (*_options(name, options), *_way(at, 2)) for at, (name, options) in choices}
    asked = " and ".join(f'{name} "{value}"' for name, value in goal.items())
    return Instance(f"Choose {asked}, then Finish.", pages, {}, goal)


def _wizard_form(rng: Random) -> Instance:
    """A field on the first page, an option on the second, ticks on the third."""
    first, goal, words = _form(rng, ("city",))
    day, item = rng.choice(DAYS), rng.choice(ITEMS[:4])
    ticks = [Widget("check", one, at, name=one) for at, one in enumerate(ITEMS[:4])]
    pages = {"0": (*first, *_way(0, 2)), "1": (*_options("day", DAYS), *_way(1, 2)), "2": (*ticks, *_way(2, 2))}
    asked = f'Enter {words}, choose "{day}", tick "{item}", then Finish.'
    rest = {one: 1 if one == item else "" for one in ITEMS[:4]}
    return Instance(asked, pages, {}, {**goal, "day": day, **rest})


def _counters(count: int, least: int, most: int) -> Callable[[Random], Instance]:
    def make(rng: Random) -> Instance:
        names = rng.sample(PLACES, count)
        start = {name: rng.randint(1, 9) for name in names}
        by = {name: rng.choice((-1, 1)) * rng.randint(least, most) for name in names}
        goal = {
            name: start[name] + by[name] if start[name] + by[name] >= 0 else start[name] - by[name] for name in names
        }
        widgets = []
        for row, name in enumerate(rng.sample(names, count)):
            widgets += [Widget("text", name, 2 * row, 0, 2), Widget("show", "", 2 * row, 2, 2, name)]
            for left, one in ((0, -1), (2, 1)):
                widgets.append(Widget("add", f"{one:+}", 2 * row + 1, left, 2, name, one))
        asked = " and ".join(f'"{name}" to {value}' for name, value in goal.items())
        return Instance(f"Set {asked}, then OK.", {"counters": (*widgets, _end(6))}, start, goal)

    return make


def _keypad(rng: Random) -> Instance:
    code = "".join(str(rng.randint(1, 9)) for _ in range(rng.choice((3, 4, 5))))
    keys = [Widget("append", str(key), 1 + (key - 1) // 3, (key - 1) % 3, 1, "code", str(key)) for key in range(1, 10)]
    shown, clear = Widget("show", "", 0, name="code"), Widget("set", "Clear", 5, 0, 2, "code", "")
    return Instance(f'Dial "{" ".join(code)}", then OK.', {"keys": (shown, *keys, clear, _end(6))}, {}, {"code": code})


def _in_order(rng: Random) -> Instance:
    items = rng.sample(ITEMS, 6)
    wanted = rng.sample(items, rng.choice((3, 4)))
    places = rng.sample(range(12), 6)
    placed = zip(items, places, strict=True)
    widgets = [Widget("append", item, at // 2, at % 2 * 2, 2, "order", f"{item} ") for item, at in placed]
    asked = ", then ".join(f'"{item}"' for item in wanted)
    clear = Widget("set", "Clear", 6, 0, 1, "order", "")
    goal = {"order": "".join(f"{item} " for item in wanted)}
    return Instance(f"Click {asked}, then OK.", {"buttons": (*widgets, clear, _end(6))}, {}, goal)


def _tabs(rng: Random) -> Instance:
    """A setting in each of two tabs out of three."""
    tabs = {"Color": COLORS, "Day": DAYS, "Size": SIZES}
    chosen = {tab: rng.choice(tabs[tab]) for tab in rng.sample(sorted(tabs), 2)}
    bar = [Widget("go", tab, 0, at, 1, value=tab) for at, tab in enumerate(tabs)]
    pages = {tab: (*bar, *_options(tab, options, 1), _end(7)) for tab, options in tabs.items()}
    asked = " and ".join(f'"{tab}" to "{value}"' for tab, value in chosen.items())
    return Instance(f"Set {asked}, then OK.", pages, {}, {tab: chosen.get(tab, "") for tab in tabs})


def _long_list(rng: Random) -> Instance:
    """Items on two pages of a list, of which some are ticked."""
    items = rng.sample(ITEMS, 8)
    wanted = [rng.choice(items[:4]), *rng.sample(items[4:], 2)]
    pages = {}
    for page, other, label in ((0, 1, "More"), (1, 0, "Back")):
        listed = [Widget("check", item, row, name=item) for row, item in enumerate(items[4 * page : 4 * page + 4])]
        pages[str(page)] = (*listed, Widget("go", label, 6, 0, 2, value=str(other)), Widget("submit", "OK", 6, 2, 2))
    asked = ", ".join(f'"{item}"' for item in wanted)
    goal = {item: 1 if item in wanted else "" for item in items}
    return Instance(f"Tick {asked} and nothing else, then OK.", pages, {}, goal)


MAKERS: dict[str, tuple[Callable[[Random], Instance], int]] = {
    "form-two": (_fields("name", "city"), 8),
    "form-three": (_fields("name", "city", "day"), 10),
    "order-form": (_order_form, 8),
    "tick-list": (_ticks(mended=False), 7),
    "mend-list": (_ticks(mended=True), 8),
    "long-list": (_long_list, 8),
    "menus": (_menu, 8),
    "tabs": (_tabs, 8),
    "wizard": (_wizard, 9),
    "wizard-form": (_wizard_form, 10),
    "counter": (_counters(1, 2, 8), 12),
    "counters": (_counters(2, 1, 4), 12),
    "keypad": (_keypad, 8),
    "in-order": (_in_order, 7),
}
"""By task: what draws an instance, and the step limit."""
