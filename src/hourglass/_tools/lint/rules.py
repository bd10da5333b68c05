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


_AGAIN = "Workflow code is executed again after a crash or a deploy, on the recorded results of what it asked for. "

_ALL = (
    Rule(
        BROKEN,
        "file cannot be read",
        "what cannot be parsed cannot be checked",
        "fix the file",
        "The file is not valid Python for the interpreter that runs the check, or cannot be read or decoded. The other files "
        "are checked all the same; calls into this one are not followed.",
    ),
    Rule(
        CLOCK,
        "reads a clock",
        "executed again, it sees another time",
        "use workflow.now() or workflow.time()",
        _AGAIN
        + "A clock has gone on by then: a branch is taken that was not taken before, a timer has another length, an "
        "activity gets another argument. workflow.now() is the time of the recorded step, the same on every execution.",
        "deadline = datetime.now() + timedelta(days=3)",
        "deadline = workflow.now() + timedelta(days=3)",
    ),
    Rule(
        RANDOM,
        "reads randomness",
        "executed again, it draws something else",
        "use workflow.random() or workflow.uuid4()",
        _AGAIN
        + "Random numbers and fresh UUIDs are others then. workflow.random() is a generator that is seeded by the run, "
        "workflow.uuid4() an id from it: the same on every execution, different for every run.",
        "order_id = str(uuid.uuid4())",
        "order_id = str(workflow.uuid4())",
    ),
    Rule(
        SLEEP,
        "blocks the thread",
        "it holds up every workflow of this worker, and a crash begins it again",
        "use workflow.sleep()",
        "time.sleep stops the thread that runs the workflows of this worker, is not recorded, and starts again from nothing "
        "after a crash. workflow.sleep is durable and costs nothing, for seconds or for months.",
        "time.sleep(60)",
        "workflow.sleep(60)",
    ),
    Rule(
        SET_ORDER,
        "uses the order of a set",
        "another process walks the same set in another order",
        "sort it: for each in sorted(…)",
        "The order of a set of strings depends on a secret that each Python process draws again, that of a set of objects on "
        "their addresses. A worker that takes over a run asks for the same things in another order, which does not fit the "
        "history. Sort, or keep what you have in a list or a dict, which remember the order of insertion. Membership tests, "
        "len, min, max, sum, any, all and sorted are fine.",
        "for name in {item.name for item in items}:\n    reserve(name)",
        "for name in sorted({item.name for item in items}):\n    reserve(name)",
    ),
    Rule(
        ENVIRONMENT,
        "reads the environment",
        "another machine, or the same after a deploy, answers something else",
        "pass it as an argument, or read it in an activity",
        _AGAIN
        + "That may happen on another machine, with other environment variables, another process id, another host name "
        "and other command line arguments.",
        'if os.environ.get("STRICT"):\n    verify(order)',
        "if order.strict:\n    verify(order)",
    ),
    Rule(
        FILES,
        "touches files",
        "executed again, or on another machine, the files are others",
        "do it in an activity",
        _AGAIN
        + "Files have changed by then, or are on another machine, and their names come in any order. An activity reads "
        "them once, and its result is recorded.",
        'rates = json.loads(Path("rates.json").read_text())',
        "rates = load_rates()  # an activity",
    ),
    Rule(
        NETWORK,
        "talks to the outside",
        "it is done again on every execution, and the answer is another",
        "do it in an activity",
        _AGAIN
        + "A request would be sent again each time, and its answer would differ. An activity sends it, is retried when it "
        "fails, and its result is recorded. The same goes for databases and other processes.",
        "price = httpx.get(url).json()",
        "price = fetch_price(url)  # an activity",
    ),
    Rule(
        THREADS,
        "starts threads or a loop",
        "threads continue when they like, not when the history says so",
        "use workflow.spawn() or workflow.map(), or do it in an activity",
        "Which thread is first is decided by the operating system, again each time. What runs in other threads is not part of "
        "the workflow: it cannot call activities or wait. workflow.spawn runs functions side by side in an order that is the "
        "same on every execution. asyncio's tasks are for `async def` code, which has an event loop of the workflow's own.",
        "with ThreadPoolExecutor() as pool:\n    results = list(pool.map(price, items))",
        "results = workflow.map(price, items, limit=10)",
    ),
    Rule(
        LOCKS,
        "uses what threads wait with",
        "it stops the thread that runs all workflows, or lets two of them in at once",
        "use workflow.Lock, Semaphore, Queue or Event",
        "Workflows of one worker share a thread. A threading.Lock that is held across a wait blocks them all, an RLock admits "
        "them all. workflow.Lock and its like wait durably and wake in the same order on every execution.",
        "with threading.Lock():\n    charge(order)",
        "with lock:  # made with workflow.Lock() in this workflow\n    charge(order)",
    ),
    Rule(
        GLOBALS,
        "depends on a global that changes",
        "other runs and other processes see another value",
        "keep it in a local variable or on self; pass it as an argument",
        "A module's variables are shared by all runs in a process, live as long as the process, and start again in the next. A "
        "workflow that reads what has changed, or changes what it reads, does something else when it is executed again. State "
        "of a run belongs into local variables or on self: it is rebuilt with the run. Constants are fine.",
        "counter += 1  # a global\nnotify(counter)",
        "self.counter += 1\nnotify(self.counter)",
    ),
    Rule(
        IMPORT_TIME,
        "reads what differs between processes",
        "each process computes it again when it imports the module",
        "compute it in the workflow from workflow.now() or workflow.random(), or pass it as an argument",
        "The variable is set when its module is imported, from a clock, from randomness or from the environment. A worker "
        "that is started later has another value, and executes open runs with it.",
        "STARTED = datetime.now()\n…\nage = workflow.now() - STARTED",
        "age = workflow.now() - workflow.info().start_time",
    ),
    Rule(
        IDENTITY,
        "depends on addresses or hash seeds",
        "id() and hash() are others in the next process",
        "use a key of your own, or hashlib",
        "id() is a memory address. hash() of a string, and of all that contains one, depends on a secret that each Python "
        "process draws again. For buckets and keys use zlib.crc32 or hashlib, which give the same everywhere.",
        "shard = hash(order.id) % 8",
        "shard = zlib.crc32(order.id.encode()) % 8",
    ),
    Rule(
        CACHED,
        "caches what must be asked for",
        "a run that finds the value in the cache does not ask, and its history does",
        "remove the cache: results are recorded in the run's history",
        "functools.cache keeps results for the whole process. The first run calls the activity, the next one does not; executed "
        "again in another process it does. Within a run, keep the result in a variable.",
        "@functools.cache\ndef rate(currency):\n    return fetch_rate(currency)  # an activity",
        "def rate(currency):\n    return fetch_rate(currency)",
    ),
    Rule(
        REPLAY_BRANCH,
        "asks depending on replay or log level",
        "executed again, it goes the other way",
        "ask in both cases; for log lines use workflow.logger, which is quiet during replay",
        "workflow.is_replaying() is by definition different the second time, and a log level is a setting of a process. What a "
        "workflow asks for must depend on neither. Skipping a log line or a metric is fine.",
        "if not workflow.is_replaying():\n    notify(order)",
        "notify(order)",
    ),
    Rule(
        CHANGED_MEANWHILE,
        "waits while it walks what others change",
        "while it waits, a handler or another task changes the collection",
        "walk a copy: for each in list(…)",
        "While a loop waits in its body, handlers of signals and updates run, and spawned functions. If they change the dict or "
        "list that is being walked, Python raises or skips elements, and the run is parked.",
        "for name, item in self.items.items():\n    ship(item)",
        "for name, item in list(self.items.items()):\n    ship(item)",
    ),
    Rule(
        NEVER_CAUGHT,
        "catches what never arrives",
        "it was raised elsewhere, and does not come here itself",
        "catch ActivityError (of a child ChildWorkflowError) and look at error.cause, whose type is the name of the class",
        "An activity or a child workflow runs in another place, perhaps in another language. What it raises comes to the "
        "workflow as the cause of an ActivityError or a ChildWorkflowError, once its retries are over: except Declined lets "
        "that pass, and the run fails. The cause is an ApplicationError whose type is the name of the class that was raised; "
        "that of a time limit is a TimedOutError. Name the type in non_retryable_error_types, or raise ApplicationError(…, "
        "non_retryable=True), where trying again does not help.",
        "try:\n    charge(order)  # an activity\nexcept Declined:\n    refuse(order)",
        "try:\n    charge(order)\nexcept ActivityError as error:\n"
        '    if not isinstance(error.cause, ApplicationError) or error.cause.type != "Declined":\n        raise\n'
        "    refuse(order)",
    ),
    Rule(
        ENDLESS,
        "calls itself without end",
        "each run waits for a child that starts the next, and none ever ends",
        "begin again with workflow.continue_as_new(…), or return before it",
        "In a workflow, a call of a workflow starts a child: a run of its own, which the caller waits for. One that calls itself "
        "whatever happens starts children until the disk is full. workflow.continue_as_new ends the run and begins the next "
        "one with new arguments. To call the function itself, put what it does into one that is no workflow.",
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
