"""Pairs of LibreOffice Writer."""

from __future__ import annotations

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
    step,
    typed,
    until,
    vm_file,
)  # fmt: skip

FORMAT, FORMAT_PARAGRAPH, TABS = (268, 62), (305, 239), (774, 276)  # a menu, its entry, and a tab of the dialog
FONT_NAME, FONT_SIZE = (407, 133), (569, 133)  # boxes of the toolbar
PICTURE = f"{HUB}libreoffice_writer/picture.png"

PAIRS = [
    document("compare-docx-files", "compare_docx_files", "plain", "typed_at_start", [typed("Written by hand. ")],
             quick=True),
    document("ignore-new-lines", "compare_docx_files_and_ignore_new_lines", "plain", "one_more_line",
             [typed("One more line.\n\n")], options={"ignore_blanks": False}),
    document("line-spacing", "compare_line_spacing", "plain", "spaced", [*press("ctrl+a"), *command("spacing: 2")]),
    document("first-line-centered", "is_first_line_centered", "plain", "", press("ctrl+e")),
    document("page-break", "contains_page_break", "plain", "", press("ctrl+end", "ctrl+enter"),
             rules={"page_break_count": 1}),
    document("font-names", "compare_font_names", "plain", "",
             [*press("ctrl+a"), click(*FONT_NAME), *press("ctrl+a"), typed("Times New Roman\n")],
             rules={"font_name": "Times New Roman"}),
    document("italic-size", "check_italic_font_size_14", "italic", "italic",
             [*press("ctrl+a"), click(*FONT_SIZE), *press("ctrl+a"), typed("14\n")]),
    document("strike-through", "evaluate_strike_through_last_paragraph", "plain", "plain",
             [*press("ctrl+end", "shift+home"), *command("strikethrough")]),
    document("highlighted-words", "check_highlighted_words", "highlighted", "highlighted",
             press("ctrl+a", "ctrl+m"), kind="odt"),
    document("unique-trains", "compare_unique_train_records", "trains", ["unique_trains", "trains"],
             press("ctrl+end", "shift+home", "backspace")),
    document("tables", "compare_docx_tables", "table_with_a_gap", "full_table",
             [*press("ctrl+home", "tab", "tab"), typed("carrot")]),
    document("references", "compare_references", "no_references", "references",
             [*press("ctrl+end"),
              typed("\nReferences\nAnn Arbor. Birds of the north. 2001.\nBen Ling. On trains. 1999.")],
             options={"content_only": True, "reference_base_result": 0.92}),
    document("place-math", "fuzzy_place_math", "empty", "", [typed("English Biology Math")],
             rules={"expected": ["English", "Biology", "Math"]}),
    document("images", "compare_docx_images", "plain", "with_picture",
             [*press("ctrl+end"), *press("alt+i"), *press("i"), *chosen(f"{DESKTOP}/picture.png", "Insert Image"),
              ], files={PICTURE: "writer_files:picture"}),
    document("tab-stops", "check_tabstops", "split_by_tab", "tab_stops",
             [*press("ctrl+a"), click(*FORMAT), click(*FORMAT_PARAGRAPH), click(*TABS), click(681, 379),
              *press("ctrl+a"), typed('5"'), click(832, 403), click(1306, 362), click(1322, 870)],
             options={"word_number_split_by_tabstop": 3, "index": 0}),
    SolvedPair(
        "writer/default-font",
        {
            "func": "find_default_font",
            "result": vm_file("/home/user/.config/libreoffice/4/user/registrymodifications.xcu"),
            "expected": {"type": "rule", "rules": {"font_name": "Times New Roman"}},
        },
        [*press("alt+F12"), click(488, 607, window="Options"), click(587, 722), click(1072, 319), *press("ctrl+a"),
         typed("Times New Roman"), *press("tab"), click(1400, 840), until(gone="Options", idle=True)],
        opened(f"{DESKTOP}/letter.docx", f"{HUB}libreoffice_writer/letter.docx"),
        {f"{HUB}libreoffice_writer/letter.docx": "writer_files:plain"},
    ),
    SolvedPair(
        "writer/export-pdf",
        {
            "func": "compare_pdfs",
            "result": vm_file(f"{DESKTOP}/report.pdf"),
            "expected": cloud_file(f"{HUB}libreoffice_writer/report_Gold.pdf"),
        },
        [*command("export directly"), *chosen(f"{DESKTOP}/report.pdf", "Export"),
         until(command=f"test -s {DESKTOP}/report.pdf", idle=True)],
        opened(f"{DESKTOP}/report.docx", f"{HUB}libreoffice_writer/report.docx"),
        {f"{HUB}libreoffice_writer/report.docx": "writer_files:one_line",
         f"{HUB}libreoffice_writer/report_Gold.pdf": "pdf_files:one_line"},
    ),
    SolvedPair(
        "writer/colored-words",
        {
            "func": "evaluate_colored_words_in_tables",
            "result": vm_file(f"{DESKTOP}/words.docx"),
            "expected": cloud_file(f"{HUB}libreoffice_writer/words_Gold.docx"),
        },
        in_terminal(
            "cd Desktop; mkdir x; cd x; unzip -q ../words.docx; sed -i s/000000/FF0000/ word/document.xml; "
            "zip -qr ../new.docx .; mv ../new.docx ../words.docx; touch /tmp/done", "test -e /tmp/done"),
        [step("download", files=[{"url": f"{HUB}libreoffice_writer/words.docx", "path": f"{DESKTOP}/words.docx"}])],
        {f"{HUB}libreoffice_writer/words.docx": "writer_files:black_table",
         f"{HUB}libreoffice_writer/words_Gold.docx": "writer_files:colored_table"},
    ),
]  # fmt: skip
