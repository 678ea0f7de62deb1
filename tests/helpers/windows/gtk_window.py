"""A GTK window with rows and a text that can be dragged; writes both, and their places to the file of its argument."""

import json
import os
import sys

import gi

gi.require_version("Gtk", "3.0")
from gi.repository import GLib, Gtk  # noqa: E402

ROWS = ["row 1", "row 2", "row 3", "row 4"]
TEXT = "alpha beta gamma"


def centre(widget, view, area):
    """The middle of an area of a view, in its window, which covers the screen."""
    x, y = view(area.x + area.width // 2, area.y + area.height // 2)
    return list(widget.translate_coordinates(widget.get_toplevel(), x, y))


class Window(Gtk.Window):
    def __init__(self, path):
        super().__init__(title="drags")
        self.path = path
        self.rows = Gtk.ListStore(str)
        for row in ROWS:
            self.rows.append([row])
        self.list = Gtk.TreeView(model=self.rows, reorderable=True, headers_visible=False)
        self.list.append_column(Gtk.TreeViewColumn("", Gtk.CellRendererText(), text=0))
        self.text = Gtk.TextView()
        self.text.get_buffer().set_text(TEXT)
        box = Gtk.Box(orientation=Gtk.Orientation.VERTICAL, spacing=20)
        box.pack_start(self.list, False, False, 0)
        box.pack_start(self.text, True, True, 0)
        self.add(box)
        self.fullscreen()
        self.connect("destroy", Gtk.main_quit)
        for signal in ("row-inserted", "row-changed", "row-deleted"):
            self.rows.connect(signal, self.later)
        self.text.get_buffer().connect("changed", self.later)
        self.connect("draw", self.later)
        self.show_all()

    def later(self, *_):
        GLib.idle_add(self.write)

    def write(self):
        places = {}
        for number, row in enumerate(ROWS):
            area = self.list.get_cell_area(Gtk.TreePath(number), self.list.get_column(0))
            places[row] = centre(self.list, self.list.convert_bin_window_to_widget_coords, area)
            places[row][0] = 20

        def in_text(x, y):
            return self.text.buffer_to_window_coords(Gtk.TextWindowType.WIDGET, x, y)

        buffer = self.text.get_buffer()
        for name, offset in (("word", 2), ("end", buffer.get_char_count())):
            places[name] = centre(self.text, in_text, self.text.get_iter_location(buffer.get_iter_at_offset(offset)))
        places["end"][0] += 2
        state = {
            "rows": [row[0] for row in self.rows],
            "text": buffer.get_text(buffer.get_start_iter(), buffer.get_end_iter(), True),
            "places": places,
            "shown": self.is_active() and self.get_size()[0] == self.get_screen().get_width(),
        }
        with open(self.path + ".new", "w") as file:
            json.dump(state, file)
        os.replace(self.path + ".new", self.path)


Window(sys.argv[1])
Gtk.main()
