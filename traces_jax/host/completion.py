"""Tab completion for `traces-jax`, as a script for bash or zsh: commands, their flags, settings and experiments."""

import ast
import pathlib
import sys
from collections.abc import Sequence

from traces_jax.__main__ import COMMANDS
from traces_jax.config import all_fields
from traces_jax.host import shipped

_BASH = """\
# Tab completion for traces-jax. Put it into effect with:  source <(traces-jax completion bash)
_traces_jax() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words="{commands}"
  # Bash takes "=" for a word of its own.
  if [[ "$word" == "=" ]]; then word=""; elif [[ "$before" == "=" ]]; then before="${{COMP_WORDS[COMP_CWORD-2]}}"; fi
  if [[ "$before" == "--config" ]]; then
    COMPREPLY=($(compgen -W "{experiments}" -- "$word") $(compgen -f -- "$word"))
    return
  fi
  if (( COMP_CWORD > 1 )); then
    case "${{COMP_WORDS[1]}}" in
{cases}
      *) words="" ;;
    esac
    if [[ "$word" != -* && "${{COMP_WORDS[1]}}" != completion ]]; then
      COMPREPLY=($(compgen -f -- "$word"))
      return
    fi
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [[ "${{COMPREPLY[0]}}" == *= ]]; then compopt -o nospace; fi
}}
complete -o filenames -F _traces_jax traces-jax
"""
# Zsh runs completions of bash.
_ZSH = """\
# Tab completion for traces-jax. Put it into effect with:  source <(traces-jax completion zsh)
autoload -Uz compinit bashcompinit && compinit && bashcompinit
"""


def script(shell: str) -> str:
    """The script for a shell."""
    words = {name: flags(name) for name in COMMANDS} | {"completion": ["bash", "zsh"]}
    cases = "\n".join(f'      {name}) words="{" ".join(found)}" ;;' for name, found in words.items())
    text = _BASH.format(commands=" ".join(words), experiments=" ".join(shipped.names()), cases=cases)
    return text if shell == "bash" else _ZSH + text


def flags(command: str) -> list[str]:
    """The flags of a command, and the settings if it has --config. Read from its file: importing takes seconds."""
    package = pathlib.Path(__file__).parents[1]
    file = package / f"{command}.py"
    tree = ast.parse((file if file.is_file() else package / command / "__main__.py").read_text(encoding="utf-8"))
    found = ["--help"]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "").startswith("DEFINE_"):
            name = ast.literal_eval(node.args[0])
            found.append(f"--{name}" if node.func.attr == "DEFINE_boolean" else f"--{name}=")  # type: ignore[attr-defined]
    return [*found, *(f"--config.{path}=" for path in all_fields())] if "--config=" in found else found


def main(arguments: Sequence[str]) -> int:
    """`traces-jax completion SHELL`."""
    if list(arguments) not in (["bash"], ["zsh"]):
        print("traces_jax.completion: name a shell, bash or zsh: source <(traces-jax completion bash)", file=sys.stderr)
        return 2
    print(script(arguments[0]), end="")
    return 0
