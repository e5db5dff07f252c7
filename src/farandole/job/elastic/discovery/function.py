"""Discovery by a function of the program that starts the job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from farandole.errors import SettingsError
from farandole.job.elastic.discovery.contract import Hosts, parse_host

Found = Mapping[str, int] | Iterable[str]


class FunctionDiscovery:
    """Hosts that a function returns: slots by host, or strings like ``host:2``.

    ``slots``: the number for strings without one; None for no default. ``find`` raises
    SettingsError if the function fails or returns anything else.
    """

    def __init__(self, function: Callable[[], Found], slots: int | None = None) -> None:
        self._function, self._slots = function, slots

    def describe(self) -> str:
        return f"the function {getattr(self._function, '__qualname__', repr(self._function))}"

    def find(self) -> Hosts:
        try:
            found = self._function()
        except Exception as error:  # the user's code may raise any error
            raise SettingsError(f"{self.describe()} failed: {type(error).__name__}: {error}") from (
                error
            )
        if isinstance(found, Mapping):
            pairs = list(found.items())
        elif isinstance(found, Iterable) and not isinstance(found, (str, bytes)):
            pairs = [parse_host(str(each), self._slots, self.describe()) for each in found]
        else:
            raise SettingsError(
                f"{self.describe()} returned {found!r}. Return slots by host, such as"
                ' {"worker-0": 2}'
            )
        hosts: Hosts = {}
        for host, count in pairs:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise SettingsError(
                    f"{self.describe()} returned {count!r} slots for the host {host!r}; the number"
                    " must be a whole number >= 0"
                )
            if count:
                hosts[str(host)] = hosts.get(str(host), 0) + count
        return hosts
