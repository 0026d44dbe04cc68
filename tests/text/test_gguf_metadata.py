"""The own GGUF reader against the gguf library's writer and reader."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from fakes_model_files import finish, gguf_writer
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import ConfigError
from text.gguf_metadata import GGML_TYPES, read_gguf
from text.model_card import ModelSource

KEYS = st.text("abcdefgh._", min_size=1, max_size=12).map(lambda key: f"test.{key}")
INT32 = st.integers(-(2**31), 2**31 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)
VALUES = st.one_of(
    st.tuples(st.just("uint32"), st.integers(0, 2**32 - 1)),
    st.tuples(st.just("int32"), INT32),
    st.tuples(st.just("uint64"), st.integers(0, 2**64 - 1)),
    st.tuples(st.just("uint8"), st.integers(0, 255)),
    st.tuples(st.just("int16"), st.integers(-(2**15), 2**15 - 1)),
    st.tuples(st.just("float32"), FLOAT32),
    st.tuples(st.just("float64"), st.floats(allow_nan=False)),
    st.tuples(st.just("bool"), st.booleans()),
    st.tuples(st.just("string"), st.text(min_size=1)),
    st.tuples(st.just("array"), st.lists(INT32, min_size=1)),
    st.tuples(st.just("array"), st.lists(FLOAT32, min_size=1)),
    st.tuples(st.just("array"), st.lists(st.text(), min_size=1)),
)
SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(values=st.dictionaries(KEYS, VALUES, max_size=6), shapes=st.lists(SHAPES, max_size=4))
def test_what_the_library_writes_is_read_back(
    values: dict[str, tuple[str, object]], shapes: list[list[int]]
) -> None:
    arrays = [np.full(shape, i + 1, np.float32) for i, shape in enumerate(shapes)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        writer = gguf.GGUFWriter(path, "llama")
        for key, (kind, value) in values.items():
            add: Callable[[str, object], None] = getattr(writer, f"add_{kind}")
            add(key, value)
        for i, array in enumerate(arrays):
            writer.add_tensor(f"tensor.{i}", array)
        finish(writer)
        metadata = read_gguf(path)
        data = path.read_bytes()
    assert {k: v for k, v in metadata.values.items() if k.startswith("test.")} == {
        key: value for key, (_, value) in values.items()
    }
    for i, array in enumerate(arrays):
        tensor = metadata.tensors[f"tensor.{i}"]
        assert tensor.shape == array.shape
        stored = data[tensor.offset_bytes : tensor.offset_bytes + tensor.size_bytes]
        assert stored == array.tobytes()


def test_the_default_model_reads_as_the_library_reads_it(default_model_source: ModelSource) -> None:
    metadata = read_gguf(default_model_source.path)
    library = gguf.GGUFReader(default_model_source.path)
    assert list(metadata.tensors) == [tensor.name for tensor in library.tensors]
    for theirs in library.tensors:
        ours = metadata.tensors[theirs.name]
        assert ours.shape == tuple(int(dim) for dim in reversed(theirs.shape))
        assert ours.ggml_type == theirs.tensor_type.name
        assert ours.offset_bytes == theirs.data_offset
        assert ours.size_bytes == theirs.n_bytes
    fields = {key: field for key, field in library.fields.items() if not key.startswith("GGUF.")}
    assert list(metadata.values) == list(fields)
    for key, field in fields.items():
        assert metadata.values[key] == field.contents(), key


def test_block_sizes_are_those_of_the_format() -> None:
    for number, (name, block, block_bytes) in GGML_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (name, (block, block_bytes)) == (kind.name, gguf.GGML_QUANT_SIZES[kind])


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = tmp_path / "whole.gguf"
    writer = gguf_writer(whole)
    writer.add_token_list(["a", "b", "c"])
    writer.add_token_types([1, 1, 3])
    finish(writer)
    data = whole.read_bytes()
    end = max(t.offset_bytes + t.size_bytes for t in read_gguf(whole).tensors.values())
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 400), end - 1]:
        cut.write_bytes(data[:size])
        with pytest.raises(ConfigError, match=r"cut\.gguf"):
            read_gguf(cut)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_never_break_the_reader(tail: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.gguf"
        path.write_bytes(b"GGUF\x03\0\0\0" + tail)
        try:
            read_gguf(path)
        except ConfigError as error:
            assert str(path) in error.message


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"PK\x03\x04" + bytes(60), "does not begin with 'GGUF'"),
        (b"GGUF\x01\0\0\0" + bytes(60), "version 1 is not supported"),
        (b"GGUF\0\0\0\x03" + bytes(60), "little endian"),
    ],
)
def test_other_files_are_refused_with_the_reason(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=reason):
        read_gguf(path)


def test_a_missing_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing"):
        read_gguf(tmp_path / "nothing.gguf")
