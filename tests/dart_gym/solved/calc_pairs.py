"""Pairs of LibreOffice Calc."""

from __future__ import annotations

from typing import Any

from tests.dart_gym.solved.office_documents import chosen, command, document
from tests.dart_gym.solved.solved_pairs import (
    DESKTOP,
    HUB,
    SolvedPair,
    click,
    cloud_file,
    in_terminal,
    opened,
    press,
    rule,
    saved,
    step,
    typed,
    until,
    vm_file,
)  # fmt: skip

FOLDER = f"{HUB}libreoffice_calc/"
CSV = b"bird,seen\nowl,12\nwren,30\nall,42\n"
TO_CSV = [
    *("libreoffice", "--convert-to", "csv:Text - txt - csv (StarCalc):44,34,UTF-8,,,,false,true,true,false,false,1"),
    *("--outdir", DESKTOP),
]  # as OSWorld's tasks ask what cells show
CITIES = [f"City {letter}" for letter in "ABCDEFGHIJKLMNOPQRSTU"]


def table(name: str, gold: str, rules: list[dict[str, Any]], solution: list[dict[str, Any]], **more: Any) -> SolvedPair:
    """A sheet of birds that is compared by rules."""
    return document(name, "compare_table", "birds", gold, solution, kind="xlsx", options={"rules": rules}, **more)


def against(kind: str, **more: Any) -> dict[str, Any]:
    """A rule that compares the first sheet with the expected one."""
    return {"type": kind, "sheet_idx0": 0, "sheet_idx1": "EI0", **more}


SUM = [*press("right", "down", "down", "down"), typed("=SUM(B2:B3)\n")]
SEEN = {"type": "check_cell", "sheet_idx": 0, "coordinate": "B4", "props": {"value": {"method": "eq", "ref": 42}}}

PAIRS = [
    table("sheet-data", "summed", [against("sheet_data"), SEEN,
                                   against("sheet_fuzzy", rules=[{"range": ["A1:B4"], "type": "exact_match"}])],
          SUM, quick=True),
    table("freeze", "frozen", [against("freeze"), against("style", props=["font_bold"]),
                               against("row_props", props=["hidden"])],
          [*press("ctrl+b", "down", "shift+space"), *command("freeze rows and columns"), *command("hide rows")]),
    table("sheet-name", "renamed", [{"type": "sheet_name"}],
          [*command("rename sheet"), *press("ctrl+a"), typed("Birds\n")]),
    SolvedPair(
        "calc/sheet-print",
        {
            "postconfig": [*saved("printed.xlsx - LibreOffice Calc"), step("sleep", seconds=0.5),
                           step("execute", command=[*TO_CSV, f"{DESKTOP}/printed.xlsx"]), step("sleep", seconds=0.5)],
            "func": "compare_table",
            "result": {"type": "vm_file", "multi": True,
                       "path": [f"{DESKTOP}/printed.xlsx", f"{DESKTOP}/printed-Sheet1.csv"],
                       "dest": ["printed.xlsx", "printed-Sheet1.csv"]},
            "expected": {"type": "cloud_file", "multi": True,
                         "path": [f"{FOLDER}printed_gold.xlsx", f"{FOLDER}printed_gold.csv"],
                         "dest": ["printed_gold.xlsx", "printed_gold-Sheet1.csv"]},
            "options": {"rules": [{"type": "sheet_print", "sheet_idx0": "RNSheet1", "sheet_idx1": "ENSheet1"}]},
        },
        SUM,
        opened(f"{DESKTOP}/printed.xlsx", f"{FOLDER}printed.xlsx"),
        {f"{FOLDER}printed.xlsx": "calc_files:birds", f"{FOLDER}printed_gold.xlsx": "calc_files:summed",
         f"{FOLDER}printed_gold.csv": CSV},
    ),
    SolvedPair(
        "calc/compare-csv",
        {
            "func": "compare_csv",
            "result": vm_file(f"{DESKTOP}/birds.csv"),
            "expected": cloud_file(f"{FOLDER}birds_gold.csv"),
        },
        [*press("ctrl+shift+s"), *chosen(f"{DESKTOP}/birds.csv", "Save"), *press("enter", "enter"),
         until(command=f"test -s {DESKTOP}/birds.csv", idle=True)],
        opened(f"{DESKTOP}/birds.xlsx", f"{FOLDER}birds.xlsx"),
        {f"{FOLDER}birds.xlsx": "calc_files:summed", f"{FOLDER}birds_gold.csv": CSV},
    ),
    SolvedPair(
        "calc/pdf-pages",
        {
            "func": ["check_pdf_pages", "compare_pdfs"],
            "result": [vm_file(f"{DESKTOP}/report.pdf")] * 2,
            "expected": [rule(relation="eq", ref_value=1), cloud_file(f"{FOLDER}report_gt.pdf")],
        },
        [click(219, 94), *chosen(f"{DESKTOP}/report.pdf", "Export"),
         until(command=f"test -s {DESKTOP}/report.pdf", idle=True)],
        opened(f"{DESKTOP}/report.xlsx", f"{FOLDER}report.xlsx"),
        {f"{FOLDER}report.xlsx": "calc_files:one_cell", f"{FOLDER}report_gt.pdf": "pdf_files:one_line"},
    ),
    document("cities", "compare_conference_city_in_order", "conferences", "",
             [*press("right", "right", "down"), typed("".join(f"{city}\n" for city in CITIES))],
             kind="xlsx", rules={"expected": [*CITIES[:20], ["City U", "Ulm"]]}),
    SolvedPair(
        "calc/receipt",
        {
            "func": "compare_pdf_images",
            "result": vm_file(f"{DESKTOP}/receipt.pdf"),
            "expected": cloud_file(f"{HUB}multi_apps/receipt_Gold.pdf"),
        },
        in_terminal("soffice --convert-to pdf --outdir Desktop receipt.png", f"test -s {DESKTOP}/receipt.pdf"),
        [step("download", files=[{"url": f"{HUB}multi_apps/receipt.png", "path": "/home/user/receipt.png"}])],
        {f"{HUB}multi_apps/receipt.png": "pdf_files:receipt",
         f"{HUB}multi_apps/receipt_Gold.pdf": "pdf_files:receipt_page"},
    ),
]  # fmt: skip
