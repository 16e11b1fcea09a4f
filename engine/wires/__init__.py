"""The only place where ranks send, receive or wait. Each wire declares the transport contract that it keeps."""

from headway.engine.wires.codec import ControlCodec, TensorCodec
from headway.engine.wires.gates import FifoGate, GateKeeper, gate_path
from headway.engine.wires.gloo import GlooIncoming, GlooOutgoing, join_group, leave_group

__all__ = [
    "ControlCodec",
    "FifoGate",
    "GateKeeper",
    "GlooIncoming",
    "GlooOutgoing",
    "TensorCodec",
    "gate_path",
    "join_group",
    "leave_group",
]
