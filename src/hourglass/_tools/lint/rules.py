"""The rules (the problem, the reason and the remedy, as a table), and the report of a check: findings and their
call paths.

Data only: the search is in `body` and `checker`.
"""

from __future__ import annotations

from dataclasses import dataclass

CLOCK, RANDOM, SLEEP, SET_ORDER, ENVIRONMENT, FILES, NETWORK, THREADS, LOCKS = (
    f"HG{number}" for number in range(101, 110)
)
GLOBALS, IMPORT_TIME, IDENTITY, CACHED, REPLAY_BRANCH, CHANGED_MEANWHILE, NEVER_CAUGHT, ENDLESS = (
    f"HG{number}" for number in range(110, 118)
)
BROKEN = "HG001"


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. `reason` and `remedy` have one line each; `example` shows code before and after the remedy."""

    code: str
    title: str
    reason: str
    remedy: str
    explanation: str
    wrong: str = ""
    right: str = ""


_AGAIN = (
    "Workflow code is executed again after a crash or a deploy, with the recorded results of its commands. "
)

_ALL = (
    Rule(
        BROKEN,
        "file cannot be read",
        "a file that cannot be parsed cannot be checked",
        "fix the file",
        (
            "The file is not valid Python for the interpreter that runs the check, or cannot be read or decoded. The other "
            "files are still checked; calls into this file are not followed."
        ),
    ),
    Rule(
        CLOCK,
        "reads a clock",
        "the time differs when the code is executed again",
        "use workflow.now() or workflow.time()",
        _AGAIN
        + (
            "The clock then shows a later time: the code may take another branch, start a timer with another duration, or "
            "pass another argument to an activity. workflow.now() is the time of the recorded step, the same on every "
            "execution."
        ),
        "deadline = datetime.now() + timedelta(days=3)",
        "deadline = workflow.now() + timedelta(days=3)",
    ),
    Rule(
        RANDOM,
        "reads randomness",
        "the values differ when the code is executed again",
        "use workflow.random() or workflow.uuid4()",
        _AGAIN
        + (
            "Random numbers and new UUIDs then differ. workflow.random() is a generator seeded by the run, and "
            "workflow.uuid4() draws from it: both return the same values on every execution, and different values for each "
            "run."
        ),
        "order_id = str(uuid.uuid4())",
        "order_id = str(workflow.uuid4())",
    ),
    Rule(
        SLEEP,
        "blocks the thread",
        "the sleep blocks all workflows of this worker, and starts again after a crash",
        "use workflow.sleep()",
        (
            "time.sleep stops the thread that runs the workflows of this worker, is not recorded, and starts from the beginning "
            "after a crash. workflow.sleep is durable and costs nothing, for seconds or for months."
        ),
        "time.sleep(60)",
        "workflow.sleep(60)",
    ),
    Rule(
        SET_ORDER,
        "depends on the order of a set",
        "another process iterates over the same set in another order",
        "sort the set: for item in sorted(…)",
        (
            "The order of a set of strings depends on a random seed of the Python process, and the order of a set of objects on "
            "their addresses. A worker that takes over a run would issue the same commands in another order, which does not "
            "match the history. Sort the set, or use a list or a dict, which keep the order of insertion. Membership tests, "
            "len, min, max, sum, any, all and sorted are fine."
        ),
        "for name in {item.name for item in items}:\n    reserve(name)",
        "for name in sorted({item.name for item in items}):\n    reserve(name)",
    ),
    Rule(
        ENVIRONMENT,
        "reads the environment",
        "the environment differs on another machine, or after a deployment",
        "pass it as an argument, or read it in an activity",
        _AGAIN
        + (
            "This may happen on another machine, with other environment variables, another process id, another host name "
            "and other command line arguments."
        ),
        'if os.environ.get("STRICT"):\n    verify(order)',
        "if order.strict:\n    verify(order)",
    ),
    Rule(
        FILES,
        "touches files",
        "the files may differ when the code is executed again, or on another machine",
        "access files in an activity",
        _AGAIN
        + (
            "By then the files may have changed, or be on another machine, and their names are listed in any order. An "
            "activity reads them once, and its result is recorded."
        ),
        'rates = json.loads(Path("rates.json").read_text())',
        "rates = load_rates()  # an activity",
    ),
    Rule(
        NETWORK,
        "uses the network or another process",
        "the request is sent again on every execution, and the response may differ",
        "send the request in an activity",
        _AGAIN
        + (
            "The request would be sent each time, and its response could differ. An activity sends the request, is retried "
            "when it fails, and its result is recorded. The same applies to databases and other processes."
        ),
        "price = httpx.get(url).json()",
        "price = fetch_price(url)  # an activity",
    ),
    Rule(
        THREADS,
        "starts threads or an event loop",
        "the history does not record when threads continue",
        "use workflow.spawn() or workflow.map(), or do it in an activity",
        (
            "The operating system decides each time which thread runs first. Code in other threads is not part of the workflow: "
            "it cannot call activities or wait. workflow.spawn runs functions concurrently, in an order that is the same on "
            "every execution. asyncio's tasks are for `async def` code, which has the workflow's own event loop."
        ),
        "with ThreadPoolExecutor() as pool:\n    results = list(pool.map(price, items))",
        "results = workflow.map(price, items, limit=10)",
    ),
    Rule(
        LOCKS,
        "synchronizes threads",
        "it blocks the thread of all workflows, or admits two of them at once",
        "use workflow.Lock, Semaphore, Queue or Event",
        (
            "The workflows of a worker share a thread. A threading.Lock that is held during a wait blocks all of them; an RLock "
            "admits all of them. workflow.Lock, Semaphore, Queue and Event wait durably and wake their waiters in the same "
            "order on every execution."
        ),
        "with threading.Lock():\n    charge(order)",
        "with lock:  # made with workflow.Lock() in this workflow\n    charge(order)",
    ),
    Rule(
        GLOBALS,
        "depends on a global that changes",
        "other runs and other processes see another value",
        "keep it in a local variable or on self; pass it as an argument",
        (
            "A module's variables are shared by all runs in a process, live as long as the process, and start again in the "
            "next. A workflow that reads or changes such a variable may behave differently when it is executed again. The state "
            "of a run belongs in local variables or on self, where it is rebuilt with the run. Constants are fine."
        ),
        "counter += 1  # a global\nnotify(counter)",
        "self.counter += 1\nnotify(self.counter)",
    ),
    Rule(
        IMPORT_TIME,
        "reads a value that differs between processes",
        "each process computes it again when it imports the module",
        "compute it in the workflow from workflow.now() or workflow.random(), or pass it as an argument",
        (
            "The variable is set when its module is imported, from a clock, from randomness or from the environment. A worker "
            "that starts later has another value, and uses it to execute open runs."
        ),
        "STARTED = datetime.now()\n…\nage = workflow.now() - STARTED",
        "age = workflow.now() - workflow.info().start_time",
    ),
    Rule(
        IDENTITY,
        "depends on addresses or hash seeds",
        "id() and hash() differ in the next process",
        "use a key of your own, or hashlib",
        (
            "id() is a memory address. hash() of a string, or of a value that contains a string, depends on a random seed of "
            "the Python process. For buckets and keys use zlib.crc32 or hashlib, which return the same value everywhere."
        ),
        "shard = hash(order.id) % 8",
        "shard = zlib.crc32(order.id.encode()) % 8",
    ),
    Rule(
        CACHED,
        "caches the result of a command",
        "a run that finds the value in the cache does not issue the command that its history contains",
        "remove the cache: results are recorded in the run's history",
        (
            "functools.cache keeps results for the whole process. The first run calls the activity, the next run does not; if "
            "that run is executed again in another process, it does. Within a run, keep the result in a variable."
        ),
        "@functools.cache\ndef rate(currency):\n    return fetch_rate(currency)  # an activity",
        "def rate(currency):\n    return fetch_rate(currency)",
    ),
    Rule(
        REPLAY_BRANCH,
        "issues commands depending on replay or log level",
        "when the code is executed again, it takes the other branch",
        "issue the command in both cases; for log messages use workflow.logger, which is quiet during replay",
        (
            "workflow.is_replaying() differs by definition when the code is executed again, and a log level is a setting of the "
            "process. The commands of a workflow must depend on neither. Skipping a log message or a metric is fine."
        ),
        "if not workflow.is_replaying():\n    notify(order)",
        "notify(order)",
    ),
    Rule(
        CHANGED_MEANWHILE,
        "waits while it iterates over a collection that changes",
        "while it waits, a handler or another task changes the collection",
        "iterate over a copy: for item in list(…)",
        (
            "While the body of a loop waits, handlers of signals and updates and spawned functions run. If they change the dict "
            "or list over which the loop iterates, Python raises an exception or skips elements, and the run may be parked."
        ),
        "for name, item in self.items.items():\n    ship(item)",
        "for name, item in list(self.items.items()):\n    ship(item)",
    ),
    Rule(
        NEVER_CAUGHT,
        "catches an exception that never arrives",
        "the exception arrives as the cause of another one",
        (
            "catch ActivityError (for a child workflow, ChildWorkflowError) and check error.cause, whose type is the name of "
            "the exception class"
        ),
        (
            "An activity or a child workflow may run in another process, or even in another language. After its last retry, the "
            "workflow receives its exception as the cause of an ActivityError or a ChildWorkflowError, which `except Declined` "
            "does not catch, so the run fails. The cause is an ApplicationError whose type is the name of the exception class; "
            "after a timeout it is a TimedOutError. If a retry cannot help, list the type in non_retryable_error_types, or "
            "raise ApplicationError(…, non_retryable=True)."
        ),
        "try:\n    charge(order)  # an activity\nexcept Declined:\n    refuse(order)",
        "try:\n    charge(order)\nexcept ActivityError as error:\n"
        '    if not isinstance(error.cause, ApplicationError) or error.cause.type != "Declined":\n        raise\n'
        "    refuse(order)",
    ),
    Rule(
        ENDLESS,
        "calls itself without end",
        "each run waits for a child that starts the next child, and none ever ends",
        "start again with workflow.continue_as_new(…), or return before the call",
        (
            "When a workflow calls a workflow, it starts a child run and waits for it. A workflow that calls itself "
            "unconditionally starts children until the disk is full. workflow.continue_as_new ends the run and starts the next "
            "one with new arguments. To call the code directly, move it into a function that is not a workflow."
        ),
        "@workflow.defn\ndef watch(account):\n    look_at(account)\n    workflow.sleep(3600)\n    watch(account)",
        "@workflow.defn\ndef watch(account):\n    look_at(account)\n    workflow.sleep(3600)\n"
        "    workflow.continue_as_new(account)",
    ),
)

RULES: dict[str, Rule] = {rule.code: rule for rule in _ALL}
"""All rules by code."""


@dataclass(frozen=True, slots=True)
class SourceRange:
    """A range in a file. Lines and columns count from 1; the file name is relative to the base directory."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(frozen=True, slots=True)
class CallStep:
    """A step on the call path from a workflow to a finding: the function, and the line that calls it."""

    function: str
    file: str
    line: int


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """A place in workflow code that is nondeterministic, or does not do what it appears to do."""

    code: str
    place: SourceRange
    message: str
    source: str = ""
    path: tuple[CallStep, ...] = ()

    @property
    def rule(self) -> Rule:
        """The rule that is broken."""
        return RULES[self.code]

    @property
    def workflow(self) -> str:
        """The workflow that contains the code, or calls it."""
        return self.path[0].function if self.path else ""


@dataclass(frozen=True, slots=True)
class CheckReport:
    """All findings of a check, ordered by file and line, and the number of checked files and workflows."""

    findings: tuple[CheckFinding, ...]
    files: int
    workflows: int
