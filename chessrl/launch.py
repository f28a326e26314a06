"""From the command line to a typed Config: Hydra composes, this module checks and turns every mistake into one line.

Every command shares one schema (``chessrl.config.Config``) and one folder of presets (``conf/``); ``-m`` makes a sweep of any of them.
"""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pathlib import Path
from string import Template
from typing import NoReturn

import hydra
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from chessrl.children import shell_status
from chessrl.command_help import HELP_FLAGS
from chessrl.config import STAGES, Config
from chessrl.config_check import check_values
from chessrl.errors import DISK_FULL, UserError
from chessrl.lock import READ_ONLY
from chessrl.signals import Interrupted, call_earlier, stop_signals

CONF = Path(__file__).resolve().parents[1] / "conf"
SWEEP_FLAGS = {"-m", "--multirun"}
EXTRA_LAUNCHERS = ("joblib", "submitit_local", "submitit_slurm")
TORCHRUN_SETS = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
OPEN_TABLES = ("reward.weights",)  # keys whose entries are the user's own

ConfigStore.instance().store(name="schema", node=Config)


def launch(name: str, work: Callable[[Config], int | None]) -> None:
    """Run ``work`` on the configuration of command ``name`` (``conf/NAME.yaml``), and end the process with its status."""
    arguments = sys.argv[1:]
    check_processes(name, arguments)
    flags = {argument for argument in arguments if argument.startswith("-")}
    try:
        if not flags:
            compose(name, arguments)
        elif flags <= HELP_FLAGS:
            from chessrl.reference import with_meanings  # here: the meanings are read out of source files

            print(with_meanings(help_text(name, [argument for argument in arguments if argument not in HELP_FLAGS])).rstrip())
            sys.exit(0)
    except UserError as error:
        fail(error)
    if any(argument.lower() == "dry_run=true" for argument in arguments):
        dry_run(name, arguments)
    if is_sweep(arguments):
        from chessrl.sweep import run_sweep  # here, because it needs what this module has

        sys.exit(run_sweep(name, [argument for argument in arguments if argument not in SWEEP_FLAGS], work))
    statuses: list[int] = []

    def job(config: DictConfig) -> None:
        with stop_signals() as received:
            statuses.append(outcome(name, work, config)[0])
        if received and statuses[-1]:
            call_earlier(received)

    hydra.main(version_base="1.3", config_path=str(CONF), config_name=name)(job)()
    sys.exit(max(statuses, default=0))


def outcome(name: str, work: Callable[[Config], int | None], config: DictConfig) -> tuple[int, str]:
    """Do one job: its status as a shell gives it, and what went wrong in one line, which is printed. Bugs are raised."""
    try:
        return shell_status(work(checked(config)) or 0), ""
    except UserError as error:
        status, message = shell_status(error.status), str(error)
    except OSError as error:
        if error.errno not in (*DISK_FULL, *READ_ONLY):
            raise
        status, message = UserError.status, (disk_full if error.errno in DISK_FULL else no_right)(error, config.outputs)
    except Interrupted as stop:
        print(f"{name}: {stop}; the same command goes on from there", flush=True)
        return 128 + stop.number, str(stop)
    print(f"error: {message}", file=sys.stderr, flush=True)
    return status, message


def disk_full(error: OSError, outputs: str) -> str:
    """One line on a disk without room."""
    return (
        f"{error.filename or outputs}: {os.strerror(error.errno)}: free some space; nothing that was saved is lost, and the same command "
        "goes on from the last saved state"
    )


def no_right(error: OSError, outputs: str) -> str:
    """One line on a file or folder that may not be read or written."""
    return f"{error.filename or outputs}: {os.strerror(error.errno)}: get the right to it, or choose another folder"


def dry_run(name: str, arguments: list[str]) -> NoReturn:
    """Print what the command or its sweep would cost, and end with the exit status."""
    if name in ("evaluate", "audit", "prefixes", "baselines", "analysis", "tabular"):
        fail(UserError(f"dry_run=true: there is no estimate for {name}; chessrl, pretrain, sft and rl have one"))
    from chessrl.dry_run import print_costs, sweep_params  # torch is imported only when there is work: --help stays quick

    try:
        sys.exit(print_costs(name, arguments, compose, sweep_params(name, arguments, CONF)))
    except UserError as error:
        fail(error)
    except (HydraException, OmegaConfBaseException) as error:
        fail(UserError(explain(error, arguments)))


def is_sweep(arguments: list[str]) -> bool:
    """``-m``, and no other flag: help and ``--cfg`` start no job."""
    flags = {argument for argument in arguments if argument.startswith("-")}
    return bool(flags) and flags <= SWEEP_FLAGS


