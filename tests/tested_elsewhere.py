"""Modules that have no test file of their name, where each is tested instead, and why.

`tests/test_layout.py` compares this table with the package: an entry goes when its module has a
test file of its own, or is gone.
"""

from __future__ import annotations

# module: the file below tests/ that tests it (a word of that file, where it names nothing of the
# module), and why it is there
TESTED_ELSEWHERE = {
    "__main__": "gpus/test_gpu_verbs.py: what the quick verbs import is asked of the entry itself",
    "testing": "processes/test_testing.py: it starts real processes",
    "batch/runner": "processes/test_commands.py: it runs real commands in real sessions",
    "calls/broken_pool": "functions/test_executor.py (BrokenExecutor): classes without code",
    "calls/by_value": "functions/test_executor.py (add_one): seen in what is pickled",
    "calls/call": "functions/test_executor.py (add_one): calls of every kind, in real agents",
    "calls/future_pool": "functions/test_executor.py (cancel): it drives real agents",
    "calls/program_end": "processes/test_executor_suite.py (assert_python_ok): programs that end",
    "cli/attach": "processes/test_commands.py: it looks at a batch that runs",
    "cli/codes": "processes/test_commands.py (returncode): four numbers",
    "cli/diff": "processes/test_commands.py: it needs the snapshot of a real batch",
    "cli/gpu": "gpus/test_gpu_verbs.py: shells complete the verbs and their options through it",
    "cli/gpu_admin": "gpus/test_gpu_verbs.py: one file for the verbs of `postroom gpu`",
    "cli/gpu_lease": "gpus/test_gpu_verbs.py: one file for the verbs of `postroom gpu`",
    "cli/gpu_options": "gpus/test_gpu_verbs.py: one file for the verbs of `postroom gpu`",
    "cli/gpu_output": "gpus/test_gpu_verbs.py (said): seen in what the verbs print",
    "cli/gpu_verbs": "gpus/test_gpu_verbs.py: below gpus/, whose simulated cards it needs",
    "cli/gpu_view": "gpus/test_gpu_verbs.py: one file for the verbs of `postroom gpu`",
    "cli/master": "processes/test_queue_verbs.py: a Master that stands is a process",
    "cli/profiles": "cli/test_profiles_verb.py: the plain name is that of gpus/memory",
    "cli/retention": "cli/test_retention_verb.py: the plain name is that of store",
    "commands/gpu_use": "processes/test_packed.py (memory): it is measured on real processes",
    "commands/outcome_record": "test_simulation.py (Session): simulated crashes between writes",
    "dispatch/agent": "processes/test_project.py: a handle for sessions, which are processes",
    "dispatch/collector": "dispatch/test_dispatcher.py (results): half of a dispatcher's round",
    "functions/futures": "processes/test_decorator_processes.py: it starts real sessions",
    "functions/in_process": "functions/test_decorator.py: seen through the decorator",
    "functions/session_keeper": "functions/test_executor.py (agents): it starts real sessions",
    "gpus/cards/forked_probe": "gpus/cards/test_nvml.py (forks): on a stub of the driver",
    "gpus/cards/nvml_probe": "gpus/cards/test_nvml.py: a child process on a stub of the driver",
    "gpus/ledger/folder_ledger": "gpus/ledger/test_protocol.py: one contract for every ledger",
    "gpus/ledger/redis_renewal": "gpus/ledger/test_redis_ledger.py: it needs a real Redis",
    "gpus/ledger/redis_scripts": "gpus/ledger/test_redis_ledger.py: it needs a real Redis",
    "gpus/ledger/redis_store": "gpus/ledger/test_redis_ledger.py: it needs a real Redis",
    "queue/disk_usage": "store/test_usage.py: it shows what is measured there",
    "store/removal": "queue/test_cleaning.py: removed as `postroom clean` removes",
    "parcel/decode": "parcel/test_encode.py: every value is encoded and decoded",
    "parcel/npy": "parcel/test_container.py: headers of arrays are read with their container",
    "queue/rows": "queue/test_queue_view.py: classes without code but for their JSON",
    "session/__main__": "processes/test_session_cli.py (session): it is a process",
    "session/call_runner": "functions/test_executor.py (initializer): in real workers",
    "session/card_lease": "session/test_slots.py (lease): a slot is opened with its lease",
    "session/gpu_check_kernels": "queue/test_gpu_check.py: run by the check",
    "session/exclusive_mode": "processes/test_session_cli.py: set by a real session, on a stub",
    "session/forked_worker": "processes/test_commands.py (bench): `postroom run` starts it",
    "session/guardian": "processes/test_limits.py: it is a process",
    "session/import_check": "store/test_task_source.py (check_kernel): it is a process",
    "session/overtime": "functions/test_executor.py (hold): long calls behind short ones",
    "session/private_base": "functions/test_executor.py (agents): the end of a session",
    "system/absence": "gpus/ledger/test_lease_scan.py (few_descriptors): a scan runs out",
    "web/context": "web/test_forms.py (Page): what all pages share; every test of a page needs it",
    "web/server": "web/test_request_guard.py: bytes as rude as they come",
}
