"""SGLang 0.5.23's pipeline loops as tables: the honest baseline, and what incidents and variants are edits of."""

from headway.spec.sglang.fork import fork_table
from headway.spec.sglang.loop import sglang_table
from headway.spec.sglang.traffic import Traffic

__all__ = ["Traffic", "fork_table", "sglang_table"]
