"""Pairs of several applications: what OSWorld's multi_apps tasks judge, brought about in a terminal."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.dart_gym.solved import media
from tests.dart_gym.solved.solved_pairs import (
    DESKTOP,
    HUB,
    SolvedPair,
    cloud_file,
    download,
    judged,
    lines_in_terminal,
    rule,
    run,
    step,
    vm_file,
)

HOME = "/home/user"
MULTI = f"{HUB}multi_apps/"


def cloud(name: str) -> dict[str, Any]:
    return cloud_file(MULTI + name)


def several(kind: str, *paths: str) -> dict[str, Any]:
    """The getter of several files at once."""
    names = [("expected_" if kind == "cloud_file" else "") + path.rpartition("/")[2] for path in paths]
    return {"type": kind, "path": list(paths), "dest": names, "multi": True, "gives": list(range(len(paths)))}


def line(command: str | list[str], *, error: bool = False) -> dict[str, Any]:
    """The getter of a command's output, or of what it writes to standard error."""
    kind = "vm_command_error" if error else "vm_command_line"
    return {"type": kind, "command": command, "shell": isinstance(command, str)}


CITIES = ["Scottsdale", "Atlanta", "Stateline", *(f"City {number}" for number in range(18))]
WORDS = "The word text stands here twice: text.\n"
TEXTS = SolvedPair(
    "multi/texts",
    judged(
        ("compare_text_file", vm_file(f"{DESKTOP}/words.txt"), cloud("words.txt")),
        ("diff_text_file", vm_file(f"{DESKTOP}/words.txt"), cloud("words.txt")),
        ("file_contains", vm_file(f"{HOME}/Test/Speed/results.txt"), rule(expected=["Ping", "Download", "Upload"])),
        ("compare_result_files", vm_file(f"{DESKTOP}/result.txt"), cloud("result.txt")),
        ("compare_python_pure_text", vm_file(f"{HOME}/gpt_dev_pure_code.py"), cloud("gpt_dev_pure_code.py")),
        (
            *("check_json", vm_file(f"{HOME}/Projects/manifest.json")),
            rule(expect=[{"key": ["name"], "method": "eq", "ref": "happy-extension"}]),
        ),
        (
            *("compare_csv", vm_file(f"{DESKTOP}/output.csv")),
            several("cloud_file", f"{MULTI}output_spaced.csv", f"{MULTI}output.csv"),
        ),
        (
            *("check_list", {"type": "cache_file", "path": "emails.bak.ls"}),
            rule(expect=[r"A Test E-mail.*\.eml"], unexpect=[r"\.pdf"]),
        ),
        (
            "literal_match",
            {
                "type": "content_from_vm_file",
                "path": f"{DESKTOP}/researchers.xlsx",
                "file_type": "xlsx",
                "file_content": "last_row",
            },
            {"type": "rule", "rules": ["yann lecun", "345074", "147"]},
            {"type": "list", "ignore_case": True},
        ),
        (
            *("is_in_vm_clickboard", rule(expected=f"{HOME}/Data3/List3/secret.docx")),
            {"type": "vm_command_line", "command": "xsel --clipboard --output", "shell": "true"},
        ),
        (
            *("check_include_exclude", line(["python", "-c", "from shelved import INSTRUCTOR;"], error=True)),
            rule(include=[], exclude=["Error:"]),
        ),
        (
            *("compare_conference_city_in_order", vm_file(f"{DESKTOP}/ConferenceCity.xlsx")),
            rule(expected=[*CITIES[:2], ["Lake Tahoe", "Stateline"], *CITIES[3:]]),
        ),
        (
            *("fuzzy_place_math", vm_file(f"{DESKTOP}/AllLocations.docx")),
            rule(expected=["深圳市福田区正义街1号", "深圳市福田区香梅路2002-4号", "福田区水围村龙景楼一楼"]),
        ),
        (
            *("compare_docx_files_and_ignore_new_lines", vm_file(f"{DESKTOP}/gemini_results.docx")),
            *(cloud("gemini_results.docx"), {"ignore_blanks": False}),
        ),
        (
            *("compare_references", vm_file(f"{DESKTOP}/case study.docx"), cloud("case study.docx")),
            {"content_only": True, "reference_base_result": 0.93},
        ),
        (
            *("check_thunderbird_folder", several("vm_file", f"{HOME}/emails/a.eml", f"{HOME}/emails/b.eml")),
            several("cloud_file", f"{MULTI}a.eml", f"{MULTI}b.eml"),
        ),
        postconfig=[step("command", command=["ls", "-R", f"{HOME}/emails.bak"], stdout="emails.bak.ls")],
    ),
    lines_in_terminal(
        "sed -i s/text/test/g Desktop/words.txt; mkdir -p Test/Speed emails.bak emails Projects",
        r"printf 'Ping 3\nDownload 5\nUpload 7\n' > Test/Speed/results.txt; echo Median: 17.5 > Desktop/result.txt",
        r"printf '# code\nimport torch\n' > gpt_dev_pure_code.py",
        "jq -n '{name: \"happy-extension\"}' > Projects/manifest.json",
        "paste -d '' Desktop/a.csv Desktop/b.csv > Desktop/output.csv; touch 'emails.bak/A Test E-mail.eml'",
        f"printf %s {HOME}/Data3/List3/secret.docx | xsel --clipboard --input; cp a.eml b.eml emails",
        "echo INSTRUCTOR=1 > shelved.py; cd Desktop; echo 'Yann LeCun,345074,147' >> researchers.csv",
        "soffice --headless --convert-to xlsx researchers.csv ConferenceCity.csv > /dev/null",
        r"printf '深圳市福田区正义街1号 深圳市福田区香梅路2002-4号\n福田区水围村龙景楼一楼\n' > AllLocations.txt",
        r"printf 'one\ntwo\n' > gemini_results.txt; sed -i s/Tolkin/Tolkien/ 'case study.txt'",
        "soffice --headless --infilter=Text:UTF8 --convert-to docx *s.txt 'case study.txt' > /dev/null",
    ),
    [
        download(
            **{
                f"{DESKTOP}/words.txt": MULTI + "words_start.txt",
                f"{DESKTOP}/case study.txt": MULTI + "case%20study.txt",
                **{f"{DESKTOP}/{name}": MULTI + name for name in ("a.csv", "b.csv", "researchers.csv")},
                f"{DESKTOP}/ConferenceCity.csv": MULTI + "cities.csv",
                **{f"{HOME}/{name}": MULTI + name for name in ("a.eml", "b.eml")},
            }
        )
    ],
    {
        MULTI + name: content
        for name, content in {
            "words_start.txt": WORDS.encode(),
            "words.txt": WORDS.replace("text", "test").encode(),
            "result.txt": b"17.5\n",
            "gpt_dev_pure_code.py": b"# code\n\nimport torch\n",
            "a.csv": b"x\ny\n",
            "b.csv": b"1\n2\n",
            "output_spaced.csv": b"x 1\ny 2\n",
            "output.csv": b"x1\ny2\n",
            "researchers.csv": b"Name,Cited,h\nAda,1,2\n",
            "cities.csv": ("a,b,c\n" + "".join(f"{number},x,{city}\n" for number, city in enumerate(CITIES))).encode(),
            "case%20study.txt": b"Intro\nReferences\nTolkin, J. (1954). The Ring.\n",
            "gemini_results.docx": "multi_files:results",
            "case study.docx": "multi_files:case_study",
            "a.eml": b"From: a\n\nhello\n",
            "b.eml": b"From: b\n\nworld\n",
        }.items()
    },
)

