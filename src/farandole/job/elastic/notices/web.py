"""Queries to a cloud's metadata service."""

from __future__ import annotations

import time
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

from farandole.job.elastic.notices.notice import Notice
from farandole.job.elastic.notices.sources import WebSource, notice_in

PATIENCE = 2.0  # seconds for an answer
_TOKEN = "/latest/api/token"
_TOKEN_LIFE = "21600"  # seconds, the longest that Amazon allows
_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"


class Metadata:
    """A metadata service that is queried repeatedly, and never through a proxy."""

    def __init__(self, source: WebSource) -> None:
        self._source = source
        self._token = ""  # Amazon's IMDSv2
        self._name = ""  # Azure's name of this machine

    def find(self) -> Notice | None:
        """Return the current notice; None if there is none.

        Raises OSError if the service does not answer, and ValueError for an unexpected answer.
        """
        source = self._source
        headers = dict(source.headers)
        if source.name == "azure" and not self._name:
            status, name = self._ask("GET", _NAME, headers)
            self._name = name.strip() if status == 200 else ""
        if source.name == "aws":
            headers["X-aws-ec2-metadata-token"] = self._token or self._new_token()
        status, body = self._ask("GET", source.path, headers)
        if status == 401 and source.name == "aws":
            headers["X-aws-ec2-metadata-token"] = self._new_token()
            status, body = self._ask("GET", source.path, headers)
        return notice_in(source, status, body, time.time(), self._name)

    def _new_token(self) -> str:
        life = {"X-aws-ec2-metadata-token-ttl-seconds": _TOKEN_LIFE}
        status, body = self._ask("PUT", _TOKEN, life)
        if status != 200:
            raise ValueError(f"PUT {_TOKEN} was answered with status {status}")
        self._token = body.strip()
        return self._token

    def _ask(self, verb: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        where = urlsplit(self._source.base)
        connection = HTTPConnection(where.hostname or "", where.port or 80, timeout=PATIENCE)
        try:
            connection.request(verb, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode("utf-8", "replace")
        except HTTPException as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
