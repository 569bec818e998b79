"""A file or directory appears whole under its name, or not at all."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from sparring.components.config import UserError
from sparring.components.files import (
    append,
    made_once,
    new_folder,
    remove,
    remove_leftovers,
    replacing,
    unwritable,
    write_json,
)
from sparring.workflows import ROOT


def test_a_file_takes_its_name_at_the_end(tmp_path: Path) -> None:
    place = tmp_path / "file.txt"
    place.write_text("old")
    with replacing(place) as temporary:
        temporary.write_text("new")
        assert temporary.parent == tmp_path  # a rename across filesystems would not be atomic
        assert place.read_text() == "old"
    assert place.read_text() == "new"
    assert list(tmp_path.iterdir()) == [place]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_fails_leaves_what_was_there(tmp_path: Path, error: type[BaseException]) -> None:
    place = tmp_path / "file.txt"
    place.write_text("old")

    def write(place: Path, *, folder: bool) -> None:
        with replacing(place) as temporary:
            if folder:
                temporary.mkdir()
                temporary = temporary / "inner"
            temporary.write_text("half")
            raise error

    for path, folder in ((place, False), (tmp_path / "folder", True)):
        with pytest.raises(error):
            write(path, folder=folder)
    assert place.read_text() == "old"
    assert list(tmp_path.iterdir()) == [place]


def test_a_directory_appears_with_all_that_is_in_it(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    with replacing(place) as temporary:
        (temporary / "deep" / "deeper").mkdir(parents=True)
        (temporary / "deep" / "deeper" / "file").write_text("x")
        assert not place.exists()
    assert (place / "deep/deeper/file").read_text() == "x"
    assert list(tmp_path.iterdir()) == [place]


def test_of_two_that_write_the_same_directory_the_first_stays(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    with replacing(place) as second:
        second.mkdir()
        (second / "file").write_text("second")
        with replacing(place) as first:
            first.mkdir()
            (first / "file").write_text("first")
    assert (place / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [place]


def test_of_two_that_write_a_new_folder_the_second_says_so(tmp_path: Path) -> None:
    place = tmp_path / "folder"

    def write(text: str, neighbour: Callable[[], None] = lambda: None) -> None:
        with new_folder(place) as folder:
            (folder / "file").write_text(text)
            neighbour()

    with pytest.raises(UserError, match="folder: exists and is not empty: something else was written there meanwhile"):
        write("second", lambda: write("first"))
    assert (place / "file").read_text() == "first"
    assert list(tmp_path.iterdir()) == [place]


def test_a_new_folder_that_is_being_named_is_no_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are sent to the disk first, which takes long."""
    neighbour: list[bool] = []

    def sync(path: Path) -> None:
        monkeypatch.undo()
        with suppress(KeyboardInterrupt), new_folder(tmp_path / "folder"):
            neighbour.append(path.exists())
            raise KeyboardInterrupt

    monkeypatch.setattr("sparring.components.files._sync", sync)
    with new_folder(tmp_path / "folder") as folder:
        (folder / "file").write_text("x")
    assert neighbour == [True]
    assert (tmp_path / "folder" / "file").read_text() == "x"


def test_what_was_left_of_a_new_folder_is_removed(tmp_path: Path) -> None:
    """Not what a living process is writing, nor what only looks like it."""
    rest, second = tmp_path / ".a[b].0123abcd", tmp_path / ".a[b].settings"
    rest.mkdir()
    second.mkdir()
    with new_folder(tmp_path / "a[b]"):
        assert not rest.exists()
        (neighbour,) = {path for path in tmp_path.iterdir() if path != second}
        with suppress(KeyboardInterrupt), new_folder(tmp_path / "a[b]"):
            assert neighbour.exists()
            raise KeyboardInterrupt
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a[b].settings", "a[b]"]


def test_a_directory_that_cannot_be_replaced_loses_nothing_in_silence(tmp_path: Path) -> None:
    """A link to an empty one is no work of another process."""
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "there")

    def write() -> None:
        with replacing(tmp_path / "link") as temporary:
            temporary.mkdir()

    with pytest.raises(NotADirectoryError):
        write()


def test_a_file_does_not_take_a_directorys_place(tmp_path: Path) -> None:
    place = tmp_path / "folder"
    place.mkdir()
    (place / "file").write_text("kept")

    def write() -> None:
        with replacing(place) as temporary:
            temporary.write_text("x")

    with pytest.raises(OSError, match=r".*"):
        write()
    assert (place / "file").read_text() == "kept"
    assert list(tmp_path.iterdir()) == [place]


