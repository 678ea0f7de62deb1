"""A Qt window with rows and a text that can be dragged; writes both, and their places to the file of its argument."""

import json
import os
import sys

from PyQt5.QtCore import QPoint, Qt, QTimer
from PyQt5.QtWidgets import QAbstractItemView, QApplication, QListWidget, QPlainTextEdit, QVBoxLayout, QWidget

ROWS = ["row 1", "row 2", "row 3", "row 4"]
TEXT = "alpha beta gamma"


class Window(QWidget):
    def __init__(self, path):
        super().__init__()
        self.path = path
        self.setWindowTitle("drags")
        self.list, self.text = QListWidget(), QPlainTextEdit(TEXT)
        self.list.addItems(ROWS)
        self.list.setDragDropMode(QAbstractItemView.InternalMove)
        box = QVBoxLayout(self)
        box.addWidget(self.list)
        box.addWidget(self.text)
        self.list.model().rowsMoved.connect(self.later)
        self.list.model().rowsRemoved.connect(self.later)
        self.text.textChanged.connect(self.later)
        self.showFullScreen()

    def later(self, *_):
        QTimer.singleShot(0, self.write)

    def paintEvent(self, event):
        super().paintEvent(event)
        self.later()

    def changeEvent(self, event):
        super().changeEvent(event)
        self.later()

    def write(self):
        rows = [self.list.item(number) for number in range(self.list.count())]
        places = {}
        for name, row in zip(ROWS, rows, strict=False):
            point = self.list.viewport().mapToGlobal(self.list.visualItemRect(row).center())
            places[name] = [point.x(), point.y()]
        for name, offset in (("word", 2), ("end", len(self.text.toPlainText()))):
            cursor = self.text.textCursor()
            cursor.setPosition(offset)
            point = self.text.viewport().mapToGlobal(self.text.cursorRect(cursor).center())
            places[name] = [point.x(), point.y()]
        places["end"][0] += 2
        state = {
            "rows": [row.text() for row in rows],
            "text": self.text.toPlainText(),
            "places": places,
            "shown": self.isActiveWindow() and self.mapToGlobal(QPoint(0, 0)).isNull() and self.isFullScreen(),
        }
        with open(self.path + ".new", "w") as file:
            json.dump(state, file)
        os.replace(self.path + ".new", self.path)


application = QApplication(sys.argv[:1])
application.setQuitOnLastWindowClosed(True)
window = Window(sys.argv[1])
window.setAttribute(Qt.WA_DeleteOnClose, False)
application.exec_()
