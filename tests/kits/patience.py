"""Times of the jobs that tests start: the default of 30 s for the start is too short where much else
runs on few cores, and that for the end too long for ranks that ignore SIGTERM.
"""

PATIENT = {"FARANDOLE_START_TIMEOUT": "150", "FARANDOLE_GRACE_SECONDS": "3"}
