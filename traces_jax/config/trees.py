"""Settings as nested dictionaries, as in experiment files and config.json."""

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

import ml_collections

from traces_jax.config import checks, effects, sweep
from traces_jax.config.fields import ConfigError, show
from traces_jax.config.schema import Config


def make(**changes: Any) -> ml_collections.ConfigDict:
    """What an experiment file returns: all defaults with `changes` applied.

    Keys of `changes` are field names; values for groups are dicts. Unknown names raise a ConfigError.
    """
    tree = to_dict(Config())
    _apply(tree, changes, path="")
    return ml_collections.ConfigDict(tree)


def _apply(tree: dict[str, Any], changes: Mapping[str, Any], path: str) -> None:
    for name, value in changes.items():
        if name not in tree:
            raise checks.unknown("field", path + name, [path + known for known in tree])
        if isinstance(tree[name], dict):
            if not isinstance(value, Mapping):
                raise checks.not_a_group(path + name, value)
            _apply(tree[name], value, f"{path}{name}.")
        else:
            tree[name] = value


def to_dict(config: Config) -> dict[str, Any]:
    """The settings as a plain nested dictionary."""
    return dataclasses.asdict(config)


def from_dict(tree: Any) -> Config:
    """Builds and validates a Config. Every name must be known, and every value of its field's type and allowed."""
    config = _from_tree(tree)
    idle = effects.without_effect(config)
    for path, _ in sweep.parse(config.sweep):
        if path in idle:
            raise ConfigError(f"sweep of {path} is not right: all lanes would be equal, {idle[path]}.")
    return config


def from_saved(tree: Any) -> Config:
    """Builds and validates what `to_json` wrote. Accepts equal lanes, which earlier versions allowed."""
    return _from_tree(updated(tree))


def _from_tree(tree: Any) -> Config:
    if not isinstance(tree, Mapping):
        raise ConfigError(f"the settings are {show(tree)}; a group of fields would be right.")
    config = checks.build(Config, tree, path="")
    checks.sizes(config)
    sweep.lanes(config)
    return config


def updated(tree: Any) -> Any:
    """A config's tree with fields of earlier versions renamed. Other values are returned unchanged."""
    if not isinstance(tree, Mapping):
        return tree
    groups = {name: dict(value) if isinstance(value, Mapping) else value for name, value in tree.items()}
    method = groups.get("method")
    learns = isinstance(method, dict) and method.get("source") == "traces"
    for old, new in checks.RENAMED.items():
        (group, name), (new_group, new_name) = old.split("."), new.split(".")
        own = groups.get(group)
        if not isinstance(own, dict) or name not in own:
            continue
        value = own.pop(name)
        target = groups.setdefault(new_group, {})
        # In earlier versions each source had its own field for the limit.
        if (group == "labels") == learns and isinstance(target, dict):
            target.setdefault(new_name, value)
        sweep = groups.get("sweep")
        if isinstance(sweep, str):
            groups["sweep"] = sweep.replace(old, new)
    return groups


def to_json(config: Config) -> str:
    """JSON text that `from_dict(json.loads(text))` reads back."""
    return json.dumps(to_dict(config), indent=2) + "\n"
