"""A reader for the header of a GGUF file (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

The package `gguf` has one too; it makes several objects for each of the 100,000 strings of a vocabulary, which takes
seconds in every rank. This one decodes an array when it is asked for.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from headway.models.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


class GgufTensor(NamedTuple):
    """`shape` has the slowest dimension first, as torch has it; `offset` counts from the start of the file."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    offset: int
    size: int


class _Array(NamedTuple):
    kind: int
    length: int
    offset: int


class GgufFile:
    """A mapped GGUF file: `metadata`, and `tensors` by their GGUF names. Raises ModelError for a broken one."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ModelError(f"{path}: cannot be read: {error}") from error
        self._position = 0
        try:
            self._read_header()
        except (struct.error, OverflowError) as error:
            raise ModelError(f"{path}: truncated GGUF file: its header does not end") from error
        except UnicodeDecodeError as error:
            raise ModelError(f"{path}: broken GGUF file: a name is not UTF-8") from error

    def read(self, name: str) -> np.ndarray[Any, Any]:
        """A tensor, dequantised to float32."""
        tensor = self.tensors[name]
        data = np.frombuffer(self._data, np.uint8, tensor.size, tensor.offset)
        rows = data.reshape(*tensor.shape[:-1], -1)
        try:
            values = dequantize(rows, tensor.kind)
        except NotImplementedError as error:
            raise ModelError(f"{self.path}: tensor {name!r} has type {tensor.kind.name}, not supported") from error
        return values if values.flags.writeable else values.copy()  # torch wants no view of the read-only file

    def _read_header(self) -> None:
        magic, version, tensors, entries = self._take("<4sIQQ")
        if magic != b"GGUF":
            raise ModelError(f"{self.path}: not a GGUF file: it starts with {magic!r}")
        if version not in (2, 3):
            raise ModelError(f"{self.path}: GGUF version is {version}; supported: 2, 3 (little-endian)")
        values: dict[str, Any] = {}
        for _ in range(entries):
            name = self._take_string()
            values[name] = self._take_value(*self._take("<I"))
        self.metadata: Mapping[str, Any] = _Metadata(self, values)
        infos = [self._take_tensor() for _ in range(tensors)]
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or alignment < 1:
            raise ModelError(f"{self.path}: general.alignment is {alignment!r}; a positive int is needed")
        start = -(-self._position // alignment) * alignment
        if len(dict(infos)) < len(infos):
            raise ModelError(f"{self.path}: broken GGUF file: two tensors have one name")
        self.tensors = {name: tensor._replace(offset=start + tensor.offset) for name, tensor in infos}
        for name, tensor in self.tensors.items():
            if tensor.offset + tensor.size > len(self._data):
                raise ModelError(f"{self.path}: truncated GGUF file: tensor {name!r} lies beyond its end")

    def _take(self, form: str) -> tuple[Any, ...]:
        values = struct.unpack_from(form, self._data, self._position)
        self._position += struct.calcsize(form)
        return values

    def _skip(self, size: int) -> int:
        begin = self._position
        if begin + size > len(self._data):
            raise struct.error("beyond the end of the file")
        self._position += size
        return begin

    def _take_string(self) -> str:
        (length,) = self._take("<Q")
        begin = self._skip(length)
        return self._data[begin : begin + length].decode()

    def _take_value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self._take("<" + _SCALARS[kind])[0]
        if kind == _STRING:
            return self._take_string()
        if kind != _ARRAY:
            raise ModelError(f"{self.path}: broken GGUF file: metadata of type {kind}")
        kind, count = self._take("<IQ")
        array = _Array(kind, count, self._position)
        if kind in _SCALARS:
            self._skip(count * struct.calcsize("<" + _SCALARS[kind]))
        elif kind == _STRING:
            for _ in self._strings(array):
                pass
        else:
            raise ModelError(f"{self.path}: GGUF arrays of type {kind} are not supported")
        return array

    def _strings(self, array: _Array) -> Iterator[tuple[int, int]]:
        """Begin and end of each string; leaves the position after the last."""
        data, position, length_at = self._data, array.offset, struct.Struct("<Q").unpack_from
        for _ in range(array.length):
            (length,) = length_at(data, position)
            begin, position = position + 8, position + 8 + length
            yield begin, position
        self._position = position
        self._skip(0)

    def _array(self, array: _Array) -> list[Any]:
        if array.kind == _STRING:
            try:
                return [self._data[begin:end].decode() for begin, end in self._strings(array)]
            except UnicodeDecodeError as error:
                raise ModelError(f"{self.path}: broken GGUF file: a string is not UTF-8") from error
        values: list[Any] = np.frombuffer(self._data, "<" + _SCALARS[array.kind], array.length, array.offset).tolist()
        return values

    def _take_tensor(self) -> tuple[str, GgufTensor]:
        name = self._take_string()
        (dimensions,) = self._take("<I")
        if not 1 <= dimensions <= 4:
            raise ModelError(f"{self.path}: broken GGUF file: tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed(self._take(f"<{dimensions}Q")))
        number, offset = self._take("<IQ")
        try:
            kind = GGMLQuantizationType(number)
        except ValueError:
            raise ModelError(f"{self.path}: tensor {name!r} has unknown type {number}") from None
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if shape[-1] % block:
            raise ModelError(f"{self.path}: tensor {name!r} has rows of {shape[-1]}, no multiple of {block}")
        elements = 1
        for size in shape:
            elements *= size
        return name, GgufTensor(shape, kind, offset, elements // block * block_bytes)


class _Metadata(Mapping[str, Any]):
    """Metadata by name; an array becomes a list when it is looked up."""

    def __init__(self, file: GgufFile, values: dict[str, Any]) -> None:
        self._file, self._values = file, values

    def __getitem__(self, name: str) -> Any:
        value = self._values[name]
        return self._file._array(value) if isinstance(value, _Array) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)
