"""``RunDetails``: a run, or a sweep with its runs, in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from azureml.core import VERSION
from farandole.dashboard.widget import show_run
from farandole.jobs.run import Run as FarandoleRun

_LOG_END = 20_000  # characters of a log in the data


class RunDetails:
    """The state, metrics, files and logs of a run, shown below a cell of a notebook."""

    def __init__(self, run_instance: Any) -> None:
        """``run_instance``: a run, either submitted or started in this process."""
        self.run_instance = run_instance
        self.settings: dict[str, Any] = {}

    def show(
        self,
        render_lib: Callable[[str], Any] | None = None,
        widget_settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Show the run: its state, curves, log and cause, in the output of the cell.

        In a notebook, the output follows the run to its end. Elsewhere, the main facts are printed.

        Arguments:
            render_lib: A function that shows HTML, such as Databricks' ``displayHTML``. It is
                called once.
            widget_settings: Not used; ``get_widget_data()`` returns them.
        """
        self.settings = dict(widget_settings or {})
        show_run(FarandoleRun(self.run_instance._folder), render_lib)

    def get_widget_data(self, widget_settings: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the data of the view, with the keys of Azure ML's widget."""
        run = self.run_instance
        details = run.get_details()
        status = run.get_status()
        children = list(run.get_children())
        return {
            "status": status,
            "workbench_run_details_uri": run.get_portal_url(),
            "run_id": run.id,
            "run_properties": _properties(run, details, status),
            "child_runs": [_child(each) for each in children],
            "children_metrics": {each.id: each.get_metrics() for each in children},
            "run_metrics": [
                _series(run.id, name, value) for name, value in _own_metrics(run).items()
            ],
            "run_logs": _log(run),
            "graph": {},
            "widget_settings": {
                "childWidgetDisplay": "popup",
                "send_telemetry": False,
                "log_level": "INFO",
                "sdk_version": VERSION,
                **self.settings,
                **(widget_settings or {}),
            },
            "loading": False,
        }

    def __repr__(self) -> str:
        return f"RunDetails({self.run_instance!r})"


def _properties(run: Any, details: Mapping[str, Any], status: str) -> dict[str, Any]:
    definition = details.get("runDefinition") or {}
    logs = sorted(details.get("logFiles", {}))
    return {
        "run_id": run.id,
        "created_utc": details.get("createdTimeUtc") or details.get("startTimeUtc"),
        "properties": run.get_properties(),
        "tags": run.get_tags(),
        "script_name": definition.get("script"),
        "arguments": " ".join(map(str, definition.get("arguments") or [])) or None,
        "end_time_utc": details.get("endTimeUtc"),
        "status": status,
        # Names without addresses, because the output of a cell must hold neither paths nor tokens.
        "log_files": {name: name for name in logs},
        "log_groups": [[name] for name in logs],
        "run_duration": duration(details),
        "run_number": run.number,
        "run_queued_details": {"status": status, "details": None},
    }


def duration(details: Mapping[str, Any]) -> str | None:
    """Return the time from start to end, or to now, as ``0:06:07``; None before the start."""
    if "startTimeUtc" not in details:
        return None
    started = _time(details["startTimeUtc"])
    ended = _time(details["endTimeUtc"]) if "endTimeUtc" in details else None
    seconds = int(((ended or datetime.now(timezone.utc)) - started).total_seconds())
    minutes, rest = divmod(max(0, seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)


def _child(run: Any) -> dict[str, Any]:
    details = run.get_details()
    return {
        "run_id": run.id,
        "run_number": run.number,
        "status": run.get_status(),
        "start_time": details.get("startTimeUtc"),
        "end_time": details.get("endTimeUtc"),
        "duration": duration(details),
        "run_name": run.display_name,
        "metric": None,
    }


def _own_metrics(run: Any) -> dict[str, Any]:
    """Return the metrics of a run; an empty dict for a sweep."""
    found: dict[str, Any] = run.get_metrics()
    return {} if run.type == "hyperdrive" else found


def _series(run_id: str, name: str, value: Any) -> dict[str, Any]:
    data = value if isinstance(value, list) else [value]
    return {
        "name": name,
        "run_id": run_id,
        "categories": list(range(len(data))),
        "series": [{"data": data}],
    }


def _log(run: Any) -> str:
    """Return the end of the first rank's log."""
    logs = run.get_details_with_logs()["logFiles"]
    name = next((each for each in sorted(logs) if "std_log" in each), None)
    return "" if name is None else str(logs[name])[-_LOG_END:]
