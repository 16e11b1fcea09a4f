"""The only place where ranks send, receive or wait. Each wire declares the transport contract that it keeps."""

from headway.engine.wires.codec import ControlCodec, TensorCodec
from headway.engine.wires.cuda_ipc import CudaIpcIncoming, CudaIpcOutgoing
from headway.engine.wires.gates import FifoGate, GateKeeper, gate_path
from headway.engine.wires.gloo import GlooIncoming, GlooOutgoing, join_group, leave_group
from headway.engine.wires.nccl import ConnectIncoming, ConnectOutgoing, NcclIncoming, NcclOutgoing, Pair
from headway.engine.wires.pipes import (
    HeaderReceiver,
    HeaderSender,
    PipeIncoming,
    PipeOutgoing,
    PipeReader,
    PipeWriter,
    pipe_path,
)
from headway.engine.wires.probe import ContractError, IncomingTrial, OutgoingTrial, probe
from headway.engine.wires.rings import SLOTS, Event, Ring, RingOffer, StreamEvent, make_ring, map_ring, stream_event

__all__ = [
    "SLOTS",
    "ConnectIncoming",
    "ConnectOutgoing",
    "ContractError",
    "ControlCodec",
    "CudaIpcIncoming",
    "CudaIpcOutgoing",
    "Event",
    "FifoGate",
    "GateKeeper",
    "GlooIncoming",
    "GlooOutgoing",
    "HeaderReceiver",
    "HeaderSender",
    "IncomingTrial",
    "NcclIncoming",
    "NcclOutgoing",
    "OutgoingTrial",
    "Pair",
    "PipeIncoming",
    "PipeOutgoing",
    "PipeReader",
    "PipeWriter",
    "Ring",
    "RingOffer",
    "StreamEvent",
    "TensorCodec",
    "gate_path",
    "join_group",
    "leave_group",
    "make_ring",
    "map_ring",
    "pipe_path",
    "probe",
    "stream_event",
]
