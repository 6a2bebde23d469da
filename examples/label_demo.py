"""A small run that asks for labels, and the page that takes them: make label-demo. Ctrl-C ends both."""

import pathlib
import subprocess
import sys
import time

RUN = pathlib.Path("runs/label-demo")


def main() -> None:
    """Starts both, and ends the training with the page."""
    train = [sys.executable, "-m", "traces_jax.train", "--config", "experiments/cheetah_fall.py"]
    training = subprocess.Popen([*train, "--config.steps=15000", f"--run_dir={RUN}", "--labels=wait"])
    try:
        print("The first clips are there in about a minute; open the address that is printed then.", flush=True)
        while not (RUN / "labels.db").exists() and training.poll() is None:
            time.sleep(0.5)
        time.sleep(1.0)
        if training.poll() is None:
            subprocess.run([sys.executable, "-m", "traces_jax.label", "--run", str(RUN)], check=False)
    except KeyboardInterrupt:
        pass
    finally:
        training.terminate()
        training.wait()


if __name__ == "__main__":
    main()
