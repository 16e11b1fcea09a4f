"""How a payload becomes bytes on a wire: msgpack for control channels, raw rows for tensor channels."""

from __future__ import annotations

from typing import Any

import msgspec
import torch


class ControlCodec:
    """Payloads of a control channel: any msgspec type. On the wire: msgpack, one byte an element."""

    def __init__(self, payload_type: Any) -> None:
        self._type = payload_type
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(payload_type)

    def blank(self) -> Any:
        """A payload that says nothing."""
        return self._type()

    def pack(self, payload: Any) -> bytes:
        """The encoded payload."""
        return self._encoder.encode(payload)

    def unpack(self, data: bytes) -> Any:
        """The payload; raises `msgspec.ValidationError` when the bytes are not of its type."""
        return self._decoder.decode(data)

    def encode(self, payload: Any) -> torch.Tensor:
        """A uint8 tensor of the encoded payload."""
        return torch.frombuffer(bytearray(self.pack(payload)), dtype=torch.uint8)

    def buffer(self, elements: int) -> torch.Tensor:
        """A tensor to receive `elements` bytes into."""
        return torch.empty(elements, dtype=torch.uint8)

    def decode(self, tensor: torch.Tensor) -> Any:
        """The payload; raises `msgspec.ValidationError` when the bytes are not of its type."""
        return self.unpack(tensor.numpy().tobytes())


class TensorCodec:
    """Payloads of a tensor channel: contiguous matrices of `width` columns and one dtype."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        self._width, self._dtype = width, dtype

    def blank(self, device: torch.device) -> torch.Tensor:
        """A payload of one row."""
        return torch.zeros((1, self._width), dtype=self._dtype, device=device)

    def slots(self, count: int, rows: int, device: torch.device) -> torch.Tensor:
        """Memory for `count` payloads of up to `rows` rows: [count, rows, width]."""
        return torch.empty((count, rows, self._width), dtype=self._dtype, device=device)

    def encode(self, payload: torch.Tensor) -> torch.Tensor:
        """The tensor itself; raises `ValueError` when its shape or dtype is not what the channel carries."""
        if payload.dtype != self._dtype or payload.dim() != 2 or payload.shape[1] != self._width:
            raise ValueError(
                f"payload is {payload.dtype} {tuple(payload.shape)}; allowed: {self._dtype} (rows, {self._width})"
            )
        return payload.contiguous()

    def buffer(self, elements: int) -> torch.Tensor:
        """A matrix to receive `elements` numbers into."""
        return torch.empty((elements // self._width, self._width), dtype=self._dtype)

    def decode(self, tensor: torch.Tensor) -> torch.Tensor:
        """The matrix."""
        return tensor
