"""Where a run's rows go besides metrics.jsonl: TensorBoard, Weights & Biases, or a class of your own."""

from traces_jax.config import Config
from traces_jax.core import own
from traces_jax.host.sinks.base import NOT_METRICS, RunInfo, Sink

__all__ = ["NOT_METRICS", "RunInfo", "Sink", "classes"]


class SinkError(own.OwnError):
    """Why a sink cannot be used, in one sentence."""


def classes(config: Config) -> list[type[Sink]]:
    """The sinks that a run asks for. Raises SinkError before anything is written if one cannot be loaded."""
    found: list[type[Sink]] = []
    if config.run.tensorboard:
        from traces_jax.host.sinks.tensorboard import TensorBoard

        found.append(TensorBoard)
    if config.run.sink == "wandb":
        try:
            from traces_jax.host.sinks.weights_and_biases import WeightsAndBiases
        except ImportError:
            raise SinkError(
                "run.sink=wandb needs the package wandb: pip install 'traces_jax[wandb]', or run.sink=none."
            ) from None
        found.append(WeightsAndBiases)
    elif own.is_own(config.run.sink):
        found.append(own.load("sink", config.run.sink, Sink, SinkError))
    return found
