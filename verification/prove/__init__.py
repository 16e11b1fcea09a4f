"""Proofs of a table for any number of ranks and passes, by Z3: `docs/proof.md` states the theorem.

`prove` gives the obligations and, when all hold, the certificate; `unroll` looks for the deadlock where they do not.
"""

from headway.verification.prove.acyclic import Acyclic, prove_acyclic
from headway.verification.prove.certificate import CONTRACTS, Proof, contract, prove, prove_table, with_transports
from headway.verification.prove.obligation import Finding, Obligation
from headway.verification.prove.unroll import Unrolled, in_words, unroll

__all__ = [
    "CONTRACTS",
    "Acyclic",
    "Finding",
    "Obligation",
    "Proof",
    "Unrolled",
    "contract",
    "in_words",
    "prove",
    "prove_acyclic",
    "prove_table",
    "unroll",
    "with_transports",
]
