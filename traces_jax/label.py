"""Label: python -m traces_jax.label --run runs/fall

Serves a page on which people label the clips that a training run asks for. Answers reach the run at once. Labels can be
exported to a file and imported from one; see docs/labeling.md. Ctrl-C ends the page; nothing is lost.
"""

import ipaddress
import pathlib
import secrets

from absl import flags

from traces_jax.host import cli, errors
from traces_jax.host.run import folder as folder_lib

_RUN = flags.DEFINE_string("run", None, "Run folder.", allow_override=True)
_HOST = flags.DEFINE_string("host", "127.0.0.1", "Address to serve. Another than this machine's own needs a token.")
_PORT = flags.DEFINE_integer("port", 8765, "Port; 0 for any free one.")
_TOKEN = flags.DEFINE_string("token", None, "What others must have to use the page. Default: a random one.")
_EACH = flags.DEFINE_integer("each", None, "How many annotators label each clip. Default: 1, or as before.")
_REPEATS = flags.DEFINE_float("repeats", None, "Share of clips that are shown a second time. Default: 0.05.")
_EXPORT = flags.DEFINE_string("export", None, "Write all answers to this .jsonl file, and exit.")
_IMPORT = flags.DEFINE_string("import", None, "Read answers from this .jsonl file, and exit.")


def main() -> int:
    """The command line."""
    if _RUN.value is None:
        raise errors.UserError("--run is missing; give a run folder such as runs/fall.")
    folder = pathlib.Path(_RUN.value)
    config = folder_lib.load_config(folder)

    from traces_jax.host.label import exchange
    from traces_jax.host.label.store import Store

    store = Store(folder)
    if _EXPORT.value:
        rows = store.rows()
        exchange.write(pathlib.Path(_EXPORT.value), rows, run=folder_lib.identity(folder), task=config.task)
        print(f"{len(rows)} answers: {_EXPORT.value}")
        return cli.OK
    if _IMPORT.value:
        rows = exchange.read(pathlib.Path(_IMPORT.value))
        wrong = next((row for row in rows if "episode" in row), None)
        if wrong is not None:
            raise errors.UserError(f"--import={_IMPORT.value} is not right: it labels recorded episodes, not clips.")
        print(f"{store.add(rows)} new answers of {len(rows)}")
        return cli.OK
    _settle(store)
    store.close()
    return _serve(folder)


def _settle(store) -> None:
    """Checks the flags that concern the queue, and notes them for the trainer."""
    if _EACH.value is not None:
        if not 1 <= _EACH.value <= 100:
            raise errors.UserError(f"--each={_EACH.value} is not right: it must be from 1 to 100.")
        store.describe(each=_EACH.value)
    if _REPEATS.value is not None:
        if not 0 <= _REPEATS.value <= 0.5:
            raise errors.UserError(f"--repeats={_REPEATS.value} is not right: it must be from 0 to 0.5.")
        store.describe(repeats=_REPEATS.value)


def _serve(folder: pathlib.Path) -> int:
    try:
        import uvicorn

        from traces_jax.host.label import server
        from traces_jax.host.label.guard import is_loopback
    except ModuleNotFoundError as error:
        raise errors.UserError(
            f"the page needs the package {error.name}, which is missing; pip install 'traces_jax[label]'."
        ) from None
    host = _HOST.value
    try:
        shown = f"[{host}]" if ipaddress.ip_address(host).version == 6 else host
    except ValueError:
        if host != "localhost":
            raise errors.UserError(f"--host={host} is not right: give an address such as 127.0.0.1.") from None
        shown = host
    token = None if is_loopback(host) and _TOKEN.value is None else _TOKEN.value or secrets.token_urlsafe(24)
    app, desk = server.make(folder, token=token)
    settings = uvicorn.Config(
        app,
        host=host,
        port=_PORT.value,
        log_level="error",
        server_header=False,
        limit_concurrency=200,
        timeout_keep_alive=30,
        h11_max_incomplete_event_size=32768,
        ws="none",
    )
    found = settings.bind_socket()
    # After #, where browsers keep it from logs and from other sites.
    print(f"http://{shown}:{found.getsockname()[1]}/{f'#{token}' if token else ''}", flush=True)
    try:
        uvicorn.Server(settings).run(sockets=[found])
    finally:
        desk.close()
    return cli.OK


if __name__ == "__main__":
    cli.run(main)
