"""Nothing in a table is without effect: what else a slip of the pen would break, though no run gets stuck of it.

Every row fires in some pass; every answer of a binding and every register is read, and written before; a receive
compares or stores what identifies its message; and if any rank gates a channel, every receiver of it does.
"""

from __future__ import annotations

import z3

from headway.spec.language import Got, Identity, PassNumber, show, walk
from headway.spec.table import Gate, Local, Protocol, Receive, gated_channels
from headway.verification.prove.facts import Fact
from headway.verification.prove.obligation import Finding, Obligation, refute
from headway.verification.prove.translate import disj
from headway.verification.prove.walk import Pass
from headway.verification.prove.wellformed import known_at_start, refute_faults


def prove_of_use(protocol: Protocol, walked: Pass, facts: tuple[Fact, ...]) -> Obligation:
    """The obligation for one role."""
    obligation = Obligation(f"of use: {walked.rank.role.name}", apart=True)
    with obligation.timed():
        refute_faults(walked, walked.misuses, facts, obligation)
        rank, role = walked.rank, walked.rank.role
        solver = z3.SolverFor("QF_UFLIA")
        solver.add(walked.this_pass >= 0, *known_at_start(rank, walked.this_pass, facts, []), *rank.facts)
        firings = walked.firings.values()
        alive: set[str] = set()
        while len(alive) < len(role.rows):
            model = refute(solver, disj(*(firing.when for firing in firings if firing.row.name not in alive)))
            if model is None:
                break
            alive |= {f.row.name for f in firings if z3.is_true(model.eval(f.when, model_completion=True))}
        for row in role.rows:
            name = (f"{role.name}: {row.name}",)
            if row.name not in alive:
                obligation.findings.append(Finding("rows of use", name, f"never fires: {show(row.guard)}"))
            operation = row.operation
            read = {node.field for _, expr in row.effects for node in walk(expr) if isinstance(node, Got)}
            read |= {node.field for node in walk(row.assume) if isinstance(node, Got)}
            if isinstance(operation, Local):
                for field, _ in operation.returns:
                    if field not in read:
                        text = f"what {operation.binding} returns as {field} is not read"
                        obligation.findings.append(Finding("rows of use", name, text))
            elif isinstance(operation, Receive):
                for field, domain in protocol.channel(operation.channel).fields:
                    compared = field in dict(operation.expect) or field in read
                    if isinstance(domain, PassNumber | Identity) and not compared:
                        text = f"{field} of {operation.channel} is neither compared nor stored"
                        obligation.findings.append(Finding("message identity", name, text))
        for channel in gated_channels(protocol):
            gated, received = walked.when(Gate, channel), walked.when(Receive, channel)
            if refute(solver, gated != received) is not None:
                rows = tuple(
                    f"{role.name}: {f.row.name}" for f in (*walked.of(Gate, channel), *walked.of(Receive, channel))
                )
                obligation.findings.append(
                    Finding("gate", rows, f"a receive of {channel!r} without its gate, or the reverse")
                )
        obligation.proved.append(f"each of {len(role.rows)} rows fires in some pass")
    return obligation
