"""Workbooks for the pairs of Calc; run by the evaluator's Python."""

from openpyxl import Workbook
from openpyxl.styles import Font

ROWS = [("bird", "seen"), ("owl", 12), ("wren", 30), ("all", None)]


def _book(path, rows, title="Sheet1"):
    book = Workbook()
    sheet = book.active
    sheet.title = title
    for row in rows:
        sheet.append(row)
    return book, sheet


def birds(path):
    _book(path, ROWS)[0].save(path)


def summed(path):
    _book(path, [*ROWS[:3], ("all", 42)])[0].save(path)


def frozen(path):
    book, sheet = _book(path, ROWS)
    sheet["A1"].font = Font(bold=True)
    sheet.freeze_panes = "A2"
    for row in range(1, 5):  # as LibreOffice writes it
        sheet.row_dimensions[row].height, sheet.row_dimensions[row].hidden = 15, row == 2
    book.save(path)


def renamed(path):
    _book(path, ROWS, "Birds")[0].save(path)


def one_cell(path):
    _book(path, [("Report of the birds of the north",)])[0].save(path)


def conferences(path):
    _book(path, [("conference", "year", "city"), *(("ICML", 2013 + n, None) for n in range(21))])[0].save(path)
