"""`headway serve`: serve a model on a pipeline of processes, driven by a verified table."""

from __future__ import annotations

import argparse
import asyncio
import sys

from headway.cli import USAGE_ERROR

SUMMARY = "serve a model over an OpenAI-compatible API"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    add = parser.add_argument
    add("--model", default="smollm2", help="smollm2 (embedded), a .gguf file, or a Hugging Face folder")
    add("--pp", type=int, default=3, metavar="P", help="pipeline ranks, each a process (default 3)")
    add("--slots", type=int, metavar="L", help="microbatch slots in flight (default P)")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--seed", type=int, default=0, help="starts the sequence of seeds for requests that bring none")
    add("--table", default="serving", help="the protocol table: name, module:function or file.py:function")
    add("--unproved", action="store_true", help="launch a table without a certificate that covers it")
    add("--served-name", help="the model's name for clients (default: from --model)")
    add("--load-format", choices=("auto", "dummy"), default="auto", help="dummy: random weights from the config alone")
    add(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="auto: bfloat16 on a GPU, float32 on a CPU",
    )
    add(
        "--kernels", default="auto", help="auto (the fastest that works on the device), reference, triton or flashinfer"
    )
    add("--no-graphs", action="store_true", help="run decodes on a GPU without CUDA graphs")
    add(
        "--device",
        default="auto",
        help="auto, cpu, cuda (ranks spread over the visible GPUs), or cuda:N,... a rank each",
    )
    add("--gpu-memory-utilization", type=float, default=0.9, help="fraction of a GPU's memory that its ranks share")
    add("--page-size", type=int, default=16, help="tokens in a KV page")
    add("--kv-pages", type=int, help="KV pages of each rank (default: 2048 on a CPU; as many as fit on a GPU)")
    add(
        "--max-batch-tokens",
        type=int,
        help="tokens of one pass; longer prompts are prefilled in chunks (default: 256 on a CPU, 8192 on a GPU)",
    )
    add("--max-batch-rows", type=int, help="requests of one pass (default: 32 on a CPU, 256 on a GPU)")
    add("--max-context", type=int, help="tokens of a request, prompt and output (default: the model's)")
    add("--grace", type=float, default=30.0, help="seconds that running requests get after a stop signal")
    add(
        "--trace-dir",
        metavar="DIR",
        help="keep the ranks' traces there (default: a folder that goes after a clean end)",
    )
    add("--stall-bound", type=float, default=120.0, help="seconds at one wire row before the pipeline is called stuck")


def run(arguments: argparse.Namespace) -> int:
    """Serve; exit status 0 after a clean stop, 1 after a failure, 2 for wrong usage."""
    from headway.engine.group import LaunchError
    from headway.engine.pipeline import serve
    from headway.engine.serving import listen
    from headway.models import ModelError

    try:
        settings, protocol, checkpoint = _prepare(arguments)
        listener = listen(settings.host, arguments.port)
    except (ValueError, ModelError, OSError) as error:
        print(f"headway serve: {error}", file=sys.stderr)
        return USAGE_ERROR
    host, port = listener.getsockname()[:2]
    banner = (
        f"headway: serving {settings.name} on http://{host}:{port} with {settings.ranks} rank(s), "
        f"{settings.limits.slots} slot(s), driven by table {protocol.name} {protocol.fingerprint[:12]}; try:\n"
        f"  curl http://{host}:{port}/v1/chat/completions -H 'Content-Type: application/json' "
        f"""-d '{{"messages": [{{"role": "user", "content": "What is the capital of France?"}}], "temperature": 0}}'"""
    )
    try:
        return asyncio.run(serve(settings, protocol, checkpoint, listener, banner))
    except LaunchError as error:
        print(f"headway serve: {error}", file=sys.stderr)
        return 1


