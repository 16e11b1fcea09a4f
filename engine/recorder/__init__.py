"""The trace of executed rows: a memory-mapped ring per rank that any process can read and that survives kill -9."""

from headway.engine.recorder.ring import RingRecorder
from headway.spec.trace import RingReader, TraceError, TraceHeader, TraceRecord, trace_path

__all__ = ["RingReader", "RingRecorder", "TraceError", "TraceHeader", "TraceRecord", "trace_path"]
