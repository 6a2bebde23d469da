"""Clips that can be looked at from any side, each as one HTML page: the only file that uses viser and mjviser.

The page contains everything it needs, and the browser draws it. Both packages are optional, the extra `label3d`.
"""

import concurrent.futures
import contextlib
import importlib.util
import io
import threading

import mujoco
import numpy as np

# A page has about a megabyte.
_KEPT = 8
# Where light comes from. The package's own light is a photograph of a room, which some browsers draw white on white.
_LIGHTS = ((0.0, -5.0, 3.0), (0.0, 5.0, 3.0), (5.0, 0.0, 3.0), (-5.0, 0.0, 3.0))
_BRIGHTNESS = 2.0


def available() -> bool:
    """Whether the packages are installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("viser", "mjviser"))


class Scenes:
    """Makes pages of one model, in a thread of its own."""

    def __init__(self, model: mujoco.MjModel, seconds: float):
        """seconds: of a step."""
        self._model, self._seconds = model, seconds
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="scenes")
        self._lock = threading.Lock()
        self._made: dict[str, concurrent.futures.Future[bytes]] = {}

    def page(self, name: str, positions: np.ndarray) -> "concurrent.futures.Future[bytes]":
        """The page of positions [T, nq], by a name of our own. No page is made twice in a row."""
        with self._lock:
            if name not in self._made:
                self._made[name] = self._thread.submit(record, self._model, positions, self._seconds)
                while len(self._made) > _KEPT:
                    self._made.pop(next(iter(self._made)))
            return self._made[name]

    def close(self) -> None:
        """Ends the thread."""
        self._thread.shutdown(wait=True, cancel_futures=True)


def record(model: mujoco.MjModel, positions: np.ndarray, seconds: float) -> bytes:
    """The page of positions [T, nq], played with `seconds` for each."""
    import mjviser
    import viser

    data = mujoco.MjData(model)
    camera = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, "track")
    with contextlib.redirect_stdout(io.StringIO()):  # They greet.
        server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
        try:
            scene = mjviser.ViserMujocoScene(server, model, num_envs=1)
            scene.camera_tracking_enabled = False  # It would follow heights too, and the floor would move.
            server.scene.configure_environment_map(None)
            for number, place in enumerate(_LIGHTS):
                server.scene.add_light_directional(f"/light{number}", intensity=_BRIGHTNESS, position=place)
            recording, first = None, np.zeros(3)
            for state in positions:
                data.qpos[:] = state
                mujoco.mj_kinematics(model, data)
                mujoco.mj_comPos(model, data)
                mujoco.mj_camlight(model, data)
                seen = data.cam_xpos[camera] if camera >= 0 else np.zeros(3)
                if recording is None:
                    first = seen.copy()
                    server.initial_camera.position = tuple(first)
                    server.initial_camera.look_at = tuple(data.subtree_com[1] if model.nbody > 1 else np.zeros(3))
                    recording = server.get_scene_serializer()
                # The world moves instead of the camera.
                shift = (first - seen) * [1, 1, 0]
                scene.update_from_arrays(data.xpos[None] + shift, data.xmat.reshape(1, -1, 3, 3))
                scene.fixed_bodies_frame.position = shift
                recording.insert_sleep(seconds)
            assert recording is not None, "a clip has a step"
            return recording.as_html().encode()
        finally:
            server.stop()
