"""Compiling the kernels: once, into the cache, and what serves where that can't be done."""

from __future__ import annotations

import logging
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tandem_kernels import select
from tandem_kernels.cpu import library as library_module
from tandem_kernels.cpu.build import SOURCES, Builder, BuildError
from tandem_kernels.cpu.isa import LEVELS, choose_isa, cpu_features
from tandem_kernels.cpu.kernels import CpuKernels
from tandem_kernels.cpu.library import load_library
from tandem_kernels.reference import ReferenceKernels

CPU = torch.device("cpu")
ISA = choose_isa(cpu_features())
QUICK_COMPILER = """#!/bin/sh
case "$*" in *--version*) echo quick; exit;; esac
for word; do
  case "$before" in -o) out=$word;; esac
  case "$word" in *.cpp) source=$word;; *.o) objects="$objects $word";; esac
  before=$word
done
case "$*" in
  *-shared*) for object in $objects; do cat "$object" || exit; done > "$out";;
  *) echo "$source" > "$out";;
esac
"""
"""Takes and leaves the files that a compiler does; an object holds the name of its source."""


@pytest.fixture(scope="module")
def built() -> Path:
    return Builder.of_this_machine().library()


def test_what_is_compiled_is_found_again(built: Path) -> None:
    before = built.stat()
    assert Builder.of_this_machine().library() == built
    assert built.stat().st_mtime_ns == before.st_mtime_ns


def test_a_library_made_ahead_serves_without_a_compiler(built: Path) -> None:
    here = Builder(built.parent.parent, compiler=None, isa=ISA)
    assert here.library() in built.parent.glob("*.so")
    assert load_library(here) is not None


def test_nothing_half_written_stays_behind(tmp_path: Path) -> None:
    quick = tmp_path / "c++"
    quick.write_text(QUICK_COMPILER)
    quick.chmod(0o755)
    cache = tmp_path / "cache"
    library = Builder(cache, str(quick), LEVELS[-1]).library()
    assert list(cache.rglob("*")) == [library.parent, library]
    linked = library.read_text().split()
    assert len(linked) == len(list(SOURCES.glob("*.cpp"))), "every source is in it, once"


@pytest.mark.slow
def test_nothing_half_written_stays_behind_by_the_real_compiler(tmp_path: Path) -> None:
    library = Builder(tmp_path, Builder.of_this_machine().compiler, LEVELS[-1]).library()
    assert list(tmp_path.rglob("*")) == [library.parent, library]


def test_without_compiler_and_library_the_reason_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert load_library(Builder(tmp_path, compiler=None, isa=ISA)) is None
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "no C++ compiler" in caplog.text


def test_a_failing_compiler_is_quoted(tmp_path: Path) -> None:
    false = shutil.which("false")
    with pytest.raises(BuildError, match="the compiler failed"):
        Builder(tmp_path, false, ISA).library()
    script = tmp_path / "c++"
    script.write_text('#!/bin/sh\necho "$*" | grep -q version || { echo no such sky; exit 1; }\n')
    script.chmod(0o755)
    with pytest.raises(BuildError, match="no such sky"):
        Builder(tmp_path / "cache", str(script), ISA).library()
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    compiler = Builder.of_this_machine().compiler
    with pytest.raises(BuildError, match="taken"):
        Builder(tmp_path / "taken", compiler, ISA).library()


def test_plain_torch_serves_without_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    # By its module: the package has a function of the same name
    monkeypatch.setattr(sys.modules["tandem_kernels.select"], "cpu_library", lambda: None)
    assert isinstance(select(CPU, torch.float32), ReferenceKernels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cpus_get_the_compiled_kernels(dtype: torch.dtype) -> None:
    assert isinstance(select(CPU, dtype), CpuKernels)


def test_other_types_get_plain_torch() -> None:
    assert isinstance(select(CPU, torch.float16), ReferenceKernels)


def test_the_library_is_loaded_once() -> None:
    assert library_module.cpu_library() is library_module.cpu_library()


def test_a_cpu_gets_the_fastest_instructions_that_it_has_all_of() -> None:
    avx512, avx2, portable = LEVELS
    assert choose_isa(avx512.features | {"sse2"}) == avx512
    assert choose_isa(avx512.features - {"avx512_bf16"}) == avx2
    assert choose_isa(avx512.features - {"avx512_vnni"}) == avx2
    assert choose_isa(frozenset({"sse2", "avx"})) == portable
    assert choose_isa(frozenset()) == portable


def test_instructions_may_be_chosen_by_name() -> None:
    assert choose_isa(LEVELS[0].features, "portable") == LEVELS[-1]
    with pytest.raises(ValueError, match="'mmx' is none of"):
        choose_isa(LEVELS[0].features, "mmx")
    with pytest.raises(ValueError, match=r"lacks .*avx512_bf16"):
        choose_isa(LEVELS[1].features, "avx512")


def test_the_environment_chooses_instructions(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TANDEM_CPU_ISA", "portable")
    assert Builder.of_this_machine().isa.name == "portable"
    assert Builder.of_this_machine(ISA.name).isa == ISA
    monkeypatch.setenv("TANDEM_CPU_ISA", "mmx")
    assert library_module.cpu_library.__wrapped__() is None
    assert "'mmx' is none of" in caplog.text


def test_nothing_is_compiled_for_this_machine_alone() -> None:
    for level in LEVELS:
        flags = Builder(Path(), None, level).flags
        assert not any("native" in flag for flag in flags)