def test_every_file_of_a_directory_reaches_the_disk_before_its_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those in folders inside it: a power cut must not leave an empty file under a finished name."""
    synced: list[str] = []
    real, rename = os.fsync, os.replace

    def note(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    def renamed(source: Path, target: Path) -> None:
        synced.append("renamed")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", renamed)
    (tmp_path / "neighbour").write_text("x")
    with replacing(tmp_path / "folder") as temporary:
        (temporary / "deep").mkdir(parents=True)
        (temporary / "top").write_text("x")
        (temporary / "deep" / "inner").write_text("x")
    assert str(tmp_path / "neighbour") not in synced
    before = synced[: synced.index("renamed")]
    assert {str(temporary / "top"), str(temporary / "deep" / "inner"), str(temporary)} <= set(before)
    assert str(tmp_path) in synced[synced.index("renamed") :]


def test_what_is_appended_reaches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: sizes.append(os.fstat(handle).st_size))
    for line in ("one\n", "two\n"):
        append(tmp_path / "log", line)
    assert (tmp_path / "log").read_text() == "one\ntwo\n"
    assert sizes == [4, 8]


def test_json_is_written_whole_and_holds_no_nan(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"x": [1, None, "é"]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, None, "é"]}
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": math.nan})
    assert json.loads((tmp_path / "a.json").read_text()) == {"x": [1, None, "é"]}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_readers_never_see_half_of_it(tmp_path: Path) -> None:
    place = tmp_path / "a.json"
    write_json(place, ["0" * 1000] * 50)
    seen: list[int] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            seen.append(len(json.loads(place.read_text())))

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(30):
        write_json(place, [str(i) * 1000] * 50)
    stop.set()
    reader.join()
    assert set(seen) == {50}


def test_many_may_write_side_by_side(tmp_path: Path) -> None:
    """Names come and go in the folder while each writes its own files, as the shards of a step do."""
    errors: list[BaseException] = []

    def write(name: str) -> None:
        try:
            for i in range(25):
                with replacing(tmp_path / f"{name}-{i}") as temporary:
                    temporary.write_text(name)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(list(tmp_path.iterdir())) == 100


def test_a_kill_in_the_middle_leaves_a_hidden_rest_that_is_swept(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom sparring.components.files import replacing\n"
        "for name in ('file', 'folder'):\n"
        "    with replacing(Path(sys.argv[1]) / name) as temporary:\n"
        "        if name == 'file': temporary.write_text('x' * 100)\n"
        "        else:\n"
        "            temporary.mkdir(); (temporary / 'inner').write_text('x')\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert names[0].startswith(".folder.")
    (tmp_path / ".hidden").write_text("someone else's")
    (tmp_path / ".x.tmp").write_text("someone else's")
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", ".x.tmp", "file"]


def test_names_and_patterns_are_removed_where_they_are(tmp_path: Path) -> None:
    for name in ("part-0.npy", "part-10.npy", "pairs.npy", "ranking.parquet"):
        (tmp_path / name).write_text("x")
    (tmp_path / "part-1").mkdir()
    (tmp_path / "part-1/inner").write_text("x")
    for _ in range(2):
        remove(tmp_path, "part-*", "pairs.npy", "not there")
        assert [path.name for path in tmp_path.iterdir()] == ["ranking.parquet"]


def test_a_directory_that_is_half_removed_has_another_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard's directory that lacks a file would be taken for a whole one."""
    (tmp_path / "part-0").mkdir()
    (tmp_path / "part-0" / "file").touch()

    def killed(folder: Path, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove(tmp_path, "part-*")
    assert not (tmp_path / "part-0").exists()
    remove_leftovers(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    """A folder that is to be made is tried in the first one above it; /sys takes no file, whoever asks."""
    file = tmp_path / "file"
    file.touch()
    assert unwritable(tmp_path) is None
    assert unwritable(tmp_path / "a" / "b") is None
    assert unwritable(file) == unwritable(file / "a") == f"{file} is a file"
    assert (unwritable(Path("/sys/a/b")) or "").startswith("/sys cannot be written to (")
    assert list(tmp_path.iterdir()) == [file]


def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    """safetensors makes files that their owner alone may read."""
    with replacing(tmp_path / "model") as folder:
        folder.mkdir()
        save_file({"a": np.zeros(2)}, folder / "model.safetensors")
        (folder / "config.json").touch()
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "model").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"]


def test_what_is_made_once_is_made_by_one_of_many(tmp_path: Path) -> None:
    """The others wait for it. If it fails, the next one makes it."""
    made = []

    def make(path: Path) -> None:
        made.append(path)
        path.mkdir()
        (path / "file").write_text("whole")
        if len(made) == 1:
            raise RuntimeError("the first fails")

    def ask() -> str:
        try:
            made_once(tmp_path / ".shared", make)
        except RuntimeError as error:
            return str(error)
        return (tmp_path / ".shared" / "file").read_text()

    with ThreadPoolExecutor(4) as pool:
        answers = sorted(pool.map(lambda _: ask(), range(4)))
    assert answers == ["the first fails", "whole", "whole", "whole"]
    assert len(made) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == [".shared", ".shared.lock"]
