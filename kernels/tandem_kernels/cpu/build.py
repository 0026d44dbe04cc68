"""Compiles the C++ kernels of this folder into a shared library for each instruction set.

    <cache>/kernels/<sources, flags, kind of machine>/<compiler>.so

The compiler's version is not part of the folder's name, so a library that was built ahead of time
(`tandem kernels build`) serves on machines without a compiler. Processes that start together may
compile the same twice; each puts its result in place by renaming, so none sees half a file.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.config import kernel_cache_dir, kernel_isa
from tandem_kernels.cpu.isa import Isa, choose_isa, cpu_features

SOURCES = Path(__file__).resolve().parent
COMPILERS = ("c++", "g++", "clang++")
# Contraction is off, because whether a compiler fuses a * b + c depends on the code around it: a
# row would get other bits in a vector's tail, or in a tile of other height. Kernels fuse by hand
# (simd.h). No -ffast-math: it reorders sums and assumes away NaN.
# What is compiled for a level runs on every CPU of it: nothing is tuned to this machine.
FLAGS = (
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fPIC",
    "-pthread",
    "-Wno-psabi",
)
COMPILE_TIMEOUT_S = 300.0


class BuildError(Exception):
    """The kernels could not be compiled; the message says why."""


@dataclass(frozen=True, slots=True)
class Builder:
    """Where the libraries are kept, which compiler makes them (None: only find), and how."""

    directory: Path
    compiler: str | None
    isa: Isa

    @staticmethod
    def of_this_machine(isa: str | None = None) -> Builder:
        """For the named instruction set; None: the configured one, else the fastest.

        Raises BuildError if it is unknown, or this CPU doesn't run it.
        """
        try:
            level = choose_isa(cpu_features(), isa or kernel_isa())
        except ValueError as error:
            raise BuildError(str(error)) from None
        compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
        return Builder(kernel_cache_dir(), compiler, level)

    @property
    def flags(self) -> tuple[str, ...]:
        return (*FLAGS, *self.isa.flags)

    def library(self) -> Path:
        """The library for these sources and instructions, compiled if it isn't there yet.

        Raises BuildError without a compiler, if it fails, or if the cache can't be written.
        """
        folder = self.directory / _digest(*_source_texts(), *self.flags, platform.machine())
        if self.compiler is None:
            return _any_library(folder)
        target = folder / f"{_digest(_run([self.compiler, '--version']))}.so"
        if not target.exists():
            self._compile(target)
        return target

    def _compile(self, target: Path) -> None:
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
                self._link(Path(scratch) / "kernels.so", self._objects(Path(scratch)))
                (Path(scratch) / "kernels.so").replace(target)
        except OSError as error:
            raise BuildError(f"cannot write {target.parent}: {error}") from error

    def _objects(self, scratch: Path) -> list[Path]:
        """One compiler for each source, all at once."""
        objects = {scratch / f"{path.stem}.o": path for path in _files("*.cpp")}
        commands = [self._command("-c", str(cpp), "-o", str(o)) for o, cpp in objects.items()]
        _run_all(commands)
        return list(objects)

    def _link(self, library: Path, objects: Sequence[Path]) -> None:
        _run(self._command("-shared", "-o", str(library), *map(str, objects)))

    def _command(self, *arguments: str) -> list[str]:
        assert self.compiler is not None
        return [self.compiler, *self.flags, *arguments]


def _any_library(folder: Path) -> Path:
    library = next(iter(sorted(folder.glob("*.so"))), None)
    if library is None:
        raise BuildError("there is no C++ compiler")
    return library


def _files(pattern: str) -> list[Path]:
    return sorted(SOURCES.glob(pattern))


def _source_texts() -> Iterator[str]:
    for path in (*_files("*.cpp"), *_files("*.h")):
        yield path.name
        yield path.read_text()


def _digest(*texts: str) -> str:
    joined = hashlib.sha256()
    for text in texts:
        joined.update(hashlib.sha256(text.encode()).digest())
    return joined.hexdigest()[:16]


def _run(command: list[str]) -> str:
    return _run_all([command])[0]


def _run_all(commands: list[list[str]]) -> list[str]:
    """What each command wrote; they run at once. Raises BuildError with the first complaint."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_started(command)) for command in commands]
        return [_output_of(process) for process in processes]


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that doesn't outlive the block."""
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise BuildError(f"cannot start {command[0]}: {error}") from error
    with process:
        try:
            yield process
        finally:
            process.kill()


def _output_of(process: subprocess.Popen[str]) -> str:
    try:
        output, _ = process.communicate(timeout=COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise BuildError(f"the compiler took more than {COMPILE_TIMEOUT_S:.0f} s") from None
    if process.returncode != 0:
        raise BuildError(f"the compiler failed: {output.strip()[-2000:]}")
    return output
