"""Where the cost of a step comes from: see `base`."""

from typing import Any

from traces_jax.config import Config, ConfigError
from traces_jax.core import own
from traces_jax.sources.base import Answers, Collected, Credits, Part, Prior, Query, Source, Verdict
from traces_jax.sources.ct import CT
from traces_jax.sources.labelled import Labelled
from traces_jax.sources.oracle import Oracle
from traces_jax.sources.rlsf import RLSF
from traces_jax.sources.stepwise import Stepwise
from traces_jax.sources.traces import Traces
from traces_jax.tasks import Task

__all__ = [
    "Answers", "CT", "Collected", "Credits", "Labelled", "Oracle", "Part", "Prior", "Query", "RLSF", "Source",
    "SourceError", "Stepwise", "Traces", "Verdict", "learned", "learns", "make", "published", "without_task",
]  # fmt: skip

_BY_NAME: dict[str, type[Source]] = {"oracle": Oracle, "traces": Traces, "ct": CT, "rlsf": RLSF}


class SourceError(own.OwnError):
    """Why a user's source cannot be used, in one sentence."""


def _kind(config: Config) -> type[Source]:
    name = config.method.source
    return _BY_NAME.get(name) or own.load("method.source", name, Source, SourceError)


def make(config: Config, task: Task) -> Source:
    """The source that a config names."""
    return _kind(config)(task)


def learns(config: Config) -> bool:
    """Whether the source that a config names learns a cost model."""
    return _kind(config).learns


def published(params: Any) -> dict[str, Any]:
    """Source and settings, path -> value, of a cost model as published by its authors."""
    for name, kind in _BY_NAME.items():
        settings = kind.published(params) if issubclass(kind, Labelled) else None
        if settings is not None:
            return {"method.source": name, **settings}
    raise TypeError(f"no source has parameters of type {type(params).__name__}")


def without_task(config: Config) -> Source:
    """The source that a config names, for what needs no task, such as `Labelled.scores`."""
    return _kind(config)(None)  # type: ignore[arg-type]


def learned(config: Config, task: Task) -> Labelled:
    """The source that a config names, if it learns a cost model; otherwise raises a ConfigError."""
    source = make(config, task)
    if not isinstance(source, Labelled):
        right = ", ".join(name for name, kind in _BY_NAME.items() if kind.learns)
        raise ConfigError(
            f"method.source={config.method.source} is not right: it learns no estimator; {right} would be right."
        )
    return source
