"""Row edits: small functions from a table to a table, of which incidents, variants and mutants are made.

An edit names a step by its location, which is shared by the roles that have it; `roles` narrows it to some roles.
Each raises `SpecError` when the table has no such step, row, field or channel. `edit` applies several in turn and
checks the result once, because a table may be ill-formed between two edits.
"""

from headway.spec.edits.base import Edit, acting, edit
from headway.spec.edits.decisions import at_rank, choose, diverge
from headway.spec.edits.guards import (
    add_variable,
    assume,
    guard,
    negate,
    omit_else,
    set_effect,
    set_otherwise,
    strengthen,
    weaken,
)
from headway.spec.edits.messages import (
    add_channel,
    add_field,
    change_channel,
    drop_handle,
    forget,
    overwrite_handle,
    set_field,
    set_operation,
    surplus_post,
    swap_channel,
)
from headway.spec.edits.order import drop_step, insert, move
from headway.spec.edits.rewriting import everywhere, rewrite

__all__ = [
    "Edit",
    "acting",
    "add_channel",
    "add_field",
    "add_variable",
    "assume",
    "at_rank",
    "change_channel",
    "choose",
    "diverge",
    "drop_handle",
    "drop_step",
    "edit",
    "everywhere",
    "forget",
    "guard",
    "insert",
    "move",
    "negate",
    "omit_else",
    "overwrite_handle",
    "rewrite",
    "set_effect",
    "set_field",
    "set_operation",
    "set_otherwise",
    "strengthen",
    "surplus_post",
    "swap_channel",
    "weaken",
]
