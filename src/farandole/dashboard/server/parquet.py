"""Print the first rows of the Parquet file on stdin as JSON. Arguments: ROWS MEMORY."""

from __future__ import annotations

import json
import os
import resource
import sys
from typing import Any

_CELL = 500


def main(rows: int, memory: int) -> int:
    """Print at most ``rows`` rows.

    ``memory``: the memory limit in bytes, in addition to the library's own memory.
    """
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = (
        "system"  # other allocators reserve a gigabyte of addresses
    )
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with open("/proc/self/statm") as file:
        own = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (own + memory, own + memory))
    source = pq.ParquetFile("/dev/stdin")
    batch: Any = next(source.iter_batches(batch_size=rows, use_threads=False), None)
    cells = [list(row.values()) for row in batch.to_pylist()] if batch is not None else []
    found = {
        "kind": "table",
        "columns": source.schema_arrow.names,
        "rows": [[str(cell)[:_CELL] for cell in row] for row in cells],
        "complete": source.metadata.num_rows <= rows,
        "note": f"{source.metadata.num_rows:,} rows",
    }
    sys.stdout.write(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
