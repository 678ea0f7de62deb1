"""Small programs that some of OSWorld's routes run inside the desktop, from the standard input of its Python."""

NO_DIRECTORY = 3

LIST_DIRECTORY = """
import json, os, sys

LONGEST = 200_000
DEEPEST = 200
count = 0

def tree(parent, path, above):
    # The folder at a path from an open one: absolute paths would take time with the square of the depth.
    global count
    entry = {"type": "directory", "name": os.path.basename(path), "children": []}
    if len(above) > DEEPEST:
        sys.exit(f"more than {DEEPEST} folders within each other")
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY, dir_fd=parent)
    except OSError as error:
        return {"error": str(error)}
    try:
        status = os.fstat(folder)
        real = status.st_dev, status.st_ino
        if real in above:  # a link to a folder that it lies in
            return entry
        for found in sorted(os.scandir(folder), key=lambda found: found.name):
            count += 1
            if count > LONGEST:
                sys.exit(f"more than {LONGEST} entries")
            child = {"type": "file", "name": found.name}
            if is_folder(found):
                child = tree(folder, found.name, above | {real})
            entry["children"].append(child)
    except OSError as error:
        return {"error": str(error)}
    finally:
        os.close(folder)
    return entry

def is_folder(found):
    try:
        return found.is_dir()
    except OSError:  # a link that leads to itself
        return False

if not os.path.isdir(sys.argv[1]):
    sys.exit(3)
print(json.dumps(tree(None, sys.argv[1], frozenset())))
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
