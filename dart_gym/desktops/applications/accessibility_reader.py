"""Runs inside a desktop, with the system's Python and its AT-SPI: prints the accessibility tree as OSWorld's server.

Tags are roles, attributes lie in OSWorld's namespaces, and LibreOffice's endless tables are walked only where they are
shown. Unlike the original, no application can hold it up: each call has a time limit, an application that misses it is
left, and at the deadline what was read so far is printed. Siblings keep their order; characters that XML cannot hold
are dropped instead of the elements that have them.

Arguments: "tree" or "terminal", and the seconds until the deadline. The answer is one JSON object.
"""

import json
import re
import sys
import time

import gi

gi.require_version("Atspi", "2.0")
from gi.repository import Atspi, GLib  # noqa: E402
from lxml import etree  # noqa: E402

NAMESPACE = "https://accessibility.ubuntu.example.org/ns/"
NAMESPACES = {
    "st": NAMESPACE + "state",
    "attr": NAMESPACE + "attributes",
    "cp": NAMESPACE + "component",
    "doc": NAMESPACE + "document",
    "docattr": NAMESPACE + "document/attributes",
    "txt": NAMESPACE + "text",
    "val": NAMESPACE + "value",
    "act": NAMESPACE + "action",
}
MAX_DEPTH, MAX_WIDTH = 50, 1024
CALC_COLUMNS = 16384
CALC_ROWS = 104_8576
CALC_CUT_OFF = 500
CALL_TIMEOUT_MS = 800  # of one call to a program; on a busy machine it needs more
CALL_SHARE_MS = 80  # and gets more where there is more time: of each second until the deadline
CHROMIUM = ("Chromium", "chromium")  # which stands for Google Chrome here
PRESENT = {"Image": ("image", "true"), "Selection": ("selection", "true")}
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
NOT_IN_NAMES = re.compile(r"[^\w.\-]")


class OutOfTime(Exception):
    """The deadline of the whole tree has come."""


class Silent(Exception):
    """An application does not answer."""


class Reader:
    """Reads accessible objects into XML elements until its deadline, `seconds` from now."""

    def __init__(self, seconds):
        self.deadline = time.monotonic() + seconds
        self.complete = True
        self.nodes = 0

    def tree(self):
        """The whole desktop."""
        root = etree.Element("desktop-frame", nsmap=NAMESPACES)
        desktop = Atspi.get_desktop(0)
        try:
            for index in range(desktop.get_child_count()):
                self.check_time()
                self.add_application(root, desktop.get_child_at_index(index))
        except OutOfTime:
            self.complete = False
        return root

    def add_application(self, root, application):
        """Append what an application answers."""
        try:
            if application is not None:
                self.add(root, application, 1, "")
        except Silent:
            self.complete = False

    def check_time(self):
        """Raise `OutOfTime` past the deadline."""
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def add(self, parent, node, depth, flag):
        """Append an accessible object's element, with all below that answers, to its parent's."""
        try:
            element, flag = self.element(node, flag)
        except GLib.Error as error:
            leave_if_silent(error)
            return
        parent.append(element)
        if depth == MAX_DEPTH:
            return
        try:
            if flag == "calc" and element.tag == "table":
                self.add_cells(element, node, depth, flag)
            else:
                for index in range(min(node.get_child_count(), MAX_WIDTH)):
                    self.check_time()
                    child = node.get_child_at_index(index)
                    if child is not None:
                        self.add(element, child, depth + 1, flag)
        except GLib.Error as error:
            leave_if_silent(error)

    def element(self, node, flag):
        """The element of one object, without children, and the walk that its children need."""
        self.check_time()
        self.nodes += 1
        name = node.get_name() or ""
        role = (node.get_role_name() or "").strip()
        flag = flag or special_walk(role, name)
        if role == "application" and name in CHROMIUM:
            name = "Google Chrome"
        attributes = {"name": clean(name)}
        states = [state.value_name[len("ATSPI_STATE_") :].lower() for state in node.get_state_set().get_states()]
        for state in states:
            attributes[qualified("st", state)] = "true"
        for key, value in sorted((node.get_attributes() or {}).items()):
            if key:
                attributes[qualified("attr", key)] = clean(value)
        interfaces = set(node.get_interfaces())
        attributes.update(PRESENT[interface] for interface in sorted(interfaces & set(PRESENT)))
        if "visible" in states and "showing" in states and "Component" in interfaces:
            box = Atspi.Component.get_extents(node, Atspi.CoordType.SCREEN)
            attributes[qualified("cp", "screencoord")] = str((box.x, box.y))
            attributes[qualified("cp", "size")] = str((box.width, box.height))
        if "Value" in interfaces:
            attributes.update(values(node))
        if "Action" in interfaces:
            attributes.update(actions(node))
        element = etree.Element(NOT_IN_NAMES.sub("-", role) or "unknown", attrib=attributes, nsmap=NAMESPACES)
        if "Text" in interfaces:
            text = Atspi.Text.get_text(node, 0, Atspi.Text.get_character_count(node))
            element.text = clean((text or "").replace("\ufffc", "").replace("\ufffd", "")) or None
        return element, flag

    def add_cells(self, element, table, depth, flag):
        """The cells of a spreadsheet that are shown: a rectangle somewhere in a table of millions."""
        columns = Atspi.Table.get_n_columns(table) if "Table" in table.get_interfaces() else CALC_COLUMNS
        first_column = None
        for row in range(CALC_ROWS):
            shown = 0
            for column in range(first_column or 0, columns):
                self.check_time()
                cell = table.get_child_at_index(row * columns + column)
                if cell is not None and cell.get_state_set().contains(Atspi.StateType.SHOWING):
                    first_column = column if first_column is None else first_column
                    shown += 1
                    self.add(element, cell, depth + 1, flag)
                elif first_column is not None or column >= CALC_CUT_OFF:
                    break
            if not shown and (first_column is not None or row >= CALC_CUT_OFF):
                return

    def terminal(self):
        """The text of the focused terminal in the active window of gnome-terminal; None without one."""
        desktop = Atspi.get_desktop(0)
        for index in range(desktop.get_child_count()):
            application = desktop.get_child_at_index(index)
            try:
                if application is None or application.get_name() != "gnome-terminal-server":
                    continue
                root = etree.Element("desktop-frame", nsmap=NAMESPACES)
                self.add(root, application, 1, "")
            except (GLib.Error, OutOfTime, Silent):
                continue
            path = 'application/frame[@st:active="true"]//terminal[@st:focused="true"]'
            found = root.xpath(path, namespaces=NAMESPACES)
            if len(found) == 1:
                return (found[0].text or "").rstrip()
        return None


