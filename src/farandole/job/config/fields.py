"""Configuration fields: each field is a setting with default, type, doc, flag and environment
variable.

``FARANDOLE_X`` overrides the ``HOROVOD_X`` that some fields also accept. ``FARANDOLE_X`` is in the
unit of the flag; ``HOROVOD_X`` is in Horovod's unit, which is also the field's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from farandole.errors import SettingsError, did_you_mean
from farandole.job.plugins import registry

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: bool) -> Any:
        return lambda cls: cls


_Kind = TypeVar("_Kind", bound="Variables")


class Setting(NamedTuple):
    """The properties of one field."""

    name: str
    kind: type
    default: Any
    doc: str
    flag: str  # empty for values that only launchers set
    variable: str
    horovod: str
    group: str  # heading of the flag in --help
    unit: str  # unit of the flag and of the FARANDOLE_ variable
    scale: float  # this unit in the field's (and Horovod's) unit: a MiB is 1 << 20 bytes
    choices: tuple[str, ...]  # the allowed values, if limited
    plugins: str  # the kind of plugins that extend the choices (see registry)
    least: float
    most: float
    plausible: tuple[float, float]  # range of plausible values; 0 is always accepted

    def shown(self, value: Any) -> str:
        """Return a value as text, in the unit of the flag and of the FARANDOLE_ variable."""
        return _text(value / self.scale if self.scale != 1.0 else value)


def setting(
    default: Any,
    doc: str,
    *,
    flag: str = "",
    horovod: str = "",
    group: str = "",
    unit: str = "",
    scale: float = 1.0,
    choices: tuple[str, ...] = (),
    plugins: str = "",
    least: float = 0.0,
    most: float = math.inf,
    plausible: tuple[float, float] = (0.0, math.inf),
) -> Any:
    """Return a field of Placement, Connection or Settings."""
    # The class sets name, type and variable.
    return Setting(
        name="",
        kind=str,
        default=default,
        doc=doc,
        flag=flag,
        variable="",
        horovod=horovod,
        group=group,
        unit=unit,
        scale=scale,
        choices=choices,
        plugins=plugins,
        least=least,
        most=most,
        plausible=plausible,
    )


_TYPES: dict[str, type] = {"int": int, "float": float, "bool": bool, "str": str}
_SETTINGS: dict[type[Variables], tuple[Setting, ...]] = {}  # by class


def _named(setting: Setting, name: str, kind: str) -> Setting:
    # If the flag's unit differs from the field's, so does the variable's, and its name includes the
    # unit.
    ours = name if setting.scale == 1.0 else setting.flag.removeprefix("--").replace("-", "_")
    return setting._replace(name=name, kind=_TYPES[kind], variable=f"FARANDOLE_{ours.upper()}")


@dataclass_transform(frozen_default=True, kw_only_default=True)
class Variables:
    """Base class of configuration: fields from ``setting``, and their environment variables.

    Instances are frozen and compared by value. A dataclass would take milliseconds to create in
    every process of a job.
    """

    def __init_subclass__(cls) -> None:
        _SETTINGS[cls] = tuple(
            _named(vars(cls)[name], name, str(kind)) for name, kind in cls.__annotations__.items()
        )
        for setting in _SETTINGS[cls]:
            delattr(cls, setting.name)

    if not TYPE_CHECKING:  # type checkers use the fields

        def __init__(self, **values: Any) -> None:
            for setting in settings_of(type(self)):
                value = values.pop(setting.name, setting.default)
                self.__dict__[setting.name] = checked(
                    setting, setting.flag or setting.variable, value
                )
            if values:
                raise TypeError(
                    f"{type(self).__name__}() got an unexpected keyword argument"
                    f" {next(iter(values))!r}"
                )

        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError(
                f"{type(self).__name__}.{name} cannot be changed: use replace({name}={value!r})"
            )

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(tuple(vars(self).values()))

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"

    def replace(self: _Kind, **changes: Any) -> _Kind:
        """Return a copy with other values of some fields."""
        return type(self)(**{**vars(self), **changes})

    @classmethod
    def from_env(cls: type[_Kind], env: Mapping[str, str] | None = None) -> _Kind:
        """Read the variables of this process (or of ``env``). Raises SettingsError for an
        invalid value.
        """
        source = os.environ if env is None else env
        values: dict[str, Any] = {}
        for setting in settings_of(cls):
            for variable in (setting.variable, setting.horovod):
                if variable and source.get(variable, "") != "":
                    values[setting.name] = parse(setting, variable, source[variable])
                    break
        return cls(**values)

    def to_env(self, always: Container[str] = ()) -> dict[str, str]:
        """Return the variables from which ``from_env`` restores this object.

        Only values that differ from the default are included, plus variables in ``always``, which
        programs read directly.
        """
        found: dict[str, str] = {}
        for setting in settings_of(type(self)):
            value = getattr(self, setting.name)
            if (
                value != setting.default
                or setting.variable in always
                or (setting.horovod or "") in always
            ):
                found[setting.variable] = setting.shown(value)
                if setting.horovod:
                    found[setting.horovod] = _text(value)
        return found


_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


def settings_of(kind: type[Variables]) -> tuple[Setting, ...]:
    """Return the fields of ``kind`` in their order."""
    return _SETTINGS[kind]


def variables(*kinds: type[Variables]) -> frozenset[str]:
    """Return the names of all environment variables of ``kinds``, Farandole's and Horovod's."""
    return frozenset(
        name
        for kind in kinds
        for each in settings_of(kind)
        for name in (each.variable, each.horovod)
        if name
    )


def parse(setting: Setting, name: str, text: str) -> Any:
    """Parse a setting's value from text.

    ``name`` is the flag or variable that holds the text: Horovod's variables use the field's unit,
    others the flag's. Raises SettingsError for an invalid value.
    """
    scale = 1.0 if name == setting.horovod else setting.scale
    kind = setting.kind if scale == 1.0 else float
    try:
        value = _READ[kind](text)
    except ValueError:
        kinds = {int: "a whole number", float: "a number", bool: "0 or 1"}
        raise SettingsError(f"{name}={text!r} must be {kinds[kind]} ({setting.doc})") from None
    value = checked(setting, name, value)
    return value if scale == 1.0 else setting.kind(value * scale)


def _truth(text: str) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError
    return text.lower() in _TRUE


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


_READ: dict[type, Callable[[str], Any]] = {bool: _truth, int: int, float: _finite, str: str}


def checked(setting: Setting, name: str, value: Any) -> Any:
    """Return ``value`` if it is valid, in lower case if the setting has choices. Raises
    SettingsError, starting with ``name``, otherwise.
    """
    if setting.choices:
        known = setting.choices
        if setting.plugins and value.lower() not in known:
            known = ("auto", *registry.names(setting.plugins))
        if value.lower() not in known:
            near = did_you_mean(value.lower(), known)
            raise SettingsError(
                f"{name}={value!r} is not a valid choice; choose one of {', '.join(known)}{near}"
            )
        return value.lower()
    if setting.plugins and value:
        try:
            registry.check(setting.plugins, value)
        except SettingsError as error:
            raise SettingsError(f"{name}={value!r}: {error}") from None
    if setting.kind in (int, float) and not setting.least <= value <= setting.most:
        rule = ">= 0" if setting.most == math.inf else f"in [{setting.least:g}, {setting.most:g}]"
        raise SettingsError(f"{name}={value} must be {rule}")
    return value


def _text(value: Any) -> str:
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    # Horovod's programs expect seconds as whole numbers.
    return str(int(value)) if whole else str(value)
