"""Comparative benchmarks: `python -m benchmarks [--only PART … | --all] [--quick] [--against FOLDER] [--publish]`.

    replay      replay of a history: Temporal's SDK (sandboxed and unsandboxed), Core alone, Hourglass
    evaluator   the evaluator alone, including the conversion of Core's messages
    live        a worker's CPU per activity step against a real dev server
    memory      a worker's memory per idle cached run
    embedded    all peers on workflows of five steps: throughput, CPU, memory, disk
    latency     latency from start to result at fixed start rates: p50, p99, p99.9
    growth      cost per step with more concurrent workflows, longer workflows, more closed workflows, more processes
    floor       cost per step by layer, from a bare pipeline of threads and commits up to Hourglass
    processes   latency from start to result on one file, from the owner's process and from another one
    cores       several worker processes on one file: cost per step, and recovery after a kill
    sleeping    cost of sleeping workflows: memory in a worker, and startup time with many on disk
    testing     duration of tests on virtual time, with retries
    load        latency of new work under heavy load, and resource growth
    scale       one large run with thousands of fibers, signals or activities: whether the cost per event stays constant

`--publish` saves the results (`benchmarks/results/VERSION.json`) and updates the tables and plots of docs/performance.md;
`--compare` compares two saved releases. Without `--only` or `--all` the slow parts (`floor`, `cores`, `scale`, `load`) are
skipped. A subject that is not installed is reported and skipped.

All subjects are measured on one machine in interleaved rounds, and medians are reported. Only the ratios carry over to other
machines. `--against` takes a checkout of an earlier version and measures it in the same rounds, in the parts `live`, `memory`,
`embedded`, `latency`, `testing` and `load`.
"""
