"""Pairs of LibreOffice Impress."""

from __future__ import annotations

from tests.dart_gym.solved.office_documents import chosen, command, document
from tests.dart_gym.solved.solved_pairs import (
    DESKTOP,
    HUB,
    SolvedPair,
    click,
    in_terminal,
    opened,
    press,
    rule,
    step,
    typed,
    until,
    vm_file,
)  # fmt: skip

FOLDER = f"{HUB}libreoffice_impress/"
ORIENTATION, BACKGROUND = (1690, 256), (1690, 294)  # boxes of the sidebar; Escape goes back, or Ctrl+S is theirs
REGISTRY = "/home/user/.config/libreoffice/4/user/registrymodifications.xcu"

PAIRS = [
    document("compare-pptx-files", "compare_pptx_files", "two_slides", "more_title",
             [*press("tab", "F2", "end"), typed(" of the north"), *press("escape")], kind="pptx",
             options={"examine_shape": False}, fresh=True),
    document("portrait", "check_slide_orientation_Portrait", "two_slides", "",
             [click(*ORIENTATION), *press("down", "enter", "escape")], kind="pptx"),
    document("background", "evaluate_presentation_fill_to_rgb_distance", "one_slide", "",
             [click(*BACKGROUND), *press("down", "enter", "escape")], kind="pptx",
             rules={"rgb": [114, 159, 207], "original_rgb": [255, 255, 255]}),
    document("stretch", "check_image_stretch_and_center", "small_picture", "small_picture",
             [*press("tab", "F4"),
              *(part for y, text in ((408, '0"'), (448, '0"'), (554, '10"'), (593, '7.5"'))
                for part in (click(830, y), *press("ctrl+a"), typed(text))),
              *press("tab"), click(1177, 766), until(gone="Position and Size", idle=True)], kind="pptx"),
    SolvedPair(
        "impress/presenter-console",
        {"func": "check_presenter_console_disable", "result": vm_file(REGISTRY)},
        [*press("alt+F12"), click(488, 607, window="Options"), click(545, 630), click(1196, 318), click(1400, 841),
         until(gone="Options", idle=True)],
        opened(f"{DESKTOP}/birds.pptx", f"{FOLDER}birds.pptx"),
        {f"{FOLDER}birds.pptx": "impress_files:two_slides"},
    ),
    document("audio", "compare_audios", "one_slide", "sound.wav",
             [*press("alt+i", "down", "enter"), *chosen(f"{DESKTOP}/sound.wav", "Insert Audio or Video")],
             kind="pptx", files={f"{FOLDER}sound.wav": "impress_files:sound"},
             result={"type": "audio_in_slide", "ppt_file_path": f"{DESKTOP}/audio.pptx", "slide_index": 0,
                     "dest": "sound.wav"}),
    document("background-image", "compare_images", "one_slide", "picture.png",
             [*command("set background image"), *chosen(f"{DESKTOP}/picture.png", "Set Background Image")],
             kind="pptx", files={f"{FOLDER}picture.png": "impress_files:picture"},
             result={"type": "background_image_in_slide", "ppt_file_path": f"{DESKTOP}/background-image.pptx",
                     "slide_index": 0, "dest": "picture.png"}),
    SolvedPair(
        "impress/page-numbers",
        {
            "func": "check_page_number_colors",
            "result": vm_file(f"{DESKTOP}/numbers.pptx"),
            "expected": rule(color="red"),
        },
        in_terminal(
            "cd Desktop; mkdir x; cd x; unzip -q ../numbers.pptx; sed -i s/0000FF/FF0000/g ppt/slideMasters/*.xml; "
            "zip -qr ../new.pptx .; mv ../new.pptx ../numbers.pptx; touch /tmp/done", "test -e /tmp/done"),
        [step("download", files=[{"url": f"{FOLDER}numbers.pptx", "path": f"{DESKTOP}/numbers.pptx"}])],
        {f"{FOLDER}numbers.pptx": "impress_files:blue_numbers"},
    ),
]  # fmt: skip
