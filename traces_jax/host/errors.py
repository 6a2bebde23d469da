"""Errors that the user can fix: one sentence, exit code 2."""

from traces_jax.config import ConfigError
from traces_jax.core.own import OwnError
from traces_jax.physics import PhysicsError


class UserError(Exception):
    """One sentence that says what is wrong and what would be right."""


class WriteError(UserError):
    """A file cannot be written: no space, no permission."""


USER_ERRORS = (ConfigError, OwnError, PhysicsError, UserError)
