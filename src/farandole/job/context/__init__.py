"""This process's place in the job: init, shutdown, rank and related calls.

Only this package assembles store, transport and engine. Without a launcher, ``init()`` gives one
rank and uses no network.
"""

from farandole.job.context.exchanges import add_parameters_broadcast as add_parameters_broadcast
from farandole.job.context.exchanges import exchange_counts as exchange_counts
from farandole.job.context.exchanges import exchanges_no_gradients as exchanges_no_gradients
from farandole.job.context.exchanges import largest_exchange as largest_exchange
from farandole.job.context.exchanges import parameters_broadcast as parameters_broadcast
from farandole.job.context.exchanges import skip_exchange_check as skip_exchange_check
from farandole.job.context.lifecycle import JobEnd as JobEnd
from farandole.job.context.lifecycle import end_checks as end_checks
from farandole.job.context.lifecycle import init as init
from farandole.job.context.lifecycle import shutdown as shutdown
from farandole.job.context.lifecycle import unread_failures as unread_failures
from farandole.job.context.membership import adopt_commits as adopt_commits
from farandole.job.context.membership import agree as agree
from farandole.job.context.membership import agree_on_changes as agree_on_changes
from farandole.job.context.membership import agreed_commit as agreed_commit
from farandole.job.context.membership import commit_alone as commit_alone
from farandole.job.context.membership import commit_number as commit_number
from farandole.job.context.membership import commits as commits
from farandole.job.context.membership import commits_alone as commits_alone
from farandole.job.context.membership import count_commit as count_commit
from farandole.job.context.membership import count_sync as count_sync
from farandole.job.context.membership import has_state as has_state
from farandole.job.context.membership import has_to_leave as has_to_leave
from farandole.job.context.membership import is_elastic as is_elastic
from farandole.job.context.membership import join as join
from farandole.job.context.membership import lost_commit as lost_commit
from farandole.job.context.membership import notice as notice
from farandole.job.context.membership import object_names as object_names
from farandole.job.context.membership import prepare_commit as prepare_commit
from farandole.job.context.parameter_servers import follows_centre as follows_centre
from farandole.job.context.parameter_servers import leave_servers as leave_servers
from farandole.job.context.parameter_servers import peer_server as peer_server
from farandole.job.context.parameter_servers import return_to_servers as return_to_servers
from farandole.job.context.parameter_servers import servers as servers
from farandole.job.context.process_set import ProcessSet as ProcessSet
from farandole.job.context.process_set import add_process_set as add_process_set
from farandole.job.context.process_set import engine as engine
from farandole.job.context.process_set import engines as engines
from farandole.job.context.process_set import global_process_set as global_process_set
from farandole.job.context.process_set import messages_among as messages_among
from farandole.job.context.process_set import process_set_among as process_set_among
from farandole.job.context.process_set import process_sets as process_sets
from farandole.job.context.process_set import remove_process_set as remove_process_set
from farandole.job.context.process_set import stays_alone as stays_alone
from farandole.job.context.process_set import unique_id as unique_id
from farandole.job.context.session import connection as connection
from farandole.job.context.session import cross_rank as cross_rank
from farandole.job.context.session import cross_size as cross_size
from farandole.job.context.session import is_homogeneous as is_homogeneous
from farandole.job.context.session import is_initialized as is_initialized
from farandole.job.context.session import local_rank as local_rank
from farandole.job.context.session import local_size as local_size
from farandole.job.context.session import placement as placement
from farandole.job.context.session import rank as rank
from farandole.job.context.session import session_id as session_id
from farandole.job.context.session import settings as settings
from farandole.job.context.session import size as size
from farandole.job.context.session import start_timeline as start_timeline
from farandole.job.context.session import stop_timeline as stop_timeline
from farandole.job.context.session import store as store
from farandole.job.context.session import takes_part as takes_part
