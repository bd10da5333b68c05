"""The interface of every engine: handles for workers, requests for clients. Data and protocols only.

handle       a worker's open connection to an engine, for one task queue
tuning       the number of concurrent tasks and polls of a worker
engine_status  the state of an engine, as far as a process knows it
service      `Request`, and the protocol of a connection
request_checks  validation of requests by the annotations of their fields
ids          new ids of runs and requests
workflows    requests about workflows, and their answers
activities   requests about standalone activities and activities that complete asynchronously
schedules    requests about schedules, and their answers
schedule_specs  the times, policies and state of a schedule, for authors, requests and engines
cron         cron strings in Temporal's dialect
spec_checks  a server's checks of a schedule's spec, and the canonical form of a spec
deployments  requests about worker versions, task queues, pollers, namespaces and search attributes
progress     requests about progress that activities publish, and its form in heartbeats to a server
limits       messages between a run and the keeper of a limit, and the rules of slots, turns and bursts
transport    options of a connection to a server: TLS, keep-alive, retries, proxy, compression
"""
