"""The mutants: which rule goes, how, and which tests must notice."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """One rule removed: `old` becomes `new` in `file`, and `killer` must fail."""

    rule: str
    file: str
    old: str
    new: str
    killer: str  # what is passed to pytest, or to the simulation: "sim 0-99"


FILES = "postroom/store/files.py"
MAILBOX = "postroom/store/mailbox.py"
CONTAINER = "postroom/parcel/container.py"
APPEND_LOG = "postroom/store/append_log.py"
RUNS = "postroom/store/runs.py"
RUN_QUEUE = "postroom/dispatch/run_queue.py"
DISPATCHER = "postroom/dispatch/dispatcher.py"
COLLECTOR = "postroom/dispatch/collector.py"
REGISTRY = "postroom/dispatch/registry.py"
INBOX = "postroom/session/inbox.py"
MASTER = "postroom/master.py"
JOBS = "postroom/jobs.py"
REQUEST_GUARD = "postroom/web/request_guard.py"
PROJECT_QUEUE = "postroom/dispatch/project_queue.py"
REQUEST_EXECUTOR = "postroom/dispatch/request_executor.py"
MINDER = "postroom/commands/minder.py"
JOB_WRITER = "postroom/dispatch/job_writer.py"
NOTIFY = "postroom/queue/notify.py"
CLEANING = "postroom/queue/cleaning.py"
RUN_READER = "postroom/queue/run_reader.py"

PACKER = "postroom/batch/memory_packer.py"
PACKED = "tests/batch/test_memory_packer.py"

MUTANTS = [
    Mutant(
        "a kill for memory is seen while the killed process still ends",
        "postroom/system/oom_kills.py",
        "self._before, self._last = self._last, self._count()",
        "self._before = self._last = self._count()",
        "tests/system/test_oom_kills.py",
    ),
    Mutant(
        "the out-of-memory killer says nothing about the card",
        "postroom/session/guardian.py",
        "out_of_memory = worker.returncode == -signal.SIGKILL and",
        "out_of_memory = False and",
        "tests/processes/test_host_memory.py",
    ),
    Mutant(
        "a GPU is never held for an init that adopted an orphan",
        "postroom/gpus/ledger/lease_keeper.py",
        "if owner is None and _is_orphan(parent):",
        "if False:",
        "tests/gpus/ledger/test_lease_keeper.py",
    ),
    Mutant(
        "a keeper that died at its start holds nothing",
        "postroom/gpus/ledger/lease_keeper.py",
        "    if not kept:\n",
        "    if False:\n",
        "tests/gpus/ledger/test_lease_keeper.py",
    ),
    Mutant(
        "our own Python imports nothing from the current folder",
        "postroom/system/own_python.py",
        '[sys.executable, "-P", "-c"',
        '[sys.executable, "-c"',
        "tests/system/test_own_python.py",
    ),
    Mutant(
        "a typo in a watched list of GPUs changes nothing",
        "postroom/gpus/cards/gpu_list.py",
        "            if first:\n",
        "            if True:\n",
        "tests/gpus/cards/test_gpu_list.py",
    ),
    Mutant(
        "a request is named behind those that wait, also where the clock was set back",
        "postroom/store/requests.py",
        "max(time.time_ns(), newest + 1)",
        "time.time_ns()",
        "tests/store/test_requests.py",
    ),
    Mutant(
        "an idle Master lets go of the base",
        MASTER,
        "time.monotonic() >= self._used_at + IDLE_S and self.let_go()",
        "False",
        "tests/test_master.py",
    ),
    Mutant(
        "a run that is over, and that nobody waits for, is dropped",
        REGISTRY,
        "                if active.queue.finished and not active.wanted:\n",
        "                if False:\n",
        "tests/test_master.py",
    ),
    Mutant(
        "runs that rest are not read again by a Master that acts again",
        REGISTRY,
        "            if sent or run not in self._at_rest:\n",
        "            if True:\n",
        "tests/test_master.py",
    ),
    Mutant(
        "a run that rests and is out with an agent is read again",
        REGISTRY,
        "            if sent or run not in self._at_rest:\n",
        "            if run not in self._at_rest:\n",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "a Master beside an acting one hears of results",
        MASTER,
        "        self._waiter.follow([self.base.result_folder(pool.run) for pool in pools])\n",
        "",
        "tests/test_master.py",
    ),
    Mutant(
        "a look that came too early is made up for",
        MASTER,
        "        if dispatcher is None and self._refresh_is_late:\n",
        "        if False:\n",
        "tests/test_master.py",
    ),
    Mutant(
        "a run whose lock could not be looked at is not taken for one that nobody wants",
        REGISTRY,
        "        except FileNotFoundError:  # the run is being removed\n",
        "        except OSError:\n",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "a Master that somebody waits in does not let go",
        MASTER,
        "            if self._waits:\n                return False\n",
        "",
        "tests/test_master.py",
    ),
    Mutant(
        "a child that comes back from a kernel ends at once",
        "postroom/session/tasks.py",
        "        if process_id() != worker:\n",
        "        if False:\n",
        "tests/processes/test_forks.py",
    ),
    Mutant(
        "a child that comes back from a kernel ends at once, in the simulation",
        "postroom/session/tasks.py",
        "        if process_id() != worker:\n",
        "        if False:\n",
        "sim 0-299",
    ),
    Mutant(
        "a fork does not write through what its parent prepared",
        FILES,
        "self._prepared_fd >= 0 and self._prepared_by == os.getpid():",
        "self._prepared_fd >= 0:",
        "tests/store/test_files.py",
    ),
    Mutant(
        "a worker waits only for what may pass",
        INBOX,
        "may_pass(error):\n                raise\n            if not self._blocked",
        "may_pass(error):\n                pass\n            if not self._blocked",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "a letter whose results can never be written is not given back without a note",
        INBOX,
        "                if not may_pass(error):\n                    raise  # to give",
        "                if False:\n                    raise  # to give",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "a worker whose descriptors a job closed ends before it writes anything",
        "postroom/session/process_state.py",
        "if descriptor >= 0 and not _is_marked(descriptor):",
        "if False:",
        "tests/session/test_process_state.py",
    ),
    Mutant(
        "each job finds the process as the first one did",
        "postroom/session/job_runner.py",
        "        self.tasks.state.restore(self.descriptor)\n",
        "",
        "tests/processes/test_spoilt_workers.py",
    ),
    Mutant(
        "a job with two results is counted once",
        RUNS,
        "covered += max(stop - max(first, reached), 0)",
        "covered += stop - first",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a file that could not be opened is not absent",
        "postroom/system/absence.py",
        "return error.errno in _ABSENT",
        "return True",
        "tests/gpus/ledger/test_lease_scan.py",
    ),
    Mutant(
        "a scan of the ledger keeps a bounded number of files open",
        "postroom/gpus/ledger/lease_scan.py",
        "if len(self._files) >= OPEN_LIMIT:",
        "if False:",
        "tests/gpus/ledger/test_lease_scan.py",
    ),
    Mutant(
        "what was promised to a line is not promised to another",
        PACKER,
        "            if name + self._where not in booked\n",
        "            if False\n",
        PACKED,
    ),
    Mutant(
        "one line of an unknown kind measures at a time",
        PACKER,
        "if line.kind.type in measured or ",
        "if ",
        PACKED,
    ),
    Mutant(
        "a job that ran out of memory goes only to a GPU with more",
        PACKER,
        "card.memory_mib > learned.at_least_mib]",
        "True]",
        PACKED,
    ),
    Mutant(
        "the large are placed before the small",
        "postroom/gpus/memory/placement.py",
        "-(request.memory_mib or 0)",
        "0",
        "tests/gpus/memory/test_placement.py",
    ),
    Mutant(
        "a card is drained for a line that finds no room",
        "postroom/gpus/memory/placement.py",
        "most_drained=len(available)",
        "most_drained=0",
        PACKED,
    ),
    Mutant(
        "what lies under a name of shared data is compared",
        JOB_WRITER,
        "if not won and not _holds(files, path, chunks):",
        "if False:",
        "tests/dispatch/test_job_writer.py",
    ),
    Mutant(
        "shared data of a durable run is synced, no matter who wrote it",
        JOB_WRITER,
        "            files.sync_file(path)",
        "            pass",
        "tests/dispatch/test_job_writer.py",
    ),
    Mutant(
        "a process without parent and mark is ended with its group",
        "postroom/system/cgroups.py",
        '            _write(f"{path}/cgroup.kill", b"1")\n',
        "            pass\n",
        "tests/system/test_cgroups.py",
    ),
    Mutant(
        "half a line does not shorten a letter",
        MAILBOX,
        "if self.first < stop < self.stop and cut == self._cut(stop)[1:]:",
        "if self.first < stop < self.stop:",
        "tests/store/test_mailbox.py",
    ),
    Mutant(
        "shortening a letter keeps its current job",
        INBOX,
        "            self._letter, line = letter.shortened(job + 1)\n",
        "            line = letter.shortened(max(job, letter.first + 1))[1]\n"
        "            self._letter = letter.shortened(job + 1)[0]\n",
        "tests/test_simulation.py::test_in_a_quiet_world_every_command_runs_once_though_long_ones_"
        "stand_between_short_ones",
    ),
    Mutant(
        "a job that was left to others is not started",
        INBOX,
        "            self._letter, line = letter.shortened(job + 1)\n",
        "            _, line = letter.shortened(job + 1)\n",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "the Master takes back what was left, and no more",
        DISPATCHER,
        "active.queue.put_back(shorter.stop, letter.stop)",
        "active.queue.put_back(shorter.stop - 1, letter.stop)",
        "sim 0-299",
    ),
    Mutant(
        "a letter that was shortened counts as what is left of it",
        DISPATCHER,
        "        agent.letter = shorter\n",
        "",
        "sim 0-299",
    ),
    Mutant(
        "a command that failed with retries left is noted, not published",
        "postroom/commands/outcome_record.py",
        "if failure is not None and ended.again is not None:",
        "if failure is None and ended.again is not None:",
        "tests/commands/test_minder.py",
    ),
    Mutant(
        "a command is published by its minder before the worker is told",
        "postroom/commands/minder.py",
        'return b"done" if self._insist(write) else b"dropped"',
        'return b"done"',
        "tests/commands/test_minder.py",
    ),
    Mutant(
        "tasks are published before a command is begun",
        INBOX,
        "return (sheet.task, sheet.options) != (self._task, self._options)",
        "return sheet.options != self._options",
        "sim 0-299",
    ),
    Mutant(
        "a command that ended well is not run again",
        "postroom/commands/minder.py",
        "if folder.has_ended_well(attempt.job_name):",
        "if folder.has_ended_well(attempt.name):",
        "tests/commands/test_minder.py",
    ),
    Mutant(
        "a guardian waits for the minder of a dead worker's command",
        "postroom/session/guardian.py",
        "if dead and not self._relay.busy:",
        "if dead:",
        "tests/processes/test_warm_commands.py",
    ),
    Mutant(
        "a minder shares the agent's lock",
        "postroom/commands/minder.py",
        "keep={lock, keep, *self.lease_fds}",
        "keep={keep, *self.lease_fds}",
        "tests/processes/test_warm_commands.py",
    ),
    Mutant(
        "a worker ends with its guardian, also when that has not read everything",
        "postroom/session/worker.py",
        "with contextlib.suppress(ConnectionResetError):",
        "with contextlib.nullcontext():",
        "tests/session/test_worker.py",
    ),
    Mutant(
        "what a killed minder leaves is swept",
        "postroom/session/guardian.py",
        "            self._sweep(spared)\n",
        "",
        "tests/processes/test_warm_commands.py",
    ),
    Mutant(
        "a result that cannot travel is kept aside",
        "postroom/session/kept_result.py",
        "    files.move(temporary, path)\n",
        "    files.remove(temporary)\n",
        "tests/session/test_kept_result.py",
    ),
    Mutant(
        "a result that cannot be copied is published before the next job",
        "postroom/session/tasks.py",
        "nbytes = PUBLISH_BYTES\n",
        "pass\n",
        "tests/session/test_tasks.py",
    ),
    Mutant(
        "a file can have values made of nothing but dataclasses, named tuples and enums",
        "postroom/parcel/value_kinds.py",
        'if tag == "$dataclass" and dataclasses.is_dataclass(cls) and _is_plain(cls):',
        'if tag == "$dataclass":',
        "tests/parcel/test_value_kinds.py",
    ),
    Mutant(
        "a parcel that looks like another is compared as a whole",
        CONTAINER,
        "if mould.cast(int(first), pieces) != data:",
        "if len(mould.cast(int(first), pieces)) != len(data):",
        "tests/parcel/test_container.py",
    ),
    Mutant(
        "what was learned of one array does not hold for another of its name and size",
        "postroom/parcel/decode.py",
        "if known is not None and view[: len(known[0])].tobytes() == known[0]:",
        "if known is not None:",
        "tests/parcel/test_encode.py",
    ),
    Mutant(
        "changing one result changes no other",
        "postroom/parcel/sheets.py",
        "                return copied(tree)\n",
        "                return tree\n",
        "tests/parcel/test_sheets.py",
    ),
    Mutant(
        "a new result is collected at once",
        DISPATCHER,
        'agent.look_at, agent.answer = 0.0, ""',
        'agent.answer = ""',
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "what was ordered of a job is forgotten when it has ended unseen",
        REQUEST_EXECUTOR,
        "self._dirty |= ended_well is not None and self.orders.forget(job)",
        "pass",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "a job that runs out of memory before it is measured is learned from",
        "postroom/gpus/memory/booking.py",
        "if out_of_memory and (self.meter is not None or alone):",
        "if out_of_memory and self.meter is not None:",
        "tests/gpus/memory/test_booking.py",
    ),
    Mutant(
        "a worker takes down no mailbox but its own",
        INBOX,
        'self._files.move(self._base.mailbox(self._agent_id), f"{self._outbox}/mailbox")',
        "self._files.remove(self._base.mailbox(self._agent_id))",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "a letter carries its checksum",
        MAILBOX,
        "if said is None or data[:_PREFIX] != head:",
        "if said is None or data[: len(_STAMP) + 4] != head[: len(_STAMP) + 4]:",
        "tests/store/test_mailbox.py",
    ),
    Mutant(
        "a letter carries its length",
        MAILBOX,
        "        body = data[_PREFIX:]\n",
        "        body = data[_PREFIX:][: int(data[len(_STAMP) :][:4] or 0)]\n",
        "tests/store/test_mailbox.py",
    ),
    Mutant(
        "garbage in a mailbox is no letter",
        MAILBOX,
        "said = _BODY.fullmatch(body)",
        "said = _BODY.match(body)",
        "tests/store/test_mailbox.py",
    ),
    Mutant(
        "a letter that makes no sense is no letter",
        MAILBOX,
        "        if not letter._sensible():\n            return None\n",
        "",
        "tests/store/test_mailbox.py",
    ),
    Mutant(
        "a box is not touched after the last byte of a letter",
        FILES,
        "            offset += os.pwrite(self._fd, letter[offset:], offset)\n",
        "            offset += os.pwrite(self._fd, letter[offset:], offset)\n"
        "        os.ftruncate(self._fd, len(letter))\n",
        "tests/store/test_mailbox.py",
    ),
    Mutant(
        "a name is taken, never replaced",
        FILES,
        "            os.link(temporary, final)\n            won = True\n",
        "            os.replace(temporary, final)\n            won = True\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "after a failed link the files are compared",
        FILES,
        "won = _same_file(temporary, final)",
        "won = False",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a durable file is synced before it has its name",
        FILES,
        "                if sync:\n                    os.fsync(fd)\n",
        "",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "the name of a durable result is synced",
        RUNS,
        "                files.sync_folder(base.result_folder(info.run))\n            return True",
        "                pass\n            return True",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a durable run is synced before its submitter is told",
        RUNS,
        "            files.sync_folder(base.job_pool)\n",
        "            pass\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a durable result is synced before a Master hands it out",
        COLLECTOR,
        "            self._files.sync_folder(self._base.result_folder(run))\n",
        "            pass\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a durable result is synced before a waiting Master hands it out",
        JOBS,
        "            self._files.sync_folder(folder)\n",
        "            pass\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a publisher that finds a name taken follows the chain",
        RUNS,
        "            first += count_jobs(files, base.result(info.run, first))\n",
        "            first += 1\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a publisher that finds a name taken drops only what is covered",
        RUNS,
        "            first += count_jobs(files, base.result(info.run, first))\n",
        "            return True\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a record is valid only at its stored offset",
        APPEND_LOG,
        "    if int(said_at, 16) != at or size",
        "    if size",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "a writer that is too late for its place writes its record again",
        APPEND_LOG,
        "            if self._file.append([filling, _header(record, crc), body]) == size:\n"
        "                break\n",
        "            self._file.append([filling, _header(record, crc), body])\n            break\n",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "a record that was cut short is not valid",
        APPEND_LOG,
        " or crc32(memoryview(data)[body:end]) != int(crc, 16):",
        ":",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "what fills up behind half a record does not complete it",
        APPEND_LOG,
        '_FILLING = b"-"\n',
        '_FILLING = b"\\0"\n',
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "a torn record is skipped",
        APPEND_LOG,
        "        place = data.find(_STAMP, place + 1)\n        while",
        "        place = -1\n        while",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "the data of a job holds nothing that begins like a record",
        APPEND_LOG,
        " or _STAMP in body:",
        ":",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "nobody appends to a log that a newer Postroom has written to",
        APPEND_LOG,
        "        if newer and crc32",
        "        if False and crc32",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "a durable record is synced before its submitter is told",
        APPEND_LOG,
        "            self._file.sync()\n        if not",
        "            pass\n        if not",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "a writer checks whether the run was removed",
        APPEND_LOG,
        "        if not self._file.is_at(self._path):\n",
        "        if False:\n",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "no durable job is begun before its record is safe",
        APPEND_LOG,
        "            if found and sync:\n",
        "            if False:\n",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "the name of a durable append log is safe before anybody appends",
        RUNS,
        '        files.write_new(f"{place}/{APPEND_LOG}", [b""], sync=info.durable)\n',
        "        pass\n",
        "tests/store/test_append_log.py",
    ),
    Mutant(
        "what another version has written is not put aside",
        REGISTRY,
        "        if isinstance(error, OtherVersionError):\n            raise error\n",
        "",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "an unknown field is of another version, and not bad",
        "postroom/store/records.py",
        '            raise UnknownError(f"it has an unknown',
        '            raise ValueError(f"it has an unknown',
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "another version number is not bad",
        "postroom/store/records.py",
        '            raise OtherVersionError(path, f"it is {cls',
        '            raise BadFileError(path, f"it is {cls',
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "a result of another version is not put aside",
        REGISTRY,
        "        except OtherVersionError as error:\n"
        "            self.leave(run, error)\n            return None\n",
        "",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "a note of another version blames nobody",
        RUNS,
        "    except OtherVersionError:\n        raise\n    except BadFileError as error:\n"
        "        return Note(",
        "    except BadFileError as error:\n        return Note(",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "a session makes up no result for jobs of another version",
        INBOX,
        "        except OtherVersionError:\n            raise\n"
        "        except (BadFileError, FileNotFoundError) as error:\n",
        "        except (BadFileError, FileNotFoundError) as error:\n",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "a letter about a run of another version is kept",
        INBOX,
        "        except OtherVersionError:\n            raise\n"
        "        except (FileNotFoundError, BadFileError) as error:\n",
        "        except (FileNotFoundError, BadFileError) as error:\n",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "a request of another version waits",
        REQUEST_EXECUTOR,
        "            self._registry.leave_file(error)\n            return False\n",
        "            self._files.remove(error.path)\n            return False\n",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "nothing begins while the orders cannot be read",
        DISPATCHER,
        "        if self._undecided:\n            return False\n",
        "",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "orders that cannot be read are not replaced",
        DISPATCHER,
        "            if not self._undecided:\n                moved",
        "            if True:\n                moved",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "nothing is removed while a later version may need it",
        CLEANING,
        "    for error in base_state.other_versions:\n        raise error\n",
        "",
        "tests/queue/test_cleaning.py",
    ),
    Mutant(
        "only the acting Master puts results aside",
        RUNS,
        "        except BadFileError:\n            return False\n    return True\n",
        "        except BadFileError as error:\n"
        "            reject(files, base, error.path, error.reason)\n    return True\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a note is written before the mailbox goes",
        RUNS,
        "                write_note(files, base, note)\n    files.remove(base.mailbox(agent_id))\n",
        "                pass\n    files.remove(base.mailbox(agent_id))\n"
        "    if note:\n        write_note(files, base, note)\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "only the current job of a letter is blamed",
        RUNS,
        "hand is not None and hand.letter_id == letter.letter_id",
        "hand is not None",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a job with a result is not blamed",
        RUNS,
        "            if missing <= hand.job:\n",
        "            if missing <= letter.stop:\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a torn note still ends its attempt",
        RUNS,
        '        return Note(run, job, attempt, "lost", "", reason=f"unknown: its note '
        '{error.reason}", at=0)\n',
        "        return None\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "an outbox is closed before its range is requeued",
        RUNS,
        "    close_outboxes(files, base, agent_id)\n    letter =",
        "    letter =",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a closed outbox is emptied",
        RUNS,
        '                    files.remove(f"{base.trash}/{name}/{file}")\n',
        "                    pass\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "a run is seen whole or not at all",
        RUNS,
        "        files.move(place, folder)\n        place = folder\n",
        "        place = folder\n",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "mailboxes are read before results",
        DISPATCHER,
        "        for agent_id in list_agents(self._files, self._base):\n"
        "            self._add_agent(agent_id)\n"
        "        self._registry.recover(self._out)\n",
        "        register = self._registry\n"
        "        runs = self._files.names(self._base.job_pool)\n"
        "        covered = {run: register.covered(run) for run in runs}\n"
        "        for agent_id in list_agents(self._files, self._base):\n"
        "            self._add_agent(agent_id)\n"
        "        register.covered = covered.__getitem__  # type: ignore[method-assign]\n"
        "        register.recover(self._out)\n"
        "        del register.covered\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a letter that is out is not sent again",
        REGISTRY,
        "queue.recover(firsts, log.number, sent, covered, offsets)",
        "queue.recover(firsts, log.number, [], covered, offsets)",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "each Master has a higher epoch",
        DISPATCHER,
        "return max(epochs, default=0) + 1",
        "return max(epochs, default=1)",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a range is split only when its holder is known to have stopped",
        DISPATCHER,
        "        lock = self._files.try_lock(self._base.agent_lock(agent.agent_id))\n"
        "        if lock is None:\n            return False\n",
        "        lock = self._files.try_lock(self._base.agent_lock(agent.agent_id))\n"
        "        if lock is None:\n"
        '            lock = self._files.try_lock(self._base.agent_lock("guess"))\n'
        "        assert lock is not None\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "the results of the dead are collected after they are cleared away",
        DISPATCHER,
        "                self._files.remove(self._base.agent_info(agent.agent_id))\n"
        "            if agent.letter is not None:\n"
        "                self._collector.collect(agent, agent.letter)\n",
        "                self._files.remove(self._base.agent_info(agent.agent_id))\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "the lock file of a dead agent stays",
        DISPATCHER,
        "                self._files.remove(self._base.agent_info(agent.agent_id))\n",
        "                self._files.remove(self._base.agent_info(agent.agent_id))\n"
        "                self._files.remove(self._base.agent_lock(agent.agent_id))\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "results are collected once more when a mailbox is empty",
        DISPATCHER,
        "            self._collector.collect(agent, letter)\n            agent.letter = None\n",
        "            agent.letter = None\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a letter counts as sent from its first byte on",
        DISPATCHER,
        "            agent.doubtful = True\n            raise\n",
        "            agent.letter = None\n            raise\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "half a letter is cleared",
        DISPATCHER,
        "            if Letter.decode(agent.box.read()) is None:\n"
        "                agent.box.clear()  # half a letter is no letter: nobody has it\n",
        "",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a mailbox is empty before it is filled",
        DISPATCHER,
        "        if agent.box.size():\n            self._clean_box(agent, agent.box.read())\n"
        "        # It counts",
        "        # It counts",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "holes in a chain are filled, and nothing beside them",
        DISPATCHER,
        "            left = self._collector.collect_behind_gap(letter, reached)\n",
        "            pass\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a run that a listing misses is looked for",
        REGISTRY,
        "            if not self._files.exists(self._base.run_folder(run)):\n"
        "                del self.runs[run]\n",
        "            del self.runs[run]\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a bad result is put aside",
        REGISTRY,
        "        except BadFileError as error:\n            self.reject(error)\n"
        "            return None\n\n    def reject",
        "        except BadFileError as error:\n            return None\n\n    def reject",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "three lost attempts make a job lost",
        RUN_QUEUE,
        "MOST_LOST = 3\n",
        "MOST_LOST = 4\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a job with a history travels alone",
        RUN_QUEUE,
        "            limit = first + 1  # a letter",
        "            pass  # a letter",
        "tests/dispatch/test_run_queue.py",
    ),
    Mutant(
        "what is covered does not wait",
        RUN_QUEUE,
        "self._waiting = gaps(n_jobs, [*sent, *covered])",
        "self._waiting = gaps(n_jobs, [*sent, *counted])",
        "tests/dispatch/test_run_queue.py",
    ),
    Mutant(
        "an older epoch is ignored",
        INBOX,
        "if letter is None or letter.epoch < self._epoch:",
        "if letter is None:",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "a box is cleared only after the results are out",
        INBOX,
        "        try:\n            self._commit()\n            if self._retry is not None:\n",
        "        self._box.clear()\n"
        "        try:\n            self._commit()\n            if self._retry is not None:\n",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "a full disk blocks, it does not lose",
        INBOX,
        "            return Step.BLOCKED\n        if self._blocked:\n",
        "            self._end_letter()\n"
        "            return Step.BLOCKED\n        if self._blocked:\n",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "the current job is named before it is started",
        INBOX,
        '        self._say("running", letter, job, started_at)\n',
        "",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "an I/O error is not the job's fault",
        INBOX,
        "        except (BadFileError, FileNotFoundError) as error:\n            failure =",
        "        except (BadFileError, OSError) as error:\n            failure =",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "a worker that was taken for dead ends",
        INBOX,
        "                raise  # we were taken for dead",
        "                pass  # we were taken for dead",
        "tests/session/test_inbox.py",
    ),
    Mutant(
        "the epoch is on disk before the first letter",
        MASTER,
        "        self._write_info(dispatcher.epoch)\n        self._dispatcher = dispatcher\n",
        "        self._dispatcher = dispatcher\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "after an I/O error a Master begins with recovery",
        MASTER,
        "            self._step_down()\n            self._ask_at = now + STAND_BY_S\n",
        "            self._ask_at = now + STAND_BY_S\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "there is one acting Master, by lock",
        MASTER,
        "        lock = self._files.try_lock(self.base.master_lock)\n        if lock is None:\n"
        "            return\n",
        "        lock = self._files.try_lock(self.base.master_lock, shared=True)\n"
        "        if lock is None:\n            return\n",
        "tests/dispatch/test_dispatcher.py",
    ),
    Mutant(
        "a job that needs a failed job never starts",
        PROJECT_QUEUE,
        "if other in self._scheduling[job].after and not ended_well:",
        "if not ended_well and False:",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "a job can be killed although nobody wants its run served",
        REQUEST_EXECUTOR,
        "            self._registry.bring_in(run)\n",
        "",
        "tests/queue/test_actions.py",
    ),
    Mutant(
        "who only carries out requests begins no job",
        DISPATCHER,
        "if send and now >= self._blocked_until:",
        "if now >= self._blocked_until:",
        "tests/queue/test_actions.py",
    ),
    Mutant(
        "a program that acts for a while leaves requests for sessions to the scheduler",
        REQUEST_EXECUTOR,
        "if self._sessions is None and request.verb in (RequestVerb.ADD, RequestVerb.REMOVE):",
        "if False:",
        "tests/queue/test_actions.py",
    ),
    Mutant(
        "a held job is not ready",
        PROJECT_QUEUE,
        "if self._missing.get(job) or is_held(self._orders, name, scheduling):",
        "if self._missing.get(job):",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "a job goes only to a session that has what it needs",
        PROJECT_QUEUE,
        "if heap and capacity.has(gpus, memory_mib):",
        "if heap:",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "orders are on disk before they are acted on",
        REQUEST_EXECUTOR,
        "        self._change_orders(request)\n        self._save()\n",
        "        self._change_orders(request)\n",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "a killed job is not sent again",
        REQUEST_EXECUTOR,
        "            if job in self.orders.killed:\n                self._kill([job])\n",
        "            pass\n",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "the next Master carries out the orders of the last",
        REQUEST_EXECUTOR,
        "        self._kill([job for job in self.orders.killed if job.run == run])\n",
        "",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "an agent that is drained gets no letter",
        DISPATCHER,
        "agent.agent_id not in orders.drained",
        "True",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "a paused job is not started",
        DISPATCHER,
        "            and not orders.is_paused(run, active.project)\n",
        "",
        "tests/dispatch/test_request_executor.py",
    ),
    Mutant(
        "what a command starts to save its work is not ended with it",
        MINDER,
        "ask = pid not in asked and (first or parent_of(pid) == me)",
        "ask = pid not in asked",
        "tests/processes/test_queue.py::test_what_is_preempted_goes_on_from_its_checkpoint",
    ),
    Mutant(
        "being stopped counts as no failure",
        MINDER,
        'return Failure(Outcome.CANCELLED, "stopped", order.reason), "stopped"',
        'return Failure(Outcome.CANCELLED, "stopped", order.reason), "failed"',
        "tests/processes/test_queue.py::test_what_is_preempted_goes_on_from_its_checkpoint",
    ),
    Mutant(
        "the page answers to its own names only",
        REQUEST_GUARD,
        "if match is None or match[1].lower() not in self._hosts:",
        "if match is None:",
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page refuses other origins",
        REQUEST_GUARD,
        "if any(origin.lower() not in own for origin in origins):",
        "if any(origin.lower() not in own for origin in origins) and method not in READING:",
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page tells neighbours from itself",
        REQUEST_GUARD,
        'word not in ("same-origin", "none") for word',
        'word not in ("same-origin", "same-site", "none") for word',
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page takes a change by cookie only from a form of its own",
        REQUEST_GUARD,
        'if opened_by == "cookie":',
        'if opened_by == "cake":',
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page takes a change only with an origin",
        REQUEST_GUARD,
        "if not proven or len(given) != 1",
        "if len(given) != 1",
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page does not wait for a slow body",
        REQUEST_GUARD,
        "async with asyncio.timeout(BODY_S):",
        "async with asyncio.timeout(BODY_S * 100):",
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page does not wait for a slow head",
        "postroom/web/server.py",
        "        super().connection_made(transport)\n        self._wait_for_head()\n",
        "        super().connection_made(transport)\n",
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page leads nowhere else with the token",
        REQUEST_GUARD,
        'path: str = "/" + scope["path"].lstrip("/")',
        'path: str = scope["path"]',
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page escapes what jobs say",
        "postroom/web/context.py",
        "autoescape=True",
        "autoescape=False",
        "tests/web/test_request_guard.py",
    ),
    Mutant(
        "the page follows no link to a log",
        "postroom/web/log_reader.py",
        "here = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC",
        "here = os.O_RDONLY | os.O_CLOEXEC",
        "tests/web/test_log_reader.py",
    ),
    Mutant(
        "the page looks only while somebody listens",
        "postroom/web/live_updates.py",
        "            if not self._listeners:\n                self.close()\n",
        "",
        "tests/web/test_live_updates.py",
    ),
    Mutant(
        "a form of the page leads back to the page",
        "postroom/web/forms.py",
        "return path if _BACK.fullmatch(path) else default",
        "return path or default",
        "tests/web/test_forms.py",
    ),
    Mutant(
        "runs of equal priority take turns",
        "postroom/dispatch/send_order.py",
        "return -priority, age <= last, age",
        "return -priority, False, age",
        "tests/queue/test_waiting_order.py",
    ),
    Mutant(
        "a listing shows the order of the dispatcher, from one priority to the next too",
        "postroom/queue/waiting_order.py",
        "                    last = run.age\n",
        "",
        "tests/queue/test_waiting_order.py",
    ),
    Mutant(
        "a message that was sent is not sent again",
        NOTIFY,
        'if files.exists(f"{envelope.notice}.json") and not files.exists(marker):',
        "if True:",
        "tests/queue/test_notify.py::test_a_late_sender_sends_nothing",
    ),
    Mutant(
        "a run to which somebody has just appended is not closed",
        CLEANING,
        "return _ended(files, base, run, base.run_folder(run)) == jobs and run not in in_use()",
        "return run not in in_use()",
        "tests/queue/test_cleaning.py::test_a_job_that_is_appended_at_the_last_moment_stays",
    ),
    Mutant(
        "a run that somebody has begun to wait for is not closed",
        CLEANING,
        "return _ended(files, base, run, base.run_folder(run)) == jobs and run not in in_use()",
        "return _ended(files, base, run, base.run_folder(run)) == jobs",
        "tests/queue/test_cleaning.py"
        "::test_a_run_is_not_removed_while_a_job_is_submitted_that_waits_for_it",
    ),
    Mutant(
        "who submits a job keeps the runs that it waits for",
        "postroom/queue/submission.py",
        "            stack.enter_context(appending(files, base, run))\n",
        "            pass\n",
        "tests/queue/test_cleaning.py"
        "::test_a_run_is_not_removed_while_a_job_is_submitted_that_waits_for_it",
    ),
    Mutant(
        "a run that somebody appends to is not closed",
        CLEANING,
        "        lock = files.try_lock(base.wanted(run))\n",
        "        lock = files.try_lock(base.wanted(run), shared=True)\n",
        "tests/queue/test_cleaning.py::test_a_run_that_somebody_appends_to_stays",
    ),
    Mutant(
        "nothing is appended to a run that is closed",
        RUNS,
        "if not files.exists(base.closed(run)) and files.exists(base.run_folder(run)):",
        "if files.exists(base.run_folder(run)):",
        "tests/queue/test_cleaning.py"
        "::test_whenever_it_is_killed_the_next_one_finishes_and_no_job_is_lost",
    ),
    Mutant(
        "shared data stays while a run is begun that refers to it",
        "postroom/master.py",
        "            else referring_to_data(self._files, self.base)\n",
        "            else contextlib.nullcontext()\n",
        "tests/queue/test_cleaning.py::TestSharedData",
    ),
    Mutant(
        "the environment of queued commands is stored before they are",
        "postroom/queue/submission.py",
        "            need.put(files, base, info.run)\n",
        "            pass\n",
        "tests/commands/test_job_environment.py",
    ),
    Mutant(
        "a snapshot that was changed is not used",
        "postroom/commands/code_snapshot.py",
        "            if _digest(self._path) != self._name:",
        "            if False:",
        "tests/commands/test_code_snapshot.py",
    ),
    Mutant(
        "a file of a snapshot that the command wrote to is kept",
        "postroom/commands/code_snapshot.py",
        "                if _mark(path) == mark:",
        "                if True:",
        "tests/commands/test_code_snapshot.py",
    ),
    Mutant(
        "an environment that was changed is not used",
        "postroom/commands/job_environment.py",
        "    if found.name != name:",
        "    if False:",
        "tests/commands/test_job_environment.py",
    ),
    Mutant(
        "a removed run is marked as closed until all of it is gone",
        CLEANING,
        "            if name != CLOSED:\n",
        "            if True:\n",
        "tests/queue/test_cleaning.py"
        "::test_whenever_it_is_killed_the_next_one_finishes_and_no_job_is_lost",
    ),
    Mutant(
        "nobody knows that a removed job ended well",
        REGISTRY,
        "                found[job] = False\n                continue\n",
        "                found[job] = True\n                continue\n",
        "tests/dispatch/test_registry.py",
    ),
    Mutant(
        "an open run whose making failed stays if others have appended to it",
        RUNS,
        "        if logged_until(files, base.append_log(run)) == made:\n            files.move(",
        "        if True:\n            files.move(",
        "tests/store/test_runs.py",
    ),
    Mutant(
        "only a folder that is unchanged for a while is taken as seen",
        RUN_READER,
        "settled = time.time_ns() - changed > _TICK_NS",
        "settled = True",
        "tests/queue/test_run_reader.py::test_two_results_of_one_tick_are_both_seen",
    ),
    Mutant(
        "a bad result is looked at again",
        RUN_READER,
        "if not self.counts.get(first):",
        "if first not in self.counts:",
        "tests/queue/test_result_cache.py",
    ),
]
