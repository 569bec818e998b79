"""What a run leaves behind: no secret of the environment in anything that is printed or kept, and no pickle."""

from __future__ import annotations

import io
import os
import pickle  # noqa: TID251  (to make what must be recognised)
import pickletools
import shutil
import zipfile
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from sparring.components.scores import Scores
from sparring.workflows.command_line import main
from tests.support import tiny
from tests.support.tiny import Place

PLANTED = {
    "HF_TOKEN": "hf_planted-in-the-environment",
    "HUGGING_FACE_HUB_TOKEN": "hf_planted-under-its-old-name",
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-of-a-bucket",
    "AWS_SESSION_TOKEN": "planted-session-of-a-bucket",
    "RAY_AUTH_TOKEN": "planted-token-of-a-cluster",
    "SPARRING_TOKEN": "planted-token-of-a-service",
    "WANDB_API_KEY": "planted-key-of-a-tracker",
    "OPENAI_API_KEY": "sk-planted-key",
    "MLFLOW_TRACKING_PASSWORD": "planted-password-of-a-tracker",
    "MLFLOW_TRACKING_URI": "https://somebody:planted-in-a-url@127.0.0.1:9",
    "HF_ENDPOINT": "https://somebody:planted-in-an-endpoint@127.0.0.1:9",
    "AWS_ENDPOINT_URL": "http://somebody:planted-in-an-address@127.0.0.1:9",
    "HTTPS_PROXY": "http://somebody:planted-in-a-proxy@127.0.0.1:9",
}


def left(folder: Path) -> list[Path]:
    """Every file below a folder, each once."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


# Secrets


def unreachable(scores: Scores) -> NoReturn:
    """A loss that asks another machine, and says in its error which."""
    raise OSError(f"no answer from {os.environ['MLFLOW_TRACKING_URI']}/losses")


def holding(folder: Path, secrets: set[str]) -> list[Path]:
    """Files with one of the secrets in their bytes, or in their columns where Parquet compresses them."""
    paths = []
    for path in left(folder):
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content += str(pq.read_table(path).to_pydict()).encode() + str(pq.read_schema(path).metadata).encode()
        if any(secret.encode() in content for secret in secrets):
            paths.append(path)
    return paths


def test_no_secret_is_printed_or_kept(
    played: Place,
    beir: Path,
    encoder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """By a run, by what reads it and exports it, and by what goes wrong. One is found where it is written."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    secrets = {urlsplit(value).password or value for value in PLANTED.values()}
    place = tiny.place(tmp_path / "place", tiny.dpr(beir, encoder))
    shutil.copytree(played.artifact("bm25 index"), place.store / played.artifact("bm25 index").name)
    out = place.folder / "out"
    commands = (
        "plan",
        "run",
        "show",
        "show retriever",
        "report",
        f"record {place.folder / 'record.json'}",
        "search barami",
        f"export {out}",
        "clean",
        "doctor",
    )
    for words in map(str.split, commands):
        assert place(*words) == 0, words
    assert place("run", "--set", "train.losses.0.function=tests.system.test_secrets.unreachable") == 1
    for words in (["--store", "s3://bucket/x", "plan", str(place.config)], ["push", str(out / "retriever"), "me/x"]):
        assert main(words) == 2
    printed = "".join(capfd.readouterr())
    assert "***@" in printed
    assert [("***@" in path.read_text()) for path in place.store.glob("*/failure.txt")] == [True]
    assert [secret for secret in secrets if secret in printed] == []
    assert holding(place.folder, secrets) == []
    (place.runs / "tiny" / "planted.txt").write_text(os.environ["SPARRING_TOKEN"])
    assert holding(place.folder, secrets) == [place.runs / "tiny" / "planted.txt"]


# Pickles


def pickled(content: bytes) -> bool:
    """Whether a file's content is a pickle, an archive with one, or an array of pickled objects."""
    if content.startswith(b"\x93NUMPY"):
        try:
            np.load(io.BytesIO(content), allow_pickle=False)
        except ValueError:
            return True
        return False
    if zipfile.is_zipfile(io.BytesIO(content)):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return any(pickled(archive.read(name)) for name in archive.namelist())
    try:
        *_, (last, _, place) = pickletools.genops(content)
    except Exception:  # of many kinds, for bytes that are none
        return False
    return last.name == "STOP" and place is not None


def test_pickles_are_recognised(tmp_path: Path) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickled(pickle.dumps({"a": [1.5, "text"]}, protocol))
    for new in (True, False):
        torch.save({"a": torch.zeros(2)}, tmp_path / "x", _use_new_zipfile_serialization=new)  # noqa: TID251
        assert pickled((tmp_path / "x").read_bytes())
    np.save(tmp_path / "x.npy", np.array([{}], dtype=object))
    np.savez(tmp_path / "x.npz", np.array([{}], dtype=object))
    assert pickled((tmp_path / "x.npy").read_bytes())
    assert pickled((tmp_path / "x.npz").read_bytes())
    np.savez(tmp_path / "y.npz", np.zeros(3))
    assert not pickled((tmp_path / "y.npz").read_bytes())
    assert not any(map(pickled, (b"", b"{}", b"PAR1", b"a text.\n")))


def test_no_file_of_a_run_or_an_export_is_a_pickle(played: Place, tmp_path: Path) -> None:
    """Nor one of a training's checkpoint."""
    assert played("export", str(tmp_path / "out")) == 0
    files = [*left(played.folder), *left(tmp_path / "out")]
    weights = [path for path in files if path.name == "model.safetensors"]
    assert len(weights) > 8
    assert [path for path in files if pickled(path.read_bytes())] == []
    assert {path.suffix for path in files} & {".bin", ".pt", ".pth", ".pkl", ".ckpt"} == set()
