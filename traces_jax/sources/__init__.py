"""Where the cost of a step comes from: see `base`."""

from traces_jax.config import Config
from traces_jax.sources.base import Prior, Source, Verdict
from traces_jax.sources.oracle import Oracle
from traces_jax.sources.traces import Traces
from traces_jax.tasks import Task

__all__ = ["Oracle", "Prior", "Source", "Traces", "Verdict", "make"]


def make(config: Config, task: Task) -> Source:
    """The source that a config names."""
    return Oracle() if config.method.source == "oracle" else Traces(task)
