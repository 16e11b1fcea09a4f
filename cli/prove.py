"""`headway prove`: prove a table for any number of ranks and passes, and write certificates."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from headway.cli import USAGE_ERROR
from headway.spec.catalog import load_table
from headway.spec.certificate import PRODUCTION, read
from headway.spec.language import SpecError
from headway.spec.table import Protocol
from headway.spec.transports import Transport, parse_transport

if TYPE_CHECKING:
    from headway.verification.prove.certificate import Proof

SUMMARY = "prove a table for any number of ranks and passes"
CERTIFICATES = Path(__file__).resolve().parent.parent / "spec" / "certificates"


def configure(parser: argparse.ArgumentParser) -> None:
    """Arguments of the command."""
    parser.add_argument(
        "--table", help=f"table name, module:function or file.py:function (default: {', '.join(PRODUCTION)})"
    )
    parser.add_argument("--contract", action="append", default=[], help="a named contract (default: all; see --list)")
    parser.add_argument(
        "--transport",
        action="append",
        default=[],
        metavar="CHANNEL=CONTRACT",
        help="a contract of your own, such as proxy=rendezvous; the other channels are posted",
    )
    parser.add_argument("--list", action="store_true", help="list the named contracts")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--mutants", type=int, metavar="N", help="judge every N-th single edit of the table instead")
    parser.add_argument("--write", nargs="?", const=str(CERTIFICATES), metavar="FOLDER", help="write the certificates")
    parser.add_argument("--check", action="store_true", help="fail if the shipped certificates do not fit the table")


def run(arguments: argparse.Namespace) -> int:
    """Prove; exit status 0 when everything holds, 1 when something does not, 2 for wrong usage."""
    from headway.verification.prove.certificate import CONTRACTS

    if arguments.list:
        for name, transports in CONTRACTS.items():
            print(f"{name}: control {transports['control'].name}, tensor {transports['tensor'].name}")
        return 0
    done = [_run(name, arguments) for name in ([arguments.table] if arguments.table else PRODUCTION)]
    return max(done)


def _run(name: str, arguments: argparse.Namespace) -> int:
    from headway.verification.prove.certificate import CONTRACTS, contract, prove_table, with_transports

    try:
        protocol = load_table(name)
        contracts = {each: contract(protocol, each) for each in _names(arguments.contract, list(CONTRACTS))}
        if arguments.transport:
            contracts = {"custom": _custom(protocol, arguments.transport)}
    except SpecError as error:
        print(f"headway prove: {error}", file=sys.stderr)
        return USAGE_ERROR
    if arguments.check:
        return _check(protocol, list(contracts))
    if arguments.mutants:
        return _mutants(protocol, next(iter(contracts.values())), arguments.mutants)
    start = time.perf_counter()
    table = prove_table(protocol)
    proofs = {each: with_transports(protocol, table, transports) for each, transports in contracts.items()}
    seconds = time.perf_counter() - start
    if arguments.json:
        print(json.dumps(_as_json(protocol, proofs, seconds), indent=1))
    else:
        _print(protocol, proofs, seconds)
    if arguments.write is not None:
        folder = Path(arguments.write)
        folder.mkdir(parents=True, exist_ok=True)
        for each, proof in proofs.items():
            if proof.holds:
                path = folder / f"{protocol.name}-{each}.json"
                path.write_text(proof.certificate().text(), encoding="utf-8")
                print(f"wrote {path}", file=sys.stderr)
    return 0 if all(proof.holds for proof in proofs.values()) else 1


def _names(wanted: list[str], known: list[str]) -> list[str]:
    for name in wanted:
        if name not in known:
            raise SpecError(f"--contract is {name!r}; allowed: {', '.join(known)}")
    return wanted or known


def _custom(protocol: Protocol, words: list[str]) -> dict[str, Transport]:
    transports = {channel.name: parse_transport("posted") for channel in protocol.channels}
    for word in words:
        name, _, text = word.partition("=")
        protocol.channel(name)
        transports[name] = parse_transport(text)
    return transports


def _check(protocol: Protocol, names: list[str]) -> int:
    """Whether the shipped certificates are those of this table, without proving anything."""
    from headway.cli.check_certificate import report

    failed = 0
    for name in names:
        path = CERTIFICATES / f"{protocol.name}-{name}.json"
        try:
            failed |= report(read(path), protocol, str(path.name))
        except SpecError as error:
            print(f"headway prove: {error}", file=sys.stderr)
            failed = 1
    if failed:
        print("headway prove: run `headway prove --write` after a change of the table", file=sys.stderr)
    return failed


def _mutants(protocol: Protocol, transports: dict[str, Transport], step: int) -> int:
    """The mutation score: who refuses single edits of the table, and why the others are none."""
    from collections import Counter

    from headway.verification.prove.certificate import Cache
    from headway.verification.prove.mutants import distinct, explain, judge

    cache = Cache()
    judged = [
        (judge(mutant, changed, transports, cache), changed) for mutant, changed in list(distinct(protocol))[::step]
    ]
    by: Counter[str] = Counter()
    for judgement, changed in judged:
        names = [name for name in ("check", "proof", "run") if getattr(judgement, name)]
        by[" and ".join(names) or "nobody"] += 1
        if judgement.contradiction:
            print(f"CONTRADICTION  {judgement.mutant.edit.text}: {judgement.run}")
        elif not judgement.killed:
            print(f"accepted  {judgement.mutant.edit.text}: {explain(protocol, changed, cache)}")
    seconds = sorted(judgement.seconds for judgement, _ in judged)
    print(f"{len(judged)} mutants; refused by " + ", ".join(f"{who} {count}" for who, count in by.most_common()))
    print(f"proof: median {seconds[len(seconds) // 2] * 1000:.0f} ms, at most {seconds[-1] * 1000:.0f} ms")
    return int(any(judgement.contradiction for judgement, _ in judged))


def _print(protocol: Protocol, proofs: dict[str, Proof], seconds: float) -> None:
    print(f"table {protocol.name} {protocol.fingerprint[:12]}, any P >= 1, any L >= P")
    shown = set()
    for name, proof in proofs.items():
        for obligation in proof.obligations:
            if id(obligation) in shown:
                continue
            shown.add(id(obligation))
            verdict = "proved" if obligation.holds else "NOT PROVED"
            print(f"{verdict:>10}  {obligation.seconds * 1000:6.0f} ms  {obligation.name}")
            for finding in obligation.findings:
                print(f"{'':>10}  {finding}")
        if proof.acyclic is not None and proof.acyclic.potential is None:
            print(_cycle(proof, name))
    print(f"{seconds * 1000:.0f} ms in all")


def _cycle(proof: Proof, name: str) -> str:
    """The concrete deadlock behind a missing certificate, if a small pipeline has one."""
    from headway.verification.prove.unroll import in_words, unroll

    try:
        found = unroll(proof.protocol, proof.transports)
    except SpecError as error:
        return f"{name}: cannot be unrolled: {error}"
    if found is None:
        return f"{name}: no certificate; unrolled for P = 2 to 8, no deadlock was met"
    return in_words(found)


def _as_json(protocol: Protocol, proofs: dict[str, Proof], seconds: float) -> dict[str, object]:
    return {
        "table": protocol.name,
        "fingerprint": protocol.fingerprint,
        "seconds": seconds,
        "contracts": {
            name: {
                "holds": proof.holds,
                "transports": {channel: transport.name for channel, transport in proof.transports.items()},
                "obligations": [
                    {
                        "name": obligation.name,
                        "holds": obligation.holds,
                        "seconds": obligation.seconds,
                        "proved": obligation.proved,
                        "findings": [finding._asdict() for finding in obligation.findings],
                    }
                    for obligation in proof.obligations
                ],
            }
            for name, proof in proofs.items()
        },
    }