NOVEL = {
    "toc.ncx": "<ncx>\n<text>Pass Through</text>\n</ncx>\n",
    "content.opf": "<package>\n<dc:title>Pass Through</dc:title>\n</package>\n",
    "ch1.html": "<html><body><p>One</p></body></html>",
}
SONG = media.wav(440, 660, 330, 550)
MEDIA = SolvedPair(
    "multi/media",
    judged(
        (
            *("compare_images", {"type": "vm_wallpaper", "dest": "result_wallpaper.png"}, cloud("wallpaper.png")),
            {"reference_base_result": 0.11},
        ),
        (
            *("compare_image_list", several("vm_file", f"{HOME}/figures/1.png", f"{HOME}/figures/2.png")),
            several("cloud_file", f"{MULTI}1.png", f"{MULTI}2.png"),
        ),
        ("check_image_file_size", vm_file(f"{DESKTOP}/compressed.jpeg"), rule(max_size=9000)),
        ("check_image_size", vm_file(f"{DESKTOP}/compressed.jpeg"), rule(width=160, height=100)),
        ("compare_audios", vm_file(f"{DESKTOP}/Baby Justin Bieber.mp3"), cloud("Baby%20Justin%20Bieber.mp3")),
        # The path is relative, as in OSWorld's task.
        (*("compare_videos", vm_file("1984_Apple_Macintosh_Commercial.mp4")), cloud("1984.mp4")),
        (
            *("check_mp3_meta", vm_file(f"{HOME}/Music/Cheng Xiang - Missing You.mp3")),
            rule(title={"method": "eq", "ref": "Missing You"}, artist={"method": "eq", "ref": "Cheng Xiang"}),
        ),
        ("compare_pdf_images", vm_file(f"{DESKTOP}/receipt.pdf"), cloud("receipt.pdf")),
        ("compare_pdfs", vm_file(f"{DESKTOP}/notes.pdf"), cloud("notes.pdf")),
        ("compare_archive", vm_file(f"{DESKTOP}/book/book.zip"), cloud("book.zip"), {"file_type": "pdf"}),
        ("compare_zip_files", vm_file(f"{HOME}/essay.zip"), cloud("essay.zip")),
        ("compare_epub", vm_file(f"{HOME}/Documents/Novels/Pass Through.epub"), cloud("Pass%20Through.epub")),
        ("compare_htmls", vm_file(f"{DESKTOP}/survey.html"), cloud("survey.html"), {"ignore_sdnum": True}),
        (
            *("check_python_file_by_test_suite",),
            several("vm_file", f"{DESKTOP}/snake/food.py", f"{DESKTOP}/snake/main.py"),
            cloud_file(MULTI + "test.py", "test_suite.py"),
        ),
        (
            *("check_moved_jpgs", {"type": "list_directory", "path": f"{DESKTOP}/cpjpg"}),
            rule(expected=["emnlp2023.jpg", "hk_group_photo.jpg"]),
        ),
        postconfig=[step("execute", command=["/bin/bash", "-c", f"cd {DESKTOP}/book && zip -qr book.zip *.pdf"])],
    ),
    lines_in_terminal(
        "cd Desktop; mkdir -p ../figures book; cp 1.png 2.png ../figures; cp wall.png ../Pictures",
        f"gsettings set org.gnome.desktop.background picture-uri file://{HOME}/Pictures/wall.png",
        "convert big.png -resize 160x100 -quality 60 compressed.jpeg; ffmpeg='ffmpeg -v error -nostdin'",
        "$ffmpeg -i film.mp4 -vf vflip,hflip -q:v 3 ../1984_Apple_Macintosh_Commercial.mp4",
        "$ffmpeg -i song.wav 'Baby Justin Bieber.mp3'; cd ../Music; mv Ch* old.mp3",
        "$ffmpeg -i old.mp3 -c copy -metadata title='Missing You' -metadata artist='Cheng Xiang' 'Cheng Xiang - "
        "Missing You.mp3'; cd ../Desktop",
        'python3 -c \'from PIL import Image; Image.open("receipt.png").save("receipt.pdf")\'',
        "soffice --headless --convert-to pdf notes.txt > /dev/null; cp notes.pdf book/1.pdf",
        "cd ..; zip -q essay.zip essay.txt; cd novel; zip -q '../Documents/Novels/Pass Through.epub' *; cd ../Desktop",
        "sed -i s/crab/snake/ snake/food.py; sed -i s/red/green/ survey.html",
        "find photos -name '*.jpg' -exec cp {} cpjpg ';'",
    ),
    [
        step("execute", command=["mkdir", "-p", f"{DESKTOP}/cpjpg", f"{HOME}/Documents/Novels"]),
        download(
            **{
                **{
                    f"{DESKTOP}/{name}": MULTI + name
                    for name in ("1.png", "2.png", "big.png", "receipt.png", "song.wav", "film.mp4", "notes.txt")
                },
                f"{DESKTOP}/wall.png": MULTI + "wallpaper.png",
                f"{HOME}/Music/Cheng Xiang - Missing You.mp3": MULTI + "missing.mp3",
                f"{HOME}/essay.txt": MULTI + "essay.txt",
                f"{HOME}/novel.zip": MULTI + "Pass%20Through.epub",
                f"{DESKTOP}/survey.html": MULTI + "survey_start.html",
                f"{DESKTOP}/snake/food.py": MULTI + "food.py",
                f"{DESKTOP}/snake/main.py": MULTI + "main.py",
                f"{DESKTOP}/photos/emnlp/emnlp2023.jpg": MULTI + "1.png",
                f"{DESKTOP}/photos/hk_group_photo.jpg": MULTI + "2.png",
                f"{DESKTOP}/photos/notes.png": MULTI + "2.png",
            }
        ),
        run(f"cd {HOME} && unzip -q novel.zip -d novel"),
    ],
    {
        MULTI + name: content
        for name, content in {
            "wallpaper.png": lambda: media.saved_as(media.checks()),
            "1.png": lambda: media.saved_as(media.photo(80, 60)),
            "2.png": lambda: media.saved_as(media.photo(60, 80)),
            "big.png": lambda: media.saved_as(media.photo(1200, 750)),
            "receipt.png": lambda: media.saved_as(media.photo(200, 300)),
            "receipt.pdf": lambda: media.saved_as(media.photo(200, 300), "PDF"),
            "song.wav": SONG,
            "Baby%20Justin%20Bieber.mp3": partial(media.mp3, SONG),
            "missing.mp3": lambda: media.mp3(media.wav(440)),
            "film.mp4": partial(media.film, upside_down=True),
            "1984.mp4": media.film,
            "notes.txt": b"The notes are these.\n",
            "notes.pdf": media.pdf("The notes are these."),
            "book.zip": media.packed({"1.pdf": media.pdf("The notes are these.")}),
            "essay.txt": b"An essay.\n",
            "essay.zip": media.packed({"essay.txt": "An essay.\n"}),
            "Pass%20Through.epub": media.packed(NOVEL),
            "survey_start.html": b'<html><body><p sdnum="1" class="red">x</p></body></html>',
            "survey.html": b'<html><body><p sdnum="2" class="green">x</p></body></html>',
            "food.py": b"def eater():\n    return 'crab'\n",
            "main.py": b"import food\n",
            "test.py": b"def test():\n    import food\n    return food.eater() == 'snake'\n",
        }.items()
    },
)

