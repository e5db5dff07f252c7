"""The metrics of a run: each rank appends records to its own journal in the run's folder.

The calling thread writes the record, without a lock, an ``fsync`` or a database. Other processes
read the journals and convert, mirror or show them.
"""

from farandole.job.tracking.functions import log_artifact as log_artifact
from farandole.job.tracking.functions import log_figure as log_figure
from farandole.job.tracking.functions import log_metric as log_metric
from farandole.job.tracking.functions import log_metrics as log_metrics
from farandole.job.tracking.functions import log_params as log_params
from farandole.job.tracking.functions import log_table as log_table
