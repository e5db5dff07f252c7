from farandole.data import DBFSLocalStore, FilesystemStore, HDFSStore, LocalStore, Store

AbstractFilesystemStore = FilesystemStore

__all__ = [
    "AbstractFilesystemStore",
    "DBFSLocalStore",
    "FilesystemStore",
    "HDFSStore",
    "LocalStore",
    "Store",
]