def _prepare(arguments: argparse.Namespace):  # type: ignore[no-untyped-def]
    from pathlib import Path

    import torch

    from headway.engine.group import STALL_BOUNDS
    from headway.engine.pipeline import Settings
    from headway.engine.placement import memory_shares, place_ranks
    from headway.engine.scheduling import Limits
    from headway.kernels import BACKENDS
    from headway.models import open_checkpoint, partition
    from headway.spec.catalog import load_table

    slots = arguments.pp if arguments.slots is None else arguments.slots
    if arguments.pp < 1:
        raise ValueError(f"--pp is {arguments.pp}; allowed: 1 or more")
    if slots < arguments.pp:
        raise ValueError(f"--slots is {slots}, below the number of ranks; allowed: {arguments.pp} or more")
    if not 0 <= arguments.port < 65536:
        raise ValueError(f"--port is {arguments.port}; allowed: 0 to 65535")
    for name in ("grace", "stall_bound"):
        if not 0 <= getattr(arguments, name) < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(arguments, name)}; allowed: 0 or more seconds")
    devices = place_ranks(arguments.device, arguments.pp, torch.cuda.device_count())
    on_gpu = devices[0] != "cpu"
    if arguments.kernels not in ("auto", *BACKENDS):
        raise ValueError(f"--kernels is {arguments.kernels}; allowed: auto, {', '.join(BACKENDS)}")

    def chosen(value: int | None, gpu: int, cpu: int) -> int:
        return value if value is not None else gpu if on_gpu else cpu

    memory_shares(devices, arguments.gpu_memory_utilization)
    protocol = load_table(arguments.table)
    _demand_certificate(protocol, devices, slots, arguments.unproved)
    checkpoint = open_checkpoint(arguments.model, arguments.load_format, arguments.seed)
    partition(checkpoint.config.layers, arguments.pp)
    longest = checkpoint.config.context_length
    context = longest if arguments.max_context is None else arguments.max_context
    if not 2 <= context <= longest:
        raise ValueError(f"--max-context is {context}; allowed: 2 to {longest}, the model's context")
    limits = Limits(
        slots=slots,
        pages=chosen(arguments.kv_pages, 1, 2048),
        page_size=arguments.page_size,
        max_batch_tokens=chosen(arguments.max_batch_tokens, 8192, 256),
        max_batch_rows=chosen(arguments.max_batch_rows, 256, 32),
        max_context=context,
    )
    if arguments.trace_dir is not None:
        Path(arguments.trace_dir).mkdir(parents=True, exist_ok=True)
    settings = Settings(
        model=arguments.model,
        table=arguments.table,
        ranks=arguments.pp,
        limits=limits,
        name=arguments.served_name or Path(arguments.model).stem,
        host=arguments.host,
        load_format=arguments.load_format,
        kernels=arguments.kernels,
        graphs=not arguments.no_graphs,
        dtype=arguments.dtype if arguments.dtype != "auto" else "bfloat16" if on_gpu else "float32",
        measure_pages=on_gpu and arguments.kv_pages is None,
        device=arguments.device,
        gpu_memory_utilization=arguments.gpu_memory_utilization,
        seed=arguments.seed,
        grace=arguments.grace,
        stall_bounds={**STALL_BOUNDS, "wire": arguments.stall_bound},
        trace_dir=arguments.trace_dir or "",
    )
    return settings, protocol, checkpoint


def _demand_certificate(protocol, devices: list[str], slots: int, unproved: bool) -> None:  # type: ignore[no-untyped-def]
    """A table runs only if a certificate covers it under the contracts of the wires in use."""
    from headway.engine.wiring import transports
    from headway.spec.certificate import find, shipped
    from headway.spec.language import SpecError

    try:
        find(shipped(), protocol, len(devices), slots, transports(protocol, devices))
    except SpecError as error:
        if not unproved:
            raise ValueError(
                f"{error}; `headway verify --table ...` says more, --unproved launches it all the same"
            ) from error
        print(f"headway serve: WARNING: UNPROVED TABLE: {error}. It may hang.", file=sys.stderr, flush=True)
