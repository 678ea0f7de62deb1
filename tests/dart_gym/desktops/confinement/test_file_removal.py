"""Directories are removed whatever a program has left in them, and what names their owner goes last."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from dart_gym.desktops.confinement.file_removal import remove_tree

DEPTH = 3000  # Python's own needs a frame of its stack for each


@pytest.fixture
def tree(tmp_path):
    path = tmp_path / "tree"
    path.mkdir()
    return path


def nest(path: Path, depth: int, mode: int = 0o755) -> None:
    fd = os.open(path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.fchmod(fd, mode)
        os.close(fd)
        fd = below
    os.close(fd)


def test_a_deep_tree_is_removed(tree):
    nest(tree, DEPTH)
    assert remove_tree(tree) and not tree.exists()


def test_modes_do_not_keep_a_tree(tree):
    nest(tree, 20, mode=0o300)
    (tree / "closed").mkdir()
    (tree / "closed" / "file").write_text("x")
    (tree / "closed").chmod(0)
    tree.chmod(0)
    assert remove_tree(tree) and not tree.exists()


def test_links_are_removed_and_not_followed(tree, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    (tree / "link").symlink_to(kept)
    (tree / "below").mkdir()
    (tree / "below" / "link").symlink_to(kept)
    (tree / "loop").symlink_to(tree)
    assert remove_tree(tree)
    assert (kept / "file").read_text() == "x"


def test_odd_names_and_kinds_are_removed(tree, monkeypatch):
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b" ", b"x" * 255):
        os.mkdir(os.path.join(os.fsencode(tree), name))
        Path(os.fsdecode(os.path.join(os.fsencode(tree), name)), "file").touch()
    os.mkfifo(tree / "pipe")
    monkeypatch.chdir(tree)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    assert remove_tree(tree) and not tree.exists()


def test_a_link_in_the_place_of_the_tree_is_no_tree(tree, tmp_path):
    (tree / "file").touch()
    link = tmp_path / "link"
    link.symlink_to(tree)
    assert not remove_tree(link) and (tree / "file").exists()


def test_what_names_the_owner_goes_last(tree, monkeypatch):
    (tree / "owner").touch()
    (tree / "stays").touch()
    unlink = os.unlink

    def refuse(name, **options):
        if name == "stays":
            raise PermissionError
        unlink(name, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    assert not remove_tree(tree, last="owner") and (tree / "owner").exists()
    monkeypatch.undo()
    assert remove_tree(tree, last="owner") and not tree.exists()


def test_what_is_not_there_is_gone(tree):
    assert remove_tree(tree / "nowhere")
