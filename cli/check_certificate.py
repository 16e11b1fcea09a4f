"""`headway check-certificate`: confirm a certificate with integer arithmetic, without the prover."""

from __future__ import annotations

import argparse
import sys
import time

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.certificate import Certificate, problems, read
from headway.spec.language import SpecError
from headway.spec.table import Protocol

SUMMARY = "check a certificate again, without the prover"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument("file", help="the certificate, a JSON file")
    parser.add_argument("--table", help="table name, module:function or file.py:function (default: as it says)")


def run(arguments: argparse.Namespace) -> int:
    """Check; exit status 0 when it is confirmed, 1 when it is not, 2 for wrong usage."""
    try:
        certificate = read(arguments.file)
        protocol = load_table(arguments.table or certificate.table)
    except SpecError as error:
        print(f"headway check-certificate: {error}", file=sys.stderr)
        return USAGE_ERROR
    return report(certificate, protocol, arguments.file)


def report(certificate: Certificate, protocol: Protocol, source: str) -> int:
    """Print what a check finds; 0 if nothing is wrong, else 1."""
    start = time.perf_counter()
    found = list(problems(certificate, protocol))
    for problem in found[:20]:
        print(f"{source}: {problem}")
    if len(found) > 20:
        print(f"{source}: and {len(found) - 20} more")
    if not found:
        print(
            f"{source}: confirmed in {(time.perf_counter() - start) * 1000:.0f} ms: table {protocol.name} "
            f"{protocol.fingerprint[:12]}, {certificate.contract}; {certificate.template}"
        )
    return 1 if found else 0
