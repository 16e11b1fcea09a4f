"""The one error of this folder that a user can cause."""


class ModelError(ValueError):
    """A model that cannot be served: missing, broken, unsupported or wrongly split. The message is one line."""