def check_processes(name: str, arguments: list[str]) -> None:
    """Several processes (torchrun) work on one stage: anything else they would do several times over. Ends the process where they cannot."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return
    if missing := [variable for variable in TORCHRUN_SETS if variable not in os.environ]:
        fail(UserError(f"WORLD_SIZE={os.environ['WORLD_SIZE']} is set but {missing[0]} is not: start with torchrun, or unset WORLD_SIZE"))
    if name not in STAGES:
        fail(UserError(f"torchrun starts the stages {', '.join(STAGES)}: python -m starts all else, in one process"))
    if SWEEP_FLAGS.intersection(arguments):
        fail(UserError("torchrun starts one run: sweeps (-m) work with one process per run"))


def fail(error: UserError) -> NoReturn:
    print(f"error: {error}", file=sys.stderr, flush=True)
    sys.exit(error.status)


def checked(config: DictConfig) -> Config:
    """The Config of a composed configuration whose every value can be worked with. Raises UserError."""
    settings = typed(config)
    check_values(settings)
    if settings.dry_run:
        raise UserError("dry_run is for the command line alone, as dry_run=true: nothing was started")
    return settings


def typed(config: DictConfig) -> Config:
    """The Config of a composed configuration. Raises UserError on a value of the wrong type and on a key that ``+`` added."""
    if foreign := foreign_key(config):
        raise UserError(no_such_key(foreign))
    try:
        return OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise UserError(first_line(error)) from None


def foreign_key(section: DictConfig, prefix: str = "") -> str | None:
    """The first key that the section's dataclass does not have: OmegaConf lets ``+key=value`` add any."""
    schema = OmegaConf.get_type(section)
    if not is_dataclass(schema):
        return None
    for key in section:
        if key not in {field.name for field in fields(schema)}:
            return f"{prefix}{key}"
        if isinstance(section[key], DictConfig) and (foreign := foreign_key(section[key], f"{prefix}{key}.")):
            return foreign
    return None


def compose(name: str, overrides: list[str]) -> Config:
    """The configuration of a command with the given overrides. Raises UserError, one line with the nearest known key."""
    return typed(_composed(name, overrides))


def _composed(name: str, overrides: list[str], with_hydra: bool = False) -> DictConfig:
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            return hydra.compose(name, overrides, return_hydra_config=with_hydra)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error, overrides)) from None


def help_text(name: str, overrides: list[str]) -> str:
    """What ``--help`` prints: the command's own template, the presets, and every key with the value that ``overrides`` give it.

    Hydra's own takes over a second, which goes into copies of its repository, one for every group of presets that it lists.
    """
    config = _composed(name, overrides, with_hydra=True)
    groups = sorted(folder for folder in CONF.iterdir() if any(folder.glob("*.yaml")))
    presets = [f"{group.name}: {', '.join(sorted(file.stem for file in group.glob('*.yaml')))}\n" for group in groups]
    keys = OmegaConf.masked_copy(config, [key for key in config if key != "hydra"])
    return Template(config.hydra.help.template).substitute(APP_CONFIG_GROUPS="".join(presets), CONFIG=OmegaConf.to_yaml(keys))


def explain(error: BaseException, overrides: list[str]) -> str:
    """One line of a composition error: the override at fault and what is allowed."""
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not readable as key=value; a value with signs such as = or , needs quotes of its own: \"key='a=b'\""
    messages = [str(error)]
    while error.__cause__ is not None:
        error = error.__cause__
        messages.append(str(error))
    text = " ".join(" ".join(messages).split())
    unknown = re.search(r"Could not override '([^']+)'", text)
    choices = re.search(r"Could not find '([^']+)' Available options in '([^']+)': (.+?)(?: Config search path|$)", text)
    if choices:
        wanted, group, known = choices.groups()
        if group == "hydra/launcher" and wanted.split("/")[-1] in EXTRA_LAUNCHERS:
            return f"launcher={wanted.split('/')[-1]} needs an extra that is not installed: pip install 'chessrl[cluster]'"
        return f"{group}={wanted.split('/')[-1]}: no such preset; known are {', '.join(known.split())}"
    no_list = re.search(r"Invalid value assigned: (\w+) is not a ListConfig, list or tuple. full_key: (\S+)", text)
    value_fault = re.search(r"(Value '[^']*' .*?)(?: full_key: (\S+))", text)
    if no_list:
        given = next((override for override in overrides if override.lstrip("+").startswith(f"{no_list[2]}=")), no_list[2])
        return f"{given}: expected a list, such as {given.replace('=', '=[', 1)}]"
    if value_fault:
        message, key = value_fault.groups()
        given = next((override for override in overrides if override.lstrip("+~").startswith(f"{key}=")), key)
        hint = "; write integers in digits, with _ to group them (100_000_000)" if "Integer" in message else ""
        return f"{given}: {message}{hint}"
    if unknown:
        return no_such_key(unknown.group(1))
    return first_line(error)


def no_such_key(key: str) -> str:
    """What to say of a key that the schema does not have, with the nearest one that it has."""
    table = next((known for known in OPEN_TABLES if key == known or key.startswith(f"{known}.")), None)
    if table:
        return f"{key}: the preset does not have this entry of {table}; add it with a plus: +{table}.NAME=VALUE"
    near = difflib.get_close_matches(key, known_keys(Config), n=1, cutoff=0.5) or difflib.get_close_matches(
        key.split(".")[-1], [known.split(".")[-1] for known in known_keys(Config)], n=1
    )
    return f"{key}: no such key" + (f"; did you mean {near[0]}?" if near else "; python -m chessrl --cfg job prints them all")


def known_keys(section: type, prefix: str = "") -> list[str]:
    """Dotted paths of all keys of a config dataclass."""
    keys = []
    for field in fields(section):
        default = field.default_factory() if callable(field.default_factory) else None
        keys.append(prefix + field.name)
        if is_dataclass(default):
            keys += known_keys(type(default), f"{prefix}{field.name}.")
    return keys


def first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
