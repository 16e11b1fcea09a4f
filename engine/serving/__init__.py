"""The OpenAI-compatible HTTP side: requests in, jobs to rank 0, tokens back, text out.

In the process of the launcher, which makes an `EngineClient`, hands it to `create_app`, runs the app with `Server`,
calls `fail` when a rank dies, and `drain` before it ends.
"""

from headway.engine.serving.app import create_app
from headway.engine.serving.client import EngineClient, Generation, Job
from headway.engine.serving.server import Server, listen
from headway.engine.serving.service import Bounds, ServedModel, TextCodec

__all__ = ["Bounds", "EngineClient", "Generation", "Job", "ServedModel", "Server", "TextCodec", "create_app", "listen"]
