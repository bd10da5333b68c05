"""Figures, side by side: `python -m benchmarks [--only PART … | --all] [--quick] [--against FOLDER] [--publish]`.

    replay      re-executing a history: Temporal's SDK (sandboxed and not), Core alone, Hourglass
    evaluator   our evaluator alone, translation from and to Core's messages included
    live        a worker's CPU per activity step against a real dev server
    memory      a worker's memory per idle run in its cache
    embedded    peers side by side: workflows of five steps, throughput, CPU, memory, disk
    latency     from start to result at fixed rates: p50, p99, p99.9
    growth      what a step costs as more run at a time, workflows get longer, closed ones pile up, processes are added
    floor       what a step costs layer by layer: a bare pipeline of the same threads and commits, and what comes on top
    processes   from start to result on one file, asked by the owner's process and by another
    cores       several processes that work on one file: steps per second, and the death of one
    sleeping    what workflows cost that are asleep: in memory, and on disk when a worker starts
    testing     tests on virtual time, with retries
    load        what much work does to other work, and what grows with what
    scale       one large run: thousands of fibers, signals and activities, and whether their cost stays the same

`--publish` keeps the figures (`benchmarks/results/VERSION.json`) and writes the tables and plots of docs/performance.md;
`--compare` shows two releases that were kept side by side. Without `--only` or `--all` the parts that take long (`floor`,
`cores`, `scale`) are left out. A subject that is not installed is said and left out.

Everything is measured in one go on one machine, rounds of the subjects interleaved, medians reported. Only
the ratios mean something elsewhere. `--against` takes a checkout of an earlier version and measures it in the same rounds,
in the parts `live`, `memory`, `embedded` and `testing`.
"""