def leave_if_silent(error):
    """Raise `Silent` for a call that went unanswered; anything else is an object that has vanished meanwhile."""
    if "timeout" in error.message.lower() or "hung" in error.message.lower():
        raise Silent from error


def special_walk(role, name):
    """The name of the way in which children below here are read; "" for the ordinary one."""
    if role == "document spreadsheet":
        return "calc"
    return "thunderbird" if role == "application" and name == "Thunderbird" else ""


def qualified(prefix, name):
    """An attribute's name in one of the namespaces."""
    local = NOT_IN_NAMES.sub("-", name)
    if not re.match(r"[^\W\d]", local):
        local = "_" + local
    return f"{{{NAMESPACES[prefix]}}}{local}"


def clean(text):
    """Text without the characters that XML cannot hold."""
    return FORBIDDEN.sub("", text)


def values(node):
    """The attributes of something with a number."""
    found = {}
    for name, read in (
        ("value", Atspi.Value.get_current_value),
        ("min", Atspi.Value.get_minimum_value),
        ("max", Atspi.Value.get_maximum_value),
        ("step", Atspi.Value.get_minimum_increment),
    ):
        try:
            found[qualified("val", name)] = str(read(node))
        except GLib.Error as error:
            leave_if_silent(error)  # otherwise it has no such number
    return found


def actions(node):
    """The attributes of something that can be done to it."""
    found = {}
    for index in range(Atspi.Action.get_n_actions(node)):
        name = Atspi.Action.get_action_name(node, index).replace(" ", "-")
        found[qualified("act", name + "_desc")] = clean(Atspi.Action.get_action_description(node, index) or "")
        found[qualified("act", name + "_kb")] = clean(Atspi.Action.get_key_binding(node, index) or "")
    return found


def main():
    """Answer what the arguments ask for."""
    what, seconds = sys.argv[1], float(sys.argv[2])
    patience_ms = max(CALL_TIMEOUT_MS, int(CALL_SHARE_MS * seconds))
    Atspi.set_timeout(patience_ms, patience_ms)
    reader = Reader(seconds)
    if what == "terminal":
        answer = {"text": reader.terminal()}
    else:
        xml = etree.tostring(reader.tree(), encoding="unicode")
        answer = {"xml": xml, "complete": reader.complete, "nodes": reader.nodes}
    json.dump(answer, sys.stdout)


main()
