"""Horovod's constants for the Spark settings of elastic jobs, as pairs of name and value.

The settings have their names since Spark 3.1: ``spark.excludeOnFailure``, formerly
``spark.blacklist``. All apply with ``SPARK_CONF_BLACKLIST_ENABLED`` only.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Setting = tuple[str, str]

SPARK_CONF_MAX_INT = "2147483647"
SPARK_CONF_MAX_INT_MINUS_ONE = "2147483646"
_ENABLED = "spark.excludeOnFailure.enabled"
_STAGE_EXECUTOR = "spark.excludeOnFailure.stage.maxFailedTasksPerExecutor"
_STAGE_NODE = "spark.excludeOnFailure.stage.maxFailedExecutorsPerNode"
_TASK_EXECUTOR = "spark.excludeOnFailure.task.maxTaskAttemptsPerExecutor"
_TASK_NODE = "spark.excludeOnFailure.task.maxTaskAttemptsPerNode"
_APP_EXECUTOR = "spark.excludeOnFailure.application.maxFailedTasksPerExecutor"
_APP_NODE = "spark.excludeOnFailure.application.maxFailedExecutorsPerNode"

SPARK_CONF_ALWAYS_RESTART_FAILED_TASK: Setting = ("spark.task.maxFailures", SPARK_CONF_MAX_INT)
SPARK_CONF_BLACKLIST_DISABLED: Setting = (_ENABLED, "false")
SPARK_CONF_BLACKLIST_ENABLED: Setting = (_ENABLED, "true")

# An executor on which a task has failed, for all tasks.
SPARK_CONF_REUSE_FAILED_EXECUTOR: Setting = (_STAGE_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR: Setting = (_STAGE_EXECUTOR, "1")
SPARK_CONF_REUSE_FAILED_EXECUTOR_IN_APP: Setting = (_APP_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILED_EXECUTOR_IN_APP: Setting = (_APP_EXECUTOR, "1")
# A node of such an executor, for all tasks.
SPARK_CONF_REUSE_FAILING_NODE: Setting = (_STAGE_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_DONT_REUSE_FAILING_NODE: Setting = (_STAGE_NODE, "1")
SPARK_CONF_REUSE_FAILING_NODE_IN_APP: Setting = (_APP_NODE, SPARK_CONF_MAX_INT)
SPARK_CONF_DONT_REUSE_FAILING_NODE_IN_APP: Setting = (_APP_NODE, "1")
# The executor or node on which a task has failed, for the same task.
SPARK_CONF_REUSE_EXECUTOR_ALWAYS_FOR_SAME_TASK: Setting = (_TASK_EXECUTOR, SPARK_CONF_MAX_INT)
SPARK_CONF_REUSE_EXECUTOR_ONCE_FOR_SAME_TASK: Setting = (_TASK_EXECUTOR, "2")
SPARK_CONF_DONT_REUSE_EXECUTOR_FOR_SAME_TASK: Setting = (_TASK_EXECUTOR, "1")
SPARK_CONF_REUSE_NODE_ALWAYS_FOR_SAME_TASK: Setting = (_TASK_NODE, SPARK_CONF_MAX_INT_MINUS_ONE)
SPARK_CONF_REUSE_NODE_ONCE_FOR_SAME_TASK: Setting = (_TASK_NODE, "2")
SPARK_CONF_DONT_REUSE_NODE_FOR_SAME_TASK: Setting = (_TASK_NODE, "1")

# Spark's own defaults, with which a program resets the settings of a session.
SPARK_CONF_DEFAULT_VALUES: Mapping[str, str] = MappingProxyType(
    {
        "spark.task.maxFailures": "4",
        _ENABLED: "false",
        _STAGE_EXECUTOR: "2",
        _STAGE_NODE: "2",
        _TASK_EXECUTOR: "1",
        _TASK_NODE: "2",
        _APP_EXECUTOR: "2",
        _APP_NODE: "2",
    }
)
