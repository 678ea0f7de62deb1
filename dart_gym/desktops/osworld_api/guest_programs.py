"""Small programs that some of OSWorld's routes run inside the desktop, from the standard input of its Python."""

NO_DIRECTORY = 3

LIST_DIRECTORY = """
import json, os, sys

LONGEST = 200_000
count = 0

def tree(folder, above):
    global count
    entry = {"type": "directory", "name": os.path.basename(folder), "children": []}
    real = os.path.realpath(folder)
    if real in above:  # a link to a folder that it lies in
        return entry
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        return {"error": str(error)}
    for name in names:
        count += 1
        if count > LONGEST:
            sys.exit(f"more than {LONGEST} entries")
        path = os.path.join(folder, name)
        is_folder = os.path.isdir(path)
        entry["children"].append(tree(path, above | {real}) if is_folder else {"type": "file", "name": name})
    return entry

if not os.path.isdir(sys.argv[1]):
    sys.exit(3)
print(json.dumps(tree(sys.argv[1], frozenset())))
"""

DOWNLOAD = """
import os, shutil, sys, urllib.request

url, path = sys.argv[1:]
os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
part = path + ".part"
try:
    with urllib.request.urlopen(url, timeout=60) as source, open(part, "wb") as sink:
        shutil.copyfileobj(source, sink)
    os.replace(part, path)
except (OSError, ValueError) as error:
    if os.path.exists(part):
        os.remove(part)
    sys.exit(str(error))
print(os.path.getsize(path))
"""
