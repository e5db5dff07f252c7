"""Timeouts of the jobs that tests start. The default of 30 s for the start is too short on few busy
cores, and the default for the end is too long for ranks that ignore SIGTERM.
"""

PATIENT = {"FARANDOLE_START_TIMEOUT": "150", "FARANDOLE_GRACE_SECONDS": "3"}
