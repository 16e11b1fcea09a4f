"""`headway synthesize`: orders of a pass that have a certificate under a contract, the fastest first."""

from __future__ import annotations

import argparse
import sys
import time

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.language import SpecError
from headway.spec.ordering import ordering
from headway.spec.transports import parse_transport

SUMMARY = "search other orders of a pass for those that are safe under a contract"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("--table", default="serving", help="table name, module:function or file.py:function")
    parser.add_argument("--control", default="rendezvous", help="contract of control channels (default rendezvous)")
    parser.add_argument("--tensor", default="rendezvous", help="contract of tensor channels (default rendezvous)")
    parser.add_argument("--host", type=float, default=0.1, help="time of a host step, in units of one stage's compute")
    parser.add_argument("--message", type=float, default=0.05, help="time of a message, in the same units")
    parser.add_argument("--show", type=int, default=3, help="how many orders to print")


def run(arguments: argparse.Namespace) -> int:
    """Search; exit status 0 if there is such an order, 1 if there is none, 2 for wrong usage."""
    from headway.verification.prove.synthesis import Costs, steps_of, synthesize, timing

    try:
        protocol = load_table(arguments.table)
        kinds = {"control": parse_transport(arguments.control), "tensor": parse_transport(arguments.tensor)}
        start = time.perf_counter()
        contract = {channel.name: kinds[channel.kind] for channel in protocol.channels}
        costs = Costs(host=arguments.host, message=arguments.message)
        found = sorted(synthesize(protocol, contract, costs), key=lambda c: (c.period, c.latency))
        posted = ordering(protocol, {channel.name: parse_transport("posted") for channel in protocol.channels})
        period, latency = timing(posted, costs)
    except SpecError as error:
        print(f"headway synthesize: {error}", file=sys.stderr)
        return USAGE_ERROR
    print(f"the table's own order, all channels posted: pass {period:.2f}, plan to output {latency:.2f} (4 ranks)")
    kept = {role.name: steps_of(role) for role in protocol.roles if role.place != "solo"}
    print(f"{len(found)} orders with a certificate, in {time.perf_counter() - start:.1f} s")
    for number, candidate in enumerate(found[: arguments.show], 1):
        same = " (the table's own)" if candidate.orders == kept else ""
        print(f"{number}. pass {candidate.period:.2f}, plan to output {candidate.latency:.2f}{same}")
        for role, order in candidate.orders.items():
            print(f"   {role}: {', '.join(order)}")
    return 0 if found else 1
