"""The folder of a run: its format, its states and its journals.

Everything that a run leaves is a file below one folder, so that a run can be copied, archived and
opened elsewhere. This room defines these files. It starts no process and keeps no index.
"""
