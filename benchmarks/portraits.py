"""The pictures of the tasks in docs/tasks.md: every robot in the middle of what it does.

  python -m benchmarks.portraits --out docs/pictures

Poses are set by hand, so nothing has to be trained.
"""

import argparse
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
import PIL.Image

from benchmarks import picture
from traces_jax import tasks
from traces_jax.host import runtime
from traces_jax.host.show import render

WIDTH, HEIGHT = 480, 360


@dataclasses.dataclass(frozen=True)
class Portrait:
    """A pose and where it is seen from.

    Attributes:
      task: its name.
      joints: name -> value of a hinge or slide, [7] of a free joint; others are at rest.
      distance, azimuth, elevation: of the camera, in meters and degrees.
      beside: of the point in the picture's middle from the center of the robot, [3] meters.
    """

    task: str
    joints: Mapping[str, float | tuple[float, ...]]
    distance: float
    azimuth: float
    elevation: float
    beside: tuple[float, float, float] = (0.0, 0.0, 0.0)


def tilted(x: float, y: float, z: float, axis: tuple[float, float, float], degrees: float) -> tuple[float, ...]:
    """A free joint's position, its height from where the model has it, and its quaternion."""
    half = np.radians(degrees) / 2
    direction = np.asarray(axis) / np.linalg.norm(axis)
    return (x, y, z, float(np.cos(half)), *(float(part) for part in np.sin(half) * direction))


_RUNNING = {
    "hip_1": 0.45, "ankle_1": 0.75, "hip_2": -0.35, "ankle_2": -1.1, "hip_3": 0.4, "ankle_3": -0.7, "hip_4": -0.45,
    "ankle_4": 1.1,
}  # fmt: skip
_TROTTING = {
    "front_left_hip": 0.5, "front_left_ankle": 0.8, "front_right_hip": -0.4, "front_right_ankle": -1.3,
    "left_back_hip": -0.45, "left_back_ankle": -0.9, "right_back_hip": 0.4, "right_back_ankle": 1.3,
}  # fmt: skip
# Into the picture: from behind and above, as a person would follow a robot along its lane.
_FOLLOW: dict[str, Any] = {"azimuth": 30.0, "elevation": -22.0}
_SIDE: dict[str, Any] = {"azimuth": 105.0, "elevation": -10.0}
_CIRCLE: dict[str, Any] = {"distance": 1.8, "azimuth": 115.0, "elevation": -28.0, "beside": (-0.25, 0.1, 0.1)}
_UP = (0.0, 0.0, 1.0)
PORTRAITS = {
    "ant": Portrait("SafetyAntVelocity-v1", {"root": tilted(0, 0, -0.12, (1, 0.4, 0), 9), **_RUNNING}, 3.0, 120, -18),
    "half_cheetah": Portrait(
        "SafetyHalfCheetahVelocity-v1",
        {"rootz": 0.12, "rooty": -0.12, "bthigh": -0.45, "bshin": 0.7, "bfoot": 0.3, "fthigh": 0.6, "fshin": -0.8,
         "ffoot": -0.3},
        2.6, **_SIDE,
    ),
    "hopper": Portrait(
        "SafetyHopperVelocity-v1", {"rootz": 1.3, "rooty": 0.2, "thigh": -0.4, "leg": -0.7, "foot": 0.45}, 3.0, **_SIDE
    ),
    "walker2d": Portrait(
        "SafetyWalker2dVelocity-v1",
        {"rootz": 1.17, "rooty": 0.12, "thigh": -0.1, "leg": -0.9, "foot": 0.5, "thigh_left": -0.75, "leg_left": -0.15,
         "foot_left": -0.1},
        3.0, **_SIDE,
    ),
    "point_circle1": Portrait("SafetyPointCircle1-v0", {"x": 0.85, "y": -0.3, "heading": 1.2}, **_CIRCLE),
    "point_circle2": Portrait("SafetyPointCircle2-v0", {"x": 0.85, "y": 0.75, "heading": 2.2}, **_CIRCLE),
    "car_circle1": Portrait("SafetyCarCircle1-v0", {"root": tilted(0.8, -0.3, 0, _UP, 75)}, **_CIRCLE),
    "car_circle2": Portrait("SafetyCarCircle2-v0", {"root": tilted(0.8, 0.75, 0, _UP, 120)}, **_CIRCLE),
    "ball_run": Portrait("SafetyBallRun-v0", {"root": tilted(0, 0.3, 0, (0.3, 1, 0.2), 50)}, 3.2, **_FOLLOW),
    "car_run": Portrait(
        "SafetyCarRun-v0", {"root": tilted(0, 0, 0, _UP, 8), "left_steering": 0.3, "right_steering": 0.3}, 2.2, 215, -20
    ),
    "drone_run": Portrait("SafetyDroneRun-v0", {"root": tilted(0, 0, 0.7, (0.15, 1, 0), 14)}, 2.1, 30, -34),
    "ant_run": Portrait("SafetyAntRun-v0", {"root": tilted(0, 0, 0, (0.3, 1, 0), 7), **_TROTTING}, 3.6, **_FOLLOW),
}  # fmt: skip


def draw(portrait: Portrait) -> np.ndarray:
    """uint8 [HEIGHT, WIDTH, 3]."""
    task = tasks.make(portrait.task, backend="native")
    assert isinstance(task, tasks.PhysicsTask)
    model = task.physics.mj_model
    data = mujoco.MjData(model)
    for name, value in portrait.joints.items():
        joint = model.joint(name)
        start = int(joint.qposadr[0])
        values = np.atleast_1d(np.asarray(value, float))
        data.qpos[start : start + values.size] = values
        if values.size > 1:
            data.qpos[start + 2] += model.qpos0[start + 2]
    mujoco.mj_kinematics(model, data)
    mujoco.mj_comPos(model, data)
    camera = mujoco.MjvCamera()
    camera.lookat[:] = data.subtree_com[1] + np.asarray(portrait.beside)
    camera.distance, camera.azimuth, camera.elevation = portrait.distance, portrait.azimuth, portrait.elevation
    size = {"width": picture.FINE * WIDTH, "height": picture.FINE * HEIGHT}
    with render.Painter(model, camera=camera, **size) as painter:
        return picture.shrink(painter.draw(data.qpos))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draws the tasks.")
    parser.add_argument("--out", required=True, type=pathlib.Path, help="folder")
    parser.add_argument("--only", nargs="+", choices=sorted(PORTRAITS), help="default: all")
    given = parser.parse_args()
    runtime.setup()
    for name in given.only or PORTRAITS:
        PIL.Image.fromarray(draw(PORTRAITS[name])).save(given.out / f"{name}.png", optimize=True)
        print(name, flush=True)


if __name__ == "__main__":
    main()
