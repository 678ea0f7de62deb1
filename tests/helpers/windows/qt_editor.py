"""An editor of Qt's plain text widget for the file that it is given: Ctrl+S writes it."""

import os
import sys

from PyQt5.QtGui import QKeySequence
from PyQt5.QtWidgets import QApplication, QPlainTextEdit, QShortcut

path = sys.argv[1]


def save():
    with open(path + ".new", "w", encoding="utf-8", newline="") as file:
        file.write(editor.toPlainText())
    os.replace(path + ".new", path)


application = QApplication(sys.argv[:1])
with open(path, encoding="utf-8") as file:
    editor = QPlainTextEdit(file.read())
editor.setWindowTitle(os.path.basename(path))
QShortcut(QKeySequence.Save, editor).activated.connect(save)
editor.showMaximized()
application.exec_()
