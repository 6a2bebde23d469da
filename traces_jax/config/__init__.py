"""Settings: the only package that defines defaults, fields and allowed values."""

from traces_jax.config.checks import RENAMED, check_iterations, check_path, paths_named, unknown
from traces_jax.config.effects import changed, without_effect
from traces_jax.config.fields import MOST, ConfigError, show
from traces_jax.config.schema import (
    CollectConfig,
    Config,
    ConstraintConfig,
    CriticConfig,
    EnvironmentConfig,
    EstimatorConfig,
    LabelsConfig,
    LagrangeConfig,
    MethodConfig,
    NormalizeConfig,
    PolicyConfig,
    PPOConfig,
    PretrainConfig,
    QueryConfig,
    RefitConfig,
    RunConfig,
    all_fields,
)
from traces_jax.config.sweep import Lane, lanes
from traces_jax.config.trees import from_dict, from_saved, make, to_dict, to_json, updated

__all__ = [
    "CollectConfig",
    "Config",
    "ConfigError",
    "ConstraintConfig",
    "CriticConfig",
    "EnvironmentConfig",
    "EstimatorConfig",
    "LabelsConfig",
    "LagrangeConfig",
    "Lane",
    "MOST",
    "MethodConfig",
    "NormalizeConfig",
    "PPOConfig",
    "PolicyConfig",
    "PretrainConfig",
    "QueryConfig",
    "RENAMED",
    "RefitConfig",
    "RunConfig",
    "all_fields",
    "changed",
    "check_iterations",
    "check_path",
    "from_dict",
    "from_saved",
    "lanes",
    "make",
    "paths_named",
    "show",
    "to_dict",
    "to_json",
    "unknown",
    "updated",
    "without_effect",
]
