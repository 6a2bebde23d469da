"""HalfCheetah for 150 steps without a reward: the only aim is not to fall.

People are meant to judge it: a fall is seen at once in a video and hard to put into a formula. `judge` is such a
formula nevertheless. It stands in for a person in tests and studies, and is the task's cost, which a run that people
label never reads.
"""

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from traces_jax.feedback.trajectories import Shown, first_true
from traces_jax.tasks import base
from traces_jax.tasks.velocity import HALF_CHEETAH, Velocity

# The model's torso starts at this height; qpos has the difference.
_START_HEIGHT = 0.7
# Centre of the head in the torso's frame: forward and up.
_HEAD = (0.6, 0.1)
# On its nose: the torso is turned by more than 60 degrees and the head is near the floor.
_NOSE_COSINE, _NOSE_HEIGHT = 0.5, 0.3
# On its back: the torso is turned by more than 120 degrees and its centre is near the floor.
_BACK_COSINE, _BACK_HEIGHT = -0.5, 0.5


def fallen(qpos: jax.Array) -> jax.Array:
    """Whether it lies on its back or stands on its nose. qpos: [..., nq]. Returns booleans [...]."""
    height, angle = qpos[..., 1] + _START_HEIGHT, qpos[..., 2]
    forward, up = _HEAD
    # A positive angle turns the nose down.
    head = height - forward * jnp.sin(angle) + up * jnp.cos(angle)
    on_nose = (jnp.cos(angle) < _NOSE_COSINE) & (head < _NOSE_HEIGHT)
    on_back = (jnp.cos(angle) < _BACK_COSINE) & (height < _BACK_HEIGHT)
    return on_nose | on_back


def judge(shown: Shown) -> jax.Array:
    """The first step of each trajectory after which it has fallen, [N]; -1 where it has not."""
    return first_true(fallen(shown.positions), shown.length)


class Fall(Velocity):
    """A HalfCheetah that earns nothing and should not fall."""

    horizon = 150
    question = "Does it fall?"
    guide = (
        "Reject a clip if the cheetah ends up on its back or stands on its nose at any moment, even if it recovers. "
        "Stumbling, crouching and kneeling are fine."
    )

    def __init__(self, name: str, *, backend: str, terminate_when_unhealthy: bool = False):
        del terminate_when_unhealthy  # A fall does not end an episode: people see what follows.
        super().__init__(name, HALF_CHEETAH, backend=backend)

    def step(self, state: base.State, action: jax.Array) -> base.State:
        after = self.physics.step(state.pipeline_state, self.control(state, action))
        return base.finish(
            state,
            after,
            self._observe(after),
            reward=jnp.zeros(()),
            cost=fallen(after.qpos).astype(jnp.float32),
            terminated=jnp.zeros((), bool),
            horizon=self.horizon,
            metrics={name: jnp.zeros(()) for name in state.metrics},
        )

    def examples(self) -> list[base.Example]:
        """Two clips for those who label: it stands, and it somersaults."""
        standing = self._played(np.zeros((self.horizon, self.action_size)))
        # The hind leg kicks while the front leg folds, every half second.
        kick = np.where(np.arange(self.horizon)[:, None] % 10 < 5, 1.0, -1.0) * [1, 1, 1, -1, -1, 1]
        falling = self._played(kick)
        step = int(first_true(fallen(jnp.asarray(falling))[None], jnp.asarray([self.horizon]))[0])
        return [
            base.Example(standing, None, "It settles on its feet and stays there."),
            base.Example(
                falling, step, "It tips over its front legs. Rejecting is enough; marking the moment is better."
            ),
        ]

    def _played(self, controls: np.ndarray) -> np.ndarray:
        """Positions [T, nq] after each step, from the nominal start. controls: [T, nu]."""
        model = self.physics.mj_model
        data = mujoco.MjData(model)
        steps = round(self.physics.environment_seconds / model.opt.timestep)
        positions = np.zeros((len(controls), model.nq), np.float32)
        for time, control in enumerate(controls):
            data.ctrl[:] = control
            mujoco.mj_step(model, data, steps)
            positions[time] = data.qpos
        return positions
