"""Discovery of the hosts that are available to an elastic job, and of their slots."""

from farandole.job.elastic.discovery.chosen import Source as Source
from farandole.job.elastic.discovery.chosen import discovery_of as discovery_of
from farandole.job.elastic.discovery.contract import FixedHosts as FixedHosts
from farandole.job.elastic.discovery.contract import HostDiscovery as HostDiscovery
from farandole.job.elastic.discovery.contract import Hosts as Hosts
from farandole.job.elastic.discovery.file import FileDiscovery as FileDiscovery
from farandole.job.elastic.discovery.function import FunctionDiscovery as FunctionDiscovery
from farandole.job.elastic.discovery.script import ScriptDiscovery as ScriptDiscovery
from farandole.job.elastic.discovery.slurm import SlurmDiscovery as SlurmDiscovery
from farandole.job.elastic.discovery.watch import HostWatch as HostWatch
