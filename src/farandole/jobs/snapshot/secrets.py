"""Names of files that usually contain secrets: keys, tokens and passwords."""

from __future__ import annotations

import fnmatch
import os

_FOLDERS = {".ssh", ".aws", ".azure", ".gnupg", ".kube", ".docker", ".gcloud"}
_PATTERNS = (
    *(".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pypirc", ".npmrc", ".pgpass"),
    *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk"),
    *("*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", ".git-credentials", ".databrickscfg"),
    *("credentials", "credentials.*", "*credentials.json", "client_secret*.json"),
    *("secrets.json", "secrets.y*ml", "secrets.toml", "secrets.env", "service-account*.json"),
    *("kaggle.json", "token", ".token", "token.txt", "*.token", "*_token", "*_token.txt"),
)
_HARMLESS = ("*.pub", ".env.example", ".env.sample", ".env.template", "*.py")


def looks_secret(name: str) -> bool:
    """Return whether the file ``name``, relative to the source, usually contains secrets."""
    folder, base = os.path.split(name)
    if any(part in _FOLDERS for part in folder.split(os.sep)):
        return True
    lower = base.lower()
    if any(fnmatch.fnmatchcase(lower, each) for each in _HARMLESS):
        return False
    return any(fnmatch.fnmatchcase(lower, each) for each in _PATTERNS)
