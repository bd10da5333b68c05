"""Durability through the whole stack, client and worker on a file: processes killed with SIGKILL, disks and files that fail.

- `work`: workflows and activities that note what they do in a file of their own, outside Hourglass.
- `nursery`: a process that forks workers, so that one costs milliseconds and can be killed by the hundred.
- `storm`: clients that start, signal and wait while the workers are killed; `audit`: what must hold afterwards.
- `web`: a web server whose processes are forked after it has connected, and those who ask it while owners are killed.
- `faults`: programs that meet a fault of the disk, the file or the clock, each in a process of its own.

The long run of the storm: `python -m tests.chaos --only durability`.
"""
