"""Gymnasium environments: gymnasium.make("traces_jax.gym:traces_jax/SafetyAntVelocity-v1").

Importing this module registers the tasks and is fast: JAX is loaded when the first environment is created.
"""

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

if TYPE_CHECKING:
    from traces_jax.host.show.render import Painter
    from traces_jax.tasks import State

# All tasks except the probes. Listed here, because the task registry loads JAX; a test checks that both agree.
NAMES = (
    "SafetyAntVelocity-v1",
    "SafetyHalfCheetahVelocity-v1",
    "SafetyHopperVelocity-v1",
    "SafetyWalker2dVelocity-v1",
    "SafetyHalfCheetahFall-v0",
    "SafetyPointCircle1-v0",
    "SafetyPointCircle2-v0",
    "SafetyCarCircle1-v0",
    "SafetyCarCircle2-v0",
    "SafetyBallRun-v0",
    "SafetyCarRun-v0",
    "SafetyDroneRun-v0",
    "SafetyAntRun-v0",
)


def register_envs() -> None:
    """Registers every task with Gymnasium as traces_jax/<task>. Tasks truncate episodes themselves: no time limit."""
    for name in NAMES:
        if f"traces_jax/{name}" not in gymnasium.registry:
            gymnasium.register(f"traces_jax/{name}", entry_point="traces_jax.gym:TaskEnv", kwargs={"task": name})


class TaskEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One environment of a task, stepped by native physics on the CPU. The cost of a step is info["cost"]."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012  as Gymnasium declares it

    def __init__(
        self,
        task: str,
        *,
        render_mode: str | None = None,
        terminate_when_unhealthy: bool = False,
        width: int = 480,
        height: int = 360,
    ):
        import jax

        from traces_jax import tasks

        made = tasks.make(task, backend="native", terminate_when_unhealthy=terminate_when_unhealthy)
        assert isinstance(made, tasks.PhysicsTask)
        self._physics = made.physics
        self._reset, self._step = jax.jit(made.reset), jax.jit(made.step)
        self._device = jax.local_devices(backend="cpu")[0]
        self._state: State | None = None
        self._painter: Painter | None = None
        self._size = width, height
        self.metadata = {**self.metadata, "render_fps": round(1 / made.physics.environment_seconds)}
        self.render_mode = render_mode
        self.action_space = gymnasium.spaces.Box(made.action_low, made.action_high, (made.action_size,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (made.observation_size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """A random initial state; the same seed gives the same episodes from here on."""
        import jax

        super().reset(seed=seed, options=options)
        with jax.default_device(self._device):
            self._state = self._reset(jax.random.key(int(self.np_random.integers(2**31))))
        return self._observation(), self._info()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """action: [A]; the task clips values outside the action space."""
        import jax

        with jax.default_device(self._device):
            self._state = state = self._step(self._state, np.asarray(action, np.float32))
        ended = bool(state.info["terminated"]), bool(state.info["truncated"])
        return self._observation(), float(state.reward), *ended, self._info()

    def render(self) -> np.ndarray | None:
        """The picture of the current state, uint8 [height, width, 3]."""
        if self.render_mode is None or self._state is None:
            return None
        if self._painter is None:
            from traces_jax.host.show import render

            width, height = self._size
            self._painter = render.Painter(self._physics.mj_model, width=width, height=height)
        return self._painter.draw(np.asarray(self._state.pipeline_state.qpos))

    def close(self) -> None:
        """Frees the rendering context."""
        if self._painter is not None:
            self._painter.close()
            self._painter = None

    def _observation(self) -> np.ndarray:
        assert self._state is not None
        # A copy: the caller may write into it.
        return np.array(self._state.obs)

    def _info(self) -> dict[str, Any]:
        assert self._state is not None
        values = {"cost": self._state.info["cost"], **self._state.metrics}
        return {name: float(value) for name, value in values.items()}


register_envs()
