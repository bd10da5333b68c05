"""Durability through the whole stack, client and worker on a file: processes killed with SIGKILL, disks and files that fail.

- `work`: workflows and activities that note what they do in a file of their own, outside Hourglass.
- `fork_server`: a process that forks workers, so that one costs milliseconds and can be killed by the hundred.
- `web`: a web server whose processes are forked after it has connected, and those who ask it while owners are killed.
- `campaign_workflows`, `clients`, `shim`, `campaign`, `checker`, `written`: random kills, and random faults of all kinds, by
  seed, under clients whose acknowledgements are all checked afterwards. `shim.c` is a disk and a clock that fail on command.
- `file_faults`: replaces, links and damages the files of running workers.
- `faults`: programs that meet a fault of the disk, the file or the clock, each in a process of its own.

The long runs: `make chaos`, or `python -m tests.chaos --only campaign-on-file campaign-on-server durability`.
"""