RELATIONS = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
BACKGROUND = '<p:bg><p:bgPr><a:blipFill><a:blip r:embed="rId9"/><a:stretch/></a:blipFill><a:effectLst/></p:bgPr></p:bg>'
SLIDES = SolvedPair(
    "multi/slides",
    judged(
        (
            "compare_images",
            {
                "type": "background_image_in_slide",
                "ppt_file_path": f"{DESKTOP}/slides.pptx",
                "slide_index": 1,
                "dest": "landscape.png",
            },
            cloud("wallpaper.png"),
        ),
        (
            "compare_audios",
            {
                "type": "audio_in_slide",
                "ppt_file_path": f"{DESKTOP}/slides.pptx",
                "slide_index": 0,
                "dest": "planet.wav",
            },
            cloud("song.wav"),
        ),
    ),
    lines_in_terminal(
        "cd Desktop; unzip -q slides.pptx -d x; mkdir -p x/ppt/media; cp wall.png song.wav x/ppt/media",
        "cd x/ppt/slides",
        f"sed -i 's#<p:cSld>#<p:cSld>{BACKGROUND}#' slide2.xml",
        *(
            f'sed -i \'s#</Relationships>#<Relationship Id="rId9" Type="{RELATIONS}/{kind}" '
            f'Target="../media/{name}"/></Relationships>#\' _rels/slide{number}.xml.rels'
            for number, kind, name in ((1, "audio", "song.wav"), (2, "image", "wall.png"))
        ),
        "cd ../..; zip -qr ../slides.pptx .",
    ),
    [
        download(
            **{
                f"{DESKTOP}/slides.pptx": MULTI + "slides.pptx",
                f"{DESKTOP}/wall.png": MULTI + "wallpaper.png",
                f"{DESKTOP}/song.wav": MULTI + "song.wav",
            }
        )
    ],
    {
        **{MULTI + name: MEDIA.files[MULTI + name] for name in ("wallpaper.png", "song.wav")},
        MULTI + "slides.pptx": "multi_files:slides",
    },
)

PAIRS = [TEXTS, MEDIA, SLIDES]
